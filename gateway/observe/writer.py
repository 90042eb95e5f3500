"""Writes lines to a file descriptor without ever holding up the event loop.

A daemon thread writes what has gathered, at most ten times a second, straight to the descriptor. A reader that has
stopped (a full pipe) costs lines, never requests: over the bound a line is refused. It must not know what is in a line.
The thread shares nothing with the loop but a deque and one counter for each side, so there is no lock to wait for.

Units: bytes, seconds.
"""

import os
import select
import threading
from collections import deque

_BUFFER_BYTES_MAX = 1_000_000  # about a second of lines at full load
_GATHER_S = 0.1  # lines are written this late, so that a busy loop is not interrupted for each
_CLOSE_S_MAX = 1.0  # a reader that has stopped must not hold up the end of the process


class LineWriter:
    """A bounded buffer in front of a file descriptor.

    Args:
        fd: where lines go; it is not closed.
        buffer_bytes_max: lines beyond this are refused.
    """

    def __init__(self, fd: int, buffer_bytes_max: int = _BUFFER_BYTES_MAX) -> None:
        self._fd = fd
        self._bytes_max = buffer_bytes_max
        self._lines: deque[bytes] = deque()
        self._taken_bytes = 0  # only the loop's thread adds to it
        self._done_bytes = 0  # only the writing thread adds to it
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    def write(self, line: bytes) -> bool:
        """Take a line, with its newline, and return at once; False when there is no room for it."""
        size = len(line)
        if self._taken_bytes - self._done_bytes + size > self._bytes_max:
            return False
        self._taken_bytes += size
        self._lines.append(line)
        if not self._wake.is_set():
            self._wake.set()
        return True

    def close(self) -> None:
        """Write what is left, within a second; lines that come later are refused."""
        self._bytes_max = 0
        self._closing.set()
        self._wake.set()
        self._thread.join(_CLOSE_S_MAX)

    def _run(self) -> None:
        """The thread."""
        closing = False
        while not closing:
            self._wake.wait()
            self._closing.wait(_GATHER_S)
            self._wake.clear()  # before taking: a line that comes meanwhile wakes again
            closing = self._closing.is_set()  # before taking: every line from before close() is here
            chunk = b"".join([self._lines.popleft() for _ in range(len(self._lines))])
            self._write_all(memoryview(chunk))
            self._done_bytes += len(chunk)

    def _write_all(self, chunk: memoryview) -> None:
        """Write it, however long it takes; nothing can be told when the descriptor is broken."""
        while chunk:
            try:
                chunk = chunk[os.write(self._fd, chunk) :]
            except BlockingIOError:  # another process that shares the descriptor made it non-blocking
                select.select([], [self._fd], [], _CLOSE_S_MAX)
            except OSError:
                return
