"""The command line of the bench with an output whose reader has gone."""

import os
import subprocess
import sys

from checkout import ROOT

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
