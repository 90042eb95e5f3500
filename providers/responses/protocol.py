"""OpenAI's Responses API as an upstream speaks it: the wire protocol.

Nothing has to be asked for: token counts come with every answer, and the last event of a stream carries the body that
would have come without one. A server that does not know the path is unsuited rather than broken. Sans-I/O.
"""

from providers.base import Api, Call, Frame, Headers
from providers.errors import Unsupported, UpstreamError
from providers.openai.errors import bad_status
from providers.openai.events import FirstToken
from providers.openai.request import build
from providers.responses.assemble import ResponseAssembler
from providers.responses.events import OnResponseId, ResponsesReader, whole_answer

_NO_PATH = frozenset({405, 501})


class OpenAIResponses:
    """The `providers.base.WireProtocol` of POST responses.

    Args:
        first_token: whether reasoning counts as content.
        note: hears the id of every response, so that what goes on with it can be sent to the same replica.
    """

    def __init__(self, *, first_token: FirstToken = "any", on_response_id: OnResponseId | None = None) -> None:
        self._first_token = first_token
        self._on_response_id = on_response_id

    def path(self, api: Api) -> str:
        """See `WireProtocol.path`."""
        return "/" + api.value

    def build(self, call: Call, model: str, *, stream: bool) -> bytes:
        """See `WireProtocol.build`."""
        return build(call, model, stream=stream, ask_usage=False)

    def reader(self, _call: Call) -> ResponsesReader:
        """See `WireProtocol.reader`."""
        return ResponsesReader(self._first_token, self._on_response_id)

    def assembler(self, _call: Call) -> ResponseAssembler:
        """Makes a body of the events."""
        return ResponseAssembler()

    def whole(self, _call: Call, body: bytes) -> Frame:
        """See `WireProtocol.whole`."""
        return whole_answer(body)

    def error(self, status: int, headers: Headers, body: bytes) -> UpstreamError:
        """See `WireProtocol.error`."""
        failed = bad_status(status, headers, body)
        if status in _NO_PATH or (status == 404 and failed.code is None and failed.param is None):
            return Unsupported(f"the upstream seems to have no Responses API: {failed.message}")
        return failed
