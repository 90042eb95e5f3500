"""Passes accepted connections from the supervisor to the workers, over one socket for each worker.

The supervisor sends a byte with the descriptor of a connection. The worker answers with a byte for each connection that
it has taken, before it reads anything from it, and with another one when the connection is closed. So the supervisor
has the exact number of open connections of each worker, and passes connections that a killed worker has not taken to
another worker.

Units: connections.
"""

import array
import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Final

from gateway.server.http_server import Take

_PASSED: Final = b"c"
_TAKEN: Final = b"t"
_CLOSED: Final = b"x"
_BATCH_MAX: Final = 32  # connections that a worker takes in one iteration of its loop
_REPORT_BYTES_MAX: Final = 65_536
_DESCRIPTOR_BYTES: Final = array.array("i").itemsize


class Lane:
    """The supervisor's end for one worker.

    Args:
        sock: socket to the worker; closed with the lane.
        on_change: called after the worker has taken or closed connections.

    Attributes:
        open: connections of the worker, and connections on their way to it.
        passed: connections passed so far.
    """

    def __init__(self, sock: socket.socket, on_change: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._on_change = on_change
        self._under_way: deque[socket.socket] = deque()  # passed and not taken
        self.open = 0
        self.passed = 0
        sock.setblocking(False)
        self._loop.add_reader(sock.fileno(), self._read)

    def pass_on(self, connection: socket.socket) -> bool:
        """Pass a connection to the worker; return False if there is no room for it at the moment."""
        try:
            socket.send_fds(self._sock, [_PASSED], [connection.fileno()])
        except OSError:  # full, or the worker has ended
            return False
        self._under_way.append(connection)
        self.open += 1
        self.passed += 1
        return True

    def close(self) -> list[socket.socket]:
        """Close the lane; return the connections that the worker has not taken."""
        if self._sock.fileno() >= 0:
            self._read()  # what the worker has reported last
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()
        rest = list(self._under_way)
        self._under_way.clear()
        self.open = 0
        return rest

    def _read(self) -> None:
        try:
            reports = self._sock.recv(_REPORT_BYTES_MAX)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            reports = b""
        if not reports:  # the worker has ended; its channel reports that
            self._loop.remove_reader(self._sock.fileno())
            return
        for _ in range(min(reports.count(_TAKEN), len(self._under_way))):
            self._under_way.popleft().close()
        self.open -= reports.count(_CLOSED)
        self._on_change()


class Receiver:
    """The worker's end: a source of connections for its server.

    Args:
        sock: socket to the supervisor; not closed.

    Attributes:
        take: receives each connection; to be set before the start.
    """

    take: Take

    def __init__(self, sock: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._unsent = b""
        self._is_writing = False
        sock.setblocking(False)

    def start(self) -> None:
        """Take connections from now on."""
        self._loop.add_reader(self._sock.fileno(), self._receive)

    def close(self) -> None:
        """Take the connections that were passed before, and no more."""
        while self._receive():
            pass
        self._loop.remove_reader(self._sock.fileno())

    def check(self) -> None:
        """Do nothing: a failure to accept is the supervisor's."""

    def closed(self) -> None:
        """Report that a connection is closed."""
        self._report(_CLOSED)

    def _receive(self) -> int:
        """Take a batch of connections; return their number."""
        for count in range(_BATCH_MAX):
            connection = self._next()
            if connection is None:
                return count
            self._report(_TAKEN)  # from now on it is lost with this process
            self.take(connection)
        return _BATCH_MAX

    def _next(self) -> socket.socket | None:
        try:
            data, ancillary, _flags, _ = self._sock.recvmsg(1, socket.CMSG_SPACE(_DESCRIPTOR_BYTES))
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:
            data, ancillary = b"", []
        if not data:  # the supervisor has ended; the channel reports that
            self._loop.remove_reader(self._sock.fileno())
            return None
        for _level, _kind, content in ancillary:
            [descriptor] = array.array("i", content[:_DESCRIPTOR_BYTES])
            connection = socket.socket(fileno=descriptor)
            connection.setblocking(False)
            return connection
        self._report(_TAKEN + _CLOSED)  # no file was left for it, so the system has closed it
        return self._next()

    def _report(self, report: bytes) -> None:
        self._unsent += report
        if not self._is_writing:
            self._flush()

    def _flush(self) -> None:
        try:
            sent = self._sock.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:  # the supervisor has ended
            sent = len(self._unsent)
        self._unsent = self._unsent[sent:]
        if bool(self._unsent) is not self._is_writing:
            self._is_writing = not self._is_writing
            if self._is_writing:
                self._loop.add_writer(self._sock.fileno(), self._flush)
            else:
                self._loop.remove_writer(self._sock.fileno())
