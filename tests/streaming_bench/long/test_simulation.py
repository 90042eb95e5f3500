"""The simulation: deterministic, with the same samples for every policy, and with golden rows."""

import json
from pathlib import Path
from typing import Any

import pytest

from streaming_bench.__main__ import main
from streaming_bench.research.commands.update_golden import KEYS, golden_rows
from streaming_bench.simulation.comparison import ComparisonPlan, compare
from streaming_bench.simulation.scenario import load, names
from ttft_gateway.routing.strategies import Routing

GOLDEN = Path(__file__).parents[1] / "golden"


def rows(workload: str, requests: int = 1_000, **plan: Any) -> dict[str, dict[str, Any]]:
    """The rows of a small comparison, by policy."""
    scenario = load(workload, requests)
    result = compare(scenario, ComparisonPlan(**{"policies": ("adaptive", "off"), "seeds": (1,), **plan}))
    found = result["rows"]
    assert isinstance(found, list)
    return {row["policy"]: row for row in found}


@pytest.mark.parametrize("workload", [name.lower() for name in names("W")])
def test_rows_are_golden(workload: str) -> None:
    """2,000 requests of each workload give the recorded rows; `ttft-bench update-golden` records them again."""
    expected = json.loads((GOLDEN / f"{workload}.json").read_text())
    found = golden_rows(workload)
    assert list(found) == list(expected)
    for policy, row in expected.items():
        assert found[policy] == pytest.approx(row, rel=1e-9), policy


def test_a_seed_decides_everything() -> None:
    """Two runs of the same comparison give the same rows to the last bit; another seed gives others."""
    first, again, other = (rows("W6", requests=400, seeds=(seed,)) for seed in (1, 1, 2))
    assert first == again
    assert first["off"]["p99"] != other["off"]["p99"]


def test_policies_meet_the_same_samples() -> None:
    """A static policy that never fires has exactly the latencies of `off`."""
    found = rows("W1", policies=("static", "off"), static_delay_s=100.0)
    assert found["static"]["hedges"] == 0
    for key in ("p50", "p90", "p95", "p99", "p999", "mean"):
        assert found["static"][key] == found["off"][key]
        assert found["static"]["to_off"][key]["value"] == pytest.approx(1.0)


def test_the_budget_holds() -> None:
    """Hedges stay within the budget and its burst, also if every request is late."""
    for policy in ("adaptive", "quantile", "static"):
        assert rows("W2", policies=(policy,), budget=0.05, static_delay_s=0.002)[policy]["hedges"] <= 0.05 + 0.02


def test_flushed_headers_stop_the_reference_library() -> None:
    """A race decided by headers never hedges with flushed headers, and hedges with held ones."""
    assert rows("W2", policies=("library",))["library"]["hedges"] == 0
    assert rows("W2", policies=("library",), held=True)["library"]["hedges"] > 0.01


def test_first_byte_is_the_wrong_signal() -> None:
    """A delay learned from flushed headers hedges nearly everything."""
    assert rows("W2", requests=3_000, policies=("ttfb",))["ttfb"]["hedges"] > 0.9


def test_fan_out_asks_all_others() -> None:
    """With three replicas each late request costs two more; fewer are late, as slow replicas are known sooner."""
    assert rows("W3", 3_000, policies=("fan_out",))["fan_out"]["hedges"] == pytest.approx(
        2 * rows("W3", 3_000, policies=("static",), budget=1.0)["static"]["hedges"], rel=0.3
    )


@pytest.mark.parametrize("routing", list(Routing))
def test_every_routing_answers_every_request(routing: Routing) -> None:
    """Every request is answered with every routing."""
    found = rows("W5", requests=300, routing=routing)
    assert found["off"]["failed"] == 0
    assert found["adaptive"]["failed"] == 0


def test_correlated_misses_do_no_harm() -> None:
    """With fully correlated misses hedges rarely win, and no latency increases."""
    found = rows("W2", requests=4_000, correlation=1.0, budget=0.2)["adaptive"]
    assert found["win_rate"] < 0.35
    assert found["to_off"]["p99"]["value"] <= 1.02
    assert found["to_off"]["mean"]["value"] <= 1.01  # one seed; the judge's bound


def test_the_command_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints a line for each policy and writes rows and a manifest."""
    file = tmp_path / "o.json"
    arguments = "simulate --workload W8 --policy adaptive,off --budget 20 --seeds 1 --requests 200 --json"
    assert main([*arguments.split(), str(file)]) == 0
    out = capsys.readouterr().out
    first = [line.split()[0] for line in out.splitlines()[1:]]
    assert [first[0], first[1], first[2][-1], first[3]] == ["policy", "adaptive", "x", "off"]
    result = json.loads(file.read_text())
    assert {"policy", *KEYS} <= set(result["rows"][0])
    assert result["manifest"]["budget"] == 0.2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--workload W99", "there is no workload 'W99'"),
        ("--workload W1 --policy magic", "there is no policy 'magic'; write one or more of adaptive,"),
        ("--workload W1 --budget 200", "'200' is not valid; write a number from 0 to 100"),
        ("--workload W1 --static-delay 5", "write a duration with its unit"),
        ("--workload W1 --seeds 0", "'0' is not valid; write a whole number, at least 1"),
    ],
)
def test_a_wrong_option_is_explained(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong value ends the command with an error message."""
    with pytest.raises(SystemExit):
        main(["simulate", *arguments.split()])
    assert message in " ".join(capsys.readouterr().err.split())
