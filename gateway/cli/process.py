"""The process of a running gateway: event loop, limit of open files, and exit code.

The choice of the loop belongs to event_loop.py. No units.
"""

import asyncio
import contextlib
import logging
import os
import resource
import sys
from collections.abc import Coroutine

from gateway.cli.event_loop import new_loop
from gateway.cli.parser import ExitCode
from gateway.cli.stderr import stderr_off_loop
from gateway.cli.terminal import warn
from gateway.server import ExitReport


def run_until_end(serving: Coroutine[object, object, ExitReport], write_lock: int | None = None) -> ExitCode:
    """Run a gateway on a new event loop, with the maximum number of open files that the system allows.

    Args:
        write_lock: descriptor of a file that several processes lock while they write lines; None for one process.
    """
    _raise_open_files()
    with stderr_off_loop(write_lock) as close_stderr, asyncio.Runner(loop_factory=new_loop) as runner:
        report = runner.run(serving)
        if report.cut:
            warn(f"{report.cut} running requests were ended with an error")
        if report.second is not None:
            sys.stdout.flush()
            close_stderr()
            os._exit(128 + report.second)  # closing the loop could wait for a file that a reload reads
    return ExitCode.OK


def _raise_open_files() -> None:
    """Raise the soft limit: a stream needs two sockets, so the usual 1,024 files would allow only 500 streams."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS reports "unlimited" and rejects that value
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        logging.getLogger(__name__).debug("open files: %d, was %d", hard, soft)
