"""Serves clients of the Responses API from OpenAI-compatible upstreams. Pure."""

from providers.responses.assembler import ResponseAssembler
from providers.translation.base import TranslatedRequest
from providers.translation.responses_to_chat.request import request_of
from providers.translation.responses_to_chat.stream import READ_FIELDS, ResponseEventsFromChat
from ttft_gateway.apis.base import Api, Call
from ttft_gateway.apis.tolerant_json import loads


class ResponsesToChat:
    """The `providers.translation.base.Translation` from the Responses API to chat completions."""

    client_api, upstream_api = Api.RESPONSES, Api.CHAT

    def request(self, call: Call) -> TranslatedRequest:
        """See `Translation.request`."""
        body = loads(call.body)
        assert isinstance(body, dict)
        return request_of(body)

    def translator(self, call: Call) -> ResponseEventsFromChat:
        """See `Translation.translator`."""
        spans = {key: span for key, span in call.spans.items() if key in READ_FIELDS}  # not the prompt, which is large
        return ResponseEventsFromChat({key: loads(call.body[start:end]) for key, (start, end) in spans.items()})

    def assembler(self, _call: Call) -> ResponseAssembler:
        """See `Translation.assembler`."""
        return ResponseAssembler()
