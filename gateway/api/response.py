"""A race's client: holds back the status until there is a winner, then sends the winner's bytes unchanged.

A race has one of two clients: `EventStream` forwards events, `JsonAnswer` assembles them into one body. `TellingStream`
and `TellingAnswer` also report usage and cost. Units: bytes.
"""

from collections.abc import Callable

from gateway.api.dialects.base import ERROR_EVENT, ClientApi, StreamTerminator, is_last
from gateway.api.response_writer import ResponseWriter
from gateway.errors import GatewayError, UpstreamFailed
from ttft_gateway.apis.base import Assembler, Call

_BLANK_MAX = 64  # white space before an answer
ANSWER_BYTES_MAX = 64 * 1024 * 1024  # the events of a non-streaming answer

_STREAM_LINES = (
    b"content-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\n"
    b"x-accel-buffering: no\r\n"  # nginx in front of the gateway must not buffer tokens
)


class EventStream:
    """A `gateway.race.context.Client` that forwards events."""

    __slots__ = ("_api", "_request_id", "_response", "_terminator", "finish", "write")

    def __init__(self, response: ResponseWriter, request_id: str, api: ClientApi) -> None:
        self._response = response
        self._request_id = request_id
        self._api = api
        self._terminator: StreamTerminator = ERROR_EVENT
        self.write: Callable[[bytes], None] = response.write
        self.finish: Callable[[], None] = response.end
        if api.terminator is not None:
            self._terminator = api.terminator(request_id)
            if self._terminator.note is not None:
                self.write = self._write_noted

    @property
    def committed(self) -> bool:
        return self._response.body_sent

    def begin(self, headers: list[tuple[bytes, bytes]]) -> None:
        if not self._response.started:  # else the 200 was sent early, without these headers
            id_header = (b"x-request-id", self._request_id.encode())
            self._response.start(200, [id_header, *headers], lines=_STREAM_LINES)

    def keep_alive(self) -> None:
        self.begin([])
        self._response.write_keep_alive(self._api.keep_alive)

    def fail(self, error: GatewayError) -> None:
        if self._response.started:
            self._response.write(self._terminator.error(error))
            self._response.end()
        else:
            respond_error(self._response, error, self._request_id, self._api)

    def _write_noted(self, raw: bytes) -> None:
        assert self._terminator.note is not None
        self._terminator.note(raw)
        self._response.write(raw)


class TellingStream(EventStream):
    """An event stream that reports usage and cost in a comment before its last event.

    SDKs skip comments. They would also skip one after the last event, but the body should end with that event.
    """

    __slots__ = ("_forward", "_told")

    def __init__(self, response: ResponseWriter, request_id: str, api: ClientApi) -> None:
        super().__init__(response, request_id, api)
        self._forward = self.write
        self._told = False
        self.write, self.finish = self._write_telling, self._finish_telling

    def _finish_telling(self) -> None:
        self._tell()  # a stream may end without a closing event
        self._response.end()

    def _write_telling(self, raw: bytes) -> None:
        if is_last(raw):
            self._tell()
        self._forward(raw)

    def _tell(self) -> None:
        if not self._told and self._response.race is not None and (usage := self._response.race.usage()):
            self._told = True
            self._response.write(b": %b %b\n\n" % usage)


class JsonAnswer:
    """A `gateway.race.context.Client` that assembles the events of a non-streaming request into one JSON body."""

    __slots__ = ("_api", "_assembler", "_body", "_body_bytes", "_call", "_headers", "_request_id", "_response")

    def __init__(self, response: ResponseWriter, request_id: str, api: ClientApi, call: Call) -> None:
        self._response = response
        self._request_id = request_id
        self._api = api
        self._call = call
        self._assembler: Assembler | None = None  # None if the upstream sends the body itself
        self._headers: list[tuple[bytes, bytes]] = []
        self._body, self._body_bytes = list[bytes](), 0

    @property
    def committed(self) -> bool:
        return False  # nothing is sent before finish()

    def begin(self, headers: list[tuple[bytes, bytes]]) -> None:
        self._headers = headers
        self._body, self._body_bytes = [], 0
        make = self._api.assembler
        self._assembler = make(self._call) if make is not None and self._call.assemble else None

    def keep_alive(self) -> None:
        """Do nothing: a non-streaming request never gets an early 200."""

    def write(self, raw: bytes) -> None:
        self._body_bytes += len(raw)
        if self._body_bytes > ANSWER_BYTES_MAX:
            self._give_up(f'the upstream\'s answer is over {ANSWER_BYTES_MAX} bytes; set "stream": true')
            return
        if self._body_bytes == len(raw) and raw[:_BLANK_MAX].lstrip().startswith(b"{"):
            self._assembler = None  # a heavy answer, whole: no event begins with a brace
        if self._assembler is not None:
            self._assembler.add(raw)
        else:
            self._body.append(raw)

    def finish(self) -> None:
        try:
            body = self._body if self._assembler is None else [self._assembler.body()]
        except (ValueError, TypeError, LookupError, AttributeError):  # the events do not form an answer
            self._give_up("the upstream's events could not be assembled into one response")
            return
        headers = [(b"content-type", b"application/json"), _id_header(self._request_id), *self._headers]
        self._response.start(200, headers, sum(map(len, body)))
        for piece in body:
            self._response.write(piece)
        self._response.end()

    def fail(self, error: GatewayError) -> None:
        if not self._response.started:
            respond_error(self._response, error, self._request_id, self._api)

    def _give_up(self, message: str) -> None:
        if self._response.race is not None:
            self._response.race.give_up(UpstreamFailed(message, status=502, code="upstream_protocol_error"))


class TellingAnswer(JsonAnswer):
    """A JSON answer that reports usage and cost in a header."""

    __slots__ = ()

    def finish(self) -> None:
        if self._response.race is not None and (usage := self._response.race.usage()):
            self._headers = [*self._headers, usage]
        super().finish()


def respond(
    response: ResponseWriter, status: int, headers: list[tuple[bytes, bytes]], body: bytes, *, end: bool = True
) -> None:
    """Send a whole response."""
    response.start(status, headers, len(body))
    response.write(body)
    if end:
        response.end()


def respond_error(
    response: ResponseWriter, error: GatewayError, request_id: str, api: ClientApi, *, end: bool = True
) -> None:
    """Send an error response, with end=False all but its end; nothing has been sent before."""
    headers = [(b"content-type", b"application/json"), _id_header(request_id), *error.headers()]
    respond(response, error.status, headers, api.error_body(error), end=end)


def _id_header(request_id: str) -> tuple[bytes, bytes]:
    return (b"x-request-id", request_id.encode())
