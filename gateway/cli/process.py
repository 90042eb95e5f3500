"""The process of a running gateway: event loop, limit of open files, standard error, and exit code.

A thread writes standard error, so that a reader that stops cannot block the event loop. `sys.stderr` is replaced while
the gateway runs, which covers `print`, `logging`, tracebacks and warnings. The choice of the loop belongs to
event_loop.py. No units.
"""

import asyncio
import contextlib
import io
import logging
import os
import resource
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import TextIO

from gateway.cli.event_loop import new_loop
from gateway.cli.parser import ExitCode
from gateway.cli.terminal import warn
from gateway.observe.writer import LineWriter
from gateway.server.process import ExitReport

_THREAD_S_MAX = 0.0002  # for which a thread that reads a file may keep the loop waiting; Python's default is 5 ms
_BUFFER_BYTES_MAX = 256 * 1024  # 2,000 lines, or some 200 tracebacks
_LOST = b"warning: %d lines of standard error were lost, because nothing read them\n"


def run_until_end(serving: Coroutine[object, object, ExitReport], write_lock: int | None = None) -> ExitCode:
    """Run a gateway on a new event loop, with the maximum number of open files that the system allows.

    Args:
        write_lock: descriptor of a file that several processes lock while they write lines; None for one process.
    """
    _raise_open_files()
    sys.setswitchinterval(_THREAD_S_MAX)
    with stderr_off_loop(write_lock) as close_stderr, asyncio.Runner(loop_factory=new_loop) as runner:
        report = runner.run(serving)
        if report.cut:
            warn(f"{report.cut} running requests were ended with an error")
        if report.second is not None:
            sys.stdout.flush()
            close_stderr()
            os._exit(128 + report.second)  # closing the loop could wait for a file that a reload reads
    return ExitCode.OK


@contextlib.contextmanager
def stderr_off_loop(write_lock: int | None = None) -> Iterator[Callable[[], None]]:
    """Replace `sys.stderr` while inside; yields a function that writes the last lines, within a second.

    Args:
        write_lock: see `LineWriter`.
    """
    original = sys.stderr
    writer = LineWriter(original.fileno(), _LOST.__mod__, buffer_bytes_max=_BUFFER_BYTES_MAX, lock=write_lock)
    original.flush()
    sys.stderr = _Lines(writer, original)
    try:
        yield writer.close
    finally:
        sys.stderr = original
        writer.close()


def _raise_open_files() -> None:
    """Raise the soft limit: a stream needs two sockets, so the usual 1,024 files would allow only 500 streams."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS reports "unlimited" and rejects that value
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        logging.getLogger(__name__).debug("open files: %d, was %d", hard, soft)


class _Lines(io.TextIOBase):
    """A text stream that gives whole lines to a writer, and has the descriptor of the original stream."""

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
