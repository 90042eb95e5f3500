"""Serves clients of chat completions from upstreams of the Responses API. Pure."""

from providers.openai.chat import OpenAIChat
from providers.translation.base import TranslatedRequest
from providers.translation.chat_to_responses.request import request_of
from providers.translation.chat_to_responses.stream import ChatChunksFromResponses
from ttft_gateway.apis.base import Api, Assembler, Call
from ttft_gateway.apis.tolerant_json import loads


class ChatToResponses:
    """The `providers.translation.base.Translation` from chat completions to the Responses API."""

    client_api, upstream_api = Api.CHAT, Api.RESPONSES

    def request(self, call: Call) -> TranslatedRequest:
        """See `Translation.request`."""
        body = loads(call.body)
        assert isinstance(body, dict)
        return request_of(body)

    def translator(self, call: Call) -> ChatChunksFromResponses:
        """See `Translation.translator`."""
        return ChatChunksFromResponses(with_usage=call.include_usage or not call.streaming)

    def assembler(self, call: Call) -> Assembler:
        """See `Translation.assembler`."""
        return OpenAIChat().assembler(call)
