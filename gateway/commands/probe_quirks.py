"""What is particular about the streams of a replica, told from their bytes. Pure.

A quirk is something that a client or a gateway can trip over, or that misleads whoever measures; none of them is an
error. The names are a closed set: docs/cli.md has a row for each. Units: seconds, bytes.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from providers.base import Headers

Name = Literal[
    "ttfb_trap",
    "role_first",
    "no_choices_first",
    "comments",
    "crlf",
    "id_or_retry",
    "named_events",
    "no_data",
    "malformed",
    "no_done",
    "usage_missing",
    "usage_unasked",
    "usage_beside",
    "reasoning",
    "unknown_keys",
    "one_piece",
    "no_keep_alive",
    "json_body",
    "content_type",
    "stream_options_refused",
    "max_tokens_refused",
]

_TRAP_S_MIN = 0.010  # below that it is the network's noise
_TRAP_SHARE_MIN = 0.1  # of the time to first content
_TOGETHER_MIN = 3  # content events; fewer can come in one piece by chance
_REASONING = re.compile("reason|think")
_KNOWN_KEYS = frozenset({"role", "content", "refusal", "tool_calls", "function_call", "audio"})
_SHOWN_MAX = 8


@dataclass(frozen=True, slots=True)
class Quirk:
    """One particularity: its name, and what was seen."""

    name: Name
    text: str


@dataclass(frozen=True, slots=True)
class Seen:
    """One stream that came to its end.

    Attributes:
        headers: of the answer.
        body: its bytes.
        asked_usage: token counts were asked for.
        headers_s, content_s: times of the head and of the first content, from the request.
        contents: how many content events came.
        reads: pieces that the body came in.
        reconnected: it needed a new connection although one had been made before.
    """

    headers: Headers
    body: bytes
    asked_usage: bool
    headers_s: float
    content_s: float
    contents: int
    reads: int
    reconnected: bool = False


def is_trap(headers_s: float, content_s: float) -> bool:
    """Whether the head comes so early that its time says nothing about the first content."""
    lead_s = content_s - headers_s
    return lead_s >= _TRAP_S_MIN and lead_s >= _TRAP_SHARE_MIN * content_s


def quirks(streams: Sequence[Seen]) -> tuple[Quirk, ...]:
    """Everything particular about any of the streams, each thing once."""
    found = {quirk.name: quirk for seen in reversed(streams) for quirk in _of(seen)}
    return tuple(sorted(found.values(), key=lambda quirk: _ORDER[quirk.name]))


_ORDER: Mapping[str, int] = {name: number for number, name in enumerate(Name.__args__)}  # type: ignore[attr-defined]


def _of(seen: Seen) -> Iterator[Quirk]:
    if is_trap(seen.headers_s, seen.content_s):
        lead_ms = 1000 * (seen.content_s - seen.headers_s)
        yield Quirk("ttfb_trap", f"headers come {lead_ms:.0f} ms before the first content: their time says nothing")
    yield from _transport(seen)
