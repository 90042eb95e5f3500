"""Several gateways in the simulation: alone each is blind, together they are nearly one."""

import pytest

from streaming_bench.__main__ import main
from streaming_bench.simulation.comparison import ComparisonPlan, SeedSamples
from streaming_bench.simulation.runner import SimulatedRun
from streaming_bench.simulation.scenario import load


def run(workload: str, requests: int, gateways: int, share_s: float | None, policy: str = "adaptive") -> SimulatedRun:
    """One policy on one seed."""
    scenario = load(workload, requests)
    plan = ComparisonPlan(policies=(policy,), seeds=(1,), gateways=gateways, share_s=share_s)
    return SeedSamples(scenario, plan, 1).run(policy)


def mean_s(found: SimulatedRun) -> float:
    """The mean TTFT."""
    return float(found.columns["ttft_s"].mean())


def test_shared_loads_are_nearly_one_gateway() -> None:
    """Eight blind gateways before own engines double the TTFT; what they share takes most of that back."""
    one, alone, shared = (
        run("W5", 500, gateways, share_s, "off") for gateways, share_s in ((1, None), (8, None), (8, 0.1))
    )
    assert mean_s(alone) > 1.5 * mean_s(one)
    assert mean_s(shared) < mean_s(one) + 0.5 * (mean_s(alone) - mean_s(one))


def test_a_failing_replica_is_found_out_once() -> None:
    """Of twenty gateways only a few meet the failing replica, and one probes it."""
    attempts = {}
    for share_s in (None, 0.1):
        found = run("F1/failing", 5_000, 20, share_s).columns
        attempts[share_s] = found["at_first"][(found["arrived_s"] >= 20.0) & (found["arrived_s"] < 30.0)].sum()
    assert attempts[0.1] <= 40
    assert attempts[None] > 1.5 * attempts[0.1]


def test_a_seed_decides_everything_with_several_gateways() -> None:
    """Two runs have the same records to the last bit."""
    assert run("W6", 300, 4, 0.1).records == run("W6", 300, 4, 0.1).records


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """`--gateways` and `--share` reach the simulation."""
    assert main(["simulate", "--workload", "W3", "--requests", "300", "--seeds", "1", "--policy", "off"]) == 0
    one = capsys.readouterr().out
    more = ["--gateways", "5", "--share", "100ms"]
    assert main(["simulate", "--workload", "W3", "--requests", "300", "--seeds", "1", "--policy", "off", *more]) == 0
    assert capsys.readouterr().out != one
