"""Wire protocols and recoverers by client API for each kind of upstream: native ones, and translations for other APIs.

One row for each native API, one for each translation. If several chains of translations lead from a client's API to a
native one, the shortest is used; of equally short chains, the one with the first row.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from providers.anthropic.protocol import AnthropicMessages
from providers.anthropic.transcript import MessagesRecoverer
from providers.openai.chat import OpenAIChat, OpenAICompletions
from providers.openai.edits import BodyEdits, EditedProtocol
from providers.openai.transcript import OpenAIRecoverer
from providers.openai.whole import OpenAIEmbeddings, WholeAnswers
from providers.recovery import Recoverer
from providers.responses.protocol import OpenAIResponses
from providers.responses.transcript import ResponsesRecoverer
from providers.translation.base import OnDropped, TranslatedProtocol, Translation
from providers.translation.chat_to_messages.translation import ChatToMessages
from providers.translation.chat_to_responses.translation import ChatToResponses
from providers.translation.messages_to_chat.translation import Dialect, MessagesToChat
from providers.translation.responses_to_chat.translation import ResponsesToChat
from ttft_gateway.apis.base import MAX_TOKENS_DEFAULT, Api, FirstToken, OnAnswerId, Prefix, WireProtocol
from ttft_gateway.apis.catalog import Kind


class ProtocolOptions(msgspec.Struct, frozen=True):
    """The configuration of one replica's protocols.

    Attributes:
        first_token: with "answer", reasoning does not count as content.
        on_answer_id: receives the owner and the id of every answer of the Responses API, and of a thread of the
            Messages API; None to ignore them.
        on_dropped: receives the names of fields that a translation dropped; None: such a request is rejected.
        max_tokens: the bound on an answer if the client sends none and the upstream's API requires one.
        edits: changes to the bodies of generating APIs, None for none.
        wall_s: the wall time, for the dates of answers from an upstream without dates.
    """

    first_token: FirstToken = "any"
    on_answer_id: OnAnswerId | None = None
    on_dropped: OnDropped | None = None
    max_tokens: int = MAX_TOKENS_DEFAULT
    edits: BodyEdits | None = None
    wall_s: Callable[[], float] = lambda: 0.0


_NATIVE: Final[Mapping[Api, Callable[[Kind, ProtocolOptions], WireProtocol]]] = {
    Api.CHAT: lambda kind, options: OpenAIChat(ask_usage=kind.supports_usage_option, first_token=options.first_token),
    Api.COMPLETIONS: lambda kind, _: OpenAICompletions(ask_usage=kind.supports_usage_option),
    Api.RESPONSES: lambda _, options: OpenAIResponses(
        first_token=options.first_token, on_answer_id=options.on_answer_id
    ),
    Api.MESSAGES: lambda kind, options: AnthropicMessages(
        first_token=options.first_token,
        max_tokens=options.max_tokens,
        body_version=kind.body_version,
        stores_threads=kind.stores_threads,
        on_answer_id=options.on_answer_id,
        signs_thinking=not kind.own_engine,
    ),
    Api.EMBEDDINGS: lambda _, __: OpenAIEmbeddings(),
    Api.RERANK: lambda _, __: WholeAnswers(),
    Api.MODERATIONS: lambda _, __: WholeAnswers(),
    Api.TOKENIZE: lambda _, __: WholeAnswers(),
}
RECOVERERS: Final[Mapping[Api, Recoverer]] = {
    Api.CHAT: OpenAIRecoverer(),
    Api.COMPLETIONS: OpenAIRecoverer(),
    Api.RESPONSES: ResponsesRecoverer(),
    Api.MESSAGES: MessagesRecoverer(),
}
"""Recoverers of broken answers by the client's API; answers of other APIs are whole or absent."""
_EDITED: Final = frozenset({Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES})
_TRANSLATIONS: Final[tuple[tuple[type[Translation], Callable[[Kind, ProtocolOptions], Translation]], ...]] = (
    (ResponsesToChat, lambda kind, _: ResponsesToChat(prefills=bool(kind.prefills))),
    (ChatToMessages, lambda _, options: ChatToMessages(options.wall_s)),
    (ChatToResponses, lambda _, __: ChatToResponses()),
    (MessagesToChat, lambda kind, _: MessagesToChat(_dialect(kind))),
)


def protocols(kind: Kind, native: Iterable[Api], options: ProtocolOptions) -> dict[Api, WireProtocol]:
    """Return a wire protocol for every API that an upstream can serve.

    Args:
        kind: the upstream's row of the catalogue.
        native: the upstream's native APIs.
        options: the configuration of the replica.
    """
    return _translated({api: _native(api, kind, options) for api in _NATIVE if api in native}, kind, options)


def continuing(kind: Kind, native: Mapping[Api, WireProtocol], options: ProtocolOptions) -> dict[Api, WireProtocol]:
    """Return a wire protocol for every API in which an upstream can continue an answer from a given beginning.

    An engine continues a chat completion, in which a client's answer of any API can be expressed. Whether its other
    APIs continue an answer, or begin another one, depends on its version.

    Args:
        native: protocols of the upstream's native APIs, from `protocols`.
    """
    begun = {api: protocol for api, protocol in native.items() if api in kind.prefills}
    return {api: protocol for api, protocol in _translated(begun, kind, options).items() if api in _EDITED}


def _translated(found: dict[Api, WireProtocol], kind: Kind, options: ProtocolOptions) -> dict[Api, WireProtocol]:
    """Add a protocol for every other API that can be translated to one of these."""
    while True:
        reached = frozenset(found)
        for form, make in _TRANSLATIONS:
            if form.client_api not in found and form.upstream_api in reached:
                inner = found[form.upstream_api]
                found[form.client_api] = TranslatedProtocol(make(kind, options), inner, options.on_dropped)
        if len(reached) == len(found):
            return found


def prefixes(kind: Kind, apis: Iterable[Api]) -> frozenset[Prefix]:
    """Return the kinds of answers that an upstream continues, from the APIs of `continuing`.

    An engine reads a continuation as the beginning of an answer when it looks for tool calls in it.
    """
    tools = (False,) if kind.own_engine else (False, True)
    return frozenset((api, with_tools) for api in apis for with_tools in tools)


def _native(api: Api, kind: Kind, options: ProtocolOptions) -> WireProtocol:
    protocol = _NATIVE[api](kind, options)
    return protocol if options.edits is None or api not in _EDITED else EditedProtocol(protocol, options.edits)


def _dialect(kind: Kind) -> Dialect:
    """Own engines accept fields of the Messages API that OpenAI lacks: `top_k`, and the reasoning of earlier turns."""
    reasoning = "reasoning_content" if kind.own_engine else None
    prefills = Api.CHAT in kind.prefills
    return Dialect(max_tokens=kind.max_tokens, top_k=kind.own_engine, reasoning=reasoning, prefills=prefills)
