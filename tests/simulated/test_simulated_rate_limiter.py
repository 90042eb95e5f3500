"""Rate limits of simulated replicas: the gateway's parsers return the wait of their 429s."""

import json
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.simulated.profile import parse_profile
from gateway.simulated.rate_limiter import LIMIT_HEADERS, RateLimiter, exhausted, rate_limited
from gateway.simulated.replica import RawRequest, SimulatedReplica
from gateway.simulated.script import Script
from providers.openai.chat import OpenAIChat
from ttft_gateway.apis.base import Api, FrameKind
from ttft_gateway.apis.retry_after import epoch_s, wait_s

NOW_S = 1_800_000_000.0


@pytest.mark.parametrize("provider", LIMIT_HEADERS)
def test_wait_of_a_429_is_read_by_our_parser(provider: str) -> None:
    """The gateway parses the wait of each provider's 429."""
    script = rate_limited(provider, 7.0, NOW_S)
    frame = script.steps[0].frame
    assert frame.kind is FrameKind.ERROR
    assert frame.error is not None
    read = OpenAIChat().error(script.status, script.headers, frame.raw)
    assert (read.status, read.retry_after_s) == (429, frame.error.retry_after_s)
    assert read.retry_after_s in (7.0, None)


@pytest.mark.parametrize(
    ("provider", "name"),
    [
        ("openai", b"x-ratelimit-reset-requests"),
        ("azure", b"x-ratelimit-reset-tokens"),
        ("anthropic", b"anthropic-ratelimit-input-tokens-reset"),
        ("groq", b"x-ratelimit-reset-tokens"),
        ("mistral", b"ratelimitbysize-reset"),
        ("together", b"x-tokenlimit-reset"),
        ("openrouter", b"x-ratelimit-reset"),
        ("cerebras", b"x-ratelimit-reset-requests"),
    ],
)
def test_reset_is_stated_in_the_form_of_the_provider(provider: str, name: bytes) -> None:
    """Durations, times and milliseconds give the same wait."""
    headers = dict(LIMIT_HEADERS[provider](exhausted(62.0), NOW_S))
    assert wait_s(headers[name].decode(), NOW_S) == pytest.approx(62.0)


@pytest.mark.parametrize("provider", ["gemini", "vllm"])
def test_some_state_no_limits(provider: str) -> None:
    """Gemini and self-hosted engines send no rate-limit headers."""
    assert LIMIT_HEADERS[provider](exhausted(62.0), NOW_S) == ()


def test_openai_writes_go_durations() -> None:
    """Short waits are milliseconds, long ones minutes and seconds."""
    resets = [
        dict(LIMIT_HEADERS["openai"](exhausted(s), NOW_S))[b"x-ratelimit-reset-tokens"] for s in (0.012, 1.0, 360.0)
    ]
    assert resets == [b"12ms", b"1s", b"6m0s"]


def test_anthropic_writes_times() -> None:
    """Anthropic's resets are RFC 3339."""
    reset = dict(LIMIT_HEADERS["anthropic"](exhausted(60.0), NOW_S))[b"anthropic-ratelimit-requests-reset"].decode()
    assert reset.endswith("Z")
    assert epoch_s(reset) == NOW_S + 60.0


def test_gemini_states_the_wait_in_the_body() -> None:
    """Gemini's wait is `retryDelay` in the error's details."""
    body = json.loads(rate_limited("gemini", 52.0, NOW_S).steps[0].frame.raw)
    assert body[0]["error"]["details"][0]["retryDelay"] == "52s"


def test_openai_and_azure_state_milliseconds() -> None:
    """Both send a Retry-After in milliseconds; OpenAI also sends x-should-retry."""
    for provider, extra in (("openai", (b"x-should-retry", b"true")), ("azure", (b"x-ms-retry-after-ms", b"300"))):
        headers = rate_limited(provider, 0.3, NOW_S).headers
        assert {(b"retry-after", b"1"), (b"retry-after-ms", b"300"), extra} <= set(headers)


def script_at(replica: SimulatedReplica, at_s: float, max_tokens: int = 10) -> Script:
    """Return the script of one small request."""
    body = msgspec.json.encode(
        {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": max_tokens, "stream": True}
    )
    return replica.script(RawRequest(Api.CHAT, body), (), at_s, NOW_S + at_s)


def openai(**limits: int) -> SimulatedReplica:
    """A replica of that provider with these limits."""
    return SimulatedReplica(parse_profile({"provider": "openai", **limits}), random.Random(1))


def test_headers_count_down() -> None:
    """Each response states the rest of the limits and the time until they are full."""
    replica = openai(requests_per_min=60, tokens_per_min=6000)
    seen = [dict(script_at(replica, at_s).headers) for at_s in (0.0, 0.0, 1.5)]
    assert [headers[b"x-ratelimit-limit-requests"] for headers in seen] == [b"60"] * 3
    assert [headers[b"x-ratelimit-remaining-requests"] for headers in seen] == [b"59", b"58", b"58"]
    assert [headers[b"x-ratelimit-reset-requests"] for headers in seen] == [b"1s", b"2s", b"1.5s"]
    left = [int(headers[b"x-ratelimit-remaining-tokens"]) for headers in seen]
    cost = 6000 - left[0]
    assert cost > 10  # the prompt's and the answer's
    assert left == [6000 - cost, 6000 - 2 * cost, min(6000, 6000 - 2 * cost + 150) - cost]


@pytest.mark.parametrize("limits", [{"requests_per_min": 2}, {"tokens_per_min": 100}], ids=["requests", "tokens"])
def test_beyond_its_limits_it_answers_429(limits: dict[str, int]) -> None:
    """A request above the limits gets a 429; a request is accepted after its Retry-After, and not before."""
    replica, answers = openai(**limits), 0
    while (script := script_at(replica, 0.0)).status == 200:
        answers += 1
    assert answers >= 2
    assert script.status == 429
    wait = dict(script.headers)[b"retry-after-ms"]
    retry_s = int(wait) / 1000
    assert 0 < retry_s <= 30
    assert script_at(replica, retry_s - 0.01).status == 429
    assert script_at(replica, retry_s + 0.001).status == 200
    assert script_at(replica, retry_s + 0.001).status == 429


def test_a_request_larger_than_the_limit_is_answered_once_a_minute() -> None:
    """A request above the limit costs the whole limit."""
    replica = openai(tokens_per_min=20)
    statuses = [script_at(replica, at_s, max_tokens=1000).status for at_s in (0.0, 59.0, 60.0)]
    assert statuses == [200, 429, 200]


def test_without_limits_nearly_all_is_left() -> None:
    """A replica without limits states one and accepts every request."""
    replica = openai()
    remaining = [dict(script_at(replica, 0.0).headers)[b"x-ratelimit-remaining-requests"] for _ in range(2000)]
    assert set(remaining) == {b"900"}


def test_new_limits_are_full() -> None:
    """A changed limit starts full; other changes of the profile do not reset it."""
    replica = openai(requests_per_min=2)
    statuses = [script_at(replica, 0.0).status for _ in range(3)]
    replica.profile = parse_profile({"gap": "1ms"}, replica.profile)
    statuses.append(script_at(replica, 0.0).status)
    replica.profile = parse_profile({"requests_per_min": 3}, replica.profile)
    statuses.append(script_at(replica, 0.0).status)
    assert statuses == [200, 200, 429, 429, 200]


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(0, 300)), max_size=60))
def test_no_stretch_of_time_has_more_than_its_share(requests: list[tuple[float, int]]) -> None:
    """In any period at most a full limit and its refill are taken."""
    limiter, now_s, taken = RateLimiter(10, 500), 0.0, list[tuple[float, int]]()
    for pause_s, tokens in requests:
        now_s += pause_s
        if not limiter.take(tokens, now_s):
            taken.append((now_s, min(tokens, 500)))
    for at, (since_s, _) in enumerate(taken):
        for to in range(at, len(taken)):
            share = 1 + (taken[to][0] - since_s) / 60
            assert to - at + 1 <= 10 * share + 0.01
            assert sum(tokens for _, tokens in taken[at : to + 1]) <= 500 * share + 0.01
