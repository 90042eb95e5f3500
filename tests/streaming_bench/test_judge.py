"""`judge`: a table, and a failure when hedging does harm or a workload's own bound does not hold."""

from pathlib import Path
from typing import Any

import pytest

from gateway.simulated.quantities import UnitError
from streaming_bench.__main__ import main
from streaming_bench.research.commands.judge import judge
from streaming_bench.simulation.scenario import Wanted


def row(policy: str, **changes: Any) -> dict[str, Any]:
    """A row of a comparison."""
    ratios = {"p99": 0.5, "mean": 0.9, "total": 0.9}
    figures = {"hedges": 0.05, "p95": 700.0, "rate_limited_primaries": 30.0, "to_off": ratios, "to_off_max": ratios}
    return {"policy": policy, "parts": {"short prompts": {**figures, **changes}}, **figures, **changes}


@pytest.mark.parametrize(
    ("bound", "changes", "measured", "holds"),
    [
        ("hedges <= 5%", {}, "5.00%", True),
        ("hedges <= 4.9%", {}, "5.00%", False),
        ("p95 <= 700ms", {}, "700ms", True),
        ("p99 <= 0.4x", {}, "0.500x", False),
        ("rate_limited_primaries <= 1.1x", {"rate_limited_primaries": 33.0}, "1.100x", True),
        ("rate_limited_primaries <= 1.1x", {"rate_limited_primaries": 34.0}, "1.133x", False),
        ("short prompts: p99 <= 0.5x", {}, "0.500x", True),
    ],
)
def test_a_bound_compares_one_figure(bound: str, changes: dict[str, float], measured: str, holds: bool) -> None:
    """A bound is in per cent, in ms or relative to hedging off, of all requests or of a part."""
    check = Wanted(bound).check(row("adaptive", **changes), row("off"))
    assert (check.bound, check.measured, check.holds) == (bound, measured, holds)


def test_one_bad_seed_is_harm() -> None:
    """The mean of the seeds may hide one of them."""
    bad = row("adaptive", to_off_max={"p99": 1.11, "mean": 1.0, "total": 1.0})
    assert [check.bound for check in judge([bad, row("off")], ()) if not check.holds] == ["p99 <= 1.10x on each seed"]


def test_a_bound_has_a_form() -> None:
    """Another text is an error with an example."""
    with pytest.raises(UnitError, match="write a figure and a value, such as 'hedges <= 3%'"):
        Wanted("hedges < 3")


def test_the_command_prints_a_table_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0 if all bounds hold; 1, with the bound and its figure, if one does not."""
    arguments = ["judge", "--seeds", "1", "--requests", "400"]
    assert main([*arguments, "--workload", "U2"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("U2 ")
    path = tmp_path / "strict.toml"
    path.write_text(
        'name = "S"\nabout = "a test"\nrequests = 400\nreplicas = 2\nwanted = ["hedges <= 0%"]\n'
        '[arrivals]\nper_second = 5\n[law]\n[reference]\nstatic_delay = "1s"\n'
    )
    assert main([*arguments, "--workload", str(path)]) == 1
    assert "hedges <= 0% does not hold: " in capsys.readouterr().err


def test_cheap_workloads_hold_their_bounds() -> None:
    """A small form of what runs each night: two replicas, and little traffic with a slow or a dead replica."""
    assert main(["judge", "--workload", "U2,U10,U10/dead", "--seeds", "1", "--requests", "500"]) == 0
