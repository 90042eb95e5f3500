"""HTTP servers of a process: accepting, the end of serving, and the settings of sockets, memory and garbage collection.

Independent of the processes that use it: one alone (process.py) or a worker (workers/).
Units: seconds, bytes.
"""

import asyncio
import contextlib
import ctypes
import gc
import math
import resource
import socket
import sys
from collections.abc import Callable, Sequence
from email.utils import formatdate
from typing import Any, Protocol

from gateway.api.acceptor import Acceptor, Connecting
from gateway.api.http_protocol import HttpProtocol, OpenConnections, OpenExchange, WaitingConnections
from gateway.config.values import Address

_BACKLOG = 4096
_ARRIVED_S = 0.1  # at the end: for requests that have been sent and not read
_CLOSED_FOR_FILES = 16  # waiting connections that are closed when no file is left for a new one
_NOTSENT_LOWAT = 25  # in Linux; builds of Python for an old glibc have no name for it
_UNSENT_BYTES_MAX = 128 * 1024  # per client, in the kernel; the default is megabytes if a client does not read
_M_MMAP_THRESHOLD = -3  # malloc.h
_MAPPED_BYTES_MIN = 256 * 1024  # blocks of this size get pages of their own: some 60 us for each MB
_COLLECTIONS = 1_000, 3, 500  # some 4,000 objects are searched, for 1 ms, except at every 2,000,000th new object


class ListenError(Exception):
    """Listening failed; the message contains the address and the reason."""


Take = Callable[[socket.socket], None]
"""Receives an accepted connection."""


class AcceptTurns(Protocol):
    """Shares the connections of a listening socket between processes."""

    def wait_s(self) -> float:
        """Return the time that other processes have to accept the next connection first."""

    def opened(self) -> None:
        """Count a connection that was accepted."""


class HttpServer:
    """The HTTP server of one listening address.

    Accepts nothing before `acceptor.start` is called.

    Args:
        waiting: connections without an admitted request, of all servers of the process.
        idle_s_max: returns the time after which an idle connection is closed; a reload may change it.
        open_exchange: opens the exchange of each request.
        accept_with: returns the source of connections, given the function that receives them.
        sock: the listening socket, closed by `stop_listening`.
        on_closed: called after each connection is closed; None for nothing.

    Attributes:
        acceptor: accepts the connections.
        connections: the open connections.
    """

    def __init__(
        self,
        waiting: WaitingConnections,
        idle_s_max: Callable[[], float],
        open_exchange: OpenExchange,
        accept_with: Callable[[Take], Acceptor],
        sock: socket.socket,
        on_closed: Callable[[], object] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting = waiting
        self._idle_s_max = idle_s_max
        self._sock = sock
        self.connections = OpenConnections(open_exchange, waiting, on_closed)
        self._connecting = Connecting(lambda: HttpProtocol(self.connections))
        self.acceptor = accept_with(self._connecting.take)
        self.check_time()

    def stop_listening(self) -> None:
        """Accept no more connections, and let another process listen on the address; open connections go on."""
        self.acceptor.close()
        self._sock.close()

    def drain(self) -> None:
        """End each connection after its next response, which announces it."""
        self._waiting.draining = True
        for connection in self.connections.all:
            connection.drain()

    async def finish(self, first_request_s: float = 0.0) -> None:
        """Accept no more connections, close those that are idle, and return after the last response.

        Args:
            first_request_s: time that a new connection has for its first request.
        """
        self.stop_listening()
        await self._connecting.settle()
        await asyncio.sleep(_ARRIVED_S)
        for connection in tuple(self.connections.all):
            connection.shutdown(first_request_s)
        await self.connections.none_left.wait()

    async def abort(self) -> None:
        """Close all connections immediately."""
        for connection in tuple(self.connections.all):
            connection.transport.abort()
        await self.connections.none_left.wait()

    def check(self) -> None:
        """Close connections that are late, and those above the bounds; must be called every second."""
        now_s = self._loop.time()
        self._waiting.idle_s_max = self._idle_s_max()
        for connection in tuple(self.connections.all):
            connection.check(now_s)
        self._waiting.trim()
        self.acceptor.check()
        self.check_time()

    def check_time(self) -> None:
        """Put the present time into the headers of responses (RFC 9110, 6.6.1)."""
        self.connections.own_headers = ((b"date", formatdate(usegmt=True).encode()),)


def accept_from(
    sock: socket.socket,
    waiting: WaitingConnections,
    on_accepting: Callable[[str, OSError | None], None],
    on_many_files: Callable[[], None] = lambda: None,
    turns: AcceptTurns | None = None,
) -> Callable[[Take], Acceptor]:
    """Return a function for `HttpServer` that accepts the connections of a listening socket.

    Args:
        on_accepting: receives the address and an error when accepting begins to fail, None when it works.
        on_many_files: called for each connection while at least `waiting.files_many` files are open.
        turns: shares the connections between the processes that accept from this socket; None for one process.
    """
    address = str(name_of(sock))

    def accept_with(take: Take) -> Acceptor:
        def take_counted(connection: socket.socket) -> None:
            if connection.fileno() >= waiting.files_many:  # a new file has the lowest free number
                on_many_files()
            if turns is not None:
                turns.opened()
            take(connection)

        return Acceptor(
            sock,
            take_counted,
            waiting.accepted_max,
            lambda: waiting.make_room(_CLOSED_FOR_FILES),
            lambda error: on_accepting(address, error),
            None if turns is None else turns.wait_s,
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
            set_options(sock)
            sock.bind(where)
            sock.listen(_BACKLOG)
        except OSError:
            sock.close()
            raise
    except OSError as error:
        raise cannot_listen(address, error) from error
    return sock


def set_options(sock: socket.socket) -> None:
    """Set the options that connections inherit from a listening socket."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    option = getattr(socket, "TCP_NOTSENT_LOWAT", _NOTSENT_LOWAT if sys.platform == "linux" else None)
    if option is not None:
        sock.setsockopt(socket.IPPROTO_TCP, option, _UNSENT_BYTES_MAX)


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
    """Exclude the objects of the start from garbage collection, which would use 5% of the CPU for them; start it.

    They are not collected before: some 50 are garbage, and with 1,000 models a search takes a ninth of the start.
    """
    gc.freeze()
    gc.enable()
    gc.set_threshold(*_COLLECTIONS)
