"""Runs the gateway's command line, and measures how long each of its event loops is held; growth.py starts it.

A hold is the CPU time of the process between two turns of a loop: it has no time of other processes in it, and it
contains the time for which another thread kept the interpreter's lock. SIGUSR1 begins a measurement, and writes the
last one to TICKS_FOLDER/PID. Units: seconds.
"""

import asyncio
import json
import os
import signal
import time
from pathlib import Path

from gateway.cli import process
from gateway.cli.event_loop import new_loop


class Ticks:
    """The holds of one loop.

    Attributes:
        longest_s: the longest since the measurement began.
        count: turns since then; 0 before the first measurement.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._before_s = 0.0
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
        self._before_s, self.longest_s, self.count = time.process_time(), 0.0, 1
        if is_first:
            self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        now_s = time.process_time()
        self.longest_s = max(self.longest_s, now_s - self._before_s)
        self._before_s = now_s
        self.count += 1
        self._loop.call_soon(self._tick)


def _ticked_loop() -> asyncio.AbstractEventLoop:
    loop = new_loop()
    ticks = Ticks(loop)
    loop.call_soon(loop.add_signal_handler, signal.SIGUSR1, ticks.begin)
    return loop


if __name__ == "__main__":
    from gateway.__main__ import main

    process.new_loop = _ticked_loop  # type: ignore[attr-defined]
    raise SystemExit(main())
