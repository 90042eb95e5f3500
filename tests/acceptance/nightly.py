"""Runs the long checks one after the other, each with a time limit; scripts/nightly runs it.

Each step is a command with a log of its own in build/nightly. Units: seconds.
"""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from checkout import ROOT
from fuzz.targets import TARGETS

LOGS = ROOT / "build" / "nightly"
GOLDEN = ROOT / "tests" / "streaming_bench" / "golden"
_FUZZ_S = 300
_TAIL_CHARACTERS = 3000  # of the log of a step that failed
_REWRITE = (
    "import sys, pathlib; from streaming_bench.research.commands.update_golden import write_golden; "
    "write_golden(pathlib.Path(sys.argv[1]))"
)


class Step(NamedTuple):
    """A check.

    Attributes:
        commands: run in this order, until one fails.
        limit_s: for all of them together.
    """

    commands: Sequence[Sequence[str]]
    limit_s: float


def steps(fuzz_s: int) -> dict[str, Step]:
    """All steps by name, in the order in which they run.

    Args:
        fuzz_s: length of each fuzz step.
    """
    schemathesis = ("scripts/test", "-n", "0", "--schemathesis-examples", "100", "tests/contract/test_schemathesis.py")
    endings = ("scripts/test", "--every-read", "tests/client/test_differential.py")
    golden = LOGS / "golden"
    fuzz = {
        f"fuzz-{target}": Step(
            [["scripts/fuzz", target, "--seconds", str(fuzz_s)]], fuzz_s + 300
        )  # atheris is installed
        for target in TARGETS
    }
    return {
        # hypothesis draws other examples each night; measuring what is covered makes tests three times as slow
        "tests": Step([["scripts/test", "--cov"]], 3600),
        "schemathesis": Step([schemathesis], 1200),
        "golden": Step(
            [
                ["mkdir", "-p", str(golden)],
                ["cp", "-R", f"{GOLDEN}/.", str(golden)],  # the folder lab must exist
                [sys.executable, "-c", _REWRITE, str(golden)],
                ["diff", "-r", str(GOLDEN), str(golden)],
            ],
            1200,
        ),
        "judge": Step([[sys.executable, "-m", "streaming_bench", "judge", "--seeds-max", "10"]], 10800),
        "growth": Step(
            [["scripts/acceptance", *(f"growth_{each}" for each in ("models", "workers", "keys", "streams", "large"))]],
            3600,
        ),
        "fleet": Step([[sys.executable, "tests/acceptance/fleet.py"]], 1800),
        "proof": Step(
            [[sys.executable, f"tests/acceptance/{name}_coverage.py"] for name in ("proof", "split")],
            3600,
        ),
        "slow": Step([[sys.executable, "tests/acceptance/slow_table.py"]], 3600),
        "switchback": Step([[sys.executable, "tests/acceptance/switchback_truth.py"]], 3600),
        "replay": Step([[sys.executable, "tests/acceptance/replay_truth.py"]], 5400),
        "bills": Step([[sys.executable, "tests/acceptance/tier_bill_truth.py"]], 5400),
        "acceptance": Step([["scripts/acceptance"]], 1800),
        "blame": Step([["scripts/acceptance", "blame"]], 600),
        "deadlines": Step([["scripts/acceptance", "deadlines"]], 600),
        "faults": Step([["scripts/acceptance", "faults"]], 1200),
        "outcomes": Step([["scripts/acceptance", "outcomes"]], 1200),
        "sharing": Step([["scripts/acceptance", "sharing"]], 900),
        "hosts": Step([["scripts/acceptance", "hosts"]], 900),
        "one_provider": Step([["scripts/acceptance", "one_provider"]], 1200),
        "outages": Step([["scripts/acceptance", "outage_table", "outages"]], 2400),
        "redis_crowd": Step([["scripts/acceptance", "redis_crowd"]], 1200),
        "processes": Step([["scripts/acceptance", "processes"]], 1800),
        "credentials": Step([["scripts/acceptance", "credentials"]], 900),
        "kubernetes": Step([["scripts/acceptance", "kubernetes"]], 600),
        "tiers": Step([["scripts/acceptance", "tiers"]], 1800),
        "nights": Step([["scripts/acceptance", "nights"]], 2700),
        "rolling": Step([["scripts/acceptance", "rolling"]], 900),
        "silence": Step([["scripts/acceptance", "silence"]], 1800),  # its first run installs SDKs
        "attack": Step([["scripts/attack"]], 1200),
        "soak": Step([["scripts/soak", "--requests", "20000"]], 1200),
        "client": Step([[sys.executable, "tests/acceptance/client_races.py"], endings], 3600),
        "sdk-matrix": Step([["scripts/sdk-matrix"]], 1800),
        **fuzz,
    }


def passes(step: Step, log: Path) -> bool:
    """Run a step; it fails with the first of its commands, and at its time limit."""
    ends = datetime.now(UTC) + timedelta(seconds=step.limit_s)
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    with log.open("wb") as output:
        for command in step.commands:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                code = process.wait(max(0.0, (ends - datetime.now(UTC)).total_seconds()))
            except subprocess.TimeoutExpired:
                output.write(b"\nstopped at the time limit of %d s\n" % step.limit_s)
                return False
            finally:
                if process.returncode is None:  # its session has no other processes than its own
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            if code != 0:
                return False
    return True


def main(argv: Sequence[str] | None = None) -> int:
    """Run the steps that are named on the command line, or all; returns the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/nightly", description="Runs the long checks.")
    parser.add_argument("steps", nargs="*", metavar="STEP", help="steps to run; all without any")
    parser.add_argument("--list", action="store_true", help="list the steps and their time limits")
    parser.add_argument("--fuzz-seconds", type=int, default=_FUZZ_S, help="length of each fuzz step")
    given = parser.parse_args(argv)
    every = steps(given.fuzz_seconds)
    if unknown := [name for name in given.steps if name not in every]:
        parser.error(f"there is no step {unknown[0]}; write some of: {' '.join(every)}")
    if given.list:
        sys.stdout.writelines(f"{name:<18} at most {step.limit_s:>5.0f} s\n" for name, step in every.items())
        return 0
    LOGS.mkdir(parents=True, exist_ok=True)
    summary = []
    for name in given.steps or every:
        sys.stdout.write(f"== {name}\n")
        sys.stdout.flush()
        began = datetime.now(UTC)
        log = LOGS / f"{name}.log"
        passed = passes(every[name], log)
        if not passed:
            sys.stdout.write(log.read_text(encoding="utf-8", errors="replace")[-_TAIL_CHARACTERS:] + "\n")
        summary.append((name, passed, (datetime.now(UTC) - began).total_seconds()))
    sys.stdout.write("== summary\n")
    sys.stdout.writelines(
        f"{name:<18} {'passed' if ok else 'FAILED'} {took_s:>7.0f} s\n" for name, ok, took_s in summary
    )
    return 0 if all(ok for _, ok, _ in summary) else 1


if __name__ == "__main__":
    raise SystemExit(main())
