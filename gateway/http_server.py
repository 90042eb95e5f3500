"""HTTP servers of a process: uvicorn's server with this package's accepting, bounds and drain.

Independent of the processes that use it: one alone (server.py), a worker or a supervisor (workers/).
Units: seconds, bytes.
"""

import asyncio
import contextlib
import ctypes
import gc
import math
import resource
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import uvicorn

from gateway.api.acceptor import Acceptor, Connecting
from gateway.api.asgi import Application
from gateway.api.connections import WaitingConnections
from gateway.api.http_protocol import BoundedHttpProtocol, OpenExchange
from gateway.config.values import Address

_BACKLOG = 4096
_CLOSED_FOR_FILES = 16  # waiting connections that are closed when no file is left for a new one
_UNSENT_BYTES_MAX = 128 * 1024  # per client, in the kernel; the default is megabytes if a client does not read
_M_MMAP_THRESHOLD = -3  # malloc.h
_MAPPED_BYTES_MIN = 256 * 1024  # blocks of this size get pages of their own: some 60 us for each MB
_YOUNG_MAX = 20_000  # new objects before a garbage collection; requests create no cycles


class ListenError(Exception):
    """Listening failed; the message contains the address and the reason."""


class Accepting(Protocol):
    """A source of client connections."""

    def start(self) -> None:
        """Accept connections from now on."""

    def close(self) -> None:
        """Accept no more connections."""

    def check(self) -> None:
        """Report changes; must be called about every second."""


Take = Callable[[socket.socket], None]
"""Receives an accepted connection."""


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handling and its accepting of connections, which this package replaces.

    Args:
        application: ASGI application, for the requests without an exchange.
        waiting: connections without an admitted request, of all servers of the process.
        idle_s_max: returns the time after which an idle connection is closed; a reload may change it.
        open_exchange: see `BoundedHttpProtocol`; None if every request is for the ASGI application.
        accept_with: returns the source of connections, given the function that receives them.
        protocol: makes a connection from the arguments of `BoundedHttpProtocol`.

    Attributes:
        prepared: set when `accept` may be called.
        acceptor: accepts the connections; exists once `prepared` is set.
    """

    acceptor: Accepting

    def __init__(
        self,
        application: Application,
        waiting: WaitingConnections,
        idle_s_max: Callable[[], float],
        open_exchange: OpenExchange | None,
        accept_with: Callable[[Take], Accepting],
        protocol: Callable[..., BoundedHttpProtocol] = BoundedHttpProtocol,
    ) -> None:
        super().__init__(_config(application))
        self._waiting = waiting
        self._idle_s_max = idle_s_max
        self._open_exchange = open_exchange
        self._accept_with = accept_with
        self._protocol = protocol
        self.prepared = asyncio.Event()
        self._listening: list[socket.socket] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.servers = []
        self._listening = sockets or []
        self.acceptor = self._accept_with(Connecting(self.make_protocol).take)
        self.started = True
        self.prepared.set()

    def make_protocol(self) -> BoundedHttpProtocol:
        """Return the protocol of a new connection."""
        loop = asyncio.get_running_loop()
        return self._protocol(
            self.config, self.server_state, self.lifespan.state, loop, self._waiting, self._open_exchange
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.stop_listening()
        await super().shutdown(sockets)

    def stop_listening(self) -> None:
        """Accept no more connections, and let another process listen on the address; open connections go on."""
        self.acceptor.close()
        for sock in self._listening:
            sock.close()

    def drain(self) -> None:
        """End each connection after its next response, which announces it."""
        self._waiting.draining = True
        for connection in tuple(self.server_state.connections):
            if isinstance(connection, BoundedHttpProtocol):
                connection.drain()

    def check(self) -> None:
        """Close connections that are late, and those above the bounds; must be called every second."""
        now_s = asyncio.get_running_loop().time()
        self._waiting.idle_s_max = self._idle_s_max()
        for connection in tuple(self.server_state.connections):
            if isinstance(connection, BoundedHttpProtocol):
                connection.check(now_s)
        self._waiting.trim()
        self.acceptor.check()

    def abort(self) -> None:
        """Close all connections at once."""
        for connection in tuple(self.server_state.connections):
            connection.transport.abort()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def accept_from(
    sock: socket.socket,
    waiting: WaitingConnections,
    on_accepting: Callable[[str, OSError | None], None],
    on_many_files: Callable[[], None] = lambda: None,
) -> Callable[[Take], Acceptor]:
    """Return a function for `HttpServer` that accepts the connections of a listening socket.

    Args:
        on_accepting: receives the address and an error when accepting begins to fail, None when it works.
        on_many_files: called for each connection while at least `waiting.files_many` files are open.
    """
    address = str(name_of(sock))

    def accept_with(take: Take) -> Acceptor:
        def take_counted(connection: socket.socket) -> None:
            if connection.fileno() >= waiting.files_many:  # a new file has the lowest free number
                on_many_files()
            take(connection)

        return Acceptor(
            sock,
            take_counted,
            waiting.accepted_max,
            lambda: waiting.make_room(_CLOSED_FOR_FILES),
            lambda error: on_accepting(address, error),
        )

    return accept_with


def waiting_connections(processes: int = 1) -> WaitingConnections:
    """Return the bounds of this process, one of several that share the memory."""
    files_max = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return WaitingConnections(math.inf if files_max == resource.RLIM_INFINITY else files_max, processes)


def listening(address: Address, found: Sequence[Any]) -> socket.socket:
    """Return a listening socket.

    Args:
        found: the results of `getaddrinfo` for the address.

    Raises:
        ListenError: the address is in use or not local.
    """
    try:
        family, kind, proto, _, where = found[0]
        sock = socket.socket(family, kind, proto)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # connections inherit it
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES_MAX)
            sock.bind(where)
            sock.listen(_BACKLOG)
        except OSError:
            sock.close()
            raise
    except OSError as error:
        raise cannot_listen(address, error) from error
    return sock


def cannot_listen(address: Address, error: OSError) -> ListenError:
    """Return the error for an address."""
    return ListenError(f"cannot listen on {address}: {error.strerror or error}")


def name_of(sock: socket.socket) -> Address:
    """Return the address of a listening socket."""
    host, port = sock.getsockname()[:2]
    return Address(host, port)


def give_memory_back() -> None:
    """Let glibc return the memory of each large request body when it is freed; other allocators do so by themselves.

    By default glibc raises its threshold for memory of its own to the largest block that was freed, and keeps the rest.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES_MIN)


def freeze_startup_objects() -> None:
    """Exclude the objects of the start from garbage collection, which would use 5% of the CPU for them."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_MAX)


def _config(application: Application) -> uvicorn.Config:
    return uvicorn.Config(
        application,
        http=BoundedHttpProtocol,
        interface="asgi3",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        proxy_headers=False,
    )
