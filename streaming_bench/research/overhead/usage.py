"""CPU time and memory of a process so far, from /proc. Linux only.

The kernel counts a process's CPU time in nanoseconds, but splits it between program and kernel in ticks of 10 ms.
Units: seconds, megabytes.
"""

import os
from pathlib import Path
from typing import Final, NamedTuple

_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
_PAGE_MB: Final = os.sysconf("SC_PAGE_SIZE") / 2**20


class ProcessUsage(NamedTuple):
    """Usage of a process and its children.

    Attributes:
        cpu_s: CPU time.
        user_s, kernel_s: CPU time in the program and in the kernel, in ticks.
        rss_mb: resident memory.
    """

    cpu_s: float
    user_s: float
    kernel_s: float
    rss_mb: float


def process_usage(pid: int) -> ProcessUsage:
    """Return the usage so far.

    Raises:
        OSError: The process does not exist.
    """
    # Fields of proc(5) after the name, which may contain any character.
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    tasks = list(Path(f"/proc/{pid}/task").iterdir())
    cpu_s = sum(int((task / "schedstat").read_text("ascii").split()[0]) for task in tasks) / 1e9
    found = ProcessUsage(cpu_s, int(stat[11]) * _TICK_S, int(stat[12]) * _TICK_S, int(stat[21]) * _PAGE_MB)
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split():
        found = ProcessUsage(*map(sum, zip(found, process_usage(int(child)), strict=True)))
    return found


class CoreUsage(NamedTuple):
    """Usage of the cores on which a process may run, by all processes together."""

    busy_s: float
    idle_s: float


def core_usage(pid: int) -> CoreUsage:
    """Return the usage so far."""
    names = {f"cpu{number}" for number in os.sched_getaffinity(pid)}
    lines = [line.split() for line in Path("/proc/stat").read_text("ascii").splitlines()]
    ticks = [list(map(int, line[1:9])) for line in lines if line and line[0] in names]
    idle = sum(line[3] + line[4] for line in ticks)
    return CoreUsage((sum(map(sum, ticks)) - idle) * _TICK_S, idle * _TICK_S)
