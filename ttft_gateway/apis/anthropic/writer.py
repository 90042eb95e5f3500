"""Writes events of the Messages API, and splits a message into the events of an equal stream. Pure."""

from collections.abc import Iterator, Mapping

from ttft_gateway.apis.json_fields import dict_or_empty
from ttft_gateway.apis.tolerant_json import dumps

Json = dict[str, object]

PIECES = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
"""Type of a delta -> the field of its block, which it extends."""

_OPEN: Mapping[str, Json] = {
    "text": {"text": ""},
    "thinking": {"thinking": "", "signature": ""},
    "tool_use": {"input": {}},
}


def events_of_message(message: Mapping[str, object]) -> Iterator[bytes]:
    """Split a message into the events of an equal stream."""
    content, usage = message.get("content"), dict_or_empty(message.get("usage"))
    stop = {key: message.get(key) for key in ("stop_reason", "stop_sequence", "stop_details") if key in message}
    opening = {**message, "content": [], **dict.fromkeys(stop), "usage": {**usage, "output_tokens": 0}}
    yield event("message_start", {"message": opening})
    for index, block in enumerate(content if isinstance(content, list) else ()):
        if isinstance(block, dict):
            yield from _events_of_block(index, block)
    yield event("message_delta", {"delta": stop, "usage": dict(usage)})
    yield event("message_stop", {})


def event(kind: str, fields: Mapping[str, object]) -> bytes:
    """Write one event of the API."""
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), dumps({"type": kind, **fields}))


def _events_of_block(index: int, block: Json) -> Iterator[bytes]:
    kind = str(block.get("type"))
    yield event("content_block_start", {"index": index, "content_block": {**block, **_OPEN.get(kind, {})}})
    for delta in _deltas(kind, block):
        yield event("content_block_delta", {"index": index, "delta": delta})
    yield event("content_block_stop", {"index": index})


def _deltas(kind: str, block: Json) -> Iterator[Json]:
    if kind == "tool_use":
        yield {"type": "input_json_delta", "partial_json": dumps(block.get("input") or {}).decode()}
    for name, key in PIECES.items():
        if key in _OPEN.get(kind, {}) and block.get(key):
            yield {"type": name, key: block[key]}
