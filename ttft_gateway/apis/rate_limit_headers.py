"""Reads the rate-limit headers of every provider: one table of names, one reader.

The meaning of each name is here; differences between providers that use the same name are a `RateLimitFormat`, set in
the provider's row of catalog.py. Unreadable values are unknown, never zero. Units: seconds, requests, tokens.
"""

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from ttft_gateway.apis.base import Headers, RateLimit, Resource
from ttft_gateway.apis.retry_after import epoch_s, wait_s

_DIGITS_MAX: Final = 15
_number = re.compile(rb"\d+(\.\d*)?").fullmatch

_WINDOWS_S: Final = {b"second": 1.0, b"minute": 60.0, b"hour": 3600.0, b"day": 86_400.0, b"month": 30 * 86_400.0}
_RESOURCES: Final = {
    b"requests": Resource.REQUESTS,
    b"req": Resource.REQUESTS,  # Mistral
    b"tokens": Resource.TOKENS,
    b"tokens-prompt": Resource.PROMPT_TOKENS,  # Fireworks
    b"tokens-generated": Resource.ANSWER_TOKENS,
    b"input-tokens": Resource.PROMPT_TOKENS,  # Anthropic
    b"output-tokens": Resource.ANSWER_TOKENS,
}
_FIELDS: Final = ("limit", "remaining", "reset")


class RateLimitFormat(msgspec.Struct, frozen=True):
    """Details of a provider's limit headers that their names do not contain.

    Attributes:
        requests_window_s: window of limits on requests; None: the shortest usual window that contains the reset time.
        tokens_window_s: window of limits on tokens; None: the shortest usual window that contains the reset time.
        zero_is_unknown: a `remaining` of 0 may also mean "unknown".
    """

    requests_window_s: float | None = 60.0
    tokens_window_s: float | None = 60.0
    zero_is_unknown: bool = False

    def read(self, headers: Headers) -> tuple[RateLimit, ...]:
        """Read a response's headers; a `LimitReader`."""
        if _WANTED.isdisjoint(dict(headers)):
            return ()
        found: dict[tuple[Resource, float | None], dict[str, bytes]] = {}
        date = b""
        for name, value in headers:
            meaning = _NAMES.get(name)
            if meaning is not None:
                resource, window_s, field = meaning
                found.setdefault((resource, window_s), {})[field] = value
            elif name == b"date":
                date = value
        return tuple(self._limit(*key, texts, date) for key, texts in found.items())

    def _limit(self, resource: Resource, window_s: float | None, texts: dict[str, bytes], date: bytes) -> RateLimit:
        """Read one limit from its header values; an absolute reset is relative to the response's own date."""
        text = texts.get("reset", b"").decode("latin-1")
        reset_s = wait_s(text)
        if reset_s is None and text:
            reset_s = wait_s(text, epoch_s(date.decode("latin-1")))
        remaining = _count(texts.get("remaining", b""))
        if remaining == 0 and self.zero_is_unknown:
            remaining = None
        if window_s is None:
            window_s = self.requests_window_s if resource is Resource.REQUESTS else self.tokens_window_s
        if window_s is None:
            fitting = (usual_s for usual_s in _WINDOWS_S.values() if usual_s >= 60.0 and (reset_s or 0.0) <= usual_s)
            window_s = next(fitting, 60.0)
        return RateLimit(resource, window_s, _count(texts.get("limit", b"")) or None, remaining, reset_s)


def _count(text: bytes) -> float | None:
    """Read a number of requests or tokens; `100, 100;w=60` and negative numbers are unknown."""
    text = text.strip()
    return float(text) if len(text) <= _DIGITS_MAX and _number(text) else None


def _names() -> Iterator[tuple[bytes, tuple[Resource, float | None, str]]]:
    """Yield every header name with its meaning; the window is None if the name does not contain it."""
    for named in _FIELDS:
        field = named.encode()
        for suffix, resource in _RESOURCES.items():
            yield b"x-ratelimit-%b-%b" % (field, suffix), (resource, None, named)  # OpenAI and most others
            yield b"anthropic-ratelimit-%b-%b" % (suffix, field), (resource, None, named)
            for word, window_s in _WINDOWS_S.items():  # Cerebras, Mistral, SambaNova
                yield b"x-ratelimit-%b-%b-%b" % (field, suffix, word), (resource, window_s, named)
        yield b"x-ratelimit-%b" % field, (Resource.REQUESTS, None, named)  # Together, OpenRouter
        yield b"x-tokenlimit-%b" % field, (Resource.TOKENS, None, named)  # Together
        for word, window_s in _WINDOWS_S.items():  # Mistral
            yield b"x-ratelimitbysize-%b-%b" % (field, word), (Resource.TOKENS, window_s, named)
    yield b"ratelimitbysize-reset", (Resource.TOKENS, 60.0, "reset")  # Mistral, of the minute


_NAMES: Final = dict(_names())
_WANTED: Final = frozenset(_NAMES)
