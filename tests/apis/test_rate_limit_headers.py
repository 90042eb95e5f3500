"""Real sets of rate-limit headers, one for each provider, and what they state."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.simulated.rate_limiter import LIMIT_HEADERS, exhausted
from ttft_gateway.apis.base import Headers, RateLimit, Resource
from ttft_gateway.apis.catalog import CATALOG
from ttft_gateway.apis.rate_limit_headers import RateLimitFormat

REQUESTS, TOKENS = Resource.REQUESTS, Resource.TOKENS
PROMPT, ANSWER = Resource.PROMPT_TOKENS, Resource.ANSWER_TOKENS
MINUTE, DAY, MONTH = 60.0, 86_400.0, 30 * 86_400.0

HEADER_SETS = {
    "openai": """
        date: Sun, 20 Jul 2025 08:26:40 GMT
        x-ratelimit-limit-requests: 10000
        x-ratelimit-limit-tokens: 2000000
        x-ratelimit-remaining-requests: 9999
        x-ratelimit-remaining-tokens: 1999600
        x-ratelimit-reset-requests: 6ms
        x-ratelimit-reset-tokens: 1m0.012s
        x-request-id: req_1""",
    "azure": """
        x-ratelimit-remaining-requests: 19
        x-ratelimit-remaining-tokens: 19913""",
    "azure, unknown": """
        x-ratelimit-limit-requests: 120
        x-ratelimit-remaining-requests: -1
        x-ratelimit-remaining-tokens: 0
        x-ratelimit-reset-tokens: 60""",
    "anthropic": """
        date: Sun, 20 Jul 2025 08:26:40 GMT
        anthropic-ratelimit-requests-limit: 4000
        anthropic-ratelimit-requests-remaining: 3999
        anthropic-ratelimit-requests-reset: 2025-07-20T08:26:41Z
        anthropic-ratelimit-input-tokens-limit: 2000000
        anthropic-ratelimit-input-tokens-remaining: 1980000
        anthropic-ratelimit-input-tokens-reset: 2025-07-20T08:26:41Z
        anthropic-ratelimit-output-tokens-limit: 400000
        anthropic-ratelimit-output-tokens-remaining: 399000
        anthropic-ratelimit-output-tokens-reset: 2025-07-20T08:26:40Z
        anthropic-ratelimit-tokens-limit: 2400000
        anthropic-ratelimit-tokens-remaining: 2379000
        anthropic-ratelimit-tokens-reset: 2025-07-20T08:26:41Z""",
    "groq": """
        x-ratelimit-limit-requests: 14400
        x-ratelimit-limit-tokens: 18000
        x-ratelimit-remaining-requests: 14370
        x-ratelimit-remaining-tokens: 17997
        x-ratelimit-reset-requests: 2m59.56s
        x-ratelimit-reset-tokens: 7.66s""",
    "mistral": """
        ratelimitbysize-limit: 500000
        ratelimitbysize-query-cost: 32007
        ratelimitbysize-reset: 40
        x-ratelimitbysize-limit-minute: 500000
        x-ratelimitbysize-remaining-minute: 467993
        x-ratelimitbysize-limit-month: 1000000000
        x-ratelimitbysize-remaining-month: 999000000""",
    "mistral, newer": """
        x-ratelimit-limit-tokens-minute: 5000000
        x-ratelimit-remaining-tokens-minute: 4999911
        x-ratelimit-tokens-query-cost: 52
        x-ratelimit-limit-req-minute: 720
        x-ratelimit-remaining-req-minute: 717""",
    "together": """
        x-ratelimit-limit: 10
        x-ratelimit-remaining: 9
        x-ratelimit-reset: 1
        x-tokenlimit-limit: 3000
        x-tokenlimit-remaining: 2900""",
    "fireworks": """
        x-ratelimit-limit-requests: 600
        x-ratelimit-remaining-requests: 598
        x-ratelimit-limit-tokens-prompt: 3600000
        x-ratelimit-remaining-tokens-prompt: 3599000
        x-ratelimit-limit-tokens-generated: 36000
        x-ratelimit-remaining-tokens-generated: 35000
        x-ratelimit-over-limit: no""",
    "openrouter": """
        date: Sun, 20 Jul 2025 08:26:40 GMT
        x-ratelimit-limit: 50
        x-ratelimit-remaining: 0
        x-ratelimit-reset: 1753056000000""",
    "cerebras": """
        x-ratelimit-limit-requests-day: 14400
        x-ratelimit-limit-tokens-minute: 60000
        x-ratelimit-remaining-requests-day: 14399
        x-ratelimit-remaining-tokens-minute: 59000
        x-ratelimit-reset-requests-day: 33011.382867
        x-ratelimit-reset-tokens-minute: 11.382867""",
    "xai": """
        x-ratelimit-limit-requests: 480
        x-ratelimit-limit-tokens: 2000000
        x-ratelimit-remaining-requests: 479
        x-ratelimit-remaining-tokens: 1999000""",
}

EXPECTED_LIMITS = {
    "openai": [
        RateLimit(REQUESTS, MINUTE, 10_000.0, 9_999.0, 0.006),
        RateLimit(TOKENS, MINUTE, 2_000_000.0, 1_999_600.0, 60.012),
    ],
    "azure": [RateLimit(REQUESTS, 10.0, None, 19.0), RateLimit(TOKENS, MINUTE, None, 19_913.0)],
    "azure, unknown": [RateLimit(REQUESTS, 10.0, 120.0), RateLimit(TOKENS, MINUTE, None, None, 60.0)],
    "anthropic": [
        RateLimit(REQUESTS, MINUTE, 4_000.0, 3_999.0, 1.0),
        RateLimit(PROMPT, MINUTE, 2_000_000.0, 1_980_000.0, 1.0),
        RateLimit(ANSWER, MINUTE, 400_000.0, 399_000.0, 0.0),
        RateLimit(TOKENS, MINUTE, 2_400_000.0, 2_379_000.0, 1.0),
    ],
    "groq": [
        RateLimit(REQUESTS, DAY, 14_400.0, 14_370.0, 179.56),
        RateLimit(TOKENS, MINUTE, 18_000.0, 17_997.0, 7.66),
    ],
    "mistral": [
        RateLimit(TOKENS, MINUTE, 500_000.0, 467_993.0, 40.0),
        RateLimit(TOKENS, MONTH, 1_000_000_000.0, 999_000_000.0),
    ],
    "mistral, newer": [
        RateLimit(TOKENS, MINUTE, 5_000_000.0, 4_999_911.0),
        RateLimit(REQUESTS, MINUTE, 720.0, 717.0),
    ],
    "together": [RateLimit(REQUESTS, 1.0, 10.0, 9.0, 1.0), RateLimit(TOKENS, 1.0, 3_000.0, 2_900.0)],
    "fireworks": [
        RateLimit(REQUESTS, MINUTE, 600.0, 598.0),
        RateLimit(PROMPT, MINUTE, 3_600_000.0, 3_599_000.0),
        RateLimit(ANSWER, MINUTE, 36_000.0, 35_000.0),
    ],
    "openrouter": [RateLimit(REQUESTS, DAY, 50.0, 0.0, 56_000.0)],
    "cerebras": [
        RateLimit(REQUESTS, DAY, 14_400.0, 14_399.0, 33_011.382867),
        RateLimit(TOKENS, MINUTE, 60_000.0, 59_000.0, 11.382867),
    ],
    "xai": [RateLimit(REQUESTS, MINUTE, 480.0, 479.0), RateLimit(TOKENS, MINUTE, 2_000_000.0, 1_999_000.0)],
}


def headers(text: str) -> Headers:
    """Headers as they come off the wire."""
    lines = (line.strip().encode() for line in text.strip().splitlines())
    return [(name, value) for name, _, value in (line.partition(b": ") for line in lines)]


def form(provider: str) -> RateLimitFormat:
    """The format of a provider's headers."""
    kind = CATALOG.get(provider.split(",", maxsplit=1)[0])
    return (kind.limits if kind is not None else None) or RateLimitFormat()


@pytest.mark.parametrize("provider", HEADER_SETS)
def test_each_provider_is_understood(provider: str) -> None:
    """A provider's headers are read as limits, each with its window."""
    assert provider in EXPECTED_LIMITS, f'add the limits of "{provider}" to EXPECTED_LIMITS above'
    assert list(form(provider).read(headers(HEADER_SETS[provider]))) == EXPECTED_LIMITS[provider]


@pytest.mark.parametrize("provider", [name for name in LIMIT_HEADERS if name not in ("gemini", "vllm")])
def test_the_simulated_forms_are_understood(provider: str) -> None:
    """A simulated replica's headers in a provider's form are read as the limits they were made from."""
    stated = form(provider).read(
        (*LIMIT_HEADERS[provider](exhausted(20.0), 1_753_000_000.0), *headers(HEADER_SETS["openai"])[:1])
    )
    assert stated
    assert all(limit.remaining == (None if provider == "azure" else 0.0) for limit in stated)
    resets_s = {limit.reset_s for limit in stated if limit.reset_s is not None}
    assert resets_s <= {20.0}


def test_headers_without_limits_state_nothing() -> None:
    """A response without limit headers has no limits."""
    assert RateLimitFormat().read(headers("content-type: text/event-stream\n x-request-id: 1")) == ()


@pytest.mark.parametrize("text", ["", "-1", "-100", "nan", "inf", "1e9", "100, 100;w=60", "many", "9" * 40, "\xff"])
def test_nonsense_is_unknown(text: str) -> None:
    """A value that is no number of requests is None, never 0 and never an error."""
    for name in ("limit", "remaining", "reset"):
        (limit,) = RateLimitFormat().read([(f"x-ratelimit-{name}-requests".encode(), text.encode("latin-1"))])
        assert (limit.limit, limit.remaining, limit.reset_s) == (None, None, None)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([name for name, _ in headers("\n".join(HEADER_SETS.values())) if name]),
            st.binary(max_size=30),
        )
    )
)
def test_no_value_raises(pairs: list[tuple[bytes, bytes]]) -> None:
    """Any headers are read as limits with valid numbers or none."""
    for limit in RateLimitFormat(requests_window_s=None).read(pairs):
        assert limit.window_s > 0
        for value in (limit.limit, limit.remaining, limit.reset_s):
            assert value is None or 0 <= value < 1e16
