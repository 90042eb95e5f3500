"""Builds the rate limit headers of a key's responses, and the error at a limit. Pure.

The headers are OpenAI's, so that clients that pace themselves by these headers work unchanged. Units: seconds.
"""

import math
from collections.abc import Iterable, Iterator

from gateway.errors import GatewayError, LimitsAway, OverKeyLimit
from gateway.limits.caller_limits import LimitStatus, OverLimit, Quantity
from providers.base import Headers


def over_key_limit(over: OverLimit, key_name: str, headers: Headers) -> GatewayError:
    """Build the error for a key that is at a limit, or whose limits are unknown."""
    limit = over.limit
    if over.is_unknown:
        wait_s = over.wait_s or 1.0
        return LimitsAway(f"the shared limits of key {key_name!r} are unavailable; retry in {wait_s:.3g} s", wait_s)
    if over.quantity is Quantity.CONCURRENCY:
        what = f"is at its concurrency limit ({limit})"
    elif over.quantity is Quantity.REQUESTS:
        what = f"is at its limit of {limit} requests per minute"
    elif over.wait_s is None:
        what = f"is limited to {limit} tokens per minute and this prompt has about {over.asked}; send a shorter one"
    else:
        what = f"is at its limit of {limit} tokens per minute (this request may use {over.asked})"
    retry = "" if over.wait_s is None else f"; retry in {over.wait_s:.3g} s"
    error = OverKeyLimit(f"key {key_name!r} {what}{retry}", over.wait_s)
    error.extra_headers = tuple(headers)
    return error


def limit_headers(statuses: Iterable[LimitStatus]) -> Iterator[tuple[bytes, bytes]]:
    """Yield OpenAI's rate limit headers: limit, remaining amount and reset time of each of a key's limits."""
    for status in statuses:
        name = status.quantity.value.encode()
        yield b"x-ratelimit-limit-" + name, b"%d" % status.limit
        yield b"x-ratelimit-remaining-" + name, b"%d" % status.remaining
        yield b"x-ratelimit-reset-" + name, _duration(status.reset_s)


def _duration(seconds: float) -> bytes:
    """Format a duration as OpenAI does: `120ms`, `6s`, `1m30s`; rounded up."""
    ms = math.ceil(1000 * seconds)
    if ms < 1000:
        return b"%dms" % ms
    minutes, rest = divmod(math.ceil(ms / 1000), 60)
    return b"%dm%ds" % (minutes, rest) if minutes else b"%ds" % rest
