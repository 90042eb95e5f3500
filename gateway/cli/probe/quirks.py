"""Quirks of a replica's streams, detected in their bytes. Pure.

A quirk is a property that can break a client or a gateway, or distort a measurement; it is not an error. The names are
a closed set: docs/cli.md has a row for each. Units: seconds.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, get_args

import msgspec

from ttft_gateway.apis.base import Headers

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
"""Quirks only of streams in OpenAI's format."""

_TRAP_S_MIN = 0.010  # less is noise of the network
_TRAP_SHARE_MIN = 0.1  # as a share of the time to first content
_TOGETHER_MIN = 3  # content events; fewer can arrive in one piece by chance
_KNOWN_KEYS = frozenset({"role", "content", "refusal", "tool_calls", "function_call", "audio"})
_REASONING = re.compile("reason|think")


class Quirk(msgspec.Struct, frozen=True):
    """A quirk: name and observation."""

    name: Name
    text: str


class Observation(msgspec.Struct, frozen=True):
    """One complete stream.

    Attributes:
        headers: response headers.
        body: response body.
        asked_usage: True if the request asked for token counts.
        contents: number of content events.
        reads: number of pieces in which the body arrived.
    """

    headers: Headers
    body: bytes
    asked_usage: bool
    contents: int
    reads: int


def is_trap(headers_s: float, content_s: float) -> bool:
    """Return True if the headers are so early that their time does not predict the first content."""
    lead_s = content_s - headers_s
    return lead_s >= max(_TRAP_S_MIN, _TRAP_SHARE_MIN * content_s)


def quirks(streams: Sequence[Observation]) -> list[Quirk]:
    """Return the quirks of all streams, each once, in the order of `NAMES`."""
    found = {quirk.name: quirk for stream in streams for quirk in (*_transport_quirks(stream), *_event_quirks(stream))}
    return sorted(found.values(), key=lambda quirk: NAMES.index(quirk.name))


def _transport_quirks(stream: Observation) -> Iterator[Quirk]:
    media = next((value.decode("latin-1") for name, value in stream.headers if name == b"content-type"), "missing")
    if "json" in media:
        yield Quirk("json_body", "the answer to a streaming request is one JSON document")
    elif not media.startswith("text/event-stream"):
        yield Quirk("content_type", f"the content type of the stream is {media}, not text/event-stream")
    if stream.reads == 1 and stream.contents >= _TOGETHER_MIN:
        yield Quirk("one_piece", "the whole answer arrives in one piece; a proxy may buffer streams")


def _event_quirks(stream: Observation) -> Iterator[Quirk]:
    if b"\r\n" in stream.body:
        yield Quirk("crlf", "lines end with CR LF")
    text = stream.body.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    events = [_Event(event.splitlines()) for event in text.split("\n\n") if event.strip()]
    if stream.body.lstrip().startswith(b"{"):
        return
    comments = [line for event in events for line in event.comments]
    names = sorted({name for event in events for name in event.fields})
    if comments:
        yield Quirk("comments", f"there are comments, such as `{comments[0]}`")
    if any(event.fields and not event.fields.get("data") for event in events):
        yield Quirk("no_data", "there are events without data, for which the OpenAI SDK for Python raises")
    if extra := [name for name in names if name in ("id", "retry")]:
        yield Quirk("id_or_retry", f"there are fields that OpenAI's streams do not have: {', '.join(extra)}")
    if "event" in names:
        yield Quirk("named_events", "events have names")
    if not any(event.fields.get("data", "").startswith("[DONE]") for event in events):
        yield Quirk("no_done", "there is no [DONE] at the end")
    chunks = [chunk for event in events if (chunk := event.chunk) is not None]
    if any(event.is_malformed for event in events):
        yield Quirk("malformed", "there are events that are not JSON objects")
    yield from _chunk_quirks(chunks)
    yield from _usage_quirks(chunks, asked=stream.asked_usage)


class _Event:
    """Parsed event; of repeated fields, the last one counts."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.comments = [line for line in lines if line.startswith(":")]
        parts = [line.partition(":") for line in lines if not line.startswith(":")]
        self.fields = {name: value.removeprefix(" ") for name, _, value in parts}

    @property
    def chunk(self) -> Mapping[str, object] | None:
        """The event's data; None if it is not a JSON object."""
        try:
            value = json.loads(self.fields.get("data", ""))
        except ValueError:
            return None
        return value if isinstance(value, dict) else None

    @property
    def is_malformed(self) -> bool:
        """True if there is data that is neither a chunk nor the end."""
        data = self.fields.get("data", "")
        return bool(data) and not data.startswith("[DONE]") and self.chunk is None


def _chunk_quirks(chunks: Sequence[Mapping[str, object]]) -> Iterator[Quirk]:
    deltas = [_deltas(chunk) for chunk in chunks]
    if any("role" in delta and not _content_keys(delta) for chunk in deltas[:2] for delta in chunk):
        yield Quirk("role_first", "the role is in a separate chunk before the first content")
    if chunks and not chunks[0].get("choices"):
        beside = ", ".join(set(chunks[0]) - {"choices", "created", "id", "model", "object", "system_fingerprint"})
        yield Quirk("no_choices", f"the first chunk has no choices{f', but {beside}' if beside else ''}")
    keys = sorted({key for chunk in deltas for delta in chunk for key in _content_keys(delta)} - _KNOWN_KEYS)
    if reasoning := [key for key in keys if _REASONING.search(key)]:
        yield Quirk("reasoning", f"the answer starts with reasoning, in `{'`, `'.join(reasoning)}`")
    if unknown := [key for key in keys if not _REASONING.search(key)]:
        yield Quirk("unknown_keys", f"there is content in keys that OpenAI does not have: `{'`, `'.join(unknown)}`")


def _deltas(chunk: Mapping[str, object]) -> list[Mapping[str, object]]:
    choices = chunk.get("choices")
    items = choices if isinstance(choices, list) else []
    found = [item.get("delta") for item in items if isinstance(item, dict)]
    return [delta for delta in found if isinstance(delta, dict)]


def _content_keys(delta: Mapping[str, object]) -> list[str]:
    return [key for key, value in delta.items() if value and key != "role"]


def _usage_quirks(chunks: Sequence[Mapping[str, object]], *, asked: bool) -> Iterator[Quirk]:
    counted = [chunk for chunk in chunks if chunk.get("usage")]
    if asked and not counted:
        yield Quirk("usage_missing", "there are no token counts, although the request asked for them")
    if counted and not asked:
        yield Quirk("usage_unasked", "there are token counts, although the request did not ask for them")
    if any(chunk.get("choices") for chunk in counted):
        yield Quirk("usage_beside", "token counts are in a chunk with choices, not in a separate chunk")
