"""The wire protocol of POST /v1/messages on upstreams that have the API, and the assembler of its messages.

The client's bytes are sent with `model` and `stream` replaced, and the answer's events are forwarded unchanged.
Independent of HTTP and keys. Sans-I/O. Units: tokens.
"""

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

import msgspec

from providers.openai.outlines import read_outline
from providers.openai.request import build, build_instead, edited, value_of, without
from ttft_gateway.apis.anthropic.events import MessageReader
from ttft_gateway.apis.anthropic.usage import counted
from ttft_gateway.apis.anthropic.writer import PIECES, Json
from ttft_gateway.apis.base import MAX_TOKENS_DEFAULT, Api, Body, Call, FirstToken, Frame, FrameKind, OnAnswerId
from ttft_gateway.apis.endings import frames_of_body
from ttft_gateway.apis.errors import ProtocolError, Unsupported
from ttft_gateway.apis.json_fields import dict_or_empty, list_or_empty
from ttft_gateway.apis.json_values import ITEMS_MAX, is_light
from ttft_gateway.apis.openai.errors import bad_status
from ttft_gateway.apis.sse import data_of, events_of, object_in
from ttft_gateway.apis.tolerant_json import as_key, dumps, loads

_UNSIGNED: Final = (b'"signature":""', b'"signature": ""')
_skip = msgspec.json.Decoder(msgspec.Raw).decode


class AnthropicMessages:
    """The `ttft_gateway.apis.base.WireProtocol` of POST messages.

    Args:
        first_token: with "answer", thinking does not count as content.
        max_tokens: the bound on an answer if the client sends none: the API requires one.
        body_version: value of `anthropic_version` in bodies, at a server that has the model in its path, as Vertex AI
            has; None for a server that has the model in the body.
        signs_thinking: the server rejects thinking of earlier turns without a signature, so it is not sent.
        stores_threads: the server stores the conversations of `thread`. Another one could ignore the field, and answer
            the last message alone.
        on_answer_id: receives the owner and the id of every answer of a thread, so that the owner's requests that
            continue it reach the same replica.
    """

    def __init__(
        self,
        *,
        first_token: FirstToken = "any",
        max_tokens: int = MAX_TOKENS_DEFAULT,
        body_version: str | None = None,
        signs_thinking: bool = False,
        stores_threads: bool = False,
        on_answer_id: OnAnswerId | None = None,
    ) -> None:
        self._stores_threads = stores_threads
        self._on_answer_id = on_answer_id
        self._signs_thinking = signs_thinking
        self._first_token = first_token
        self._max_tokens = max_tokens
        self._version = None if body_version is None else b'"anthropic_version":' + dumps(body_version)

    def path(self, _api: Api, model: str, *, stream: bool) -> str:
        if self._version is None:
            return "/messages"
        return f"/models/{quote(model, safe='@:')}:{'streamRawPredict' if stream else 'rawPredict'}"

    def build(self, call: Call, model: str, *, stream: bool) -> Body:
        if not self._stores_threads and value_of(call, "thread") != b"null":
            raise no_threads()
        if self._signs_thinking and any(mark in call.body for mark in _UNSIGNED):
            call = _without_unsigned(call)
        call = _bounded(call, self._max_tokens)
        if self._version is None:
            return build(call, model, stream=stream, ask_usage=False)
        return build_instead(without(call, ("anthropic_version",)), self._version, stream=stream)

    def reader(self, call: Call) -> MessageReader:
        return MessageReader(self._first_token, self._on_answer_id if "thread" in call.spans else None, call.owner)

    def assembler(self, _call: Call) -> "MessageAssembler":
        return MessageAssembler()

    def whole(self, call: Call, body: bytes) -> Frame:
        frames = frames_of_body(self.reader(call), body)
        if frames[0].kind is FrameKind.ERROR:
            return frames[0]
        return Frame(FrameKind.CONTENT, body, counted(dict_or_empty(loads(body)).get("usage")))

    def outlined(self, outline: bytes) -> Frame:
        return read_outline(outline, "content", counted)

    error = staticmethod(bad_status)


def no_threads() -> Unsupported:
    """Make the error for `thread` at a server without threads; Anthropic's SDKs then send all messages."""
    return Unsupported(
        "`thread` is a conversation that Anthropic stores, and this upstream stores none; send all messages without it",
        param="thread",
        details='{"error_code":"thread_unsupported_request"}',
    )


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
            ValueError: the stream had no message, or the input of a called tool is not light JSON.
        """
        if not self._message:
            raise ValueError("the stream has no message_start")
        is_cut = self._message.get("stop_reason") not in (None, "tool_use")
        for index, texts in self._pieces.items():
            block = self._blocks[index]
            for key, pieces in texts.items():
                text = "".join(pieces)
                if key != "input":
                    block[key] = str(block.get(key) or "") + text
                elif text:
                    block["input"] = _input_of(text.encode("utf-8", "surrogatepass"), is_cut=is_cut)
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
        elif kind == "content_block_delta":
            if index not in self._blocks:
                raise ProtocolError("the upstream sent a piece of a content block that it had not begun")
            self._delta(index, dict_or_empty(event.get("delta")))
        elif kind == "message_delta":
            self._message |= dict_or_empty(event.get("delta"))
            usage = {key: value for key, value in dict_or_empty(event.get("usage")).items() if value is not None}
            self._message["usage"] = {**dict_or_empty(self._message.get("usage")), **usage}

    def _delta(self, index: object, delta: Mapping[str, object]) -> None:
        block, kind = self._blocks[index], delta.get("type")
        if kind == "input_json_delta":
            self._append(index, "input", delta.get("partial_json"))
        elif kind == "citations_delta":
            known = block.get("citations")
            if not isinstance(known, list):
                known = block["citations"] = []
            known.append(delta.get("citation"))
        elif kind in PIECES:
            key = PIECES[str(kind)]
            self._append(index, key, delta.get(key))

    def _append(self, index: object, key: str, piece: object) -> None:
        """Store a piece of a text until the end: to join it now would copy the whole text each time."""
        self._pieces.setdefault(index, {}).setdefault(key, []).append(str(piece or ""))


def _input_of(text: bytes, *, is_cut: bool) -> object:
    """Return a tool's input unchanged if it is JSON, else as decoded by Python's more tolerant json module.

    Args:
        text: the input.
        is_cut: the answer ended for another reason than the call of a tool, such as `max_tokens`. An input that ends
            too early is then empty, because a part could look like the whole.

    Raises:
        ValueError: it is neither, and the tool was called.
    """
    try:
        _skip(text)
    except (msgspec.DecodeError, RecursionError):
        value = loads(text) if is_light(text) else None
        if value is None and not is_cut:
            raise ValueError("a tool's input is not JSON") from None
        return {} if value is None else value
    if text.strip() == b"null":
        raise ValueError("a tool's input is not JSON")
    return msgspec.Raw(text)


def _without_unsigned(call: Call) -> Call:
    """Return the call without the unsigned thinking of earlier turns: another server wrote it, or it broke."""
    turns = []
    for turn in list_or_empty(loads(value_of(call, "messages"))):
        content = turn.get("content") if isinstance(turn, dict) else None
        if not isinstance(turn, dict) or not isinstance(content, list) or turn.get("role") != "assistant":
            turns.append(turn)
        elif kept := [block for block in content if not _is_unsigned(dict_or_empty(block))]:
            turns.append({**turn, "content": kept})
    return edited(call, {"messages": dumps(turns)}) if turns else call


def _is_unsigned(block: Mapping[str, object]) -> bool:
    return block.get("type") == "thinking" and not block.get("signature")


def _bounded(call: Call, max_tokens: int) -> Call:
    if "max_tokens" in call.spans:
        return call
    bound = b'"max_tokens":' + dumps(max_tokens) + (b"," if call.spans else b"")
    at = call.insert_at
    body = call.body[:at] + bound + call.body[at:]
    spans = {key: (start + len(bound), end + len(bound)) for key, (start, end) in call.spans.items()}
    spans["max_tokens"] = (at + len(b'"max_tokens":'), at + len(b'"max_tokens":') + len(dumps(max_tokens)))
    return msgspec.structs.replace(call, body=body, spans=spans)
