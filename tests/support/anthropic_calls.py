"""Requests and streams of Anthropic's Messages API for tests, in the shapes that its public documentation shows."""

import json
from collections.abc import Iterable
from typing import Any

from openai_calls import call_of
from providers.anthropic.protocol import AnthropicMessages
from providers.openai.chat import OpenAIChat
from providers.translation.base import TranslatedProtocol
from providers.translation.chat_to_messages.translation import ChatToMessages
from providers.translation.messages_to_chat.translation import Dialect, MessagesToChat
from ttft_gateway.apis.base import Api, Call
from ttft_gateway.apis.sse import Splitter, data_of, events_of

WALL_S = 1_763_000_000.0
USER = {"role": "user", "content": "Hello"}
ENGINE = Dialect(top_k=True, reasoning="reasoning_content")

CHAT_TO_MESSAGES = TranslatedProtocol(ChatToMessages(lambda: WALL_S), AnthropicMessages())
MESSAGES_TO_CHAT = TranslatedProtocol(MessagesToChat(ENGINE), OpenAIChat())


def messages_call(**body: Any) -> Call:
    """A client's call of the Messages API."""
    return call_of({"model": "m", "max_tokens": 64, "messages": [USER], **body}, Api.MESSAGES)


def event(kind: str, **fields: Any) -> bytes:
    """One event, as Anthropic sends it."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields}, separators=(',', ':'))}\n\n".encode()


def start(**message: Any) -> bytes:
    """The event that opens a stream."""
    usage = {"input_tokens": 25, "cache_creation_input_tokens": 3, "cache_read_input_tokens": 100, "output_tokens": 1}
    whole = {"id": "msg_01", "type": "message", "role": "assistant", "content": [], "model": "claude-opus-5"}
    return event(
        "message_start", message={**whole, "stop_reason": None, "stop_sequence": None, "usage": usage, **message}
    )


def block(index: int, opening: dict[str, Any], *deltas: dict[str, Any]) -> list[bytes]:
    """The events of one content block."""
    return [
        event("content_block_start", index=index, content_block=opening),
        *(event("content_block_delta", index=index, delta=delta) for delta in deltas),
        event("content_block_stop", index=index),
    ]


def text(index: int, *pieces: str) -> list[bytes]:
    """A block of text."""
    return block(index, {"type": "text", "text": ""}, *({"type": "text_delta", "text": piece} for piece in pieces))


def tool(index: int, id_: str, name: str, *pieces: str) -> list[bytes]:
    """A tool call."""
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    return block(index, {"type": "tool_use", "id": id_, "name": name, "input": {}}, *deltas)


def thinking(index: int, signature: str, *pieces: str) -> list[bytes]:
    """A block of thinking."""
    deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces]
    opening = {"type": "thinking", "thinking": "", "signature": ""}
    return block(index, opening, *deltas, {"type": "signature_delta", "signature": signature})


def end(reason: str = "end_turn", **delta: Any) -> list[bytes]:
    """The events that close a stream."""
    return [
        event(
            "message_delta", delta={"stop_reason": reason, "stop_sequence": None, **delta}, usage={"output_tokens": 15}
        ),
        event("message_stop"),
    ]


PING = event("ping")


def data_in(raw: bytes) -> list[Any]:
    """The data of every event in some bytes, closing marks as texts."""
    found = [data_of(each) for each in events_of(raw)]
    return [each.decode() if each == b"[DONE]" else json.loads(each) for each in found if each]


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **fields: Any) -> bytes:
    """One chunk of a chat completion."""
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    whole = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "served", "choices": choices}
    return b"data: " + json.dumps({**whole, **fields}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def read_through(protocol: TranslatedProtocol, call: Call, pieces: Iterable[bytes]) -> bytes:
    """All bytes that a client gets for these bytes of an upstream's answer."""
    splitter, reader, out = Splitter(1 << 20), protocol.reader(call), b""
    for piece in pieces:
        for each in splitter.feed(piece):
            out += reader.read(each).raw
    last = reader.close()
    return out + (last.raw if last is not None else b"")


def assert_valid(raw: bytes) -> None:
    """One valid Messages stream: one start and one end, blocks one behind the other with growing indexes."""
    events = [each for each in data_in(raw) if each["type"] != "ping"]
    assert [events[0]["type"], events[-2]["type"], events[-1]["type"]] == [
        "message_start",
        "message_delta",
        "message_stop",
    ]
    number, is_open = -1, False
    for each in events[1:-2]:
        kind = each["type"].removeprefix("content_block_")
        number += kind == "start"
        assert (kind in ("delta", "stop")) == is_open
        assert each["index"] == number
        is_open = kind != "stop"
    assert not is_open
    assert all(line.startswith(b"event: ") for line in raw.split(b"\n")[::3] if line)
