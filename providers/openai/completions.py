"""The wire protocol of legacy completions on OpenAI-compatible servers.

Handles `text` choices; requests, events, errors and the assembler are shared with chat completions. Independent of
HTTP, keys and providers. Sans-I/O.
"""

from collections.abc import Iterable, Mapping

from providers.openai.assembler import ChunkAssembler, Parts, choice_fields, chunks_of
from providers.openai.outlines import read_outline
from providers.openai.request import build
from providers.openai.values import joined
from ttft_gateway.apis.base import Api, Body, Call, Frame
from ttft_gateway.apis.openai.errors import bad_status
from ttft_gateway.apis.openai.events import ChunkReader, LearnedEnds, usage_of, whole_body


class OpenAICompletions:
    """The `ttft_gateway.apis.base.WireProtocol` of POST completions.

    Args:
        ask_usage: request token counts with every stream; False for servers that reject `stream_options`.
    """

    def __init__(self, *, ask_usage: bool = True) -> None:
        self._ask_usage = ask_usage
        self._learned = LearnedEnds()

    def path(self, api: Api) -> str:
        return "/" + api.value

    def build(self, call: Call, model: str, *, stream: bool) -> Body:
        return build(call, model, stream=stream, ask_usage=self._ask_usage)

    def reader(self, call: Call) -> ChunkReader:
        strip = self._ask_usage and call.streaming and not call.include_usage
        return ChunkReader(call, strip_usage=strip, first_token="any", chunks=_chunks, learned=self._learned)

    def assembler(self, _call: Call) -> ChunkAssembler:
        return ChunkAssembler("text_completion", _choice)

    def whole(self, call: Call, body: bytes) -> Frame:
        return whole_body(self.reader(call), body)

    def outlined(self, outline: bytes) -> Frame:
        return read_outline(outline, "choices", usage_of)

    error = staticmethod(bad_status)


def _chunks(answer: Mapping[str, object]) -> Iterable[Mapping[str, object]]:
    return chunks_of(answer, "text_completion", _opening, {"text": ""})


def _opening(choice: Mapping[str, object]) -> dict[str, object]:
    return {"text": choice.get("text", "")}


def _choice(parts: Parts) -> dict[str, object]:
    return {**choice_fields(parts), "text": joined(parts.fields.get("text", ())) or ""}
