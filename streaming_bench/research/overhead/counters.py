"""Counters of the instructions that a process executes outside the kernel. Linux only.

Two tools, in this order: the processor's counters, through perf_event_open(2), and valgrind's callgrind, which executes
the process on a simulated processor, some forty times slower, and needs no support by the machine. Both count the same
instructions; they differ in how many bytes a slow process finds at a read.

A reader returns the instructions since the beginning. No units but counts.
"""

import contextlib
import ctypes
import os
import platform
import re
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from streaming_bench.errors import BenchError

CounterReader = Callable[[], int]

HARDWARE_INSTRUCTIONS: Final = (0, 1)  # PERF_TYPE_HARDWARE, PERF_COUNT_HW_INSTRUCTIONS
_SYSCALLS: Final = {"x86_64": 298, "aarch64": 241}  # perf_event_open by machine
_ATTRIBUTES: Final = "<IIQQQQQ"  # type, size, config, sample period, sample type, read format, flags
_ATTRIBUTES_BYTES: Final = 64  # PERF_ATTR_SIZE_VER0
_INHERIT, _NO_KERNEL, _NO_HYPERVISOR = 1 << 1, 1 << 5, 1 << 6
_TOTAL: Final = re.compile(r"^(?:summary|totals): (\d+)", re.MULTILINE)
_CONTROL_S_MAX: Final = 20.0
_GET_CALLGRIND: Final = "Debian: apt install valgrind"


@contextlib.contextmanager
def hardware_counter(pid: int, event: tuple[int, int] = HARDWARE_INSTRUCTIONS) -> Iterator[CounterReader | None]:
    """Count an event of a process, its threads and its children; yield None where it is not supported."""
    with contextlib.ExitStack() as stack:
        counters: list[int] = []
        try:
            for thread in _threads(pid):
                counters.append(_open(thread, event))
                stack.callback(os.close, counters[-1])
        except OSError:
            yield None
            return
        yield lambda: sum(int.from_bytes(os.read(each, 8), "little") for each in counters)


def has_hardware_counter() -> bool:
    """Return True if the processor's counters may be read for this process."""
    with hardware_counter(os.getpid()) as read:
        return read is not None


def _threads(pid: int) -> Iterator[int]:
    """Return the threads of a process and of its children."""
    yield from (int(task.name) for task in Path(f"/proc/{pid}/task").iterdir())
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split():
        yield from _threads(int(child))


def _open(thread: int, event: tuple[int, int]) -> int:
    """Return the file of a running counter.

    Raises:
        OSError: The counter is not supported or not permitted.
    """
    number = _SYSCALLS.get(platform.machine())
    if number is None:
        raise OSError
    kind, config = event
    attributes = ctypes.create_string_buffer(_ATTRIBUTES_BYTES)
    flags = _INHERIT | _NO_KERNEL | _NO_HYPERVISOR
    struct.pack_into(_ATTRIBUTES, attributes, 0, kind, _ATTRIBUTES_BYTES, config, 0, 0, 0, flags)
    library = ctypes.CDLL(None, use_errno=True)
    file = int(library.syscall(number, attributes, thread, -1, -1, 0))
    if file < 0:
        raise OSError(ctypes.get_errno(), "perf_event_open")
    return file


def callgrind_command(folder: Path) -> Sequence[str]:
    """Return the beginning of a command line that runs a program under callgrind, at first without counting.

    Raises:
        BenchError: valgrind is not installed.
    """
    missing = [name for name in ("valgrind", "callgrind_control") if shutil.which(name) is None]
    if missing:
        raise BenchError(
            f"hardware counters are not supported here and {missing[0]} is not installed; install it ({_GET_CALLGRIND})"
        )
    options = ["-q", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder / 'callgrind'}.%p"]
    return ["valgrind", *options]


@contextlib.contextmanager
def callgrind_counter(pid: int, folder: Path) -> Iterator[CounterReader]:
    """Count the instructions of a process that was started with `callgrind_command` while inside."""
    total = 0

    def read() -> int:
        nonlocal total
        _control("-d", pid)  # writes a file and sets the count to 0
        for file in folder.glob(f"callgrind.{pid}.*"):
            found = _TOTAL.search(file.read_text(encoding="utf-8", errors="replace"))
            if found is None:
                raise BenchError(f"{file.name} of callgrind has no total; use another version of valgrind")
            total += int(found[1])
            file.unlink()
        return total

    _control("-i on", pid)
    yield read
    _control("-i off", pid)


def _control(command: str, pid: int) -> None:
    """Send a command to a process under callgrind and wait for its end."""
    line = ["callgrind_control", *command.split(), str(pid)]
    try:
        done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=_CONTROL_S_MAX)
    except subprocess.TimeoutExpired:
        raise BenchError(f"callgrind did not answer within {_CONTROL_S_MAX:.0f} s; run again") from None
    if done.returncode or "OK." not in done.stdout:
        output = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise BenchError(f"callgrind_control failed: {output[-1] if output else 'it printed nothing'}")
