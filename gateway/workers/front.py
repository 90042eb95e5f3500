"""The public address of a gateway with workers: accepts connections while a worker can take them. Units: seconds."""

import asyncio
import socket
from collections.abc import Callable

from gateway.api.acceptor import Acceptor
from gateway.events import Event
from gateway.http_server import name_of, waiting_connections
from gateway.process_events import AcceptingChanged
from gateway.workers.group import WorkerGroup

Emit = Callable[[Event], object]


class Front:
    """The public address.

    Args:
        sock: its listening socket.
        group: takes the connections.
        emit: receives events.

    Attributes:
        waiting: bounds of the connections without a request, those of the admin address included.
    """

    def __init__(self, sock: socket.socket, group: WorkerGroup, emit: Emit) -> None:
        self._sock = sock
        self._group = group
        self.waiting = waiting_connections()
        self._is_open = False
        self._is_accepting = False
        self._acceptor = Acceptor(
            sock, self._take, self.waiting.accepted_max, lambda: None, reporter(emit, name_of(sock))
        )

    def open(self) -> None:
        """Accept from now on."""
        self._is_open = True
        self.update()

    def update(self) -> None:
        """Accept while a worker can take connections; the system keeps those that wait for that."""
        wanted = self._is_open and self._group.has_room
        if wanted is not self._is_accepting:
            self._is_accepting = wanted
            if wanted:
                self._acceptor.start()
            else:
                self._acceptor.close()

    def check(self) -> None:
        """Report changes, also while nothing is accepted; must be called every second."""
        self._acceptor.check()
        self.update()

    def close(self) -> None:
        """Stop listening."""
        self._is_open = self._is_accepting = False
        if self._sock.fileno() >= 0:
            self._acceptor.close()
            self._sock.close()

    def _take(self, connection: socket.socket) -> None:
        self._group.take(connection)
        self.update()


def reporter(emit: Emit, address: object) -> Callable[[OSError | None], None]:
    """Return a function that reports that accepting at an address fails, or with None that it works again."""
    loop = asyncio.get_running_loop()

    def changed(error: OSError | None) -> None:
        reason = None if error is None else error.strerror or type(error).__name__
        emit(AcceptingChanged(loop.time(), str(address), error is None, reason))

    return changed
