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
from providers.responses.events import OnResponseId
from providers.responses.protocol import OpenAIResponses
from providers.translation.base import OnDropped, TranslatedProtocol, Translation
from providers.translation.chat_to_messages.translation import ChatToMessages
from providers.translation.chat_to_responses.translation import ChatToResponses
from providers.translation.messages_to_chat.request import Dialect
from providers.translation.messages_to_chat.translation import MessagesToChat
from providers.translation.responses_to_chat.translation import ResponsesToChat


@dataclass(frozen=True, slots=True)
class ProtocolOptions:
    """What the configuration says of one replica.

    Attributes:
        first_token: whether reasoning counts as content.
        note: hears the id of every answer that the Responses API gives.
        dropped: hears which fields were left out in a translation; None: such a request is refused.
        max_tokens: the bound on an answer where a client gave none and the upstream's API demands one.
        wall_s: the wall time, for APIs that date their answers where the upstream's does not.
    """

    first_token: FirstToken = "any"
    on_response_id: OnResponseId | None = None
    on_dropped: OnDropped | None = None
    max_tokens: int = MAX_TOKENS
    wall_s: Callable[[], float] = lambda: 0.0


_NATIVE: Final[Mapping[Api, Callable[[Kind, ProtocolOptions], WireProtocol]]] = {
    Api.CHAT: lambda kind, options: OpenAIChat(ask_usage=kind.supports_usage_option, first_token=options.first_token),
    Api.COMPLETIONS: lambda kind, _: OpenAICompletions(ask_usage=kind.supports_usage_option),
    Api.RESPONSES: lambda _, options: OpenAIResponses(
        first_token=options.first_token, on_response_id=options.on_response_id
    ),
    Api.MESSAGES: lambda _, options: AnthropicMessages(first_token=options.first_token, max_tokens=options.max_tokens),
    Api.EMBEDDINGS: lambda _, __: OpenAIEmbeddings(),
}
_TRANSLATIONS: Final[tuple[Callable[[Kind, ProtocolOptions], Translation], ...]] = (
    lambda _, __: ResponsesToChat(),
    lambda _, options: ChatToMessages(options.wall_s),
    lambda _, __: ChatToResponses(),
    lambda kind, _: MessagesToChat(_dialect(kind)),
)


def protocols(kind: Kind, native: Iterable[Api], options: ProtocolOptions) -> dict[Api, WireProtocol]:
    """A wire protocol for every API in which an upstream can be asked.

    Args:
        kind: of the upstream.
        native: the APIs it speaks itself.
        options: see there.
    """
    found = {api: _NATIVE[api](kind, options) for api in Api if api in native and api in _NATIVE}
    translations = [make(kind, options) for make in _TRANSLATIONS]
    while True:
        reached = frozenset(found)
        for translation in translations:
            if translation.client_api not in found and translation.upstream_api in reached:
                found[translation.client_api] = TranslatedProtocol(
                    translation, found[translation.upstream_api], options.on_dropped
                )
        if reached == frozenset(found):
            return found


def _dialect(kind: Kind) -> Dialect:
    """Own engines take what the Messages API has and OpenAI's has not: `top_k`, and what was thought before."""
    reasoning = "reasoning_content" if kind.own_engine else None
    return Dialect(max_tokens=kind.max_tokens, top_k=kind.own_engine, reasoning=reasoning)
