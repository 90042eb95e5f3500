"""Other rules for hedging in the simulation: their delays and budgets, and the real router where it is installed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from streaming_bench.__main__ import main
from streaming_bench.progress import quiet
from streaming_bench.research.peers import contest
from streaming_bench.research.peers.contest import baseten_hedges
from streaming_bench.research.peers.routewise import PeerError, RoutewiseProcess
from streaming_bench.simulation.scenario import load

PYTHON = Path(os.environ.get("TTFT_PEERS_PYTHON", sys.executable))


def needs_routewise() -> None:
    """Skip the test, with the reason, if the environment has no llm-routewise."""
    found = subprocess.run([str(PYTHON), "-c", "import llm_routewise"], capture_output=True, check=False)
    if found.returncode:
        pytest.skip(f"llm-routewise is not installed in the environment of {PYTHON}; install llm-routewise==0.2.0")


@pytest.mark.parametrize(("requests", "hedges"), [(0, 2), (5, 2), (11, 3), (100, 11), (5_000, 501)])
def test_baseten_allows_a_share_of_a_batch(requests: int, hedges: int) -> None:
    """A tenth of the batch, rounded up, and one more may be hedged, at least two."""
    assert baseten_hedges(requests) == hedges


def test_rules_with_a_delay_keep_to_it() -> None:
    """A fixed delay hedges all late requests, a batch's budget ends, and the gateway hedges within its own."""
    held = contest.hold(load("W2", 600), [1], None, quiet)
    hedges = {name: seeds[0]["hedges"] for name, seeds in held.rows.items()}
    assert hedges["off"] == 0.0
    assert 0.15 < hedges["fixed 26 ms"] < 0.25  # one request in five is late
    assert hedges["baseten 45 ms"] == pytest.approx(61 / 600)
    assert 0.05 < hedges["adaptive"] < 0.11
    assert held.rows["fixed 26 ms"][0]["mean"] < held.rows["off"][0]["mean"]


def test_misses_are_counted_by_target() -> None:
    """One request in twenty without hedging is over the target at p95, more are over twice the median of W2."""
    held = contest.hold(load("W2", 400), [1], None, quiet)
    assert [target.name for target in held.targets] == ["p95", "2 x p50"]
    off = held.rows["off"][0]
    assert off["over p95"] == pytest.approx(0.05, abs=0.003)
    assert off["over 2 x p50"] == pytest.approx(0.2, abs=0.05)
    lines = contest.table(held).markdown()
    assert lines[0].startswith("| W2")
    assert len(lines) == 2 + len(held.rows)


def test_the_router_is_asked_at_its_checkpoints() -> None:
    """The real router hedges late requests and loses none, at a quarter to nine tenths of its target."""
    needs_routewise()
    with RoutewiseProcess(PYTHON, ["replica-0", "replica-1"], 1_000.0, 1) as process:
        assert process.checkpoints_ms[0] == pytest.approx(250.0)
        assert process.checkpoints_ms[-1] == pytest.approx(900.0)
        assert len(process.checkpoints_ms) == 27
    held = contest.hold(load("W6", 150), [1], PYTHON, quiet, routes=True)
    for name in ("routewise, p95", "routewise, own routing, p95"):
        figures = held.rows[name][0]
        assert figures["failed"] == 0.0
        assert 0.0 < figures["hedges"] < 0.5
        assert figures["over p95"] < held.rows["off"][0]["over p95"]


def test_the_router_hedges_at_the_latest_safe_checkpoint() -> None:
    """A backup is named at the last checkpoint from which it would still keep the target, and not before."""
    needs_routewise()
    with RoutewiseProcess(PYTHON, ["a", "b"], 1_000.0, 1) as process:
        for number, name in enumerate(["a", "b"] * 20):
            process.report("primary", 0.01 * number, number, 100, name)
            process.report("token", 0.01 * number, number, 0, 200.0 if name == "b" else 2_000.0)
            process.report("end", 0.01 * number, number, 0, "completed")
        process.report("primary", 1.0, 100, 100, "a")
        answers = [process.ask("hedge", 1.0 + at_ms / 1000.0, 100, at_ms) for at_ms in process.checkpoints_ms]
    named = [at_ms for at_ms, answer in zip(process.checkpoints_ms, answers, strict=True) if answer == "b"]
    assert named == pytest.approx([775.0])  # 1,000 ms less 200 ms less its own 5 ms


def test_a_missing_environment_is_an_error(tmp_path: Path) -> None:
    """The message contains the commands that make the environment."""
    with pytest.raises(PeerError, match="llm-routewise"):
        RoutewiseProcess(tmp_path / "python", ["a"], 1_000.0, 1)


def test_an_environment_without_the_package_is_an_error(tmp_path: Path) -> None:
    """A process that ends early is reported with the commands that make the environment."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(PeerError, match="ended early"):
        RoutewiseProcess(python, ["a"], 1_000.0, 1)


def test_the_command_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    """`peers` prints one table for each workload."""
    assert main(["peers", "--workload", "W1", "--seeds", "2", "--requests", "200"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("| W1 ")
    assert printed[2].startswith("| off ")
