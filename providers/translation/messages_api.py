"""Chat completions on Anthropic's Messages API, and the Messages API on chat completions: the two translations.

Each puts together a request's and an answer's half, which are pure. Which replica needs which is not known here.
"""

from collections.abc import Callable

from providers.anthropic.assemble import MessageAssembler
from providers.base import Api, Assembler, Call
from providers.json_fields import as_mapping
from providers.openai.chat import OpenAIChat
from providers.tolerant_json import loads
from providers.translation.base import Request
from providers.translation.chat_to_messages import request as from_chat
from providers.translation.chat_to_messages.stream import ChatAnswer
from providers.translation.messages_to_chat import request as to_chat
from providers.translation.messages_to_chat.stream import MessageAnswer


class ChatOnMessages:
    """The `providers.translation.base.Translation` for chat clients on upstreams that speak the Messages API.

    Args:
        wall_s: the wall time, for `created`.
    """

    asked, spoken = Api.CHAT, Api.MESSAGES

    def __init__(self, wall_s: Callable[[], float]) -> None:
        self._wall_s = wall_s

    def request(self, call: Call) -> Request:
        """See `Translation.request`."""
        return from_chat.request_of(loads(call.body))

    def translator(self, call: Call) -> ChatAnswer:
        """See `Translation.translator`."""
        return ChatAnswer(with_usage=call.include_usage or not call.streaming, wall_s=self._wall_s)

    def assembler(self, call: Call) -> Assembler:
        """See `Translation.assembler`."""
        return OpenAIChat().assembler(call)


class MessagesOnChat:
    """The `providers.translation.base.Translation` for clients of the Messages API on OpenAI-compatible upstreams.

    Args:
        dialect: of the upstream.
    """

    asked, spoken = Api.MESSAGES, Api.CHAT

    def __init__(self, dialect: to_chat.Dialect) -> None:
        self._dialect = dialect

    def request(self, call: Call) -> Request:
        """See `Translation.request`."""
        return to_chat.request_of(loads(call.body), self._dialect)

    def translator(self, call: Call) -> MessageAnswer:
        """See `Translation.translator`."""
        thinking = as_mapping(_field(call, "thinking"))
        return MessageAnswer(hide_thinking=thinking.get("display") == "omitted")

    def assembler(self, _call: Call) -> Assembler:
        """See `Translation.assembler`."""
        return MessageAssembler()


def _field(call: Call, key: str) -> object:
    start, end = call.spans.get(key, (0, 0))
    return loads(call.body[start:end])
