"""Converts a message between its two forms: assembles the events of a stream to a body, and splits a body to events.

The body equals the one that the API sends for the same generation unstreamed. Sans-I/O.
"""

from collections.abc import Iterator, Mapping

import msgspec

from ttft_gateway.apis.errors import ProtocolError
from ttft_gateway.apis.json_fields import dict_or_empty
from ttft_gateway.apis.json_values import ITEMS_MAX, is_light
from ttft_gateway.apis.sse import data_of, events_of, object_in
from ttft_gateway.apis.tolerant_json import as_key, dumps, loads

Json = dict[str, object]

_skip = msgspec.json.Decoder(msgspec.Raw).decode

_PIECES = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
_OPEN: Mapping[str, Json] = {
    "text": {"text": ""},
    "thinking": {"thinking": "", "signature": ""},
    "tool_use": {"input": {}},
}


class MessageAssembler:
    """The `ttft_gateway.apis.base.Assembler` of Messages streams."""

    def __init__(self) -> None:
        self._message: Json = {}
        self._blocks: dict[object, Json] = {}
        self._pieces: dict[object, dict[str, list[str]]] = {}  # of the texts and inputs of blocks

    def add(self, raw: bytes) -> None:
        """Take the bytes of one or several events; unknown events are ignored."""
        for event in events_of(raw):
            value = object_in(data_of(event))
            if value is not None:
                self._add(value)

    def body(self) -> bytes:
        """The message as JSON.

        Raises:
            ValueError: the stream had no message, or a tool's input is not light JSON.
        """
        if not self._message:
            raise ValueError("the stream has no message_start")
        for index, texts in self._pieces.items():
            block = self._blocks[index]
            for key, pieces in texts.items():
                text = "".join(pieces)
                if key != "input":
                    block[key] = str(block.get(key) or "") + text
                elif text:
                    block["input"] = _input_of(text.encode("utf-8", "surrogatepass"))
                else:
                    block.setdefault("input", {})
        self._pieces.clear()
        return dumps({**self._message, "content": list(self._blocks.values())})

    def _add(self, event: Json) -> None:
        kind, index = event.get("type"), as_key(event.get("index"))
        if kind == "message_start":
            self._message = dict(dict_or_empty(event.get("message")))
        elif kind == "content_block_start":
            if len(self._blocks) == ITEMS_MAX:
                raise ProtocolError(f"the upstream's answer has over {ITEMS_MAX} blocks")
            self._pieces.pop(index, None)
            self._blocks[index] = dict(dict_or_empty(event.get("content_block")))
        elif kind == "content_block_delta" and index in self._blocks:
            self._delta(index, dict_or_empty(event.get("delta")))
        elif kind == "message_delta":
            self._message |= dict_or_empty(event.get("delta"))
            usage = {key: value for key, value in dict_or_empty(event.get("usage")).items() if value is not None}
            self._message["usage"] = {**dict_or_empty(self._message.get("usage")), **usage}

    def _delta(self, index: object, delta: Mapping[str, object]) -> None:
        block, kind = self._blocks[index], delta.get("type")
        if kind == "input_json_delta":
            self._keep(index, "input", delta.get("partial_json"))
        elif kind == "citations_delta":
            known = block.get("citations")
            if not isinstance(known, list):
                known = block["citations"] = []
            known.append(delta.get("citation"))
        elif kind in _PIECES:
            key = _PIECES[str(kind)]
            self._keep(index, key, delta.get(key))

    def _keep(self, index: object, key: str, piece: object) -> None:
        """Keep a piece of a text until the end: to join it now would copy the whole text each time."""
        self._pieces.setdefault(index, {}).setdefault(key, []).append(str(piece or ""))


def _input_of(text: bytes) -> object:
    """Return a tool's input as it is if it is JSON, in the form of an upstream if that is Python's.

    Raises:
        ValueError: it is neither.
    """
    try:
        _skip(text)
    except (msgspec.DecodeError, RecursionError):
        value = loads(text) if is_light(text) else None
        if value is None:
            raise ValueError("a tool's input is not JSON") from None
        return value
    if text.strip() == b"null":
        raise ValueError("a tool's input is not JSON")
    return msgspec.Raw(text)


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
    for name, key in _PIECES.items():
        if key in _OPEN.get(kind, {}) and block.get(key):
            yield {"type": name, key: block[key]}
