"""Accepts client connections, in batches, and pauses while the system has no room for another one.

Several processes may accept from one socket. Each leaves a connection for a moment to processes that have fewer, and
then accepts it itself: a process that hangs delays no connection for longer than that.

asyncio's own loop would try and report every waiting connection at the limit of open files: thousands of tracebacks a
second. Independent of the protocol on the connections. Units: seconds.
"""

import asyncio
import socket
from collections.abc import Callable

BATCH_MAX = 32  # connections for each turn of the event loop: about 3 ms, so that a flood does not hold streams up
_TURN_MAX = 4  # connections that a process accepts at once while others have fewer, so that they stay even
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
        wait_s: returns the time that other processes have to accept the next connection first; None without any.
    """

    def __init__(
        self,
        sock: socket.socket,
        take: Callable[[socket.socket], None],
        batch: int,
        on_failure: Callable[[], None],
        on_change: Callable[[OSError | None], None],
        wait_s: Callable[[], float] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._take = take
        self._batch = min(batch, BATCH_MAX)
        self._on_failure = on_failure
        self._on_change = on_change
        self._wait_s = wait_s
        self._turn = 1  # connections to accept after a wait; doubled while the other processes leave them
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
            if self._wait_s is not None and (wait_s := self._wait_s()):
                self._rest(wait_s, self._take_turn)
                return
            self._turn = 1
            if not self._accept_one():
                return

    def _take_turn(self) -> None:
        """Accept what the other processes have left."""
        self._pause = None
        for _ in range(self._turn):
            if not self._accept_one():
                self._turn = 1
                break
        else:
            self._turn = min(2 * self._turn, _TURN_MAX)
        if self._pause is None:  # else no file is left
            self.start()

    def _accept_one(self) -> bool:
        """Accept a connection; return False if there is none, or no room for one."""
        try:
            connection, _address = self._sock.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return False
        except OSError as error:
            self._fail(error)
            return False
        connection.setblocking(False)
        self._take(connection)
        return True

    def _fail(self, error: OSError) -> None:
        if self._failed_s is None:
            self._on_change(error)
        self._failed_s = self._loop.time()
        self._on_failure()
        self._rest(_PAUSE_S, self.start)

    def _rest(self, pause_s: float, then: Callable[[], None]) -> None:
        self._loop.remove_reader(self._sock)
        self._pause = self._loop.call_later(pause_s, then)
