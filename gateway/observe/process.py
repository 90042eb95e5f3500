"""Values of the process for a scrape: version, CPU time, memory, open files, lost log lines.

Names are those of Prometheus' client libraries. A scrape opens no file, because none may be left; so the number of open
files is not among them. Units: seconds, bytes.
"""

import os
import platform
import resource
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import NamedTuple


def _memory_fd() -> int | None:
    """Return a descriptor of this process's memory statistics, None on other systems than Linux."""
    try:
        return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


_MEMORY_FD = _memory_fd()  # opened here, not on the loop and not at the limit of open files


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
    """

    def __init__(self, version: str, lost_lines: Callable[[], int]) -> None:
        self._build = {"version": version, "python": platform.python_version()}
        self._lost_lines = lost_lines
        self._start_s = datetime.now(UTC).timestamp()
        self._page_bytes = resource.getpagesize()

    def __call__(self) -> Iterator[ProcessValue]:
        """Return the values now; those that the system does not report are omitted."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        yield ProcessValue("ttft_gateway_build_info", "Always 1", "gauge", 1.0, self._build)
        yield ProcessValue(
            "ttft_gateway_log_lines_lost", "Log lines that were not written", "counter", self._lost_lines()
        )
        yield ProcessValue("process_start_time_seconds", "Unix time of the start", "gauge", self._start_s)
        yield ProcessValue("process_cpu_seconds", "CPU time", "counter", used.ru_utime + used.ru_stime)
        if _MEMORY_FD is not None:
            pages = int(os.pread(_MEMORY_FD, 200, 0).split()[1])
            yield ProcessValue("process_resident_memory_bytes", "Resident memory", "gauge", pages * self._page_bytes)
        yield ProcessValue(
            "process_max_fds", "Limit of open files", "gauge", resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        )
