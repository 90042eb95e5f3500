"""Several workers: how many there are, and the start of a gateway with them.

The number comes from the cores that this process may use: its affinity, and the quota of its control group. What
workers need is imported when there are several. Units: cores, `_s` seconds.
"""

import gc
import importlib
import os
import socket
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path, PurePosixPath

from gateway.cli.parser import ExitCode
from gateway.cli.process import run_until_end
from gateway.cli.terminal import fail
from gateway.config.settings import Settings
from gateway.observe.process import Member, shared_memory_reader
from gateway.server.admin_address import import_framework
from gateway.server.hot_restart import Predecessor
from gateway.server.http_server import name_of
from gateway.server.process import Addresses
from gateway.server.reloads import Reread
from gateway.server.sockets import next_owner

_CGROUPS = Path("/sys/fs/cgroup")


def serve_with_workers(
    count: int,
    settings: Settings,
    on_ready: Callable[[Addresses], None],
    meanwhile: Callable[[Addresses], Coroutine[object, object, None]],
    reread: Reread | None,
    before: Predecessor,
) -> ExitCode:
    """Run the gateway with several workers.

    Args:
        on_ready: called in the supervisor, when all workers serve.
        meanwhile: run in the supervisor.
        reread: run in the supervisor for a reload; None if there is no file.
        before: sockets and process that this one inherits.

    Raises:
        InheritError: an inherited socket is not used.
        ListenError: an address is in use or not local.
    """
    from gateway.workers.board import Board
    from gateway.workers.group_state import read_state
    from gateway.workers.supervisor import Given, StartFailed, supervise
    from gateway.workers.top import Children, Listening, Top, bind, lock_file
    from gateway.workers.worker import Forked, work

    import_framework()  # once here, instead of once in each process
    if settings.share is not None:
        importlib.import_module("gateway.share.redis")  # the same
    if settings.tracing is not None:
        importlib.import_module("gateway.observe.otlp")
    public = bind(settings.listen, before.inherited)
    admin = None if settings.admin_listen is None else bind(settings.admin_listen, before.inherited)
    before.inherited.close_rest()
    address, lock, board = name_of(public), lock_file(), Board(count)
    # a socket of this gateway must be free for the next one
    has_next = next_owner(public.dup()) if before.inherited.are_held else None

    def supervisor(control: socket.socket, state: int | None) -> int:
        gc.disable()  # until the process is ready
        member = Member(None, count, shared_memory_reader(), lock)
        before = None if state is None else read_state(state)
        try:
            given = Given(member, address, admin, control, board, before, has_next)
            return run_until_end(supervise(settings, given, on_ready, meanwhile, reread), lock)
        except StartFailed as error:
            fail(str(error))
            return ExitCode.FAILED

    def worker(number: int, control: socket.socket) -> int:
        gc.disable()
        member = Member(number, count, shared_memory_reader(), lock)
        return run_until_end(work(Forked(member, public, control, board, has_next)), lock)

    gc.enable()
    code = Top(
        count, Children(supervisor, worker), Listening(public, admin), board, settings.drain_timeout_s, before
    ).run()
    return ExitCode(code) if code in set(ExitCode) else ExitCode.FAILED


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
    quota = quota_cores(_read(Path("/proc/self/cgroup")), _CGROUPS)
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


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
