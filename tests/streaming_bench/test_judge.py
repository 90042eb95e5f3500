"""`judge`: a table, and a failure when hedging does harm or a workload's own bound does not hold."""

from pathlib import Path
from typing import Any

import pytest

from gateway.simulated.quantities import UnitError
from streaming_bench.__main__ import main
from streaming_bench.research.commands.judge import checked, judge
from streaming_bench.simulation.policies import PLACEBO
from streaming_bench.simulation.scenario import BoundState, Check, Wanted, load

RATIO = {"value": 0.5, "low": 0.45, "high": 0.55}


def row(policy: str, **changes: Any) -> dict[str, Any]:
    """A row of a comparison of three seeds; `changes` are figures of them."""
    figures = {"hedges": 0.05, "p95": 700.0, "rate_limited_primaries": 30.0, "failed": 0.0} | changes
    seeds = [
        {name: value[number] if isinstance(value, list) else value for name, value in figures.items()}
        for number in range(3)
    ]
    body = {"seeds": seeds, "to_off": dict.fromkeys(("p99", "mean", "total"), RATIO)}
    return {"policy": policy, "parts": {"short prompts": body}, **body}


@pytest.mark.parametrize(
    ("bound", "changes", "measured", "verdict"),
    [
        ("hedges <= 5%", {}, "5.00% [5.00, 5.00]", BoundState.HOLDS),
        ("hedges <= 4.9%", {}, "5.00% [5.00, 5.00]", BoundState.FAILS),
        ("p95 <= 710ms", {"p95": [690.0, 700.0, 710.0]}, "700ms [675, 725]", BoundState.OPEN),
        ("p99 <= 0.55x", {}, "0.500x [0.450, 0.550]", BoundState.HOLDS),
        ("p99 <= 0.5x", {}, "0.500x [0.450, 0.550]", BoundState.OPEN),
        ("p99 <= 0.4x", {}, "0.500x [0.450, 0.550]", BoundState.FAILS),
        ("rate_limited_primaries <= 1.1x", {"rate_limited_primaries": 33.0}, "1.100x [1.100, 1.100]", BoundState.HOLDS),
        ("rate_limited_primaries <= 1.1x", {"rate_limited_primaries": 34.0}, "1.133x [1.133, 1.133]", BoundState.FAILS),
        ("failed <= 1x", {"failed": [0.0, 0.0, 1.0]}, "1.333x [-0.101, 2.768]", BoundState.OPEN),
        ("failed <= 1x", {"failed": [4.0, 4.0, 5.0]}, "5.333x [3.899, 6.768]", BoundState.FAILS),
        ("short prompts: p99 <= 0.6x", {}, "0.500x [0.450, 0.550]", BoundState.HOLDS),
    ],
)
def test_a_bound_is_compared_with_an_interval(
    bound: str, changes: dict[str, Any], measured: str, verdict: BoundState
) -> None:
    """A bound is in per cent, in ms or relative to hedging off, of all requests or of a part."""
    assert Wanted(bound).check(row("adaptive", **changes), row("off")) == Check(bound, measured, verdict)


def test_failures_and_429s_are_harm() -> None:
    """Faster answers do not make up for requests that fail, or that get a 429."""
    bad = row("adaptive", rate_limited_primaries=[36.0, 37.0, 38.0], failed=[3.0, 4.0, 5.0])
    failed = [check.bound for check in checked(bad, row("off"), ()) if check.verdict is BoundState.FAILS]
    assert failed == ["failed <= 1x", "rate_limited_primaries <= 1x"]


def test_seeds_are_run_while_a_bound_is_open() -> None:
    """The number doubles up to its maximum, and no seed is run twice."""
    scenario = load("U2", 100)
    judged = judge(scenario, 1, 2, 3)
    seeds = judged.rows["off"]["seeds"]
    assert (judged.seeds, len(seeds)) == (3, 3)
    assert len({each["p99"] for each in seeds}) == 3
    assert judge(scenario, 1, 2, 2).rows["off"]["seeds"] == seeds[:2]


def test_the_placebo_is_noise() -> None:
    """The placebo has the same draws and other random numbers of the gateway: its figures differ, and hedge nothing."""
    rows = judge(load("U2", 100), 1, 2, 2).rows
    assert rows[PLACEBO]["hedges"] == 0.0
    assert rows[PLACEBO]["p99"] != rows["off"]["p99"]


def test_a_run_that_ends_before_it_is_judged_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """U15/busy-request counts from 480 s on."""
    assert main(["judge", "--workload", "U15/busy-request", "--requests", "100", "--seeds", "1"]) == 1
    message = "U15/busy-request: none of 100 requests is counted, the first 480 s are not; write a larger number after"
    assert message in capsys.readouterr().err


def test_a_bound_has_a_form() -> None:
    """Another text is an error with an example."""
    with pytest.raises(UnitError, match="write a figure and a value, such as 'hedges <= 3%'"):
        Wanted("hedges < 3")


def test_the_command_prints_a_table_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0 if all bounds hold; 1, with the bound and its figure, if one does not."""
    arguments = ["judge", "--seeds", "3", "--seeds-max", "3", "--requests", "100"]
    assert main([*arguments, "--workload", "U2"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("U2 ")
    path = tmp_path / "strict.toml"
    path.write_text(
        'name = "S"\nabout = "a test"\nrequests = 100\nreplicas = 2\nwanted = ["p50 <= 1ms"]\n'
        '[arrivals]\nper_second = 5\n[law]\n[reference]\nstatic_delay = "1s"\n'
    )
    assert main([*arguments, "--workload", str(path)]) == 1
    assert "p50 <= 1ms fails: " in capsys.readouterr().err


def test_cheap_workloads_hold_their_bounds() -> None:
    """A small form of what runs each night: two replicas, and little traffic with a slow or a dead replica."""
    assert (
        main(["judge", "--workload", "U2,U10,U10/dead", "--seeds", "2", "--seeds-max", "2", "--requests", "300"]) == 0
    )
