"""Translates the chunks of a chat completion to the events of a Messages stream.

One content block is open at a time and indexes only grow, as in Anthropic's own streams: reasoning is a thinking block,
text a text block, each tool call a block. The stop reason and the token counts are sent last, whatever the order of the
upstream's chunks. Missing token counts are estimated from the text, and marked.

Sans-I/O. Units: tokens.
"""

from collections.abc import Iterable, Mapping

from providers.translation.base import REASONING
from providers.translation.chat_to_messages.turns import tool_id
from ttft_gateway.apis.anthropic.usage import message_usage
from ttft_gateway.apis.anthropic.writer import event
from ttft_gateway.apis.base import Usage
from ttft_gateway.apis.errors import ProtocolError
from ttft_gateway.apis.json_fields import dict_or_empty
from ttft_gateway.apis.json_values import ITEMS_MAX
from ttft_gateway.apis.openai.events import finish_of, usage_of
from ttft_gateway.apis.sse import data_of, object_in
from ttft_gateway.apis.tolerant_json import dumps

Json = dict[str, object]

_STOP = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
_OPEN: Mapping[str, Json] = {
    "text": {"type": "text", "text": ""},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
}
_STOPPED_BY = ("stop_reason", "matched_stop")  # vLLM, SGLang: the stop sequence that was found
_CHARS_PER_TOKEN = 4  # a rule of thumb, for counts that are marked as estimated


class MessageEventsFromChat:
    """The `providers.translation.base.Translator` from chunks to Messages events.

    Args:
        hide_thinking: send thinking blocks without their text.
    """

    def __init__(self, *, hide_thinking: bool = False) -> None:
        self._hide_thinking = hide_thinking
        self._id = ""
        self._started = False
        self._ended = False
        self._index = -1  # of the last block
        self._open = ""  # what kind of block is open, empty for none
        self._calls: dict[int, str] = {}  # index of a tool call -> its id as the upstream gave it
        self._call = -1  # index of the last tool call
        self._reason: str | None = None
        self._stopped_by: str | None = None
        self._refused = False
        self._usage: Usage | None = None
        self._chars = 0

    def read(self, event: bytes) -> bytes:
        """See `Translator.read`.

        Raises:
            ProtocolError: there are over `ITEMS_MAX` tool calls, or a piece of an earlier one came after a later
                call's, which blocks cannot express.
        """
        data = data_of(event) or b""
        if data.startswith(b"[DONE]"):
            return self.close()
        chunk = None if self._ended else object_in(data)
        return b"".join(self._chunk(chunk)) if chunk is not None else b""

    def close(self) -> bytes:
        if self._ended or not self._started:
            return b""
        self._ended = True
        return b"".join([*self._stop(), *self._finish()])

    def _chunk(self, chunk: Mapping[str, object]) -> Iterable[bytes]:
        choices = chunk.get("choices")
        choice = dict_or_empty(choices[0]) if isinstance(choices, list) and choices else {}
        usage = chunk.get("usage") or choice.get("usage") or dict_or_empty(chunk.get("x_groq")).get("usage")
        self._usage = usage_of(usage) or self._usage
        if not self._started:
            yield self._begin(chunk)
        delta = dict_or_empty(choice.get("delta"))
        reasoning = next((delta[key] for key in REASONING if delta.get(key)), None)
        if isinstance(reasoning, str):
            yield from self._text("thinking", reasoning)
        yield from self._content(delta.get("content"))
        refusal = delta.get("refusal")
        if isinstance(refusal, str) and refusal:
            self._refused = True
            yield from self._text("text", refusal)
        calls = delta.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            yield from self._tool(dict_or_empty(call))
        if reason := finish_of(choice):
            self._reason = str(reason)
            found = next((choice[key] for key in _STOPPED_BY if choice.get(key)), None)
            self._stopped_by = found if isinstance(found, str) else None

    def _begin(self, chunk: Mapping[str, object]) -> bytes:
        self._started = True
        self._id = str(chunk.get("id") or "")
        message = {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": chunk.get("model") or "",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": message_usage(None),
        }
        return event("message_start", {"message": message})

    def _content(self, content: object) -> Iterable[bytes]:
        """Text, or parts; some servers (Mistral) send reasoning as a part."""
        if isinstance(content, str):
            yield from self._text("text", content)
        for part in content if isinstance(content, list) else ():
            kind = part.get("type") if isinstance(part, dict) else None
            if kind == "text":
                yield from self._text("text", str(part.get("text") or ""))
            elif kind == "thinking":
                thoughts = part.get("thinking")
                for thought in thoughts if isinstance(thoughts, list) else ():
                    yield from self._text("thinking", str(dict_or_empty(thought).get("text") or ""))

    def _text(self, kind: str, text: str) -> Iterable[bytes]:
        if not text:
            return
        if self._open != kind:
            yield from self._start(kind, _OPEN[kind])
        self._chars += len(text)
        if kind == "text" or not self._hide_thinking:
            yield self._delta({"type": f"{kind}_delta", kind: text})

    def _tool(self, piece: Mapping[str, object]) -> Iterable[bytes]:
        """A piece of a tool call; a name with a new id or index begins another call."""
        function = dict_or_empty(piece.get("function"))
        name, given_id, index = function.get("name"), str(piece.get("id") or ""), piece.get("index")
        at = index if isinstance(index, int) else self._call + bool(name)
        known = self._calls.get(at)
        if known is None or (name and given_id and known and given_id != known):
            if len(self._calls) == ITEMS_MAX:
                raise ProtocolError(f"the upstream's answer has over {ITEMS_MAX} tool calls")
            at = at if known is None else max(self._calls) + 1  # some servers send index 0 for every call
            self._calls[at], self._call = given_id, at
            number = len(self._calls) - 1
            used = tool_id(given_id or f"call_{self._id}_{number}")
            yield from self._start("tool_use", {"type": "tool_use", "id": used, "name": name or "", "input": {}})
        elif at != self._call and known != self._calls[self._call]:
            raise ProtocolError("the upstream interleaved several tool calls, which the Messages API does not support")
        arguments = function.get("arguments")
        text = arguments if isinstance(arguments, str) else dumps(arguments).decode() if arguments else ""
        if text:
            self._chars += len(text)
            yield self._delta({"type": "input_json_delta", "partial_json": text})

    def _start(self, kind: str, block: Json) -> Iterable[bytes]:
        yield from self._stop()
        self._open = kind
        self._index += 1
        yield event("content_block_start", {"index": self._index, "content_block": block})

    def _delta(self, delta: Json) -> bytes:
        return event("content_block_delta", {"index": self._index, "delta": delta})

    def _stop(self) -> Iterable[bytes]:
        if self._open:
            self._open = ""
            yield event("content_block_stop", {"index": self._index})

    def _finish(self) -> Iterable[bytes]:
        usage = message_usage(self._usage)
        if self._usage is None:
            usage |= {"output_tokens": -(-self._chars // _CHARS_PER_TOKEN), "estimated": True}
        reason = _STOP.get(self._reason or "stop", self._reason)
        if self._refused:
            reason = "refusal"
        elif self._calls and reason == "end_turn":
            reason = "tool_use"  # OpenAI sends `stop` if the call was forced
        elif self._stopped_by is not None and reason == "end_turn":
            reason = "stop_sequence"
        delta = {"stop_reason": reason, "stop_sequence": self._stopped_by if reason == "stop_sequence" else None}
        yield event("message_delta", {"delta": delta, "usage": usage})
        yield event("message_stop", {})
