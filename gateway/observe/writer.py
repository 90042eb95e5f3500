"""Writes lines to a file descriptor without blocking the event loop.

A daemon thread writes the collected lines to the descriptor, at most ten times a second. A stopped reader (a full pipe)
costs lines, never requests: above the limit, lines are rejected. Independent of the lines' content. The thread and the
loop share only a deque and one counter for each side, so neither waits for a lock.

Units: bytes, seconds.
"""

import os
import select
import threading
from collections import deque

_BUFFER_BYTES_MAX = 1_000_000  # about one second of lines at full load
_GATHER_S = 0.1  # delay of writing, so that a busy loop is not interrupted for each line
_CLOSE_S_MAX = 1.0  # a stopped reader must not delay the end of the process


class LineWriter:
    """A bounded buffer before a file descriptor.

    Args:
        fd: descriptor that lines are written to; not closed.
        buffer_bytes_max: buffered bytes above which lines are rejected.
    """

    def __init__(self, fd: int, buffer_bytes_max: int = _BUFFER_BYTES_MAX) -> None:
        self._fd = fd
        self._bytes_max = buffer_bytes_max
        self._lines: deque[bytes] = deque()
        self._taken_bytes = 0  # changed by the loop's thread only
        self._done_bytes = 0  # changed by the writing thread only
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    def write(self, line: bytes) -> bool:
        """Take a line with its newline and return at once; return False if the buffer is full."""
        size = len(line)
        if self._taken_bytes - self._done_bytes + size > self._bytes_max:
            return False
        self._taken_bytes += size
        self._lines.append(line)
        if not self._wake.is_set():
            self._wake.set()
        return True

    def close(self) -> None:
        """Write the buffered lines, within a second; later lines are rejected."""
        self._bytes_max = 0
        self._closing.set()
        self._wake.set()
        self._thread.join(_CLOSE_S_MAX)

    def _run(self) -> None:
        closing = False
        while not closing:
            self._wake.wait()
            self._closing.wait(_GATHER_S)
            self._wake.clear()  # before taking: a line added meanwhile sets it again
            closing = self._closing.is_set()  # before taking: every line from before close() is in the deque
            chunk = b"".join([self._lines.popleft() for _ in range(len(self._lines))])
            self._write_all(memoryview(chunk))
            self._done_bytes += len(chunk)

    def _write_all(self, chunk: memoryview) -> None:
        """Write the whole chunk, in any number of steps; a broken descriptor cannot be reported."""
        while chunk:
            try:
                chunk = chunk[os.write(self._fd, chunk) :]
            except BlockingIOError:  # another process that shares the descriptor made it non-blocking
                select.select([], [self._fd], [], _CLOSE_S_MAX)
            except OSError:
                return
