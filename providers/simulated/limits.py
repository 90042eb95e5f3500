"""Rate-limit headers and 429 answers of simulated replicas, in the forms of the providers (providers.md).

States limits, does not enforce them: how much is left is said by the caller. Units: seconds; wall time since 1970.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import msgspec

from providers.base import Headers
from providers.simulated.script import Problem, Script, refuse

_LIMIT = 1000  # requests a minute, and thousands of tokens, that every simulated limit states
_SILENT = ("vllm", "mistral", "together", "cerebras")  # no Retry-After with a 429
_MILLISECONDS = ("openai", "azure")


def rate_limited(provider: str, retry_s: float, wall_s: float) -> Script:
    """A 429 in a provider's own form.

    Args:
        provider: a key of LIMIT_HEADERS.
        retry_s: until the limit is lifted.
        wall_s: wall time now.
    """
    problem = Problem(429, "requests", "rate_limit_exceeded", f"Rate limit reached. Try again in {retry_s:g}s.")
    headers = (*LIMIT_HEADERS[provider](0, retry_s, wall_s), *_retry_after(provider, retry_s))
    body = b""
    if provider == "gemini":
        details = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{retry_s:g}s"}]
        error = {"code": 429, "message": problem.message, "status": "RESOURCE_EXHAUSTED", "details": details}
        body = msgspec.json.encode([{"error": error}])
    return refuse(problem, headers, None if provider in _SILENT else retry_s, body)


def _retry_after(provider: str, retry_s: float) -> Headers:
    """`Retry-After` and its relatives."""
    if provider in _SILENT or provider == "gemini":
        return ()
    whole = (b"retry-after", b"%d" % max(1, round(retry_s)))
    if provider not in _MILLISECONDS:
        return (whole,)
    milliseconds = b"%d" % round(retry_s * 1000)
    extra = (b"x-should-retry", b"true") if provider == "openai" else (b"x-ms-retry-after-ms", milliseconds)
    return (whole, (b"retry-after-ms", milliseconds), extra)


def _pairs(prefix: str, left: int, reset: str, *, limit: bool = True) -> Headers:
    """`PREFIX{limit,remaining,reset}-{requests,tokens}`."""
    pairs = []
    for what, scale in (("requests", 1), ("tokens", 1000)):
        stated = [("limit", str(_LIMIT * scale))] if limit else []
        for name, value in (*stated, ("remaining", str(left * scale)), ("reset", reset)):
            pairs.append((f"{prefix}{name}-{what}".encode(), value.encode()))
    return tuple(pairs)


def _go(seconds: float) -> str:
    """A Go duration: 12ms, 1s, 6m0s."""
    if seconds < 1:
        return f"{seconds * 1000:g}ms"
    minutes, rest = divmod(seconds, 60)
    return f"{int(minutes)}m{rest:g}s" if minutes else f"{rest:g}s"


def _anthropic(left: int, reset_s: float, wall_s: float) -> Headers:
    at = datetime.fromtimestamp(wall_s + reset_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    pairs = []
    for what, scale in (("requests", 1), ("tokens", 1000), ("input-tokens", 800), ("output-tokens", 200)):
        for name, value in (("limit", str(_LIMIT * scale)), ("remaining", str(left * scale)), ("reset", at)):
            pairs.append((f"anthropic-ratelimit-{what}-{name}".encode(), value.encode()))
    return tuple(pairs)


def _mistral(left: int, reset_s: float, _wall_s: float) -> Headers:
    limit, reset = b"%d" % (_LIMIT * 1000), b"%d" % max(1, round(reset_s))
    return (
        (b"x-ratelimitbysize-limit-minute", limit),
        (b"x-ratelimitbysize-remaining-minute", b"%d" % (left * 1000)),
        (b"ratelimitbysize-reset", reset),
    )


def _together(left: int, reset_s: float, _wall_s: float) -> Headers:
    pairs = []
    for name, scale in ((b"x-ratelimit-", 1), (b"x-tokenlimit-", 1000)):
        pairs.append((name + b"limit", b"%d" % (_LIMIT * scale)))
        pairs.append((name + b"remaining", b"%d" % (left * scale)))
        pairs.append((name + b"reset", b"%d" % max(1, round(reset_s))))
    return tuple(pairs)


def _fireworks(left: int, _reset_s: float, _wall_s: float) -> Headers:
    pairs = []
    for what in (b"requests", b"tokens-prompt", b"tokens-generated"):
        pairs.append((b"x-ratelimit-limit-" + what, b"%d" % _LIMIT))
        pairs.append((b"x-ratelimit-remaining-" + what, b"%d" % left))
    return tuple(pairs)


def _openrouter(left: int, reset_s: float, wall_s: float) -> Headers:
    if left:  # only said with a 429
        return ()
    reset = b"%d" % round((wall_s + reset_s) * 1000)
    return (
        (b"x-ratelimit-limit", b"%d" % _LIMIT),
        (b"x-ratelimit-remaining", b"0"),
        (b"x-ratelimit-reset", reset),
    )


LIMIT_HEADERS: Mapping[str, Callable[[int, float, float], Headers]] = {
    "openai": lambda left, reset_s, _: _pairs("x-ratelimit-", left, _go(reset_s)),
    "azure": lambda left, reset_s, _: _pairs("x-ratelimit-", left, str(max(1, round(reset_s))), limit=False),
    "anthropic": _anthropic,
    "groq": lambda left, reset_s, _: _pairs("x-ratelimit-", left, _go(reset_s)),
    "mistral": _mistral,
    "together": _together,
    "fireworks": _fireworks,
    "openrouter": _openrouter,
    "gemini": lambda _left, _reset_s, _wall_s: (),
    "cerebras": lambda left, reset_s, _: _pairs("x-ratelimit-", left, f"{reset_s:g}"),
    "vllm": lambda _left, _reset_s, _wall_s: (),
}
"""Provider -> (requests left, seconds until reset, wall time) -> its rate-limit headers (providers.md)."""
