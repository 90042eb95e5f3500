"""The thread that writes log lines: order, bounds, stopped readers, full disks. Real pipes."""

import errno
import fcntl
import os
import select
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkout import ROOT
from gateway.observe.writer import LineWriter


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe of 64 kB: where to read, where to write."""
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)
    os.close(writing)


def _loss_line(lines: int) -> bytes:
    return b"lost %d\n" % lines


def _read(fd: int, size: int) -> bytes:
    found = b""
    while len(found) < size:
        found += os.read(fd, size - len(found))
    return found


def test_lines_come_out_in_order(pipe: tuple[int, int]) -> None:
    """Every line that was taken is written, in order, by the time close() returns."""
    reading, writing = pipe
    lines = [b"line %d\n" % number for number in range(2000)]
    writer = LineWriter(writing, _loss_line)
    assert all(writer.write(line) for line in lines)
    writer.close()
    assert _read(reading, sum(map(len, lines))) == b"".join(lines)
    assert not select.select([reading], [], [], 0)[0]


def test_stopped_reader_costs_lines_only(pipe: tuple[int, int]) -> None:
    """With a stopped reader, lines above the limit are rejected immediately; the others come whole, then the loss."""
    reading, writing = pipe
    bound, taken = 300_000, []
    writer = LineWriter(writing, _loss_line, buffer_bytes_max=bound)
    for number in range(2000):
        line = b"%08d" % number + b"x" * 991 + b"\n"
        if writer.write(line):
            taken.append(line)
    assert bound - 1000 < 1000 * len(taken) <= bound + 65_536
    assert _read(reading, 1000 * len(taken)) == b"".join(taken)
    report = _loss_line(2000 - len(taken))
    assert _read(reading, len(report)) == report
    writer.close()
    assert not writer.write(b"after the end\n")


def test_descriptor_made_non_blocking_by_others(pipe: tuple[int, int]) -> None:
    """A descriptor that another process set non-blocking loses nothing while its reader is slow."""
    reading, writing = pipe
    fcntl.fcntl(writing, fcntl.F_SETFL, fcntl.fcntl(writing, fcntl.F_GETFL) | os.O_NONBLOCK)
    writer = LineWriter(writing, _loss_line)
    line = b"x" * 999 + b"\n"
    assert all(writer.write(line) for _ in range(300))
    assert _read(reading, 300_000) == line * 300
    writer.close()


def test_broken_descriptor_ends_quietly() -> None:
    """If the reader is gone for good, lines vanish and nothing else happens."""
    reading, writing = os.pipe()
    os.close(reading)
    writer = LineWriter(writing, _loss_line)
    writer.write(b"into the void\n")
    writer.close()
    assert not writer._thread.is_alive()
    os.close(writing)


@pytest.mark.parametrize("fits", [0, 3])
def test_a_full_disk_is_reported(fits: int, pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that a full disk loses are counted; the error is reported once, the count after the next whole line."""
    reading, writing = pipe
    write = os.write
    steps = [fits, None, None] if fits else [None, None]  # bytes that fit; None for an error
    errors: list[OSError] = []
    failed = threading.Semaphore(0)

    def full(fd: int, data: memoryview) -> int:
        if not steps:
            return write(fd, data)
        fitting = steps.pop(0)
        if fitting is None:
            failed.release()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data[:fitting])

    monkeypatch.setattr(os, "write", full)
    writer = LineWriter(writing, _loss_line, errors.append)
    for line in (b"first\n", b"second\nthird\n", b"fourth\n"):
        writer.write(line)
        if line != b"fourth\n":
            assert failed.acquire(timeout=60)
    expected = b"first\n"[:fits] + b"\n" * bool(fits) + b"fourth\n" + _loss_line(3)
    assert _read(reading, len(expected)) == expected
    writer.close()
    assert [error.strerror for error in errors] == ["No space left on device"]
    assert writer.lost == 3


_ENDLESS = """
import sys
from gateway.observe.writer import LineWriter
fd, lock, size = map(int, sys.argv[1:])
writer = LineWriter(fd, lambda lines: b"", lock=lock if lock >= 0 else None)
while writer.write(b"a" * (size - 1) + b"\\n"):
    pass
sys.stdin.read()
"""


def _killed_at_a_full_pipe(pipe: tuple[int, int], size: int, lock: int = -1) -> bytes:
    """Return what a killed process leaves in an unread pipe to which it was writing lines of this size."""
    reading, writing = pipe
    fds = (writing, *([lock] if lock >= 0 else []))
    argv = [sys.executable, "-c", _ENDLESS, str(writing), str(lock), str(size)]
    with subprocess.Popen(argv, cwd=ROOT, pass_fds=fds, stdin=subprocess.PIPE) as process:
        while _unread(reading) < 50_000:  # 16 pages, none of them quite full
            select.select([], [], [], 0.001)
        process.kill()
    return _read(reading, _unread(reading))


def _unread(fd: int) -> int:
    return int(struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))[0])


def test_a_killed_process_leaves_whole_lines(pipe: tuple[int, int]) -> None:
    """A process that is killed while its reader has stopped leaves no part of a line in the pipe."""
    left = _killed_at_a_full_pipe(pipe, 900)
    assert left.endswith(b"\n")
    assert set(left.splitlines()) == {b"a" * 899}


def test_another_process_ends_the_line_of_a_killed_one(pipe: tuple[int, int], tmp_path: Path) -> None:
    """A line that a pipe does not take in one write may be cut; the next writer of the group begins a new line."""
    reading, writing = pipe
    with (tmp_path / "lock").open("w+b") as lock:
        left = _killed_at_a_full_pipe(pipe, 200_000, lock.fileno())
        assert set(left) == set(b"a")
        for expected in (b"\nb\n", b"c\n"):
            writer = LineWriter(writing, _loss_line, lock=lock.fileno())
            writer.write(expected.strip() + b"\n")
            assert _read(reading, len(expected)) == expected
            writer.close()


@pytest.mark.parametrize(("before", "after"), [(b"", b""), (b"whole\n", b"whole\n"), (b'{"half', b'{"half\n')])
def test_the_first_line_in_a_file_is_a_line_of_its_own(before: bytes, after: bytes, tmp_path: Path) -> None:
    """A file that an earlier process left in the middle of a line goes on with a new line."""
    path = tmp_path / "log"
    path.write_bytes(before)
    with path.open("ab", buffering=0) as file:
        writer = LineWriter(file.fileno(), _loss_line)
        for line in (b"first\n", b"second\n"):
            writer.write(line)
        writer.close()
    assert path.read_bytes() == after + b"first\nsecond\n"


_WRITING = """
import os, sys
from gateway.observe.writer import LineWriter
letter, fd, lock = sys.argv[1].encode(), int(sys.argv[2]), int(sys.argv[3])
writer = LineWriter(fd, lambda lines: b"", lock=lock, buffer_bytes_max=100_000_000)
for number in range(200):
    writer.write(letter * (1 + number * 37 % 9000) + b"\\n")
writer.close()
writer._thread.join()
"""


def test_lines_of_several_processes_never_mix(pipe: tuple[int, int], tmp_path: Path) -> None:
    """Processes that share a pipe write whole lines, also those that a pipe does not take in one write."""
    reading, writing = pipe
    with (tmp_path / "lock").open("wb") as lock:
        fds = (writing, lock.fileno())
        processes = [
            subprocess.Popen([sys.executable, "-c", _WRITING, letter, *map(str, fds)], cwd=ROOT, pass_fds=fds)
            for letter in "abc"
        ]
        size = 3 * sum(2 + number * 37 % 9000 for number in range(200))
        lines = _read(reading, size).splitlines()
        assert [process.wait() for process in processes] == [0, 0, 0]
    assert len(lines) == 600
    assert all(len(set(line)) == 1 for line in lines)
