"""HTTP/1.1 streaming client to one origin: asyncio.Protocol over httptools, made for relaying.

A request leaves on a pooled connection in the caller's own loop turn; the response is pushed to an `HttpSink` on the
stack that reads the socket. There is no task, queue or lock per request: only a new connection takes a task, which
belongs to the task group the client was given. Knows nothing of SSE, models or retries, but for one: a kept-alive
connection that the server closed under our request before a single byte came back is replaced once, because the server
cannot have begun to answer (RFC 9112, 9.3.1).

Cancelling is closing: `abort()` drops the socket at once, nothing is drained. Units: seconds, bytes.
"""

import asyncio
import os
import ssl
from collections import deque
from dataclasses import dataclass
from typing import cast

import httptools

from providers.base import Headers, HttpSink, Request, Stream
from providers.errors import ConnectError, ConnectionCut, ProtocolError, UpstreamError

HEADERS_BYTES_MAX = 64 * 1024  # as nginx and Node bound theirs, with room to spare
_FRAMING = (b"content-length", b"transfer-encoding")
_BODILESS = (204, 304)
_SWEEP_S = 5.0  # how often ageing looks at idle connections


@dataclass(frozen=True, slots=True)
class Origin:
    """Where to connect.

    Attributes:
        host: name or address literal, without brackets.
        port: TCP port.
        tls: context for TLS, None for plain TCP.
        connect_s: bound on DNS, TCP and TLS together.
        idle_s: a kept-alive connection unused for longer is closed; below the 75 s of nginx and of most load balancers.
        idle_max: idle connections kept; more are closed.
        connections_max: open connections; a request beyond fails with ConnectError.
    """

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    connect_s: float = 3.0
    idle_s: float = 60.0
    idle_max: int = 1024
    connections_max: int = 16384


class WireClient:
    """A `providers.base.HttpClient` to one origin.

    Args:
        origin: where to connect.
        tasks: owner of connecting tasks; must outlive the client.
    """

    def __init__(self, origin: Origin, tasks: asyncio.TaskGroup) -> None:
        self._origin = origin
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._idle: deque[_Connection] = deque()  # the right end was used last
        self._open = 0
        self._closed = False
        self._sweeper: asyncio.TimerHandle | None = None

    def send(self, request: Request, sink: HttpSink) -> Stream:
        """Send on an idle connection, or on a new one; see `HttpClient.send`."""
        exchange = _Exchange(self, request, sink)
        while self._idle:
            connection = self._idle.pop()
            if not connection.closing:
                connection.start(exchange)
                return exchange
        self.connect(exchange)
        return exchange

    def close(self) -> None:
        """Close idle connections and keep none from now on; running exchanges go on."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        while self._idle:
            self._idle.pop().close()

    @property
    def connections(self) -> int:
        """Open connections, idle ones included."""
        return self._open

    # for exchanges and connections

    def connect(self, exchange: "_Exchange") -> None:
        """Give an exchange a new connection."""
        exchange.connecting = self._tasks.create_task(self._connected(exchange))

    async def _connected(self, exchange: "_Exchange") -> None:
        """Open a connection for an exchange; every failure reaches its sink, none the task group."""
        origin = self._origin
        try:
            if self._open >= self._origin.connections_max:
                raise ConnectError(f"{self._open} connections to this upstream are open already")
            async with asyncio.timeout(origin.connect_s):
                _, connection = await self._loop.create_connection(
                    lambda: _Connection(self), origin.host, origin.port, ssl=origin.tls
                )
        except ConnectError as error:
            exchange.over(error)
        except TimeoutError:
            exchange.over(ConnectError(f"no connection to the upstream within {origin.connect_s:g} s"))
        except ssl.SSLError as error:
            exchange.over(ConnectError(f"TLS with the upstream failed: {error.reason or type(error).__name__}"))
        except OSError as error:
            exchange.over(ConnectError(f"cannot connect to the upstream: {reason(error)}"))
        except asyncio.CancelledError:
            if not exchange.aborted:
                raise
        else:
            exchange.connecting = None
            if exchange.aborted:
                connection.close()
            else:
                connection.start(exchange)

    def opened(self) -> None:
        """Count a connection."""
        self._open += 1

    def lost(self) -> None:
        """Count it no more."""
        self._open -= 1

    def release(self, connection: "_Connection") -> None:
        """Keep a connection whose response is complete for the next request."""
        if self._closed:
            connection.close()
            return
        if len(self._idle) >= self._origin.idle_max:
            self._idle.popleft().close()
        connection.idle_since_s = self._loop.time()
        self._idle.append(connection)
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        """Close what has been idle for too long; runs only while something is idle."""
        oldest_s = self._loop.time() - self._origin.idle_s
        while self._idle and (self._idle[0].closing or self._idle[0].idle_since_s < oldest_s):
            self._idle.popleft().close()
        self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep) if self._idle else None


class _Deaf:
    """The sink of an exchange that is over."""

    def on_response(self, status: int, headers: Headers) -> None:
        pass

    def on_body(self, data: bytes) -> None:
        pass

    def on_close(self, error: UpstreamError | None) -> None:
        pass


_DEAF = _Deaf()


class _Exchange:
    """One request and its response; the `Stream` the caller holds."""

    __slots__ = ("_client", "aborted", "connecting", "connection", "request", "sink")

    def __init__(self, client: WireClient, request: Request, sink: HttpSink) -> None:
        self._client = client
        self.request = request
        self.sink = sink
        self.connecting: asyncio.Task[None] | None = None
        self.connection: _Connection | None = None
        self.aborted = False  # by the caller, or over

    def pause(self) -> None:
        if self.connection is not None:
            self.connection.transport.pause_reading()

    def resume(self) -> None:
        if self.connection is not None:
            self.connection.transport.resume_reading()

    def abort(self) -> None:
        if self.aborted:
            return
        self.aborted = True
        if self.connecting is not None:
            self.connecting.cancel()
        self.sink = _DEAF
        if self.connection is not None:
            self.connection.drop()

    def over(self, error: UpstreamError | None) -> None:
        """The response is complete or has failed; tells the sink once."""
        if not self.aborted:
            self.aborted = True
            self.connection = self.connecting = None
            sink, self.sink = self.sink, _DEAF  # no cycle outlives a request
            sink.on_close(error)

    def again(self) -> None:
        """The kept-alive connection was dead already: the same request on a new one."""
        if not self.aborted:
            self.connection = None
            self._client.connect(self)


class _Connection(asyncio.Protocol):
    """One socket; carries one exchange at a time."""

    __slots__ = (
        "_begun",
        "_client",
        "_complete",
        "_exchange",
        "_framed",
        "_header_bytes",
        "_headers",
        "_keep",
        "_parser",
        "_pieces",
        "_reused",
        "_status",
        "_surplus",
        "_until_eof",
        "closing",
        "idle_since_s",
        "transport",
    )

    transport: asyncio.Transport

    def __init__(self, client: WireClient) -> None:
        self._client = client
        self._exchange: _Exchange | None = None
        self._reused = False
        self.closing = False
        self.idle_since_s = 0.0
        self._pieces: list[bytes] = []
        self._reset()
        self._parser = httptools.HttpResponseParser(self)

    def _reset(self) -> None:
        self._headers: list[tuple[bytes, bytes]] = []
        self._header_bytes = 0
        self._status = 0
        self._begun = False  # a byte of the response has come
        self._complete = False
        self._keep = False
        self._surplus = False  # bytes behind the end of the response
        self._framed = False  # a header says where the body ends (RFC 9112, 6.3)
        self._until_eof = False  # neither length nor chunks: the end of the connection is the end of the body

    def start(self, exchange: _Exchange) -> None:
        """Write the request; the connection is idle and open."""
        self._exchange = exchange
        exchange.connection = self
        self._reset()
        self.transport.write(exchange.request.head + exchange.request.body)

    def close(self) -> None:
        """Close without an exchange."""
        self.closing = True
        self.transport.close()

    def drop(self) -> None:
        """The exchange was aborted: no drain, no farewell."""
        self._exchange = None
        self.closing = True
        self.transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # asyncio sets TCP_NODELAY
        self._client.opened()

    def data_received(self, data: bytes) -> None:
        if self._exchange is None:  # nobody asked: a response out of turn
            self.close()
            return
        self._begun = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(ProtocolError("the upstream switched protocols"))
        except httptools.HttpParserError as error:
            if not self._complete:
                self._deliver()
                self._fail(ProtocolError(f"the upstream's answer is not HTTP/1.1: {error}"))
                return
            self._surplus = True
        if self._pieces:
            self._deliver()
        if self._complete:
            self._finish()

    def eof_received(self) -> bool:
        return False  # close our side, too

    def connection_lost(self, exc: Exception | None) -> None:
        self.closing = True
        self._client.lost()
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return
        if self._until_eof and exc is None:
            exchange.over(None)
        elif self._reused and not self._begun:
            exchange.again()
        else:
            where = "in the middle of its answer" if self._status else "without an answer"
            exchange.over(ConnectionCut(f"the upstream closed the connection {where}"))

    # httptools callbacks; an exception in one of them surfaces from feed_data as HttpParserCallbackError

    def on_message_begin(self) -> None:
        if self._complete:
            self._surplus = True

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > HEADERS_BYTES_MAX:
            self._fail(ProtocolError(f"the upstream's headers are over {HEADERS_BYTES_MAX} bytes"))
            return
        name = name.lower()
        self._headers.append((name, value))
        if name in _FRAMING:
            self._framed = True

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # 1xx: the real answer follows
            self._headers = []
            self._framed = False
        elif self._exchange is not None and not self._surplus:
            self._status = status
            self._until_eof = not self._framed and status not in _BODILESS
            self._exchange.sink.on_response(status, self._headers)

    def on_body(self, data: bytes) -> None:
        if not self._surplus:
            self._pieces.append(data)

    def on_message_complete(self) -> None:
        if self._status:
            self._complete = True
            self._keep = self._parser.should_keep_alive()  # known only until the parser moves on

    def _deliver(self) -> None:
        """Push the body's pieces in this read as one: a server's burst of chunks is one step for all who follow."""
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        if data and self._exchange is not None:
            self._exchange.sink.on_body(data)

    def _finish(self) -> None:
        """The response is complete: keep the connection if it may be kept, then tell the sink."""
        exchange, self._exchange = self._exchange, None
        unsent = self.transport.get_write_buffer_size()  # an early answer: the request is not out yet
        if self._surplus or unsent or self.closing or not self._keep:
            self.close()
        else:
            self._reused = True
            self.transport.resume_reading()  # the exchange may have ended while its sink had it paused
            self._client.release(self)
        if exchange is not None:
            exchange.over(None)

    def _fail(self, error: UpstreamError) -> None:
        exchange, self._exchange = self._exchange, None
        self.closing = True
        self.transport.abort()
        if exchange is not None:
            exchange.over(error)


def reason(error: OSError) -> str:
    """Why a connection failed, in the system's words and without the address that asyncio puts into its own."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or type(error).__name__
