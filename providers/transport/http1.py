"""HTTP/1.1 streaming client to one origin, with a pool of connections, for relaying.

A request is written to a pooled connection in the caller's own loop turn; the response is pushed to an `HttpSink` on
the stack that reads the socket (connection.py). A request needs no task, queue or lock: only a new connection takes a
task, which belongs to the client's task group. The client retries in one case: a kept-alive connection that ends within
`STALE_S` of the request, before a byte of the response, is replaced, because the server closed it before it read the
request (RFC 9112, 9.3.1). A server that closes later may have processed the request.

A spare connection is kept ready, so that neither a backup nor the request after a cancelled loser waits for a
handshake. Connections have a maximum age, so that changes in DNS take effect.

To cancel is to close: `abort()` drops the socket at once, without draining. Units: seconds.
"""

import asyncio
from collections import deque
from typing import Final

from providers.base import HttpSink, HttpStream, Request
from providers.errors import ConnectError
from providers.transport.connection import Connection, Exchange
from providers.transport.origin import STALE_S, Origin, too_many, too_slow, unreachable
from providers.transport.tls import TlsTransport

_SWEEP_S: Final = 5.0  # interval of the check for idle connections that are too old
_SPREAD: Final = 0.2  # share of the age by which connections differ, so that they do not all end together
_SPREAD_STEPS: Final = 16


class WireClient:
    """A `providers.base.HttpClient` to one origin.

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
        """Close idle connections and keep none from now on; running exchanges go on."""
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

    def connect(self, exchange: Exchange) -> None:
        """Give an exchange a new connection, or one that becomes free in the meantime."""
        self._waiting[exchange] = None
        exchange.connecting = self._tasks.create_task(self._connected(exchange))

    def opened(self) -> None:
        """Count a connection."""
        self._open += 1
        self._opened += 1

    def lost(self, connection: Connection) -> None:
        """Stop counting a connection."""
        self._open -= 1
        if connection.idle:
            self._idle.remove(connection)

    def leave(self, exchange: Exchange) -> None:
        """Remove an exchange that waits for a connection."""
        self._waiting.pop(exchange, None)

    def release(self, connection: Connection) -> None:
        """Give a free connection to the first waiting exchange, or keep it for the next request."""
        now_s = self._loop.time()
        if self._closed or now_s > connection.fresh_until_s:
            connection.close()
            return
        if self._waiting:
            exchange = next(iter(self._waiting))
            del self._waiting[exchange]
            exchange.connecting = None  # the connection being opened for it becomes a spare
            connection.stale_until_s = now_s + STALE_S
            connection.start(exchange)
            return
        if len(self._idle) >= self._origin.idle_max:
            self._close_oldest()
        connection.idle_since_s = now_s
        connection.idle = connection.kept = True
        self._idle.append(connection)
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep)

    # Internals

    async def _connected(self, exchange: Exchange) -> None:
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

    async def _connection(self) -> Connection:
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

    async def _connect(self) -> Connection:
        """Connect; uvloop closes a connection that is cancelled after `connection_made` without `connection_lost`."""
        connection = Connection(self)
        try:
            await self._connect_socket(connection)
        except BaseException:
            connection.connection_lost(None)
            raise
        return connection

    async def _connect_socket(self, connection: Connection) -> None:
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
        self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep) if self._idle else None
