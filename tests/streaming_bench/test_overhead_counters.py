"""Counters of instructions: the kernel's, and callgrind with its real program where it is installed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from streaming_bench.errors import BenchError
from streaming_bench.research.overhead import counters, instructions
from streaming_bench.research.overhead.client import LoadResult, StreamLoad
from streaming_bench.research.overhead.counters import callgrind_command, callgrind_counter, hardware_counter
from streaming_bench.research.overhead.instructions import CountedProcess
from streaming_bench.research.overhead.processes import ProxyProcess

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are found in /proc")

# Answers as callgrind_control does, and writes a file as callgrind does for a dump.
CONTROL = """#!/bin/sh
echo "$@" >> {folder}/commands
[ "$1" = -d ] && echo "totals: 100" > {folder}/callgrind.7.1
echo "  OK."
"""


def _program(folder: Path, name: str, text: str) -> None:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    file.chmod(0o755)


def test_an_event_of_the_kernel_is_counted() -> None:
    """The count of an event rises with the work of the process."""
    with hardware_counter(os.getpid(), (1, 1)) as read:  # the clock of the task exists in virtual machines, too
        if read is None:
            pytest.skip("perf_event_open is not permitted")
        before = read()
        sum(range(100_000))
        assert read() > before


def test_no_counter_where_the_event_or_the_machine_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no reader for an unknown event, on an unknown processor, or for a process that has ended."""
    with hardware_counter(os.getpid(), (99, 1)) as read:
        assert read is None
    with hardware_counter(2**22 + 1) as read:
        assert read is None
    monkeypatch.setattr("platform.machine", lambda: "vax")
    assert not counters.has_hardware_counter()


def test_dumps_of_callgrind_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting begins with the context, and each dump adds to the count and is removed."""
    _program(tmp_path, "callgrind_control", CONTROL.replace("{folder}", str(tmp_path)))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with callgrind_counter(7, tmp_path) as read:
        assert [read(), read()] == [100, 200]
    assert (tmp_path / "commands").read_text().splitlines() == ["-i on 7", "-d 7", "-d 7", "-i off 7"]
    assert not list(tmp_path.glob("callgrind.7.*"))


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo no such process >&2; exit 1", "callgrind_control failed: no such process"),
        ("exit 0", "callgrind_control failed: it printed nothing"),
        ("sleep 5", "callgrind did not answer within 0 s; run again"),
        ("echo events: Ir > {folder}/callgrind.7.1; echo OK.", "has no total; use another version of valgrind"),
    ],
)
def test_a_failure_of_callgrind_is_reported(
    script: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each failure has a message with the reason, and no wait is longer than its limit."""
    _program(tmp_path, "callgrind_control", f"#!/bin/sh\n{script.replace('{folder}', str(tmp_path))}\n")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    if "sleep" in script:
        monkeypatch.setattr(counters, "_CONTROL_S_MAX", 0.05)
    with pytest.raises(BenchError, match=message), callgrind_counter(7, tmp_path) as read:
        read()


def test_without_valgrind_the_way_to_install_it_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without counters and without valgrind the error names the package."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BenchError, match="valgrind is not installed; install it"):
        callgrind_command(tmp_path)


@pytest.mark.skipif(shutil.which("callgrind_control") is None, reason="valgrind is not installed")
def test_callgrind_counts_the_work_of_a_process(tmp_path: Path) -> None:
    """A process under callgrind that copies a line executes instructions; one that waits executes none."""
    command = [*callgrind_command(tmp_path), shutil.which("cat") or "cat"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def copy_line() -> None:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b"line\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"line\n"

        copy_line()  # it has started
        with callgrind_counter(process.pid, tmp_path) as read:
            copy_line()
            first = read()
            assert first > 0
            assert read() - first < first
        process.stdin.close()


class ScriptedBench(instructions.CountingBench):
    """A gateway that executes a million instructions a second, 900,000 a request and 50,000 a token."""

    def __init__(self) -> None:
        self._rounds = 3
        executed = self._executed = [0]
        self.process = CountedProcess(ProxyProcess(0, 0), lambda: executed[0], idle_per_s=1_000_000.0)

    def _send(self, load: StreamLoad, _target: ProxyProcess) -> tuple[LoadResult, float]:
        length_s = load.tokens * 0.005
        self._executed[0] += 900_000 + load.tokens * 50_000 + round(length_s * 1_000_000)
        return LoadResult(requests=1), length_s


def test_the_cost_of_a_token_is_free_of_the_request_and_of_idle_work() -> None:
    """A token costs the difference of two lengths, minus what the process executes without requests."""
    bench = ScriptedBench()
    assert bench.token(bench.process) == pytest.approx(50.0)
    assert bench.request(bench.process, StreamLoad(1, 20)) == pytest.approx(1900.0)


def test_a_gateway_can_be_started_without_uvloop(tmp_path: Path) -> None:
    """With the bench's environment variables no process imports uvloop, and other paths remain."""
    variables = instructions.without_uvloop(tmp_path)
    assert set(variables) == {"PYTHONPATH"}
    line = [sys.executable, "-c", "import uvloop"]
    done = subprocess.run(line, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
    assert "the bench measures without uvloop" in done.stderr
    with subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdin=PIPE, stdout=PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it runs
        assert instructions.event_loop(process.pid) == "asyncio"
        process.communicate(b"\n")
