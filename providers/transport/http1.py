"""HTTP/1.1 streaming client to one origin, with a pool of connections, for relaying; asyncio.Protocol over httptools.

A request is written to a pooled connection in the caller's own loop turn; the response is pushed to an `HttpSink` on
the stack that reads the socket. A connection carries one exchange at a time. A request needs no task, queue or lock:
only a new connection takes a task, which belongs to the client's task group. The client retries in one case: a
kept-alive connection that ends within `STALE_S` of the request, before a byte of the response, is replaced, because the
server closed it before it read the request (RFC 9112, 9.3.1). A server that closes later may have processed the
request.

A spare connection is open, so that neither a backup nor the request after a cancelled loser waits for a handshake.
Connections have a maximum age, so that changes in DNS take effect.

To cancel is to close: `abort()` drops the socket immediately, without draining. Units: seconds, bytes.
"""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, cast

import httptools

from providers.transport.origin import STALE_S, SWEEP_S, Origin, too_many, too_slow, unreachable
from providers.transport.tls import TlsTransport
from ttft_gateway.apis.base import Headers, HttpSink, HttpStream, Request
from ttft_gateway.apis.errors import ConnectError, ConnectionCut, ProtocolError, UpstreamError
from ttft_gateway.apis.read_turns import MANY_BYTES
from ttft_gateway.apis.upload import Upload

HEADERS_BYTES_MAX = 64 * 1024  # above the bounds of nginx and Node
_UNREAD_BYTES_MAX = 256 * 1024  # receive buffer of a socket; Linux doubles it, and uses up to 6 MB by default
_WRITTEN_BYTES = 256 * 1024  # of a large request, at a time
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})
_NO_BODY = (b"content-length", b"0")
_BODILESS = (204, 304)
_NOT_HTTP = (httptools.HttpParserError, httptools.HttpParserUpgrade)
_SPREAD: Final = 0.2  # share of the age by which connections differ, so that they do not all end together
_SPREAD_STEPS: Final = 16


class WireClient:
    """A `ttft_gateway.apis.base.HttpClient` to one origin.

    Args:
        origin: address and settings of the upstream.
        tasks: owner of connecting tasks; must outlive the client.
    """

    def __init__(self, origin: Origin, tasks: asyncio.TaskGroup) -> None:
        self._origin = origin
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._idle: deque[Connection] = deque()  # the last one was used last
        self._waiting: dict[Exchange, None] = {}  # exchanges that wait for a connection, in order
        self._sparing = False  # a spare is being connected
        self._open = 0
        self._opened = 0
        self._closed = False
        self._sweeper: asyncio.TimerHandle | None = None
        self.sent = 0

    def send(self, request: Request, sink: HttpSink) -> HttpStream:
        """Send on an idle connection, or on a new one; see `HttpClient.send`."""
        self.sent += 1
        exchange = Exchange(self, request, sink)
        idle = self._idle
        if isinstance(request.body, Upload):  # it cannot be sent again, so no kept-alive connection may lose it
            self.connect(exchange)
            return exchange
        while idle:
            connection = idle.pop()
            connection.idle = False
            if not connection.closing:
                connection.stale_until_s = self._loop.time() + STALE_S
                connection.start(exchange)
                if not idle:
                    self.warm()
                return exchange
        self.connect(exchange)
        self.warm()
        return exchange

    def warm(self) -> None:
        """Open a spare connection for the next request if the origin wants one and there is none; one at a time."""
        if self._origin.spare and not self._idle and not self._sparing and not self._closed:
            self._sparing = True
            self._tasks.create_task(self._spare())

    def close(self) -> None:
        """Close idle connections, now and from now on; running exchanges go on."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        while self._idle:
            self._close_oldest()

    @property
    def connections(self) -> int:
        """Open connections, idle ones included."""
        return self._open

    # For exchanges and connections

    def connect(self, exchange: "Exchange") -> None:
        """Give an exchange a new connection, or one that becomes free in the meantime."""
        self._waiting[exchange] = None
        exchange.connecting = self._tasks.create_task(self._connected(exchange))

    def opened(self) -> None:
        """Count a connection."""
        self._open += 1
        self._opened += 1

    def lost(self, connection: "Connection") -> None:
        """Stop counting a connection."""
        self._open -= 1
        if connection.idle:
            self._idle.remove(connection)

    def leave(self, exchange: "Exchange") -> None:
        """Remove an exchange that waits for a connection."""
        self._waiting.pop(exchange, None)

    def release(self, connection: "Connection") -> None:
        """Give a free connection to the first waiting exchange without an upload, or store it for the next request."""
        now_s = self._loop.time()
        if self._closed or now_s > connection.fresh_until_s:
            connection.close()
            return
        exchange = self._next_waiting() if self._waiting else None
        if exchange is not None:
            del self._waiting[exchange]
            exchange.connecting = None  # the connection being opened for it becomes a spare
            connection.stale_until_s = now_s + STALE_S
            connection.start(exchange)
            return
        if len(self._idle) >= self._origin.idle_max:
            self._close_oldest()
        connection.idle_since_s = now_s
        connection.idle = connection.is_reused = True
        self._idle.append(connection)
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)

    # Internals

    def _next_waiting(self) -> "Exchange | None":
        """Return the first exchange that may have any connection."""
        return next((each for each in self._waiting if not isinstance(each.request.body, Upload)), None)

    async def _connected(self, exchange: "Exchange") -> None:
        """Open a connection for an exchange; failures reach its sink, never the task group."""
        try:
            connection = await self._connection()
        except ConnectError as error:
            if self._waiting.pop(exchange, exchange) is None:  # else it has another connection, or is over
                exchange.over(error)
        except asyncio.CancelledError:
            if not exchange.aborted:
                raise
        else:
            if self._waiting.pop(exchange, exchange) is None and not exchange.aborted:
                exchange.connecting = None
                connection.start(exchange)
            else:
                self.release(connection)

    async def _spare(self) -> None:
        """Open a spare connection; a failure is ignored."""
        try:
            self.release(await self._connection())
        except ConnectError:
            pass
        finally:
            self._sparing = False

    async def _connection(self) -> "Connection":
        """Open a new connection.

        Raises:
            ConnectError: it failed.
        """
        origin = self._origin
        if self._open >= origin.connections_max:
            raise too_many(self._open)
        try:
            async with asyncio.timeout(origin.connect_s):
                connection = await self._connect()
        except TimeoutError:
            raise too_slow(origin.connect_s) from None
        except OSError as error:  # includes the errors of TLS
            raise unreachable(error) from error
        except Exception as error:  # an invalid name, no thread for the look-up: must not end the gateway
            raise ConnectError(f"cannot connect to the upstream: {type(error).__name__}") from error
        spread = _SPREAD * (self._opened % _SPREAD_STEPS) / _SPREAD_STEPS
        connection.fresh_until_s = self._loop.time() + origin.age_s * (1 - spread)
        return connection

    async def _connect(self) -> "Connection":
        """Connect; uvloop closes a connection that is cancelled after `connection_made` without `connection_lost`."""
        connection = Connection(self)
        try:
            await self._connect_socket(connection)
        except BaseException:
            connection.connection_lost(None)
            raise
        return connection

    async def _connect_socket(self, connection: "Connection") -> None:
        """Connect to the unix socket, or to host and port; TLS sends the host name (not an address), and no ALPN."""
        origin, loop = self._origin, self._loop
        if origin.socket is not None:
            await loop.create_unix_connection(lambda: connection, origin.socket)
        elif origin.tls is None:
            await loop.create_connection(lambda: connection, origin.host, origin.port)
        else:
            tls = TlsTransport(connection, origin.tls, origin.host)
            transport, _ = await loop.create_connection(lambda: tls, origin.host, origin.port)
            try:
                await tls.opened()
            except BaseException:
                transport.abort()  # a cancelled handshake; idempotent
                raise

    def _close_oldest(self) -> None:
        connection = self._idle.popleft()
        connection.idle = False
        connection.close()

    def _sweep(self) -> None:
        """Close connections that were idle for too long; runs only while some are idle."""
        oldest_s = self._loop.time() - self._origin.idle_s
        while self._idle and (self._idle[0].closing or self._idle[0].idle_since_s < oldest_s):
            self._close_oldest()
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep) if self._idle else None


class Exchange:
    """One request and its response; the `Stream` the caller holds.

    Attributes:
        sink: receives the response; deleted at the end, so that no reference cycle outlives a request.
        aborted: the caller has aborted it, or it is over.
        received: see `HttpStream.received`.
    """

    __slots__ = ("_client", "aborted", "connecting", "connection", "received", "request", "sink")

    def __init__(self, client: WireClient, request: Request, sink: HttpSink) -> None:
        self._client = client
        self.request = request
        self.sink = sink
        self.connecting: asyncio.Task[None] | None = None
        self.connection: Connection | None = None
        self.aborted = self.received = False

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
            self._client.leave(self)
            self.connecting.cancel()
            self.connecting = None  # the task refers to this object
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
        body = self.request.body
        if isinstance(body, Upload) and body.is_begun:
            self.over(ConnectionCut("the upstream closed the connection without an answer"))
        elif not self.aborted:
            self.connection = None
            self._client.connect(self)


class Connection(asyncio.Protocol):
    """One socket; carries one exchange at a time."""

    __slots__ = (
        "_client",
        "_exchange",
        "_head",
        "_headers",
        "_is_open",
        "_keep_alive",
        "_loose_bytes",
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
        "is_reused",
        "on_body",
        "read_began_s",
        "stale_until_s",
        "transport",
    )

    transport: asyncio.Transport
    _parser: httptools.HttpResponseParser  # between `connection_made` and `connection_lost`

    def __init__(self, client: WireClient) -> None:
        self._client = client
        self._exchange: Exchange | None = None
        self._sink: HttpSink | None = None  # of the exchange, between the head and the end of its response
        self._is_open = False  # between `connection_made` and `connection_lost`
        self.is_reused = False  # open before its exchange began: the server may have closed it since
        self.closing = False
        self.is_read = True  # False while the exchange has paused reading
        self.idle = False  # in the client's pool
        self.idle_since_s = 0.0
        self.fresh_until_s = 0.0  # set by the client: after this time the connection is not used again
        self.stale_until_s = 0.0  # set by the client: a close before this time happened before the exchange began
        self._paused = False  # the transport buffers enough of a large request
        self._unsent: Iterator[bytes | memoryview] | None = None  # the part to write later, None if there is none
        self.read_began_s = 0.0  # see `HttpStream.read_began_s`
        self._pieces: list[bytes] = []  # of the body, from the present read
        self.on_body = self._pieces.append  # httptools calls this for every chunk: a C function is cheaper
        self._read_bytes = 0  # size of the last read, before the headers are complete
        self._keep_alive = False  # valid after the end of the response
        self._surplus = False  # there are bytes after the end of the response
        self._whole = 0  # number of `_pieces` that belong to the response, if there is a surplus
        self._head: Headers = ()  # of the last response
        self._reset()

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
        elif isinstance(request.body, Upload):
            self._unsent = _framed(request.body, self._send)
            self.transport.write(request.head)
            self._send()
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
            elif not piece:
                return  # an upload, which calls this again when more of it has arrived
            else:
                self.transport.write(piece)

    def close(self) -> None:
        """Close without an exchange."""
        self.closing = True
        self.transport.close()

    def drop(self) -> None:
        """Close immediately, without draining: the exchange was aborted."""
        self._exchange = self._sink = self._unsent = None
        self.closing = True
        self.transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # asyncio sets TCP_NODELAY
        sock = transport.get_extra_info("socket")
        if sock is not None:  # TCP_WINDOW_CLAMP does not work: newer kernels raise it again
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _UNREAD_BYTES_MAX)
        self._parser = httptools.HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(lenient_spaces_after_chunk_size=True)  # old servers pad the size
        self._is_open = True
        self._client.opened()

    def data_received(self, data: bytes) -> None:
        self.read_began_s = asyncio.get_running_loop().time() if len(data) > MANY_BYTES else 0.0
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
        if not self._is_open:  # it never was, or the client has called this before the loop does
            return
        self._is_open = False
        self.closing = True
        self._unsent = None
        del self._parser  # it refers to this object: no cycle outlives a connection
        self._client.lost(self)
        exchange, self._exchange, self._sink = self._exchange, None, None
        if exchange is None:
            return
        is_begun = self._status or self._loose_bytes  # a byte of the response was received
        if self._status and exc is None and self._is_until_eof():
            exchange.over(None)
        elif self.is_reused and not is_begun and asyncio.get_running_loop().time() < self.stale_until_s:
            exchange.again()
        elif isinstance(exc, ssl.SSLError) and not is_begun and "ALERT" in (exc.reason or ""):
            exchange.over(unreachable(exc))  # with TLS 1.3, a client certificate is rejected after the handshake
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
            if self._exchange is not None:
                self._exchange.received = True
            self._keep_alive = self._parser.should_keep_alive()  # valid only until the parser starts the next message

    def _finish(self) -> None:
        """End a complete response: push its last bytes, release the connection if possible, then call the sink."""
        self._push_rest()
        exchange, self._exchange, self._sink = self._exchange, None, None
        if (
            self._unsent is not None or self.transport.get_write_buffer_size()
        ):  # an early response: the server may never read the whole request
            self.drop()
        elif self._surplus or self.closing or not self._keep_alive:
            self.close()
        else:
            self.is_reused = True
            if not self.is_read:
                self.is_read = True
                self.transport.resume_reading()
            self._client.release(self)
        if exchange is not None:
            exchange.over(None)

    def _on_invalid(self, error: Exception) -> None:
        """End a response after invalid HTTP/1.1 in it or after it."""
        self._on_surplus()
        if self.complete:
            self._finish()
        elif isinstance(error, httptools.HttpParserUpgrade):
            self._fail(ProtocolError("the upstream switched protocols"))
        else:
            self._push_rest()
            self._fail(ProtocolError(f"the upstream's answer is not valid HTTP/1.1: {error}"))

    def _push_rest(self) -> None:
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


def _framed(upload: Upload, on_piece: Callable[[], None]) -> Iterator[bytes]:
    """Yield an upload as it is sent, in chunks if its length is unknown; an empty piece means that none has arrived."""
    if upload.size is not None:
        yield from upload.read_by(on_piece)
        return
    for piece in upload.read_by(on_piece):
        yield b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b""
    yield b"0\r\n\r\n"


def _slices(body: Iterable[bytes | memoryview]) -> Iterator[memoryview]:
    """Yield a body in pieces that a transport may copy."""
    for piece in body:
        view = memoryview(piece)
        for start in range(0, len(view), _WRITTEN_BYTES):
            yield view[start : start + _WRITTEN_BYTES]


def _size(headers: Headers) -> int:
    return sum(len(name) + len(value) for name, value in headers)
