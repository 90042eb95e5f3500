"""A race's client over ASGI: holds back the status until there is a winner, then sends the winner's bytes unchanged.

Races push from callbacks, ASGI expects coroutines. An `Outbox` connects the two without a task: it collects the events
of one read of an upstream, or of one turn of the loop, and steps `send` by hand. On uvicorn `send` suspends only if the
client is slow, and only then a task takes over. The winner's upstream is paused while more than 64 kB wait, even within
one read. The endpoint's own coroutine only awaits `receive()`, so that a disconnect is noticed at once, before the
first token, too.

A race has one of two clients: `EventStream` forwards events, `JsonAnswer` assembles them into one body. `TellingStream`
and `TellingAnswer` also report usage and cost. Units: bytes.
"""

import asyncio
from collections.abc import Callable

from gateway.api.asgi import Receive
from gateway.api.dialects.base import ClientApi, is_last
from gateway.api.outbox import Leavable, Outbox
from gateway.errors import GatewayError, UpstreamFailed
from providers.base import Assembler, Call

ANSWER_BYTES_MAX = 64 * 1024 * 1024  # the events of a non-streaming answer

_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx in front of the gateway must not buffer tokens
]


class EventStream:
    """A `gateway.race.context.Client` that forwards events."""

    __slots__ = ("_api", "_outbox", "_request_id", "_terminator", "write")

    def __init__(self, outbox: "Outbox", request_id: str, api: ClientApi) -> None:
        self._outbox = outbox
        self._request_id = request_id
        self._api = api
        self._terminator = api.terminator(request_id)
        self.write: Callable[[bytes], None] = outbox.write  # saves one call for every event
        if self._terminator.note is not None:
            self.write = self._write_noted

    @property
    def committed(self) -> bool:
        return self._outbox.body_sent

    def begin(self, headers: list[tuple[bytes, bytes]]) -> None:
        if not self._outbox.started:  # else the 200 was sent early, without these headers
            self._outbox.start(200, [*_STREAM_HEADERS, _id_header(self._request_id), *headers])

    def keep_alive(self) -> None:
        self.begin([])
        self._outbox.write(self._api.keep_alive, content=False)

    def finish(self) -> None:
        self._outbox.end()

    def fail(self, error: GatewayError) -> None:
        if self._outbox.started:
            self._outbox.write(self._terminator.error(error))
            self._outbox.end()
        else:
            respond_error(self._outbox, error, self._request_id, self._api)

    def _write_noted(self, raw: bytes) -> None:
        assert self._terminator.note is not None
        self._terminator.note(raw)
        self._outbox.write(raw)


class TellingStream(EventStream):
    """An event stream that reports usage and cost in a comment before its last event.

    SDKs skip comments. They would also skip one after the last event, but the body should end with that event.
    """

    __slots__ = ("_forward", "_told")

    def __init__(self, outbox: "Outbox", request_id: str, api: ClientApi) -> None:
        super().__init__(outbox, request_id, api)
        self._forward = self.write
        self._told = False
        self.write = self._write_telling

    def finish(self) -> None:
        self._tell()  # a stream may end without a closing event
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
    """A `gateway.race.context.Client` that assembles the events of a non-streaming request into one JSON body."""

    __slots__ = ("_api", "_assembler", "_body", "_body_bytes", "_call", "_headers", "_outbox", "_request_id")

    def __init__(self, outbox: "Outbox", request_id: str, api: ClientApi, call: Call) -> None:
        self._outbox = outbox
        self._request_id = request_id
        self._api = api
        self._call = call
        self._assembler: Assembler | None = None  # None if the upstream sends the body itself
        self._headers: list[tuple[bytes, bytes]] = []
        self._body, self._body_bytes = b"", 0

    @property
    def committed(self) -> bool:
        return False  # nothing is sent before finish()

    def begin(self, headers: list[tuple[bytes, bytes]]) -> None:
        self._headers = headers
        self._body, self._body_bytes = b"", 0
        make = self._api.assembler
        self._assembler = make(self._call) if make is not None and self._call.assemble else None

    def keep_alive(self) -> None:
        """Do nothing: a non-streaming request never gets an early 200."""

    def write(self, raw: bytes) -> None:
        self._body_bytes += len(raw)
        if self._body_bytes > ANSWER_BYTES_MAX:
            self._give_up(f'the upstream\'s answer is over {ANSWER_BYTES_MAX} bytes; set "stream": true')
        elif self._assembler is not None:
            self._assembler.add(raw)
        else:
            self._body += raw

    def finish(self) -> None:
        try:
            body = self._assembler.body() if self._assembler is not None else self._body
        except (ValueError, TypeError, LookupError, AttributeError):  # the events do not form an answer
            self._give_up("the upstream's events could not be assembled into one response")
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
    """A JSON answer that reports usage and cost in a header."""

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
    """Send an error response, with end=False all but its end; nothing has been sent before."""
    headers = [(b"content-type", b"application/json"), _id_header(request_id), *error.headers()]
    respond(outbox, error.status, headers, api.error_body(error), end=end)


async def serve(race: Leavable | None, outbox: Outbox, receive: Receive) -> None:
    """Wait until the client disconnects, has the whole response, or cannot have one: the request is over then.

    ASGI's receive() also returns "http.disconnect" after a complete response. A server closes the connection of an
    endpoint that returns without one.
    """
    try:
        while not outbox.failed and (await receive())["type"] != "http.disconnect":
            pass
    except asyncio.CancelledError:
        if not outbox.failed:
            raise
    finally:
        if race is not None:
            race.client_gone()  # a no-op when the race is over
        outbox.race = None  # no cycle outlives a request


def _id_header(request_id: str) -> tuple[bytes, bytes]:
    return (b"x-request-id", request_id.encode())
