"""The command line of the bench with an output that has lost its reader, and with Ctrl-C."""

import os
import subprocess
import sys

import pytest

from checkout import ROOT
from streaming_bench import __main__ as bench

PROGRAM = """
import sys
from streaming_bench import __main__ as bench
from streaming_bench.commands import report
report.run = lambda args: print("row " * 100_000)
sys.exit(bench.main(["report", "folder", "--out", "folder"]))
"""


def test_a_reader_that_stops_gets_no_traceback() -> None:
    """`ttft-bench ... | head -1` ends quietly, with status 1."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, text=True, check=False
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_ctrl_c_during_the_imports_gives_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """The libraries of a command load for seconds; Ctrl-C in that time is status 130, as later."""

    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("importlib.import_module", interrupted)
    assert bench.main(["reproduce", "fan-out"]) == 130
