"""Which wire protocol serves which client API on which kind of upstream: the natives, and translations for the rest.

One row an API that upstreams speak, one row a translation. Where several ways lead from an API to what an upstream
speaks, the one with the fewest translations is taken; at equal length, the row that stands first.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from providers.anthropic.protocol import MAX_TOKENS, AnthropicMessages
from providers.base import Api, WireProtocol
from providers.catalog import Kind
from providers.openai.chat import OpenAIChat
from providers.openai.completions import OpenAICompletions
from providers.openai.embeddings import OpenAIEmbeddings
from providers.openai.events import FirstToken
from providers.responses.events import Note
from providers.responses.protocol import OpenAIResponses
from providers.translation.base import Dropped, Translated, Translation
from providers.translation.chat_to_responses.request import ChatOverResponses
from providers.translation.messages_api import ChatOnMessages, MessagesOnChat
from providers.translation.messages_to_chat.request import Dialect
from providers.translation.responses_to_chat.request import ResponsesOverChat


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the configuration says of one replica.

    Attributes:
        first_token: whether reasoning counts as content.
        note: hears the id of every answer that the Responses API gives.
        dropped: hears which fields were left out in a translation; None: such a request is refused.
        max_tokens: the bound on an answer where a client gave none and the upstream's API demands one.
        wall_s: the wall time, for APIs that date their answers where the upstream's does not.
    """

    first_token: FirstToken = "any"
    note: Note | None = None
    dropped: Dropped | None = None
    max_tokens: int = MAX_TOKENS
    wall_s: Callable[[], float] = lambda: 0.0


_NATIVE: Final[Mapping[Api, Callable[[Kind, Wishes], WireProtocol]]] = {
    Api.CHAT: lambda kind, wishes: OpenAIChat(ask_usage=kind.asks_usage, first_token=wishes.first_token),
    Api.COMPLETIONS: lambda kind, _: OpenAICompletions(ask_usage=kind.asks_usage),
    Api.RESPONSES: lambda _, wishes: OpenAIResponses(first_token=wishes.first_token, note=wishes.note),
    Api.MESSAGES: lambda _, wishes: AnthropicMessages(first_token=wishes.first_token, max_tokens=wishes.max_tokens),
    Api.EMBEDDINGS: lambda _, __: OpenAIEmbeddings(),
}
_TRANSLATIONS: Final[tuple[Callable[[Kind, Wishes], Translation], ...]] = (
    lambda _, __: ResponsesOverChat(),
    lambda _, wishes: ChatOnMessages(wishes.wall_s),
    lambda _, __: ChatOverResponses(OpenAIChat().assembler),
    lambda kind, _: MessagesOnChat(_dialect(kind)),
)


def protocols(kind: Kind, spoken: Iterable[Api], wishes: Wishes) -> dict[Api, WireProtocol]:
    """A wire protocol for every API in which an upstream can be asked.

    Args:
        kind: of the upstream.
        spoken: the APIs it speaks itself.
        wishes: see there.
    """
    found = {api: _NATIVE[api](kind, wishes) for api in Api if api in spoken and api in _NATIVE}
    translations = [make(kind, wishes) for make in _TRANSLATIONS]
    while True:
        reached = frozenset(found)
        for translation in translations:
            if translation.asked not in found and translation.spoken in reached:
                found[translation.asked] = Translated(translation, found[translation.spoken], wishes.dropped)
        if reached == frozenset(found):
            return found


def _dialect(kind: Kind) -> Dialect:
    """Own engines take what the Messages API has and OpenAI's has not: `top_k`, and what was thought before."""
    reasoning = "reasoning_content" if kind.own_engine else None
    return Dialect(max_tokens=kind.max_tokens, top_k=kind.own_engine, reasoning=reasoning)
