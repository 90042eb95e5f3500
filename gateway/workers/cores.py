"""The cores that this process may use: its affinity, and the quota of its control group.

Units: cores.
"""

import os
import sys
from pathlib import Path, PurePosixPath

_CGROUPS = Path("/sys/fs/cgroup")


def worker_count(configured: int | None) -> int:
    """Return the number of workers on this machine.

    Args:
        configured: the setting; None for one for each core.
    """
    if configured is not None:
        return configured
    return usable_cores() if sys.platform == "linux" else 1


def usable_cores() -> int:
    """Return the number of cores, at least 1.

    A part of a core does not count: a worker that the quota stops in every period delays its streams.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = quota_cores(_own_groups(), _CGROUPS)
    return max(1, cores if quota is None else min(cores, int(quota)))


def quota_cores(groups: str, root: Path) -> float | None:
    """Return the smallest quota, in cores, of a process's control group and its parents; None without a quota.

    Args:
        groups: content of /proc/self/cgroup.
        root: folder of the control groups.
    """
    quotas = []
    for line in groups.splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers == "":
            quotas += [_quota(_read(folder / "cpu.max").split()) for folder in _folders(root, path)]
        elif "cpu" in controllers.split(","):
            quotas += [
                _quota([_read(folder / f"cpu.cfs_{part}_us").strip() for part in ("quota", "period")])
                for folder in _folders(root / "cpu", path)
            ]
    known = [quota for quota in quotas if quota is not None]
    return min(known, default=None)


def _folders(root: Path, path: str) -> list[Path]:
    """Return the folder of a group and its parents; in a container, only the root may be visible."""
    parts = PurePosixPath(path.lstrip("/")).parts
    return [root.joinpath(*parts[:count]) for count in range(len(parts), -1, -1) if ".." not in parts[:count]]


def _quota(values: list[str]) -> float | None:
    try:
        quota, period = map(int, values)
    except ValueError:  # "max", or no file
        return None
    return quota / period if quota > 0 and period > 0 else None


def _own_groups() -> str:
    return _read(Path("/proc/self/cgroup"))


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
