"""HTTP client for HTTP/2 and proxies, over httpx, with the same contract as the HTTP/1.1 client.

Only for replicas that need it: a request costs a task and more CPU than with the HTTP/1.1 client. Nothing is
multiplexed: a connection carries one request at a time, over HTTP/2 too. So an abort closes the connection, which every
server and proxy handles, a slow client does not delay other answers, and its buffered data is bounded by one socket. An
HTTP/2 connection is used again for the next request, an HTTP/1.1 connection is not: httpx would read bytes after one
response as the beginning of the next. Proxy variables of the environment are ignored. Of httpx only its network layer,
httpcore, is used, because it accepts a custom stream. Units: seconds, bytes.
"""

import asyncio
import contextlib
import re
import ssl
from collections import deque
from collections.abc import AsyncIterator, Iterable
from typing import Final

import httpcore
import httpx

from providers.transport.goaway import GracefulEnd
from providers.transport.origin import STALE_S, SWEEP_S, Origin, too_many, too_slow, unreachable
from ttft_gateway.apis.base import Headers, HttpSink, HttpStream, Request
from ttft_gateway.apis.errors import ConnectError, ConnectionCut, ProtocolError, UpstreamError
from ttft_gateway.apis.shortages import causes
from ttft_gateway.apis.upload import Upload

_LISTEN_FROM_BYTES: Final = 65_536  # shorter requests most likely fit into the socket's buffer
_RECEIVED_MAX: Final = 65_536
_FRAMES_BYTES_MAX: Final = 8_192  # of HTTP/2 at a time: the smallest frames, of 9 bytes, take h2 some 0.1 ms each
_HTTP2: Final = b"PRI * HTTP/2"  # in HTTP/2 the directions are independent, and httpcore reads while it writes
_INFORMATIONAL: Final = b"HTTP/1.1 1"  # an informational response, before the final one
_STEPS: Final = 3  # steps of connecting: TCP, the proxy's CONNECT, TLS
_PROXY_REFUSES: Final = 407
_KEPT_ERRORS: Final = "_read_exception", "_write_exception"  # attributes of httpcore's HTTP/2 connection
_QUOTED_MAX: Final = 200  # characters of a proxy's or library's message
_is_cut = re.compile(r"disconnected|closed connection|StreamReset|ConnectionTerminated").search


class HttpxClient:
    """A `ttft_gateway.apis.base.HttpClient` to one origin.

    Args:
        origin: address and settings of the upstream.
        tasks: owner of the requests' tasks; must outlive the client.

    Attributes:
        sent: number of requests so far.
    """

    def __init__(self, origin: Origin, tasks: asyncio.TaskGroup) -> None:
        self._origin = origin
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._idle: deque[_PooledConnection] = deque()  # the last one was used last
        self._open = 0
        self._closed = False
        self._sweeper: asyncio.TimerHandle | None = None
        self._scheme = b"http" if origin.tls is None else b"https"
        self._host = origin.host.partition("%")[0].encode()
        self.sent = 0

    def send(self, request: Request, sink: HttpSink) -> HttpStream:
        """Send on an idle connection, or on a new one; see `HttpClient.send`."""
        self.sent += 1
        exchange = _Exchange(sink)
        exchange.task = self._tasks.create_task(self._serve(exchange, request))
        return exchange

    def warm(self) -> None:
        """Do nothing: there are no spare connections."""

    def close(self) -> None:
        """Close idle connections, now and from now on; running exchanges go on."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        while self._idle:
            self._close_oldest()

    def opened(self) -> None:
        """Called after a new connection was established; for subclasses."""

    @property
    def connections(self) -> int:
        """Open connections, idle ones included."""
        return self._open

    # Internals

    async def _serve(self, exchange: "_Exchange", request: Request) -> None:
        """Send one request and receive its response; failures reach its sink, never the task group."""
        if exchange.aborted:
            return
        request_out = self._httpcore_request(request)
        try:
            is_upload = isinstance(request.body, Upload)  # it cannot be sent again
            connection = self._idle.pop() if self._idle and not is_upload else None
            if connection is None or not await self._send_on(connection, exchange, request_out):
                await self._send_on(self._new_connection(), exchange, request_out)
            exchange.over(None)
        except asyncio.CancelledError:  # raised by `_head` for an aborted exchange, or by the task group
            if not exchange.aborted:
                raise
        except UpstreamError as error:
            exchange.over(error)
        except Exception as error:  # errors of httpx and of the libraries below it
            exchange.over(_upstream_error(error))

    async def _send_on(
        self, connection: "_PooledConnection", exchange: "_Exchange", request_out: httpcore.Request
    ) -> bool:
        """Send and receive on one connection; return False if it was kept alive and ended before the response began."""
        reused, whole, stale_until_s = connection.used, False, self._loop.time() + STALE_S
        connection.used = True
        try:
            try:
                response = await self._head(connection, exchange, request_out, reused=reused)
            except (httpcore.NetworkError, httpcore.RemoteProtocolError):
                if reused and self._loop.time() < stale_until_s:
                    return False
                raise
            headers = [(name.lower(), value) for name, value in response.headers]
            exchange.sink.on_response(response.status, headers)
            await exchange.flowing.wait()
            async for data in response.aiter_stream():
                exchange.sink.on_body(data)
                await exchange.flowing.wait()
            await response.aclose()
            stream = response.extensions.get("network_stream")
            is_http2 = response.extensions.get("http_version") == b"HTTP/2"
            whole = is_http2 and isinstance(stream, _Listening) and not stream.frames.is_announced
        finally:
            await self._give_back(connection, again=whole)
        return True

    async def _head(
        self, connection: "_PooledConnection", exchange: "_Exchange", request_out: httpcore.Request, *, reused: bool
    ) -> httpcore.Response:
        """Connect if needed, send, and wait for the final response head.

        TCP and TLS set-up are bounded but never cancelled: anyio would not close the socket.
        """
        connect_s = self._origin.connect_s

        async def trace(name: str, info: dict[str, object]) -> None:
            if not name.endswith("send_request_headers.started"):
                return
            if getattr(info.get("request"), "method", b"") == b"CONNECT":
                return
            connecting.reschedule(None)
            exchange.connected = True
            if exchange.aborted:
                raise asyncio.CancelledError
            if not reused:
                self.opened()

        timeouts = {"connect": connect_s, **dict.fromkeys(("read", "write", "pool"))}
        request_out.extensions = {"timeout": timeouts, "trace": trace}
        try:
            async with asyncio.timeout(_STEPS * connect_s) as connecting:
                response = await connection.pool.handle_async_request(request_out)
        except (TimeoutError, httpcore.ConnectTimeout):
            raise too_slow(connect_s) from None
        if response.status == _PROXY_REFUSES:
            raise ConnectError("the proxy requires a login (status 407); set `proxy: http://user:password@...`")
        if response.status < 200:
            raise ProtocolError("the upstream switched protocols")
        return response

    def _httpcore_request(self, request: Request) -> httpcore.Request:
        """Convert a request to httpcore's form; its head was built by the gateway, so it is well formed."""
        first, *lines = request.head[:-4].split(b"\r\n")
        method, target, _ = first.split(b" ")
        headers = [(name, value) for name, _, value in (line.partition(b": ") for line in lines)]
        url = httpcore.URL(scheme=self._scheme, host=self._host, port=self._origin.port, target=target)
        body = request.body
        if isinstance(body, Upload):
            return httpcore.Request(method, url, headers=headers, content=_arriving(body))
        whole = body if isinstance(body, bytes) else b"".join(body)
        return httpcore.Request(method, url, headers=headers, content=whole)

    def _new_connection(self) -> "_PooledConnection":
        if self._open >= self._origin.connections_max:
            raise too_many(self._open)
        self._open += 1
        return _PooledConnection(self._origin, self._loop.time() + self._origin.age_s)

    async def _give_back(self, connection: "_PooledConnection", *, again: bool) -> None:
        """Store a connection for the next request, or close it now."""
        now_s = self._loop.time()
        if again and not self._closed and now_s < connection.fresh_until_s and len(self._idle) < self._origin.idle_max:
            connection.idle_since_s = now_s
            self._idle.append(connection)
            if self._sweeper is None:
                self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)
            return
        self._open -= 1
        await connection.pool.aclose()

    def _close_oldest(self) -> None:
        self._open -= 1
        self._tasks.create_task(_closed(self._idle.popleft()))

    def _sweep(self) -> None:
        """Close connections that were idle for too long; runs only while some are idle."""
        oldest_s = self._loop.time() - self._origin.idle_s
        while self._idle and self._idle[0].idle_since_s < oldest_s:
            self._close_oldest()
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep) if self._idle else None


async def _arriving(upload: Upload) -> AsyncIterator[bytes]:
    """Yield the pieces of an upload when they have arrived."""
    ready = asyncio.Event()
    for piece in upload.read_by(ready.set):
        if piece:
            yield piece
        else:
            ready.clear()
            await ready.wait()


async def _closed(connection: "_PooledConnection") -> None:
    """Close an idle connection; its errors are ignored, because they must not end the other tasks of the group."""
    with contextlib.suppress(Exception):
        await connection.pool.aclose()


class _PooledConnection:
    """One connection, as an httpcore pool of size one."""

    __slots__ = ("fresh_until_s", "idle_since_s", "pool", "used")

    def __init__(self, origin: Origin, fresh_until_s: float) -> None:
        proxy = None if origin.proxy is None else httpx.Proxy(origin.proxy)  # splits its login off
        plain_http2 = origin.http2 and origin.tls is None  # no negotiation without TLS: prior knowledge
        self.pool = _PoolOfOne(
            ssl_context=origin.tls,
            proxy=None if proxy is None else httpcore.Proxy(str(proxy.url), auth=proxy.raw_auth),
            max_connections=1,
            max_keepalive_connections=1,
            http1=not plain_http2,
            http2=origin.http2,
            uds=origin.socket,
            network_backend=_ListeningBackend(),
        )
        self.used = False
        self.fresh_until_s = fresh_until_s
        self.idle_since_s = 0.0


class _PoolOfOne(httpcore.AsyncConnectionPool):
    """A pool of one connection that leaves no reference cycles: they would be some 30 kB of garbage for a long time."""

    _created: httpcore.AsyncConnectionInterface | None = None

    def create_connection(self, origin: httpcore.Origin) -> httpcore.AsyncConnectionInterface:
        self._created = super().create_connection(origin)
        return self._created

    async def aclose(self) -> None:
        await super().aclose()
        part: object = self._created
        while part is not None:  # the layers of a proxy, of the negotiation, and of HTTP/2
            for error in _KEPT_ERRORS:  # their tracebacks refer to the connection
                if hasattr(part, error):
                    setattr(part, error, None)
            http2 = getattr(part, "_h2_state", None)
            getattr(http2, "_frame_dispatch_table", {}).clear()  # its own methods
            part = getattr(part, "_connection", None)


class _Exchange:
    """One request and its response; the `Stream` the caller holds."""

    __slots__ = ("aborted", "connected", "flowing", "sink", "task")

    task: asyncio.Task[None]
    received: Final = False  # cannot be detected here
    read_began_s: Final = 0.0  # the same

    def __init__(self, sink: HttpSink) -> None:
        self.sink: HttpSink = sink
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.connected = False
        self.aborted = False  # by the caller, or over

    def pause(self) -> None:
        self.flowing.clear()

    def resume(self) -> None:
        self.flowing.set()

    def abort(self) -> None:
        if not self.aborted:
            self.aborted = True
            self.sink = _CLOSED
            if self.connected:
                self.task.cancel()

    def over(self, error: UpstreamError | None) -> None:
        """End the exchange: the response is complete or failed; call the sink once."""
        if not self.aborted:
            self.aborted = True
            sink, self.sink = self.sink, _CLOSED
            sink.on_close(error)


class _ClosedSink:
    """The sink of an exchange that is over."""

    def on_response(self, status: int, headers: Headers) -> None:
        pass

    def on_body(self, data: bytes) -> None:
        pass

    def on_close(self, error: UpstreamError | None) -> None:
        pass


_CLOSED = _ClosedSink()


def _upstream_error(error: Exception) -> UpstreamError:
    if isinstance(error, httpcore.ProxyError):
        return ConnectError(f"the proxy rejected the connection: {str(error)[:_QUOTED_MAX]}")
    if isinstance(error, httpcore.ConnectError):
        return unreachable(_cause(error))
    if isinstance(error, httpcore.NetworkError) or _is_cut(str(error)):
        return ConnectionCut("the upstream closed the connection before its answer was complete")
    return ProtocolError(f"the upstream's answer is not valid HTTP: {str(error)[:_QUOTED_MAX] or type(error).__name__}")


def _cause(error: BaseException) -> OSError:
    """Return the system's error inside the errors of the libraries."""
    found = OSError("no connection")
    for below in causes(error):
        if isinstance(below, OSError):
            found = below
    return found


class _ListeningBackend(httpcore.AsyncNetworkBackend):
    """Connects like httpcore's default backend, with streams that read while they write.

    A server may reject a request before it has read all of it, and close (RFC 9112, 9.5). httpcore reads only after it
    has written everything or writing has failed, and by then a reset has discarded the response.
    """

    def __init__(self) -> None:
        self._backend = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        return _Listening(await self._backend.connect_tcp(host, port, timeout, local_address, socket_options))

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None
    ) -> httpcore.AsyncNetworkStream:
        return _Listening(await self._backend.connect_unix_socket(path, timeout, socket_options))


class _Listening(httpcore.AsyncNetworkStream):
    """One connection that reads while it writes a large buffer.

    Attributes:
        frames: its frames, if it is HTTP/2.
    """

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream
        self._received = b""
        self._http2 = False
        self.frames = GracefulEnd()

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        while self._http2:
            data = await self._stream.read(min(max_bytes, _FRAMES_BYTES_MAX), timeout)
            kept = self.frames.received(data)
            if kept or not data:
                return kept
        if self._received:
            received, self._received = self._received[:max_bytes], self._received[max_bytes:]
            return received
        return await self._stream.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Write; stop if a response arrives before the end.

        Raises:
            httpcore.WriteError: not everything was written; httpcore then reads the response.
        """
        self._http2 |= buffer.startswith(_HTTP2)
        if self._http2:
            self.frames.sent(buffer)
        if self._http2 or len(buffer) < _LISTEN_FROM_BYTES:
            await self._stream.write(buffer, timeout)
            return
        async with asyncio.TaskGroup() as tasks:
            listening = tasks.create_task(self._listen())
            writing = tasks.create_task(self._written(buffer, timeout))
            await asyncio.wait((listening, writing), return_when=asyncio.FIRST_COMPLETED)
            listening.cancel()
            writing.cancel()
        if writing.cancelled() or not writing.result():
            raise httpcore.WriteError("the connection ended or the server responded before the request was sent")

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        return _Listening(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> object:
        return self._stream.get_extra_info(info)

    async def _listen(self) -> None:
        """Read until there is a final response or the end; cancelling loses no data."""
        while not self._received or (self._received.startswith(_INFORMATIONAL) and len(self._received) < _RECEIVED_MAX):
            try:
                data = await self._stream.read(_RECEIVED_MAX)
            except httpcore.ReadError:
                return
            if not data:
                return
            self._received += data

    async def _written(self, buffer: bytes, timeout: float | None) -> bool:
        try:
            await self._stream.write(buffer, timeout)
        except httpcore.WriteError:
            return False
        return True
