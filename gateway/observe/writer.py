"""Writes lines to a file descriptor without blocking the event loop.

A daemon thread writes the collected lines to the descriptor, at most ten times a second. A stopped reader (a full pipe)
or a full disk costs lines, never requests; the writer counts lost lines and reports their number in the output as soon
as it can write again. Independent of the lines' content. The thread and the callers share only a deque and one counter
for each side, so neither waits for a lock.

The thread writes whole lines in pieces that a pipe takes as a whole, so that the end of the process leaves no part of a
line; a longer line is the exception. Several processes may write to one descriptor. Then the thread locks a file that
all of them have inherited; its content shows the next writer if the output ends within a line.

Units: bytes, seconds.
"""

import contextlib
import fcntl
import os
import select
import stat
import threading
from collections import deque
from collections.abc import Callable, Iterator

_BUFFER_BYTES_MAX = 1_000_000  # about one second of lines at full load
_GATHER_S = 0.1  # delay of writing, so that a busy loop is not interrupted for each line
_TORN, _WHOLE = b"\1", b"\0"  # in the file of the lock, at the number of the descriptor
_CLOSE_S_MAX = 1.0  # a stopped reader must not delay the end of the process


class LineWriter:
    """A bounded buffer before a file descriptor.

    Args:
        fd: descriptor that lines are written to; not closed.
        loss_line: returns the line, with its newline, that reports a number of lost lines; called on the thread.
        on_error: receives the error of a failed write, on the thread, once until a write succeeds; None to ignore it.
        buffer_bytes_max: buffered bytes above which lines are rejected.
        lock: descriptor of a file, in which the byte at `fd` is locked while lines are written; None if no other
            process writes to the descriptor.
    """

    def __init__(
        self,
        fd: int,
        loss_line: Callable[[int], bytes],
        on_error: Callable[[OSError], None] | None = None,
        buffer_bytes_max: int = _BUFFER_BYTES_MAX,
        lock: int | None = None,
    ) -> None:
        self._fd = fd
        self._lock = lock
        self._loss_line = loss_line
        self._on_error = on_error
        self._bytes_max = buffer_bytes_max
        self._lines: deque[bytes] = deque()
        self._taken_bytes = 0  # changed by callers only
        self._done_bytes = 0  # changed by the writing thread only
        self._rejected = 0  # lines; changed by callers only
        self._failed = 0  # lines; changed by the writing thread only
        self._reported = 0
        self._failing = False
        self._is_torn = False  # the output ends within a line, by a process of this gateway
        self._has_begun = False
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> int:
        """Number of lines lost so far."""
        return self._rejected + self._failed

    def write(self, lines: bytes) -> bool:
        """Take whole lines without waiting; return False if there is no room for all of them, which loses them.

        All calls must come from one thread, or hold one lock.
        """
        size = len(lines)
        if self._taken_bytes - self._done_bytes + size > self._bytes_max:
            self._rejected += lines.count(b"\n")
            return False
        self._taken_bytes += size
        self._lines.append(lines)
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
            self._wake.clear()  # before taking: a line that is added later sets it again
            closing = self._closing.is_set()  # before taking: every line from before close() is in the deque
            chunk = b"".join([self._lines.popleft() for _ in range(len(self._lines))])
            rest = self._write_all(memoryview(chunk))
            self._failed += bytes(rest).count(b"\n")
            self._done_bytes += len(chunk)
            if not rest:
                self._report_losses()

    def _report_losses(self) -> None:
        lost = self.lost
        if lost > self._reported and not self._write_all(memoryview(self._loss_line(lost - self._reported))):
            self._reported = lost

    def _write_all(self, chunk: memoryview) -> memoryview:
        """Write the whole chunk, in any number of steps; return what could not be written."""
        with self._locked():
            if self._ends_within_line() and self._write_steps(memoryview(b"\n")):
                return chunk
            return self._write_steps(chunk)

    def _ends_within_line(self) -> bool:
        """Return True if this process, another one or an earlier one has left a part of a line."""
        if self._lock is not None:
            with contextlib.suppress(OSError):
                self._is_torn = os.pread(self._lock, 1, self._fd) == _TORN
        return self._is_torn or (not self._has_begun and _is_torn_file(self._fd))

    def _note(self, *, torn: bool) -> None:
        """Record for the next write, of any process, if the output ends within a line."""
        if torn is not self._is_torn:
            self._is_torn = torn
            if self._lock is not None:
                with contextlib.suppress(OSError):
                    os.pwrite(self._lock, _TORN if torn else _WHOLE, self._fd)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock out other processes; the system releases the lock of a process that ends."""
        if self._lock is None:
            yield
            return
        with contextlib.suppress(OSError):  # the system has no lock left; lines may then be mixed
            fcntl.lockf(self._lock, fcntl.LOCK_EX, 1, self._fd)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                fcntl.lockf(self._lock, fcntl.LOCK_UN, 1, self._fd)

    def _piece(self, chunk: memoryview) -> memoryview:
        """Return what is written next: whole lines that a pipe takes as a whole, or one long line."""
        if len(chunk) <= select.PIPE_BUF:
            return chunk
        end = bytes(chunk[: select.PIPE_BUF]).rfind(b"\n") + 1
        return chunk[: end or bytes(chunk).find(b"\n") + 1 or len(chunk)]

    def _write_steps(self, chunk: memoryview) -> memoryview:
        while chunk:
            piece = self._piece(chunk)
            if len(piece) > select.PIPE_BUF:  # the process may end in the middle of it
                self._note(torn=True)
            try:
                written = os.write(self._fd, piece)
            except BlockingIOError:  # another process that shares the descriptor made it non-blocking
                select.select([], [self._fd], [], _CLOSE_S_MAX)
            except OSError as error:
                if not self._failing and self._on_error is not None:
                    self._on_error(error)
                self._failing = True
                return chunk
            else:
                self._has_begun = True
                self._note(torn=chunk[written - 1] != ord("\n"))
                chunk = chunk[written:]
                self._failing = self._failing and bool(chunk)
        return chunk


def _is_torn_file(fd: int) -> bool:
    """Return True if a descriptor refers to a file that ends within a line, as a killed process may leave it."""
    with contextlib.suppress(OSError):
        status = os.fstat(fd)
        if stat.S_ISREG(status.st_mode) and status.st_size:
            reading = os.open(f"/dev/fd/{fd}", os.O_RDONLY)  # the descriptor itself may be for writing only
            try:
                return os.pread(reading, 1, status.st_size - 1) != b"\n"
            finally:
                os.close(reading)
    return False
