"""Rate-limit answers of simulated replicas: the gateway's own parsers read the wait that was meant."""

import json

import pytest

from providers.base import FrameKind
from providers.openai.chat import OpenAIChat
from providers.ratelimit import epoch_s, wait_s
from providers.simulated.limits import LIMIT_HEADERS, rate_limited

NOW_S = 1_800_000_000.0


@pytest.mark.parametrize("provider", LIMIT_HEADERS)
def test_wait_of_a_429_is_read_by_our_parser(provider: str) -> None:
    """Whoever states a wait with a 429 states it so that the wire protocol finds it."""
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
    """Durations, times and milliseconds all mean the same wait."""
    headers = dict(LIMIT_HEADERS[provider](0, 62.0, NOW_S))
    assert wait_s(headers[name].decode(), NOW_S) == pytest.approx(62.0)


@pytest.mark.parametrize("provider", ["gemini", "vllm"])
def test_some_state_no_limits(provider: str) -> None:
    """Gemini and engines of one's own send no rate-limit headers."""
    assert LIMIT_HEADERS[provider](0, 62.0, NOW_S) == ()


def test_openai_writes_go_durations() -> None:
    """Short waits are milliseconds, long ones minutes and seconds."""
    resets = [dict(LIMIT_HEADERS["openai"](1, s, NOW_S))[b"x-ratelimit-reset-tokens"] for s in (0.012, 1.0, 360.0)]
    assert resets == [b"12ms", b"1s", b"6m0s"]


def test_anthropic_writes_times() -> None:
    """Anthropic's resets are RFC 3339."""
    reset = dict(LIMIT_HEADERS["anthropic"](1, 60.0, NOW_S))[b"anthropic-ratelimit-requests-reset"].decode()
    assert reset.endswith("Z")
    assert epoch_s(reset) == NOW_S + 60.0


def test_gemini_says_it_in_the_body() -> None:
    """Gemini's wait is `retryDelay` in the error's details."""
    body = json.loads(rate_limited("gemini", 52.0, NOW_S).steps[0].frame.raw)
    assert body[0]["error"]["details"][0]["retryDelay"] == "52s"


def test_openai_and_azure_state_milliseconds() -> None:
    """The two have a Retry-After in milliseconds, OpenAI says that one should retry."""
    for provider, extra in (("openai", (b"x-should-retry", b"true")), ("azure", (b"x-ms-retry-after-ms", b"300"))):
        headers = rate_limited(provider, 0.3, NOW_S).headers
        assert {(b"retry-after", b"1"), (b"retry-after-ms", b"300"), extra} <= set(headers)
