"""Translates the events of a Messages stream to the chunks of a chat completion.

Thinking becomes `reasoning_content`. Each complete block of thinking is repeated as a whole, with its signature, in
`thinking_blocks`: a client that sends these back lets the model continue its own reasoning. They have an `index`,
because OpenAI's Python SDK rejects the second object of a list if it has no index. Blocks of Anthropic's own tools have
no counterpart and cannot be requested. Sans-I/O. Units: seconds.
"""

from collections.abc import Callable, Mapping

from ttft_gateway.apis.anthropic.usage import Counts
from ttft_gateway.apis.json_fields import dict_or_empty
from ttft_gateway.apis.openai.events import DONE_EVENT
from ttft_gateway.apis.sse import data_of, object_in
from ttft_gateway.apis.tolerant_json import dumps

Json = dict[str, object]

_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
_PING = b": ping\n\n"


class ChatChunksFromMessages:
    """The `providers.translation.base.Translator` from Messages events to chunks.

    Args:
        with_usage: the client requested the usage chunk.
        wall_s: the wall time, for `created`; called once.
    """

    def __init__(self, *, with_usage: bool, wall_s: Callable[[], float]) -> None:
        self._with_usage = with_usage
        self._wall_s = wall_s
        self._head: Json = {"id": "", "object": "chat.completion.chunk", "created": 0, "model": ""}
        self._prefix = b""  # of a chunk, up to its delta
        self._counts = Counts()
        self._calls = -1  # index of the last tool call
        self._no_arguments = False  # the open tool call has no arguments yet
        self._thinking: Json | None = None  # the open block of thinking, as it will be sent back
        self._thoughts: list[str] = []  # pieces of its text
        self._signed = 0  # blocks of thinking that were sent
        self._ended = False

    def read(self, event: bytes) -> bytes:
        value = None if self._ended else object_in(data_of(event))
        if value is None:
            return b""
        match value.get("type"):
            case "message_start":
                return self._begin(dict_or_empty(value.get("message")))
            case "message_delta":
                self._counts.add(value.get("usage"))
                return self._finish(dict_or_empty(value.get("delta")))
            case "message_stop":
                return self.close()
            case "ping":
                return _PING
            case kind:
                return self._block(kind, value)

    def close(self) -> bytes:
        if self._ended:
            return b""
        self._ended = True
        usage = self._counts.chat() if self._with_usage else None
        if usage is None:
            return DONE_EVENT
        return b"data: " + dumps({**self._head, "choices": [], "usage": usage}) + b"\n\n" + DONE_EVENT

    def _begin(self, message: Mapping[str, object]) -> bytes:
        self._counts.add(message.get("usage"))
        self._head["id"], self._head["model"] = message.get("id") or "", message.get("model") or ""
        self._head["created"] = int(self._wall_s())
        return self._chunk({"role": "assistant", "content": ""})

    def _block(self, kind: object, value: Mapping[str, object]) -> bytes:
        match kind:
            case "content_block_start":
                return self._start(dict_or_empty(value.get("content_block")))
            case "content_block_delta":
                return self._delta(dict_or_empty(value.get("delta")))
            case "content_block_stop":
                return self._stop()
        return b""

    def _start(self, block: Mapping[str, object]) -> bytes:
        match block.get("type"):
            case "text":
                return self._chunk({"content": block["text"]}) if block.get("text") else b""
            case "thinking":
                thinking = block.get("thinking") or ""
                self._thinking, self._thoughts = {**block}, [str(thinking)]
                return self._chunk({"reasoning_content": thinking}) if thinking else b""
            case "redacted_thinking":
                self._thinking, self._thoughts = dict(block), []
            case "tool_use":
                return self._call(block)
        return b""

    def _call(self, block: Mapping[str, object]) -> bytes:
        """Begin a tool call; its input, usually empty here, follows in pieces."""
        self._calls += 1
        tool_input = block.get("input")
        arguments = dumps(tool_input).decode() if tool_input else ""
        self._no_arguments = not arguments
        function = {"name": block.get("name") or "", "arguments": arguments}
        return self._piece({"id": block.get("id") or "", "type": "function", "function": function})

    def _delta(self, delta: Mapping[str, object]) -> bytes:
        match delta:
            case {"type": "text_delta", "text": str(text)} if text:
                return self._chunk({"content": text})
            case {"type": "thinking_delta", "thinking": str(text)} if text:
                if self._thinking is not None:
                    self._thoughts.append(text)
                return self._chunk({"reasoning_content": text})
            case {"type": "signature_delta", "signature": str(signature)} if self._thinking is not None:
                self._thinking["signature"] = f"{self._thinking.get('signature') or ''}{signature}"
            case {"type": "input_json_delta", "partial_json": str(text)} if text:
                self._no_arguments = False
                return self._piece({"function": {"arguments": text}})
        return b""

    def _stop(self) -> bytes:
        """End a block: send empty arguments if none came, or the whole block of thinking."""
        if self._no_arguments:
            self._no_arguments = False
            return self._piece({"function": {"arguments": "{}"}})
        thought, self._thinking = self._thinking, None
        if thought is not None and self._thoughts:
            thought["thinking"] = "".join(self._thoughts)
        if thought is not None and (thought.get("signature") or thought.get("data")):
            self._signed += 1
            return self._chunk({"thinking_blocks": [{"index": self._signed - 1, **thought}]})
        return b""

    def _finish(self, delta: Mapping[str, object]) -> bytes:
        reason = delta.get("stop_reason")
        if not reason:
            return b""
        why = dict_or_empty(delta.get("stop_details")).get("explanation")
        fields: Json = {"refusal": why} if reason == "refusal" and isinstance(why, str) and why else {}
        choice = {"index": 0, "delta": fields, "finish_reason": _FINISH.get(str(reason), reason)}
        return b"data: " + dumps({**self._head, "choices": [choice]}) + b"\n\n"

    def _piece(self, call: Json) -> bytes:
        return self._chunk({"tool_calls": [{"index": self._calls, **call}]})

    def _chunk(self, delta: Json) -> bytes:
        """Write a chunk; chunks differ only in the delta, so the bytes before it are built once."""
        if not self._prefix:
            self._prefix = b"data: " + dumps(self._head)[:-1] + b',"choices":[{"index":0,"delta":'
        return self._prefix + dumps(delta) + b',"finish_reason":null}]}\n\n'
