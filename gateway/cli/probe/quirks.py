"""What is particular about the streams of a replica, told from their bytes. Pure.

A quirk is something that a client or a gateway can trip over, or that misleads whoever measures; none of them is an
error. Their names are a closed set: docs/cli.md has a row for each. Units: seconds.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from providers.base import Headers

Name = Literal[
    "ttfb_trap",
    "role_first",
    "no_choices",
    "comments",
    "no_data",
    "id_or_retry",
    "named_events",
    "crlf",
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
NAMES: Final[tuple[Name, ...]] = get_args(Name)
OF_CHAT: Final[frozenset[Name]] = frozenset(
    {
        "role_first",
        "no_choices",
        "named_events",
        "no_done",
        "usage_missing",
        "usage_unasked",
        "usage_beside",
        "reasoning",
        "unknown_keys",
    }
)
"""What is particular only about streams in OpenAI's form."""

_TRAP_S_MIN = 0.010  # below that it is the network's noise
_TRAP_SHARE_MIN = 0.1  # of the time to first content
_TOGETHER_MIN = 3  # content events; fewer can come in one piece by chance
_KNOWN_KEYS = frozenset({"role", "content", "refusal", "tool_calls", "function_call", "audio"})
_REASONING = re.compile("reason|think")


@dataclass(frozen=True, slots=True)
class Quirk:
    """One particularity: its name, and what was seen."""

    name: Name
    text: str


@dataclass(frozen=True, slots=True)
class Observation:
    """One whole stream.

    Attributes:
        headers: of the answer.
        body: its bytes.
        asked_usage: token counts were asked for.
        headers_s, content_s: when the head and the first content came, after the request.
        contents: how many content events came.
        reads: pieces that the body came in.
    """

    headers: Headers
    body: bytes
    asked_usage: bool
    headers_s: float
    content_s: float
    contents: int
    reads: int


def is_trap(headers_s: float, content_s: float) -> bool:
    """Whether the head comes so early that its time says nothing about the first content."""
    lead_s = content_s - headers_s
    return lead_s >= max(_TRAP_S_MIN, _TRAP_SHARE_MIN * content_s)


def quirks(streams: Sequence[Observation]) -> list[Quirk]:
    """Everything particular about any of the streams, each thing once, in the order of `NAMES`."""
    found = {quirk.name: quirk for seen in streams for quirk in (*_of_transport(seen), *_of_events(seen))}
    return sorted(found.values(), key=lambda quirk: NAMES.index(quirk.name))


def _of_transport(seen: Observation) -> Iterator[Quirk]:
    media = next((value.decode("latin-1") for name, value in seen.headers if name == b"content-type"), "nothing")
    if is_trap(seen.headers_s, seen.content_s):
        lead_ms = 1000 * (seen.content_s - seen.headers_s)
        yield Quirk("ttfb_trap", f"headers come {lead_ms:.0f} ms before the first content: their time says nothing")
    if "json" in media:
        yield Quirk("json_body", "a stream is asked for, one JSON document comes")
    elif not media.startswith("text/event-stream"):
        yield Quirk("content_type", f"the stream says that it is {media}, not text/event-stream")
    if seen.reads == 1 and seen.contents >= _TOGETHER_MIN:
        yield Quirk("one_piece", "the whole answer comes in one piece: something on the way holds streams back")


def _of_events(seen: Observation) -> Iterator[Quirk]:
    if b"\r\n" in seen.body:
        yield Quirk("crlf", "lines end with CR LF")
    text = seen.body.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    events = [_Event(event.splitlines()) for event in text.split("\n\n") if event.strip()]
    if seen.body.lstrip().startswith(b"{"):
        return
    comments = [line for event in events for line in event.comments]
    names = sorted({name for event in events for name in event.fields})
    if comments:
        yield Quirk("comments", f"comments, such as `{comments[0]}`")
    if any(event.fields and not event.fields.get("data") for event in events):
        yield Quirk("no_data", "events without data, on which the OpenAI SDK for Python raises")
    if extra := [name for name in names if name in ("id", "retry")]:
        yield Quirk("id_or_retry", f"fields that OpenAI's streams do not have: {', '.join(extra)}")
    if "event" in names:
        yield Quirk("named_events", "events have names")
    if not any(event.fields.get("data", "").startswith("[DONE]") for event in events):
        yield Quirk("no_done", "there is no [DONE] at the end")
    chunks = [chunk for event in events if (chunk := event.chunk) is not None]
    if any(event.is_malformed for event in events):
        yield Quirk("malformed", "events that are no JSON objects")
    yield from _of_chunks(chunks)
    yield from _of_usage(chunks, asked=seen.asked_usage)


class _Event:
    """One event taken apart; of fields that come twice the last counts."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.comments = [line for line in lines if line.startswith(":")]
        parts = [line.partition(":") for line in lines if not line.startswith(":")]
        self.fields = {name: value.removeprefix(" ") for name, _, value in parts}

    @property
    def chunk(self) -> Mapping[str, object] | None:
        """Its data, None where that is no JSON object."""
        try:
            value = json.loads(self.fields.get("data", ""))
        except ValueError:
            return None
        return value if isinstance(value, dict) else None

    @property
    def is_malformed(self) -> bool:
        """Whether there is data, and it is neither a chunk nor the end."""
        data = self.fields.get("data", "")
        return bool(data) and not data.startswith("[DONE]") and self.chunk is None


def _of_chunks(chunks: Sequence[Mapping[str, object]]) -> Iterator[Quirk]:
    deltas = [_deltas(chunk) for chunk in chunks]
    if any("role" in delta and not _said(delta) for chunk in deltas[:2] for delta in chunk):
        yield Quirk("role_first", "the role comes in a chunk of its own, before anything is said")
    if chunks and not chunks[0].get("choices"):
        beside = ", ".join(set(chunks[0]) - {"choices", "created", "id", "model", "object", "system_fingerprint"})
        yield Quirk("no_choices", f"the first chunk has no choices{f', but {beside}' if beside else ''}")
    keys = sorted({key for chunk in deltas for delta in chunk for key in _said(delta)} - _KNOWN_KEYS)
    if reasoning := [key for key in keys if _REASONING.search(key)]:
        yield Quirk("reasoning", f"reasoning comes before the answer, as `{'`, `'.join(reasoning)}`")
    if unknown := [key for key in keys if not _REASONING.search(key)]:
        yield Quirk("unknown_keys", f"something is said under keys that are not OpenAI's: `{'`, `'.join(unknown)}`")


def _deltas(chunk: Mapping[str, object]) -> list[Mapping[str, object]]:
    choices = chunk.get("choices")
    rows = choices if isinstance(choices, list) else []
    found = [row.get("delta") for row in rows if isinstance(row, dict)]
    return [delta for delta in found if isinstance(delta, dict)]


def _said(delta: Mapping[str, object]) -> list[str]:
    """The keys under which a delta says something."""
    return [key for key, value in delta.items() if value and key != "role"]


def _of_usage(chunks: Sequence[Mapping[str, object]], *, asked: bool) -> Iterator[Quirk]:
    counted = [chunk for chunk in chunks if chunk.get("usage")]
    if asked and not counted:
        yield Quirk("usage_missing", "token counts are asked for, none come")
    if counted and not asked:
        yield Quirk("usage_unasked", "token counts come unasked")
    if any(chunk.get("choices") for chunk in counted):
        yield Quirk("usage_beside", "token counts stand beside choices, not in a chunk of their own")
