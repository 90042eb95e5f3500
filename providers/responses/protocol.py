"""The wire protocol of OpenAI's Responses API.

Token counts come with every answer without an option, and the last event of a stream has the body of the unstreamed
answer. A server without the path is reported as unsupported rather than as failed. Sans-I/O.
"""

from providers.openai.outlines import read_outline
from providers.openai.request import build
from providers.responses.assembler import ResponseAssembler
from ttft_gateway.apis.base import Api, Body, Call, FirstToken, Frame, Headers
from ttft_gateway.apis.errors import Unsupported, UpstreamError
from ttft_gateway.apis.openai.errors import bad_status
from ttft_gateway.apis.responses.events import OnResponseId, ResponsesReader, usage_of, whole_answer

_NO_PATH = frozenset({405, 501})


class OpenAIResponses:
    """The `ttft_gateway.apis.base.WireProtocol` of POST responses.

    Args:
        first_token: with "answer", reasoning does not count as content.
        on_response_id: receives the owner and the id of every response, so that the owner's requests that continue it
            reach the same replica.
    """

    def __init__(self, *, first_token: FirstToken = "any", on_response_id: OnResponseId | None = None) -> None:
        self._first_token = first_token
        self._on_response_id = on_response_id

    def path(self, api: Api) -> str:
        """See `WireProtocol.path`."""
        return "/" + api.value

    def build(self, call: Call, model: str, *, stream: bool) -> Body:
        """See `WireProtocol.build`."""
        return build(call, model, stream=stream, ask_usage=False)

    def reader(self, call: Call) -> ResponsesReader:
        """See `WireProtocol.reader`."""
        return ResponsesReader(self._first_token, self._on_response_id, call.owner)

    def assembler(self, _call: Call) -> ResponseAssembler:
        """See `WireProtocol.assembler`."""
        return ResponseAssembler()

    def whole(self, _call: Call, body: bytes) -> Frame:
        """See `WireProtocol.whole`."""
        return whole_answer(body)

    def outlined(self, outline: bytes) -> Frame:
        """See `WireProtocol.outlined`."""
        return read_outline(outline, "output", usage_of)

    def error(self, status: int, headers: Headers, body: bytes) -> UpstreamError:
        """See `WireProtocol.error`."""
        failed = bad_status(status, headers, body)
        if status in _NO_PATH or (status == 404 and failed.code is None and failed.param is None):
            return Unsupported(f"the Responses API is not supported by the upstream: {failed.message}")
        return failed
