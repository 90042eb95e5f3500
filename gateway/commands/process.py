"""The process around a running gateway: its event loop, its limit of open files, and the code it ends with.

Knows nothing of what runs in it. Units: seconds.
"""

import asyncio
import contextlib
import logging
import os
import resource
import sys
import time
from collections.abc import Callable, Coroutine

from gateway.command_line import ExitCode
from gateway.commands.terminal import warn
from gateway.serve import Ending

new_event_loop: Callable[[], asyncio.AbstractEventLoop]
try:
    import uvloop
except ImportError:  # not built for this platform; asyncio's own loop does as well, a little slower
    new_event_loop = asyncio.new_event_loop
else:

    class PreciseLoop(uvloop.Loop):
        """uvloop with a clock that is good for measuring: its own counts whole milliseconds, and a hop takes 0.1."""

        def time(self) -> float:
            return time.monotonic_ns() / 1e9

    new_event_loop = PreciseLoop


def run_until_end(serving: Coroutine[object, object, Ending]) -> ExitCode:
    """Run a gateway on a loop of its own, with as many open files as the system allows."""
    _raise_open_files()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        ending = runner.run(serving)
        if ending.cut:
            warn(f"{ending.cut} running requests were ended with an error")
        if ending.second is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(128 + ending.second)  # closing the loop could wait for a name look-up
    return ExitCode.FINE


def _raise_open_files() -> None:
    """A stream takes two sockets; the usual soft limit of 1,024 files would end at 500 streams."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS says "unlimited" and refuses it
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        logging.getLogger(__name__).debug("open files: %d, was %d", hard, soft)
