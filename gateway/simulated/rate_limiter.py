"""Rate limits of simulated replicas, and their headers and 429s in the forms of the providers (docs/providers.md).

Pure. Units: seconds of the caller's clock; wall time since 1970; tokens.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from gateway.simulated.script import ErrorFields, Script, error_script
from ttft_gateway.apis.base import Headers

WINDOW_S = 60.0
_REQUESTS, _TOKENS = 1000, 1_000_000  # limits per minute in the headers of a replica without limits
_REMAINING = 0.9  # share of these limits that is stated as remaining
_RESET_S = 1.0  # stated reset of these limits
_ROUNDING = 1e-6  # a request after exactly the stated wait is accepted
_SILENT = ("vllm", "mistral", "together", "cerebras")  # no Retry-After with a 429
_MILLISECONDS = ("openai", "azure")


class AdvertisedLimit(NamedTuple):
    """One limit in the headers of a response.

    Attributes:
        limit: requests or tokens per minute.
        remaining: requests or tokens that remain.
        reset_s: seconds until all of the limit remains.
    """

    limit: int
    remaining: int
    reset_s: float


class HeaderLimits(NamedTuple):
    """The two limits in the headers of a response."""

    requests: AdvertisedLimit
    tokens: AdvertisedLimit


def exhausted(reset_s: float) -> HeaderLimits:
    """Return the limits stated by a replica without limits when its 429 fault is active."""
    return HeaderLimits(AdvertisedLimit(_REQUESTS, 0, reset_s), AdvertisedLimit(_TOKENS, 0, reset_s))


class RateLimiter:
    """Two token buckets, each full at first and refilled evenly over a minute.

    Args:
        requests_per_min: limit of requests; 0: none, so that headers state 90% of 1,000 as remaining.
        tokens_per_min: limit of prompt and completion tokens; 0: none, with 90% of 1,000,000 as remaining.
    """

    def __init__(self, requests_per_min: int, tokens_per_min: int) -> None:
        self._most = (requests_per_min, tokens_per_min)
        self._left = [float(most) for most in self._most]
        self._now_s: float | None = None

    def take(self, tokens: int, now_s: float) -> float:
        """Take a request and its tokens.

        Args:
            tokens: prompt and completion tokens; a number above the limit costs the whole limit.
            now_s: time, not before the time of the previous call.

        Returns:
            0 if the request is accepted; else seconds to wait, and nothing is taken.
        """
        passed_s = 0.0 if self._now_s is None else now_s - self._now_s
        self._now_s = now_s
        wait_s = 0.0
        costs = [min(cost, most) for cost, most in zip((1, tokens), self._most, strict=True)]
        for at, most in enumerate(self._most):
            self._left[at] = min(most, self._left[at] + passed_s * most / WINDOW_S)
            if costs[at] > self._left[at] + _ROUNDING:
                wait_s = max(wait_s, (costs[at] - self._left[at]) * WINDOW_S / most)
        if not wait_s:
            self._left = [left - cost for left, cost in zip(self._left, costs, strict=True)]
        return wait_s

    def status(self) -> HeaderLimits:
        """Return both limits as of the last request."""
        advertised = []
        for most, remaining, unlimited in zip(self._most, self._left, (_REQUESTS, _TOKENS), strict=True):
            known = AdvertisedLimit(most, int(remaining), (most - remaining) * WINDOW_S / most) if most else None
            advertised.append(known or AdvertisedLimit(unlimited, int(_REMAINING * unlimited), _RESET_S))
        return HeaderLimits(*advertised)


def rate_limited(provider: str, retry_s: float, wall_s: float, limits: HeaderLimits | None = None) -> Script:
    """Return the script of a 429 in a provider's form.

    Args:
        provider: a key of LIMIT_HEADERS.
        retry_s: seconds to wait.
        wall_s: wall time now.
        limits: limits in its headers; None: none remain until `retry_s` has passed.
    """
    error = ErrorFields(429, "requests", "rate_limit_exceeded", f"Rate limit reached. Try again in {retry_s:g}s.")
    headers = (*LIMIT_HEADERS[provider](limits or exhausted(retry_s), wall_s), *_retry_after(provider, retry_s))
    body = b""
    if provider == "gemini":
        details = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{retry_s:g}s"}]
        details_error = {"code": 429, "message": error.message, "status": "RESOURCE_EXHAUSTED", "details": details}
        body = msgspec.json.encode([{"error": details_error}])
    return error_script(error, headers, None if provider in _SILENT else retry_s, body)


def _retry_after(provider: str, retry_s: float) -> Headers:
    """Return `Retry-After` and the provider's variants of it."""
    if provider in _SILENT or provider == "gemini":
        return ()
    whole = (b"retry-after", b"%d" % max(1, round(retry_s)))
    if provider not in _MILLISECONDS:
        return (whole,)
    milliseconds = b"%d" % round(retry_s * 1000)
    extra = (b"x-should-retry", b"true") if provider == "openai" else (b"x-ms-retry-after-ms", milliseconds)
    return (whole, (b"retry-after-ms", milliseconds), extra)


def _x_ratelimit(limits: HeaderLimits, reset: Callable[[float], str], *, limit: bool = True) -> Headers:
    """Return headers named `x-ratelimit-{limit,remaining,reset}-{requests,tokens}`."""
    pairs = []
    for what, window in (("requests", limits.requests), ("tokens", limits.tokens)):
        first = [("limit", str(window.limit))] if limit else []
        for name, value in (*first, ("remaining", str(window.remaining)), ("reset", reset(window.reset_s))):
            pairs.append((f"x-ratelimit-{name}-{what}".encode(), value.encode()))
    return tuple(pairs)


def _whole(seconds: float) -> str:
    return str(max(1, round(seconds)))


def _go(seconds: float) -> str:
    """Format a Go duration: 12ms, 1s, 6m0s."""
    if seconds < 1:
        return f"{seconds * 1000:g}ms"
    minutes, rest = divmod(seconds, 60)
    return f"{int(minutes)}m{rest:g}s" if minutes else f"{rest:g}s"


def _anthropic(limits: HeaderLimits, wall_s: float) -> Headers:
    pairs = []
    tokens = limits.tokens
    for what, part, share in (
        ("requests", limits.requests, 1.0),
        ("tokens", tokens, 1.0),
        ("input-tokens", tokens, 0.8),
        ("output-tokens", tokens, 0.2),
    ):
        at = datetime.fromtimestamp(wall_s + part.reset_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for name, value in (
            ("limit", int(share * part.limit)),
            ("remaining", int(share * part.remaining)),
            ("reset", at),
        ):
            pairs.append((f"anthropic-ratelimit-{what}-{name}".encode(), str(value).encode()))
    return tuple(pairs)


def _mistral(limits: HeaderLimits, _wall_s: float) -> Headers:
    tokens = limits.tokens
    return (
        (b"x-ratelimitbysize-limit-minute", b"%d" % tokens.limit),
        (b"x-ratelimitbysize-remaining-minute", b"%d" % tokens.remaining),
        (b"ratelimitbysize-reset", _whole(tokens.reset_s).encode()),
    )


def _together(limits: HeaderLimits, _wall_s: float) -> Headers:
    pairs = []
    for name, window in ((b"x-ratelimit-", limits.requests), (b"x-tokenlimit-", limits.tokens)):
        pairs.append((name + b"limit", b"%d" % window.limit))
        pairs.append((name + b"remaining", b"%d" % window.remaining))
        pairs.append((name + b"reset", _whole(window.reset_s).encode()))
    return tuple(pairs)


def _fireworks(limits: HeaderLimits, _wall_s: float) -> Headers:
    pairs = []
    tokens = limits.tokens
    for what, window in ((b"requests", limits.requests), (b"tokens-prompt", tokens), (b"tokens-generated", tokens)):
        pairs.append((b"x-ratelimit-limit-" + what, b"%d" % window.limit))
        pairs.append((b"x-ratelimit-remaining-" + what, b"%d" % window.remaining))
    return tuple(pairs)


def _openrouter(limits: HeaderLimits, wall_s: float) -> Headers:
    requests = limits.requests
    if requests.remaining and limits.tokens.remaining:  # sent only with a 429
        return ()
    reset = b"%d" % round((wall_s + max(requests.reset_s, limits.tokens.reset_s)) * 1000)
    return (
        (b"x-ratelimit-limit", b"%d" % requests.limit),
        (b"x-ratelimit-remaining", b"0"),
        (b"x-ratelimit-reset", reset),
    )


LIMIT_HEADERS: Mapping[str, Callable[[HeaderLimits, float], Headers]] = {
    "openai": lambda limits, _: _x_ratelimit(limits, _go),
    "azure": lambda limits, _: _x_ratelimit(limits, _whole, limit=False),
    "anthropic": _anthropic,
    "groq": lambda limits, _: _x_ratelimit(limits, _go),
    "mistral": _mistral,
    "together": _together,
    "fireworks": _fireworks,
    "openrouter": _openrouter,
    "gemini": lambda _limits, _wall_s: (),
    "cerebras": lambda limits, _: _x_ratelimit(limits, lambda reset_s: f"{reset_s:g}"),
    "vllm": lambda _limits, _wall_s: (),
}
"""Provider -> function of its limits and the wall time that returns its rate-limit headers."""
