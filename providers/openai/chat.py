"""The wire protocols of chat completions and of legacy completions on OpenAI-compatible servers.

Handles the choices: `message` and `delta` with content in parts, tool calls and audio, and legacy `text`. Requests,
events, errors and most of the assembling are shared. Independent of HTTP, keys and providers. Sans-I/O.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from providers.openai.assembler import ChunkAssembler, Parts, choice_fields, chunks_of
from providers.openai.outlines import read_outline
from providers.openai.request import build
from providers.openai.values import ToolCalls, Values, by_pieces, joined
from ttft_gateway.apis.base import Api, Body, Call, FirstToken, Frame
from ttft_gateway.apis.openai.errors import bad_status
from ttft_gateway.apis.openai.events import ChunkReader, LearnedEnds, usage_of, whole_body

_NULLS_CONTENT = ("tool_calls", "function_call", "refusal", "audio", "reasoning", "reasoning_content")


class OpenAIChat:
    """The `ttft_gateway.apis.base.WireProtocol` of POST chat/completions.

    Args:
        ask_usage: request token counts with every stream; False for servers that reject `stream_options`.
        first_token: with "answer", reasoning does not count as content.
    """

    def __init__(self, *, ask_usage: bool = True, first_token: FirstToken = "any") -> None:
        self._ask_usage = ask_usage
        self._first_token = first_token
        self._learned = LearnedEnds()
        self._chunks = _chunks  # events of a whole answer

    def path(self, api: Api, _model: str, *, stream: bool) -> str:
        return "/" + api.value

    def build(self, call: Call, model: str, *, stream: bool) -> Body:
        return build(call, model, stream=stream, ask_usage=self._ask_usage)

    def reader(self, call: Call) -> ChunkReader:
        strip = self._ask_usage and call.streaming and not call.include_usage
        return ChunkReader(
            call.choices, strip_usage=strip, first_token=self._first_token, chunks=self._chunks, learned=self._learned
        )

    def assembler(self, _call: Call) -> ChunkAssembler:
        return ChunkAssembler("chat.completion", _choice)

    def whole(self, call: Call, body: bytes) -> Frame:
        return whole_body(self.reader(call), body)

    def outlined(self, outline: bytes) -> Frame:
        return read_outline(outline, "choices", usage_of)

    error = staticmethod(bad_status)


class OpenAICompletions(OpenAIChat):
    """The `ttft_gateway.apis.base.WireProtocol` of POST completions.

    Args:
        ask_usage: request token counts with every stream; False for servers that reject `stream_options`.
    """

    def __init__(self, *, ask_usage: bool = True) -> None:
        super().__init__(ask_usage=ask_usage)
        self._chunks = _text_chunks

    def assembler(self, _call: Call) -> ChunkAssembler:
        return ChunkAssembler("text_completion", _text_choice)


def _chunks(answer: Mapping[str, object]) -> Iterable[Mapping[str, object]]:
    return chunks_of(answer, "chat.completion.chunk", _opening, {"delta": {}})


def _opening(choice: Mapping[str, object]) -> dict[str, object]:
    """The whole message as a delta, in which tool calls have an index."""
    message = choice.get("message")
    delta = dict(message) if isinstance(message, dict) else {}
    calls = delta.get("tool_calls")
    if isinstance(calls, list):
        delta["tool_calls"] = [{"index": n, **call} for n, call in enumerate(calls) if isinstance(call, dict)]
    return {"delta": delta}


def _choice(parts: Parts) -> dict[str, object]:
    return {"message": _message(parts.delta), **choice_fields(parts)}


def _message(delta: Values) -> dict[str, object]:
    """Build a message from its deltas, keys in the order of their first chunks."""
    message: dict[str, object] = {"role": "assistant", "content": None}
    for key, values in delta.items():
        if key == "role":
            message["role"] = values[0] if values else "assistant"
        elif key == "content":
            message["content"] = _content(values)
        elif key == "tool_calls":
            message["tool_calls"] = values[0].made() if values and isinstance(values[0], ToolCalls) else None
        elif key in ("function_call", "audio"):
            message[key] = by_pieces(values)
        else:
            message[key] = joined(values)
    if message["content"] == "" and any(message.get(key) for key in _NULLS_CONTENT):
        message["content"] = None
    return message


def _content(values: Sequence[object]) -> object:
    """Join text; concatenate parts (Mistral's reasoning), after which text may follow as a plain string."""
    if not any(isinstance(value, list) for value in values):
        return joined(values)
    parts = (value if isinstance(value, list) else [{"type": "text", "text": value}] for value in values if value)
    return _merged(chain.from_iterable(parts))


def _merged(parts: Iterable[object]) -> list[object]:
    """Concatenate content parts; a part extends the part before it if both are of one kind."""
    merged: list[object] = []
    for part in parts:
        last = merged[-1] if merged else None
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and isinstance(part, dict) and isinstance(last, dict) and last.get("type") == kind:
            first, second = last.get(kind), part.get(kind)
            if isinstance(first, str) and isinstance(second, str):
                merged[-1] = {**last, **part, kind: first + second}
                continue
            if isinstance(first, list) and isinstance(second, list):
                merged[-1] = {**last, **part, kind: _merged(first + second)}
                continue
        merged.append(part)
    return merged


def _text_chunks(answer: Mapping[str, object]) -> Iterable[Mapping[str, object]]:
    return chunks_of(answer, "text_completion", lambda choice: {"text": choice.get("text", "")}, {"text": ""})


def _text_choice(parts: Parts) -> dict[str, object]:
    return {**choice_fields(parts), "text": joined(parts.fields.get("text", ())) or ""}
