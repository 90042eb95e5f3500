"""The wire protocol of legacy completions on OpenAI-compatible servers.

Handles `text` choices; everything else is as in chat completions. Independent of HTTP, keys and providers. Sans-I/O.
"""

from collections.abc import Iterable, Mapping

from providers.openai.assembler import ChunkAssembler, Parts, choice_fields, chunks_of
from providers.openai.chat import OpenAIChat
from providers.openai.values import joined
from ttft_gateway.apis.base import Call


class OpenAICompletions(OpenAIChat):
    """The `ttft_gateway.apis.base.WireProtocol` of POST completions.

    Args:
        ask_usage: request token counts with every stream; False for servers that reject `stream_options`.
    """

    def __init__(self, *, ask_usage: bool = True) -> None:
        super().__init__(ask_usage=ask_usage)
        self._chunks = _chunks

    def assembler(self, _call: Call) -> ChunkAssembler:
        return ChunkAssembler("text_completion", _choice)


def _chunks(answer: Mapping[str, object]) -> Iterable[Mapping[str, object]]:
    return chunks_of(answer, "text_completion", _opening, {"text": ""})


def _opening(choice: Mapping[str, object]) -> dict[str, object]:
    return {"text": choice.get("text", "")}


def _choice(parts: Parts) -> dict[str, object]:
    return {**choice_fields(parts), "text": joined(parts.fields.get("text", ())) or ""}
