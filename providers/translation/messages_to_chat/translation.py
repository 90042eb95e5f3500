"""Serves clients of Anthropic's Messages API from OpenAI-compatible upstreams. Pure."""

from providers.translation.base import TranslatedRequest
from providers.translation.messages_to_chat.request import Dialect, request_of
from providers.translation.messages_to_chat.stream import MessageEventsFromChat
from ttft_gateway.apis.anthropic.assembler import MessageAssembler
from ttft_gateway.apis.base import Api, Assembler, Call
from ttft_gateway.apis.json_fields import dict_or_empty
from ttft_gateway.apis.tolerant_json import loads


class MessagesToChat:
    """The `providers.translation.base.Translation` from the Messages API to chat completions.

    Args:
        dialect: of the upstream.
    """

    client_api, upstream_api = Api.MESSAGES, Api.CHAT

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def request(self, call: Call) -> TranslatedRequest:
        """See `Translation.request`."""
        return request_of(loads(call.body), self._dialect)

    def translator(self, call: Call) -> MessageEventsFromChat:
        """See `Translation.translator`."""
        thinking = dict_or_empty(_field(call, "thinking"))
        return MessageEventsFromChat(hide_thinking=thinking.get("display") == "omitted")

    def assembler(self, _call: Call) -> Assembler:
        """See `Translation.assembler`."""
        return MessageAssembler()


def _field(call: Call, key: str) -> object:
    start, end = call.spans.get(key, (0, 0))
    return loads(call.body[start:end])
