"""What a process has cost so far, from /proc: CPU time in the program and in the kernel, and memory. Linux only.

The kernel counts the time on a core to the nanosecond, but tells which part of it was the program's in ticks of 10 ms.
Units: seconds, megabytes.
"""

import os
from pathlib import Path
from typing import Final, NamedTuple

_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
_PAGE_MB: Final = os.sysconf("SC_PAGE_SIZE") / 2**20


class ProcessUsage(NamedTuple):
    """Of a process and its children.

    Attributes:
        cpu_s: all of it.
        user_s, kernel_s: the same in ticks.
        rss_mb: resident memory.
    """

    cpu_s: float
    user_s: float
    kernel_s: float
    rss_mb: float


def process_usage(pid: int) -> ProcessUsage:
    """So far.

    Raises:
        OSError: there is no such process.
    """
    stat, tasks = _stat(pid), list(Path(f"/proc/{pid}/task").iterdir())
    cpu_s = sum(int((task / "schedstat").read_text("ascii").split()[0]) for task in tasks) / 1e9
    found = ProcessUsage(cpu_s, int(stat[11]) * _TICK_S, int(stat[12]) * _TICK_S, int(stat[21]) * _PAGE_MB)
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split():
        found = ProcessUsage(*map(sum, zip(found, process_usage(int(child)), strict=True)))
    return found


class CoreUsage(NamedTuple):
    """What the cores have done that a process may run on, all programs together."""

    busy_s: float
    idle_s: float


def core_usage(pid: int) -> CoreUsage:
    """So far."""
    names = {f"cpu{number}" for number in os.sched_getaffinity(pid)}
    lines = [line.split() for line in Path("/proc/stat").read_text("ascii").splitlines()]
    ticks = [list(map(int, line[1:9])) for line in lines if line and line[0] in names]
    idle = sum(line[3] + line[4] for line in ticks)
    return CoreUsage((sum(map(sum, ticks)) - idle) * _TICK_S, idle * _TICK_S)


def _stat(pid: int) -> list[str]:
    """The fields of proc(5) behind the name, which may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
