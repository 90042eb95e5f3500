"""Runs the gateway's command line, and measures how long each of its event loops is held; growth.py starts it.

A hold is the CPU time of the loop's thread between two turns of the loop, and the time for which another thread kept
the interpreter's lock: the CPU time of other threads, at most one switch interval for each time that the loop's thread
slept. A thread that waits for the lock wakes after each interval, but not while it waits for a CPU, so that a hold has
hardly any time of other processes in it. SIGUSR1 begins a measurement, and writes the last one to TICKS_FOLDER/PID.
Linux. Units: seconds.
"""

import asyncio
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Final

from gateway.cli import process
from gateway.cli.event_loop import new_loop

_LATE_S: Final = 0.0001  # by which a timer of the kernel wakes a thread too late


class Ticks:
    """The holds of one loop.

    Attributes:
        longest_s: the longest since the measurement began.
        count: turns since then; 0 before the first measurement.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._before = self._read()
        self.longest_s = 0.0
        self.count = 0

    def begin(self) -> None:
        """Write the last measurement, and begin another one."""
        target = Path(os.environ["TICKS_FOLDER"]) / str(os.getpid())
        written = target.with_suffix(".new")
        written.write_text(
            json.dumps({"longest_s": self.longest_s, "turns": self.count, "cpu_s": time.process_time()}),
            encoding="ascii",
        )
        written.rename(target)
        is_first = self.count == 0
        self._before, self.longest_s, self.count = self._read(), 0.0, 1
        if is_first:
            self._loop.call_soon(self._tick)

    def _read(self) -> tuple[float, float, int]:
        """Return the CPU time of this thread and of all, and how often this thread has slept."""
        return time.thread_time(), time.process_time(), resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw

    def _tick(self) -> None:
        now = self._read()
        own_s, all_s, sleeps = (after - before for after, before in zip(now, self._before, strict=True))
        locked_s = min(all_s - own_s, sleeps * (sys.getswitchinterval() + _LATE_S))
        self.longest_s = max(self.longest_s, own_s + max(0.0, locked_s))
        self._before = now
        self.count += 1
        self._loop.call_soon(self._tick)


def _ticked_loop() -> asyncio.AbstractEventLoop:
    loop = new_loop()
    ticks = Ticks(loop)
    loop.call_soon(loop.add_signal_handler, signal.SIGUSR1, ticks.begin)
    return loop


if __name__ == "__main__":
    from gateway.__main__ import main

    process.new_loop = _ticked_loop  # type: ignore[attr-defined] # the loop that `run_until_end` makes
    raise SystemExit(main())
