"""One HTTP/1.1 exchange and its connection: asyncio.Protocol over httptools.

A connection carries one exchange at a time and pushes the response to an `HttpSink` on the stack that reads the socket.
Pools and addresses belong to its owner, which is called when a connection opens, becomes free or closes. Units: bytes.
"""

import asyncio
import socket
from collections.abc import Iterable, Iterator
from typing import Protocol, cast

import httptools

from providers.base import Headers, HttpSink, Request
from providers.errors import ConnectionCut, ProtocolError, UpstreamError
from providers.read_turns import MANY_BYTES

HEADERS_BYTES_MAX = 64 * 1024  # above the bounds of nginx and Node
_UNREAD_BYTES_MAX = 256 * 1024  # receive buffer of a socket; Linux doubles it, and uses up to 6 MB by default
_WRITTEN_BYTES = 256 * 1024  # of a large request, at a time
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})
_NO_BODY = (b"content-length", b"0")
_BODILESS = (204, 304)
_NOT_HTTP = (httptools.HttpParserError, httptools.HttpParserUpgrade)


class ConnectionPool(Protocol):
    """The pool that owns the connections of an origin."""

    def connect(self, exchange: "Exchange") -> None:
        """Give an exchange a new connection."""

    def opened(self) -> None:
        """Count a connection."""

    def lost(self, connection: "Connection") -> None:
        """Count it no more."""

    def leave(self, exchange: "Exchange") -> None:
        """Remove an exchange that waits for a connection."""

    def release(self, connection: "Connection") -> None:
        """Take back a connection whose response is complete."""


class Exchange:
    """One request and its response; the `Stream` the caller holds.

    Attributes:
        sink: receives the response; deleted at the end, so that no reference cycle outlives a request.
        aborted: the caller has aborted it, or it is over.
    """

    __slots__ = ("_owner", "aborted", "connecting", "connection", "request", "sink")

    def __init__(self, owner: ConnectionPool, request: Request, sink: HttpSink) -> None:
        self._owner = owner
        self.request = request
        self.sink = sink
        self.connecting: asyncio.Task[None] | None = None
        self.connection: Connection | None = None
        self.aborted = False

    @property
    def received(self) -> bool:
        return self.connection is not None and self.connection.complete

    @property
    def read_began_s(self) -> float:
        return self.connection.read_began_s if self.connection is not None else 0.0

    def pause(self) -> None:
        if self.connection is not None:
            self.connection.is_read = False
            self.connection.transport.pause_reading()

    def resume(self) -> None:
        if self.connection is not None:
            self.connection.is_read = True
            self.connection.transport.resume_reading()

    def abort(self) -> None:
        if self.aborted:
            return
        self.aborted = True
        if self.connecting is not None:
            self._owner.leave(self)
            self.connecting.cancel()
        del self.sink
        if self.connection is not None:
            self.connection.drop()

    def over(self, error: UpstreamError | None) -> None:
        """End the exchange: the response is complete or failed; call the sink once."""
        if not self.aborted:
            self.aborted = True
            self.connection = self.connecting = None
            sink = self.sink
            del self.sink
            sink.on_close(error)

    def again(self) -> None:
        """Send the same request on a new connection: the kept-alive one was already closed."""
        if not self.aborted:
            self.connection = None
            self._owner.connect(self)


class Connection(asyncio.Protocol):
    """One socket; carries one exchange at a time."""

    __slots__ = (
        "_exchange",
        "_head",
        "_headers",
        "_is_open",
        "_keep",
        "_loose_bytes",
        "_owner",
        "_parser",
        "_paused",
        "_pieces",
        "_read_bytes",
        "_sink",
        "_status",
        "_surplus",
        "_unsent",
        "_whole",
        "closing",
        "complete",
        "fresh_until_s",
        "idle",
        "idle_since_s",
        "is_read",
        "kept",
        "on_body",
        "read_began_s",
        "stale_until_s",
        "transport",
    )

    transport: asyncio.Transport

    def __init__(self, owner: ConnectionPool) -> None:
        self._owner = owner
        self._exchange: Exchange | None = None
        self._sink: HttpSink | None = None  # of the exchange, between the head and the end of its response
        self._is_open = False  # between `connection_made` and `connection_lost`
        self.kept = False  # open before its exchange began: the server may have closed it meanwhile
        self.closing = False
        self.is_read = True  # False while the exchange has paused reading
        self.idle = False  # in its owner's pool
        self.idle_since_s = 0.0
        self.fresh_until_s = 0.0  # set by the owner: after this time the connection is not used again
        self.stale_until_s = 0.0  # set by the owner: a close before this time happened before the exchange began
        self._paused = False  # the transport buffers enough of a large request
        self._unsent: Iterator[memoryview] | None = None  # the rest of it, None if there is none
        self.read_began_s = 0.0  # see `HttpStream.read_began_s`
        self._pieces: list[bytes] = []  # of the body, from the present read
        self.on_body = self._pieces.append  # httptools calls this for every chunk: a C function is cheaper
        self._read_bytes = 0  # size of the last read, before the headers are complete
        self._keep = False  # valid after the end of the response
        self._surplus = False  # there are bytes after the end of the response
        self._whole = 0  # number of `_pieces` that belong to the response, if there is a surplus
        self._head: Headers = ()  # of the last response
        self._reset()
        self._parser = httptools.HttpResponseParser(self)

    def _reset(self) -> None:
        self._headers: list[tuple[bytes, bytes]] = []  # later the trailers
        self._loose_bytes = 0  # bytes since the last piece of a body: the parser buffers headers and trailers
        self._status = 0
        self.complete = False  # the end of the response was received

    def start(self, exchange: Exchange) -> None:
        """Write the request; the connection is idle and open."""
        self._exchange = exchange
        exchange.connection = self
        self._reset()
        request = exchange.request
        if isinstance(request.body, bytes):
            self.transport.write(request.head + request.body)
        else:  # piece by piece, or the transport would copy what the kernel does not take
            self._unsent = _slices(request.body)
            self.transport.write(request.head)
            self._send()

    def _send(self) -> None:
        """Write more of a large request, as much as the transport takes."""
        while self._unsent is not None and not self._paused:
            piece = next(self._unsent, None)
            if piece is None:
                self._unsent = None
            else:
                self.transport.write(piece)

    def close(self) -> None:
        """Close without an exchange."""
        self.closing = True
        self.transport.close()

    def drop(self) -> None:
        """Close at once, without draining: the exchange was aborted."""
        self._exchange = self._sink = self._unsent = None
        self.closing = True
        self.transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # asyncio sets TCP_NODELAY
        sock = transport.get_extra_info("socket")
        if sock is not None:  # TCP_WINDOW_CLAMP does not work: newer kernels raise it again
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _UNREAD_BYTES_MAX)
        self._is_open = True
        self._owner.opened()

    def data_received(self, data: bytes) -> None:
        self.read_began_s = asyncio.get_running_loop().time() if data[MANY_BYTES:] else 0.0  # usually without a call
        if self._sink is None:  # no response, or its head is not complete
            if self._exchange is None:  # a response without a request
                self.close()
                return
            self._read_bytes = len(data)
        try:
            self._parser.feed_data(data)
        except _NOT_HTTP as error:
            self._on_invalid(error)
            return
        if self.complete:
            self._finish()
        elif pieces := self._pieces:
            body = b"".join(pieces)  # a single piece is not copied
            pieces.clear()
            self._loose_bytes = 0
            if self._sink is not None:
                self._sink.on_body(body)
        else:
            self._loose_bytes += len(data)
            if self._loose_bytes > HEADERS_BYTES_MAX:
                self._fail(ProtocolError(f"the upstream's headers or trailers are over {HEADERS_BYTES_MAX} bytes"))

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._send()

    def eof_received(self) -> bool:
        return False  # asyncio then closes this side too

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._is_open:  # it never was, or its owner has called this before the loop does
            return
        self._is_open = False
        self.closing = True
        self._unsent = None
        self._owner.lost(self)
        exchange, self._exchange, self._sink = self._exchange, None, None
        if exchange is None:
            return
        is_begun = self._status or self._loose_bytes  # a byte of the response was received
        if self._status and exc is None and self._is_until_eof():
            exchange.over(None)
        elif self.kept and not is_begun and asyncio.get_running_loop().time() < self.stale_until_s:
            exchange.again()
        else:
            where = "in the middle of its answer" if self._status else "without an answer"
            exchange.over(ConnectionCut(f"the upstream closed the connection {where}"))

    # httptools callbacks; an exception in one of them surfaces from feed_data as HttpParserCallbackError

    def on_message_begin(self) -> None:
        if self.complete:
            self._on_surplus()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        headers, self._headers = self._headers, []
        status = self._parser.get_status_code()
        if self._loose_bytes + self._read_bytes > HEADERS_BYTES_MAX and _size(headers) > HEADERS_BYTES_MAX:
            self._fail(ProtocolError(f"the upstream's headers are over {HEADERS_BYTES_MAX} bytes"))
        elif status < 100:
            self._fail(ProtocolError(f"the upstream sent an invalid status code ({status})"))
        elif status < 200:  # an informational response, before the final one
            if any(header[0] in _FRAMING and header != _NO_BODY for header in headers):
                self._fail(ProtocolError(f"the upstream sent a body with an informational response ({status})"))
        elif self._exchange is not None and not self._surplus:
            is_coded = False
            for name, value in headers:  # the parser follows the last coding only
                if name == b"transfer-encoding":
                    if is_coded or (value != b"chunked" and value.lower() != b"chunked"):
                        self._fail(ProtocolError("the upstream sent another transfer coding than `chunked` once"))
                        return
                    is_coded = True
            self._status = status
            self._head = headers
            self._sink = self._exchange.sink
            self._sink.on_response(status, headers)

    def on_message_complete(self) -> None:
        if self._status and not self._surplus:
            self.complete = True
            self._keep = self._parser.should_keep_alive()  # valid only until the parser starts the next message

    def _finish(self) -> None:
        """End a complete response: push its last bytes, keep the connection if possible, then call the sink."""
        self._push_rest()
        exchange, self._exchange, self._sink = self._exchange, None, None
        if (
            self._unsent is not None or self.transport.get_write_buffer_size()
        ):  # an early response: the server may never read the whole request
            self.drop()
        elif self._surplus or self.closing or not self._keep:
            self.close()
        else:
            self.kept = True
            if not self.is_read:
                self.is_read = True
                self.transport.resume_reading()
            self._owner.release(self)
        if exchange is not None:
            exchange.over(None)

    def _on_invalid(self, error: Exception) -> None:
        """End a response whose bytes, or those after it, are not HTTP/1.1."""
        self._on_surplus()
        if self.complete:
            self._finish()
        elif isinstance(error, httptools.HttpParserUpgrade):
            self._fail(ProtocolError("the upstream switched protocols"))
        else:
            self._push_rest()
            self._fail(ProtocolError(f"the upstream's answer is not valid HTTP/1.1: {error}"))

    def _push_rest(self) -> None:
        """Push the last bytes of the body."""
        if self._surplus:
            del self._pieces[self._whole :]
        body = b"".join(self._pieces)
        self._pieces.clear()
        if body and self._sink is not None:
            self._sink.on_body(body)

    def _on_surplus(self) -> None:
        """Note that bytes follow the end of the response."""
        if self.complete and not self._surplus:
            self._surplus = True
            self._whole = len(self._pieces)

    def _is_until_eof(self) -> bool:
        """Return True if the end of the connection ends the body: neither length nor chunks (RFC 9112, 6.3)."""
        return self._status not in _BODILESS and _FRAMING.isdisjoint(dict(self._head))

    def _fail(self, error: UpstreamError) -> None:
        if self.complete:  # the fault is after the end of the response
            self._on_surplus()
            return
        exchange, self._exchange, self._sink = self._exchange, None, None
        self.closing = True
        self._unsent = None
        self.transport.abort()
        if exchange is not None:
            exchange.over(error)


def _slices(body: Iterable[bytes | memoryview]) -> Iterator[memoryview]:
    """Yield a body in pieces that a transport may copy."""
    for piece in body:
        view = memoryview(piece)
        for start in range(0, len(view), _WRITTEN_BYTES):
            yield view[start : start + _WRITTEN_BYTES]


def _size(headers: Headers) -> int:
    return sum(len(name) + len(value) for name, value in headers)
