"""Standard error of a running gateway: a thread writes it, so that a reader that stops cannot block the event loop.

`sys.stderr` is replaced while the gateway runs, which covers `print`, `logging`, tracebacks and warnings. No units.
"""

import contextlib
import io
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TextIO

from gateway.observe.writer import LineWriter

_BUFFER_BYTES_MAX = 256 * 1024  # 2,000 lines, or some 200 tracebacks


class _Lines(io.TextIOBase):
    """A text stream that gives whole lines to a writer.

    Args:
        writer: takes the lines.
        original: stream that is replaced; the source of the properties of the descriptor.
    """

    def __init__(self, writer: LineWriter, original: TextIO) -> None:
        self._writer = writer
        self._original = original
        self._begun = ""  # a line without its end
        self._lock = threading.Lock()  # held for microseconds; other threads log, too

    def write(self, text: str) -> int:
        with self._lock:
            self._begun += text
            whole, newline, self._begun = self._begun.rpartition("\n")
            if newline:
                self._writer.write((whole + newline).encode(errors="backslashreplace"))
        return len(text)

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._original.isatty()

    def fileno(self) -> int:
        return self._original.fileno()


@contextlib.contextmanager
def stderr_off_loop(write_lock: int | None = None) -> Iterator[Callable[[], None]]:
    """Replace `sys.stderr` while inside; yields a function that writes the last lines, within a second.

    Args:
        write_lock: see `LineWriter`.
    """
    original = sys.stderr
    writer = LineWriter(original.fileno(), _loss_line, buffer_bytes_max=_BUFFER_BYTES_MAX, lock=write_lock)
    original.flush()
    sys.stderr = _Lines(writer, original)
    try:
        yield writer.close
    finally:
        sys.stderr = original
        writer.close()


def _loss_line(lines: int) -> bytes:
    return b"warning: %d lines of standard error were lost, because nothing read them\n" % lines
