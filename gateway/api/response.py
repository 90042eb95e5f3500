"""One response to a client: its head, framing and writes, and the race's client that makes it from a winner's events.

The events of one read of an upstream leave in one write, the first ones together with the head, so the size of a read
bounds what waits here. The upstream is paused while the transport is above its limit for unsent bytes.

A race's client holds back the status until there is a winner, then sends the winner's bytes unchanged: `EventStream`
forwards events, `JsonAnswer` assembles them into one body. `TellingStream` and `TellingAnswer` also report usage and
cost. Units: bytes.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from http import HTTPStatus
from typing import Final, Protocol

from gateway.api.dialects.base import ERROR_EVENT, ClientApi, StreamTerminator, is_last
from gateway.api.request_head import RequestHead
from gateway.errors import GatewayError, Internal, UpstreamFailed
from gateway.race.context import Runtime
from ttft_gateway.apis.base import Assembler, Call, Headers

_LOG = logging.getLogger(__name__)

JOINED_BYTES_MAX: Final = 64 * 1024  # a larger body is not copied to be written together with its head
_LONG_BYTES: Final = 1024 * 1024  # size above which a body of known length is written in several turns
_TURN_BYTES: Final = 256 * 1024  # of such a body, in one turn
_PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}
_STATUS_LINES: Final = {status: b"HTTP/1.1 %d %b" % (status, _PHRASES.get(status, b"")) for status in range(100, 600)}
_CONTROLS: Final = bytes({*range(32), 127} - {ord("\t")})  # allowed in no header (RFC 9110, 5.5)
_BODILESS: Final = (204, 304)
_BLANK_MAX = 64  # white space before an answer
ANSWER_BYTES_MAX = 64 * 1024 * 1024  # the events of a non-streaming answer

_STREAM_LINES = (
    b"content-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\n"
    b"x-accel-buffering: no\r\n"  # nginx in front of the gateway must not buffer tokens
)


class RaceControl(Protocol):
    """The methods of a race that its client calls."""

    def give_up(self, error: GatewayError) -> None:
        """Fail with this error: the events received cannot be made into a response."""

    def pause(self) -> None:
        """Stop reading the upstream: the client is slow."""

    def resume(self) -> None:
        """Read the upstream again: the client has caught up."""

    def usage(self) -> tuple[bytes, bytes] | None:
        """Return the request's usage and cost so far as a header, None if they cannot be computed."""


class ResponseWriter(ABC):
    """The response to one request; the exchange of the request extends it.

    A response with a header that HTTP does not allow ends its race with an error, which replaces the response. If the
    error cannot be sent either, the connection is closed.

    Args:
        transport: the client's connection.
        head: head of the request.
        own_headers: see below.
        runtime: the loop, and the reads of upstreams; bytes written during one are sent at its end.

    Attributes:
        head: head of the request.
        started: True once `start` was called.
        ended: True once `end` was called; nothing follows.
        is_over: True when nothing is written any more: the response is complete, or cannot be.
        body_sent: True once content was written; keep-alives do not commit the answer.
        keep_alive: False if the connection ends after the response.
        own_headers: headers of any response, such as `date`.
        race: the race to pause for a slow client, None before it starts and after it ends.
        headers: headers added to the response of this request, unless it cannot be sent with them.
    """

    __slots__ = (
        "_burst",
        "_flows",
        "_is_chunked",
        "_is_replaced",
        "_last",
        "_pending",
        "_rest",
        "_runtime",
        "_stalled",
        "_transport",
        "_unsent_head",
        "body_sent",
        "ended",
        "head",
        "headers",
        "is_over",
        "keep_alive",
        "own_headers",
        "race",
        "started",
    )

    def __init__(
        self,
        transport: asyncio.WriteTransport,
        head: RequestHead,
        own_headers: Headers,
        runtime: Runtime,
    ) -> None:
        self._transport = transport
        self.head = head
        self.own_headers = own_headers
        self._runtime = runtime
        self._burst = runtime.burst
        self._unsent_head = b""  # of the response
        self._pending: list[bytes] = []  # bytes to write, for which a flush is scheduled
        self._last: list[bytes]  # bytes of an ended response that are not written yet
        self._rest: list[memoryview] = []  # pieces of a long body, in reverse order
        self._is_chunked = False
        self._flows = False  # content was sent in chunks, and more may follow
        self._stalled = False  # the transport is above its limit for unsent bytes
        self._is_replaced = False  # the first status could not be sent
        self.keep_alive = head.keep_alive
        self.race: RaceControl | None = None
        self.headers: Headers = ()
        self.started = self.ended = self.is_over = self.body_sent = False

    def start(self, status: int, headers: Headers, body_bytes: int | None = None, *, lines: bytes = b"") -> None:
        """Begin the response; its head leaves with the first bytes of the body.

        Args:
            status: status code.
            headers: headers of this response.
            body_bytes: length of the body; None for a stream, which ends with its last chunk or its connection.
            lines: constant headers as they are sent, each with its CR LF.
        """
        self.started = True
        is_announced = status >= 400 and any(name == b"connection" for name, _ in headers)
        if is_announced:  # an error that ends the connection
            self.keep_alive = False
        if status in _BODILESS:
            body_bytes = 0  # none, and no length either (RFC 9110, 6.4.1 and 8.6)
        elif body_bytes is not None:
            lines += b"content-length: %d\r\n" % body_bytes
        if not (self.keep_alive or is_announced):
            lines += b"connection: close\r\n"
        if body_bytes is None and self.head.version != "1.0":  # there, the end of the connection ends the body
            self._is_chunked = True
            lines += b"transfer-encoding: chunked\r\n"
        fields = [*self.own_headers, *headers, *self.headers]
        checked = b"\r\n".join((_STATUS_LINES[status], *map(b": ".join, fields)))
        if len(checked) - len(checked.translate(None, _CONTROLS)) != 2 * len(fields):  # the CR LF between the lines
            self._replace()
            return
        self._unsent_head = b"%b\r\n%b\r\n" % (checked, lines)
        if self._stalled and self.race is not None:
            self.race.pause()

    def write(self, data: bytes) -> None:
        """Write content."""
        if self._pending:
            self._pending.append(data)
            return
        burst = self._burst
        if burst.is_last and self._flows and data:  # a token that arrives alone
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))
            return
        if not self._flows:
            if self.ended:
                return  # an error replaced the response
            self.body_sent = True
        self._pending = [data]
        if burst.is_open:  # as in `end`: a call for each token is saved
            burst.at_end.append(self.flush)
        else:
            self._runtime.loop.call_soon(self.flush)

    def write_keep_alive(self, data: bytes) -> None:
        """Write bytes that do not commit the answer; now, so that they are never sent together with content."""
        if self._pending or self.ended:
            self.write(data)
        else:
            self._pending = [data]
            self.flush()

    def end(self) -> None:
        """End the response."""
        if self.ended:
            return
        self.ended = True
        self._flows = False
        self._last = self._pending
        if self._last:
            self._pending = []
        elif self._burst.is_open:
            self._burst.at_end.append(self.flush)
        else:
            self._runtime.loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write everything that is pending, in one call of the transport."""
        if self._flows:
            data = b"".join(self._pending)
            self._pending = []
            if data:  # an empty chunk would end the response
                self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        elif not self.ended:
            data = b"".join(self._pending)
            self._pending = []
            if self._is_chunked and data:
                data = b"%x\r\n%b\r\n" % (len(data), data)
                self._flows = self.body_sent
            self._write_after_head(data)
        elif not self.is_over:
            if not self._is_chunked and self._is_long():
                self._write_rest()
                return
            data = b"".join(self._last)
            if self._is_chunked:
                data = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if data else b"0\r\n\r\n"
            self._write_after_head(data)
            self.is_over = True
            if not self.keep_alive:
                self._transport.close()
            self._completed()

    def _is_long(self) -> bool:
        """Return True if an ended response has many bytes, written in several turns: the transport would copy them."""
        if sum(map(len, self._last)) <= _LONG_BYTES:
            return False
        for piece in self._last:
            view = memoryview(piece)
            self._rest += (view[at : at + _TURN_BYTES] for at in range(0, len(view), _TURN_BYTES))
        self._rest.reverse()
        self._last = []
        return True

    def _write_rest(self) -> None:
        """Write the next piece of a long body, if the client has received the pieces before it."""
        if self._stalled or not self._rest:
            return  # `go_on` continues, or the client has disconnected
        piece = self._rest.pop()
        if self._rest:
            self._write_after_head(piece)
            self._runtime.loop.call_soon(self._write_rest)
        else:
            self._last = [bytes(piece)]
            self.flush()

    def _write_after_head(self, data: bytes | memoryview) -> None:
        head = self._unsent_head
        if head:
            self._unsent_head = b""
            if self.head.method == "HEAD":
                data = b""
            if len(data) > JOINED_BYTES_MAX:
                self._transport.write(head)
            else:
                data = head + data
        if data:
            self._transport.write(data)

    def stall(self) -> None:
        """Pause the race: the transport is above its limit for unsent bytes."""
        if not self._stalled:
            self._stalled = True
            if self.started and self.race is not None:
                self.race.pause()

    def go_on(self) -> None:
        """Resume the race: the client has caught up."""
        if self._stalled:
            self._stalled = False
            if self.started and self.race is not None:
                self.race.resume()
            self._write_rest()

    def drop(self) -> None:
        """Write nothing more."""
        self.started = self.ended = self.is_over = True
        self._flows = False
        self._pending, self._rest = [], []

    @abstractmethod
    def _completed(self) -> None:
        """Continue after the whole response was written; called at most once."""

    def _replace(self) -> None:
        """Fail the race of a response that cannot be sent, and close the connection if its error cannot be sent."""
        _LOG.error("a response has a header with a character that HTTP does not allow; its request fails")
        race, failure = self.race, Internal("the response cannot be sent; see the gateway's log")
        if race is not None and not self._is_replaced:
            self._is_replaced, self.started, self.headers = True, False, ()
            self._is_chunked = False
            race.give_up(failure)
            if self.started:
                return  # the error was sent, or this method was called again
        self.started = self.ended = self.is_over = True
        self._transport.close()  # the connection then drops the exchange
        if race is not None:
            race.give_up(failure)


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
            if (note := self._terminator.note) is not None:
                self.write = _in_turn(note, response.write)

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


class TellingStream(EventStream):
    """An event stream that reports usage and cost in a comment before its last event.

    SDKs skip comments. They would also skip one after the last event, but the body should end with that event.
    """

    __slots__ = ()

    def __init__(self, response: ResponseWriter, request_id: str, api: ClientApi) -> None:
        super().__init__(response, request_id, api)
        comment = _UsageComment(response)
        self.write, self.finish = _in_turn(comment.write_before, self.write), comment.finish


class _UsageComment:
    """The comment of a `TellingStream`, written once."""

    __slots__ = ("_response", "_written")

    def __init__(self, response: ResponseWriter) -> None:
        self._response = response
        self._written = False

    def write_before(self, raw: bytes) -> None:
        """Write the comment if these events contain the last one."""
        if is_last(raw):
            self._write()

    def finish(self) -> None:
        """End the response; a stream may end without a closing event."""
        self._write()
        self._response.end()

    def _write(self) -> None:
        if not self._written and self._response.race is not None and (usage := self._response.race.usage()):
            self._written = True
            self._response.write(b": %b %b\n\n" % usage)


def _in_turn(first: Callable[[bytes], None], then: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """Return a function that calls both; as an attribute it is no reference cycle, which a method of its object is."""

    def write(raw: bytes) -> None:
        first(raw)
        then(raw)

    return write


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
