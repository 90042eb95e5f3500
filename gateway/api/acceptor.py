"""Accepts client connections, in batches, and pauses while the system has no room for another one.

asyncio's own loop would try and report every waiting connection at the limit of open files: thousands of tracebacks a
second. Independent of the protocol on the connections. Units: seconds.
"""

import asyncio
import socket
from collections.abc import Callable

BATCH_MAX = 32  # connections for each turn of the event loop: about 3 ms, so that a flood does not hold streams up
_PAUSE_S = 0.1  # after a failure
_QUIET_S = 5.0  # without a failure, after which accepting counts as working again


class Connecting:
    """Gives accepted connections their protocol.

    Args:
        make: returns the protocol of a new connection.
    """

    def __init__(self, make: Callable[[], asyncio.Protocol]) -> None:
        self._loop = asyncio.get_running_loop()
        self._make = make
        self._tasks: set[asyncio.Task[object]] = set()

    def take(self, connection: socket.socket) -> None:
        """Serve a connection; its socket must not block."""
        connecting = self._loop.create_task(self._loop.connect_accepted_socket(self._make, connection))
        self._tasks.add(connecting)
        connecting.add_done_callback(self._tasks.discard)

    async def settle(self) -> None:
        """Wait until every connection that was taken has its protocol."""
        if self._tasks:
            await asyncio.wait(self._tasks)


class Acceptor:
    """Accepts the connections of one listening socket.

    Args:
        sock: the socket; not closed.
        take: receives each new connection.
        batch: connections for each turn of the event loop, at most `BATCH_MAX`.
        on_failure: called after each failure; may close connections.
        on_change: receives the error when accepting begins to fail, and None when it works again.
    """

    def __init__(
        self,
        sock: socket.socket,
        take: Callable[[socket.socket], None],
        batch: int,
        on_failure: Callable[[], None],
        on_change: Callable[[OSError | None], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._take = take
        self._batch = min(batch, BATCH_MAX)
        self._on_failure = on_failure
        self._on_change = on_change
        self._pause: asyncio.TimerHandle | None = None
        self._failed_s: float | None = None  # time of the last failure; None while accepting works
        sock.setblocking(False)

    def start(self) -> None:
        """Accept connections from now on."""
        self._pause = None
        self._loop.add_reader(self._sock, self._accept)

    def close(self) -> None:
        """Accept no more connections."""
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock)
        if self._pause is not None:
            self._pause.cancel()

    def check(self) -> None:
        """Report that accepting works again, if it does; must be called about every second."""
        if self._failed_s is not None and self._loop.time() > self._failed_s + _QUIET_S:
            self._failed_s = None
            self._on_change(None)

    def _accept(self) -> None:
        for _ in range(self._batch):
            try:
                connection, _address = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._fail(error)
                return
            connection.setblocking(False)
            self._take(connection)

    def _fail(self, error: OSError) -> None:
        if self._failed_s is None:
            self._on_change(error)
        self._failed_s = self._loop.time()
        self._on_failure()
        self._loop.remove_reader(self._sock)
        self._pause = self._loop.call_later(_PAUSE_S, self.start)
