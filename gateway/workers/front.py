"""The public address of a gateway with workers, which accepts connections while a worker can take them. No units."""

import asyncio
import socket
from collections.abc import Callable

from gateway.api.acceptor import Acceptor
from gateway.events import Event
from gateway.process_events import AcceptingChanged
from gateway.server.http_server import name_of, waiting_connections
from gateway.workers.group import WorkerGroup

Emit = Callable[[Event], object]


class Front:
    """The public address.

    Args:
        sock: its listening socket.
        group: takes the connections.
        emit: receives events.
    """

    def __init__(self, sock: socket.socket, group: WorkerGroup, emit: Emit) -> None:
        self._sock = sock
        self._group = group
        self._is_open = False
        self._is_accepting = False
        self._emit = emit
        self._loop = asyncio.get_running_loop()
        accepted_max = waiting_connections().accepted_max
        self._acceptor = Acceptor(sock, self._take, accepted_max, lambda: None, self._on_accepting)
        self._address = str(name_of(sock))

    def open(self) -> None:
        """Accept from now on."""
        self._is_open = True
        self.update()

    def update(self) -> None:
        """Accept while a worker can take connections; until then the system queues them."""
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

    def _on_accepting(self, error: OSError | None) -> None:
        """Report that accepting fails, or with None that it works again."""
        reason = None if error is None else error.strerror or type(error).__name__
        self._emit(AcceptingChanged(self._loop.time(), self._address, error is None, reason))
