"""Serves clients of chat completions from upstreams of Anthropic's Messages API. Pure."""

from collections.abc import Callable

from providers.openai.chat import OpenAIChat
from providers.translation.base import TranslatedRequest
from providers.translation.chat_to_messages.request import request_of
from providers.translation.chat_to_messages.stream import ChatChunksFromMessages
from ttft_gateway.apis.base import Api, Assembler, Call
from ttft_gateway.apis.tolerant_json import loads


class ChatToMessages:
    """The `providers.translation.base.Translation` from chat completions to the Messages API.

    Args:
        wall_s: the wall time, for `created`.
    """

    client_api, upstream_api = Api.CHAT, Api.MESSAGES

    def __init__(self, wall_s: Callable[[], float]) -> None:
        self._wall_s = wall_s

    def request(self, call: Call) -> TranslatedRequest:
        """See `Translation.request`."""
        return request_of(loads(call.body))

    def translator(self, call: Call) -> ChatChunksFromMessages:
        """See `Translation.translator`."""
        return ChatChunksFromMessages(with_usage=call.include_usage or not call.streaming, wall_s=self._wall_s)

    def assembler(self, call: Call) -> Assembler:
        """See `Translation.assembler`."""
        return OpenAIChat().assembler(call)
