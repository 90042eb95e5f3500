"""Reports the state of the process to a service manager, as sd_notify(3) does.

Units: seconds; in the protocol, microseconds.
"""

import asyncio
import contextlib
import math
import os
import socket
import time
from collections.abc import Mapping

READY = "READY=1"
STOPPING = "STOPPING=1"


def notify(state: str) -> None:
    """Send a state to the socket that NOTIFY_SOCKET names; do nothing if it is unset, or if nothing receives there."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address[:1] not in ("/", "@"):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)


def main_process(process: int) -> str:
    """Return the state of a process that another one has replaced."""
    return f"MAINPID={process}"


class Watchdog:
    """Shows a service manager that the process does not hang (`WatchdogSec=`), twice in each of its intervals.

    Attributes:
        due_s: time of the next sign, of any clock; infinite if the manager wants none.
    """

    def __init__(self, now_s: float) -> None:
        self._every_s = watchdog_s(os.environ) / 2
        self.due_s = now_s + self._every_s

    def beat(self, now_s: float) -> None:
        """Send the sign if it is due."""
        if now_s >= self.due_s:
            self.due_s = now_s + self._every_s
            notify("WATCHDOG=1")

    async def keep_beating(self) -> None:
        """Send signs on the running event loop, until the task is cancelled."""
        if math.isinf(self._every_s):
            return
        while True:
            await asyncio.sleep(self._every_s)
            notify("WATCHDOG=1")


def watchdog_s(environ: Mapping[str, str]) -> float:
    """Return the interval after which the manager ends a silent process (sd_watchdog_enabled(3)); infinite for none."""
    interval, process = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", str(os.getpid()))
    if not interval.isdecimal() or not int(interval) or process != str(os.getpid()):
        return math.inf
    return int(interval) / 1e6


def reloading() -> str:
    """Return the state of a process that begins to read its configuration again."""
    return f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}"
