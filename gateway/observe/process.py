"""Values of the process for a scrape: version, CPU time, memory, open files, lost log lines.

The names are the same as in Prometheus' client libraries. A scrape opens no file, because no descriptor may be left; so
the number of open files is not among the values. Units: seconds, bytes.
"""

import contextlib
import os
import platform
import re
import resource
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final, NamedTuple

_PSS = re.compile(rb"^Pss: +([0-9]+) kB", re.MULTILINE)

ReadMemory = Callable[[], float | None]
"""Returns the resident memory of this process; None on other systems than Linux."""


def memory_reader() -> ReadMemory:
    """Open the statistics of this process; not to be called on the loop or at the limit of open files."""
    fd = _opened("/proc/self/statm")
    page_bytes = resource.getpagesize()
    return lambda: None if fd is None else int(os.pread(fd, 200, 0).split()[1]) * page_bytes


def shared_memory_reader() -> ReadMemory:
    """Do the same for one of several forked processes: a page that n of them share counts as 1/n.

    Linux looks at each page, for 5 ms with 100 MB. A thread does that after each call, and the next call returns it.
    """
    fd = _opened("/proc/self/smaps_rollup")
    if fd is None:
        return lambda: None
    found, reading = _pss_bytes(fd), threading.Thread()

    def read() -> None:
        nonlocal found
        found = _pss_bytes(fd)

    def latest() -> float | None:
        nonlocal reading
        last = found
        if not reading.is_alive():
            with contextlib.suppress(RuntimeError):  # the system has no thread left
                reading = threading.Thread(target=read, name="memory", daemon=True)
                reading.start()
        return last

    return latest


def _pss_bytes(fd: int) -> float | None:
    found = _PSS.search(os.pread(fd, 4096, 0))
    return None if found is None else float(found[1]) * 1024


def _opened(file: str) -> int | None:
    try:
        return os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


_READ_MEMORY = memory_reader()


class Member(NamedTuple):
    """The place of a process among the processes that share the work of a gateway.

    Attributes:
        number: number of the worker, from 1; None for a process that is no worker.
        workers: number of workers.
        read_memory: reads the memory of the process.
        write_lock: descriptor of a file that is locked while lines are written; None if no other process writes.
    """

    number: int | None = None
    workers: int = 1
    read_memory: ReadMemory = _READ_MEMORY
    write_lock: int | None = None


ALONE: Final = Member()


class ProcessValue(NamedTuple):
    """One metric with one series.

    Attributes:
        name: name without a counter's `_total`.
        kind: "counter" or "gauge".
    """

    name: str
    text: str
    kind: str
    value: float
    labels: Mapping[str, str] = MappingProxyType({})


class ProcessValues:
    """Reads the values.

    Args:
        version: version of the gateway.
        lost_lines: returns the number of log lines lost so far.
        read_memory: reads the memory of the process.
    """

    def __init__(self, version: str, lost_lines: Callable[[], int], read_memory: ReadMemory = _READ_MEMORY) -> None:
        self._build = {"version": version, "python": platform.python_version()}
        self._lost_lines = lost_lines
        self._start_s = datetime.now(UTC).timestamp()
        self._read_memory = read_memory

    def __call__(self) -> Iterator[ProcessValue]:
        """Return the values now, without values that the system does not report."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        yield ProcessValue("ttft_gateway_build_info", "Always 1", "gauge", 1.0, self._build)
        yield ProcessValue(
            "ttft_gateway_log_lines_lost", "Log lines that were not written", "counter", self._lost_lines()
        )
        yield ProcessValue("process_start_time_seconds", "Unix time of the start", "gauge", self._start_s)
        yield ProcessValue("process_cpu_seconds", "CPU time", "counter", used.ru_utime + used.ru_stime)
        memory_bytes = self._read_memory()
        if memory_bytes is not None:
            yield ProcessValue("process_resident_memory_bytes", "Resident memory", "gauge", memory_bytes)
        yield ProcessValue(
            "process_max_fds", "Limit of open files", "gauge", resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        )
