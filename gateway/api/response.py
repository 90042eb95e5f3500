"""The client's side of a race over ASGI: the status is held until it is known, the winner's bytes go out as they came.

Races push from callbacks, ASGI wants coroutines. An `Outbox` bridges the two without a task: it gathers what one read
of an upstream brought, or one turn of the loop, and steps `send` by hand, which on uvicorn returns without suspending
unless the client is slow. Only then a task takes over. The winner's upstream is paused while more than 64 kB wait,
even within one read. The endpoint's own coroutine does nothing but `receive()`, so a client that leaves is noticed at
once, first token or not.

Two clients of a race: `EventStream` forwards, `JsonAnswer` assembles; their telling kinds say what it has cost, too.
Units: bytes.
"""

from collections.abc import Callable

from gateway.api.asgi import Receive
from gateway.api.dialects.base import ClientApi, is_last
from gateway.api.outbox import Leavable, Outbox
from gateway.errors import GatewayError, UpstreamFailed
from providers.base import Assembler, Call

ANSWER_BYTES_MAX = 64 * 1024 * 1024  # of a non-streaming answer, as events

_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx in front of us must not gather tokens
]


class EventStream:
    """A `gateway.race.context.Client` that forwards events."""

    __slots__ = ("_api", "_ending", "_outbox", "_request_id", "write")

    def __init__(self, outbox: "Outbox", request_id: str, api: ClientApi) -> None:
        self._outbox = outbox
        self._request_id = request_id
        self._api = api
        self._ending = api.ending(request_id)
        self.write: Callable[[bytes], None] = outbox.write  # one call less for every event
        if self._ending.note is not None:
            self.write = self._write_noted

    @property
    def committed(self) -> bool:
        return self._outbox.body_sent

    def begin(self, headers: list[tuple[bytes, bytes]]) -> None:
        if not self._outbox.started:  # else the 200 went out early, without them
            self._outbox.start(200, [*_STREAM_HEADERS, _id_header(self._request_id), *headers])

    def keep_alive(self) -> None:
        self.begin([])
        self._outbox.write(self._api.keep_alive, content=False)

    def finish(self) -> None:
        self._outbox.end()

    def fail(self, error: GatewayError) -> None:
        if self._outbox.started:
            self._outbox.write(self._ending.error(error))
            self._outbox.end()
        else:
            respond_error(self._outbox, error, self._request_id, self._api)

    def _write_noted(self, raw: bytes) -> None:
        assert self._ending.note is not None
        self._ending.note(raw)
        self._outbox.write(raw)


class TellingStream(EventStream):
    """An event stream that tells at its end what the request has used, in a comment before the last event.

    SDKs skip comments. They would also skip one behind the last event, but the body is to end there.
    """

    __slots__ = ("_forward", "_told")

    def __init__(self, outbox: "Outbox", request_id: str, api: ClientApi) -> None:
        super().__init__(outbox, request_id, api)
        self._forward = self.write
        self._told = False
        self.write = self._write_telling

    def finish(self) -> None:
        self._tell()  # a stream may be complete without a closing event
        super().finish()

    def _write_telling(self, raw: bytes) -> None:
        if is_last(raw):
            self._tell()
        self._forward(raw)

    def _tell(self) -> None:
        if not self._told and self._outbox.race is not None and (usage := self._outbox.race.usage()):
            self._told = True
            self._outbox.write(b": %b %b\n\n" % usage)


class JsonAnswer:
    """A `gateway.race.context.Client` that gathers the events of a non-streaming request into one JSON body.

    Args:
        outbox: where it goes.
        request_id: ours.
        api: the API that the client speaks.
        call: its request.
    """

    __slots__ = ("_api", "_assembler", "_body", "_body_bytes", "_call", "_headers", "_outbox", "_request_id")

    def __init__(self, outbox: "Outbox", request_id: str, api: ClientApi, call: Call) -> None:
        self._outbox = outbox
        self._request_id = request_id
        self._api = api
        self._call = call
        self._assembler: Assembler | None = None  # stays None where the upstream answers with the body itself
        self._headers: list[tuple[bytes, bytes]] = []
        self._body, self._body_bytes = b"", 0

    @property
    def committed(self) -> bool:
        return False  # until finish() nothing goes out

    def begin(self, headers: list[tuple[bytes, bytes]]) -> None:
        self._headers = headers
        self._body, self._body_bytes = b"", 0
        make = self._api.assembler
        self._assembler = make(self._call) if make is not None and self._call.assemble else None

    def keep_alive(self) -> None:
        """A non-streaming request never gets an early 200."""

    def write(self, raw: bytes) -> None:
        self._body_bytes += len(raw)
        if self._body_bytes > ANSWER_BYTES_MAX:
            self._give_up(f"the upstream's answer is over {ANSWER_BYTES_MAX} bytes; ask for a stream")
        elif self._assembler is not None:
            self._assembler.add(raw)
        else:
            self._body += raw

    def finish(self) -> None:
        try:
            body = self._assembler.body() if self._assembler is not None else self._body
        except (ValueError, TypeError, LookupError, AttributeError):  # events that make no answer
            self._give_up("the upstream's events could not be put together to one answer")
            return
        headers = [(b"content-type", b"application/json"), _id_header(self._request_id), *self._headers]
        respond(self._outbox, 200, headers, body)

    def fail(self, error: GatewayError) -> None:
        if not self._outbox.started:
            respond_error(self._outbox, error, self._request_id, self._api)

    def _give_up(self, message: str) -> None:
        if self._outbox.race is not None:
            self._outbox.race.give_up(UpstreamFailed(message, status=502, code="upstream_protocol_error"))


class TellingAnswer(JsonAnswer):
    """A JSON answer that tells in a header what the request has used."""

    __slots__ = ()

    def finish(self) -> None:
        if self._outbox.race is not None and (usage := self._outbox.race.usage()):
            self._headers = [*self._headers, usage]
        super().finish()


def respond(
    outbox: "Outbox", status: int, headers: list[tuple[bytes, bytes]], body: bytes, *, end: bool = True
) -> None:
    """Send a whole response."""
    outbox.start(status, [*headers, (b"content-length", b"%d" % len(body))])
    outbox.write(body)
    if end:
        outbox.end()


def respond_error(outbox: "Outbox", error: GatewayError, request_id: str, api: ClientApi, *, end: bool = True) -> None:
    """Send an error with its status, body and headers, with end=False all but the end; nothing has been sent before."""
    headers = [(b"content-type", b"application/json"), _id_header(request_id), *error.headers()]
    respond(outbox, error.status, headers, api.error_body(error), end=end)


async def serve(race: Leavable, outbox: Outbox, receive: Receive) -> None:
    """Watch the client until it leaves or has everything; returns when the request is over.

    After a complete response ASGI's receive() says "http.disconnect", too.
    """
    try:
        while (await receive())["type"] != "http.disconnect":
            pass
    finally:
        race.client_gone()  # does nothing when the race is over
        outbox.race = None  # no cycle outlives a request


def _id_header(request_id: str) -> tuple[bytes, bytes]:
    return (b"x-request-id", request_id.encode())
