"""Measured runs: records survive a folder, figures match the records, and tables show the findings."""

import argparse
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.simulated.profile import parse_profile
from gateway.simulated.quantities import distribution
from streaming_bench.__main__ import main
from streaming_bench.commands.compare import add_arguments, run_specs
from streaming_bench.compare import rendering as comparison
from streaming_bench.compare.experiment import POLICIES, Experiment
from streaming_bench.errors import BenchError
from streaming_bench.load import rendering as load_rendering
from streaming_bench.report import tables
from streaming_bench.report.figures import compare_runs, figures
from streaming_bench.report.records import MODES, Record, Run, read_runs, write_runs
from streaming_bench.report.results import Results

TABLE = """\
run       TTFB p50  TTFB p99  TTFT p50  p90  p95  p99  extra load  hedged  won  delay
direct          20       200        20  200  200  200        0.0%    0.0%    -      -
off             20       200        20  200  200  200        0.0%    0.0%    -      -
headers         20       200        20  200  200  200        0.0%    0.0%    -      2
ttfb            20        20        20   20   20   20      100.0%  100.0%  20%      2
adaptive        20        40        20   40   40   40       20.0%   20.0%  80%     24"""


def record(number: int, ttft_s: float, **message: object) -> Record:
    """An answer of five tokens, 10 ms between two of them."""
    due_s = number / 100
    at_s, end_s = due_s + ttft_s, due_s + ttft_s + 0.04
    made = Record(number, number // 50, due_s, due_s, at_s, at_s, at_s, end_s, end_s, 5, 0.01, 60, 5, 200)
    for name, value in message.items():
        setattr(made, name, value)
    return made


def run(
    policy: str, ttft_s: Callable[[int], float], upstream: int, hedged: Callable[[int], str], **facts: object
) -> Run:
    """A hundred requests."""
    records = [record(number, ttft_s(number), result=hedged(number)) for number in range(100)]
    usual: dict[str, object] = {"part": "headers", "mode": "flushed", "policy": policy, "upstream_requests": upstream}
    return Run(f"{policy}, flushed", {**usual, "upstream_tokens": 520, "lag_p99_ms": 0.3, **facts}, records)


def runs() -> list[Run]:
    """Runs of a comparison in which one in five requests is slow."""

    def slow(number: int) -> bool:
        return number % 5 == 0

    return [
        run("direct", lambda n: 0.2 if slow(n) else 0.02, 100, lambda _: ""),
        run("off", lambda n: 0.2 if slow(n) else 0.02, 100, lambda _: "primary"),
        run("headers", lambda n: 0.2 if slow(n) else 0.02, 100, lambda _: "primary", learned_delay_ms=2.0),
        run("ttfb", lambda _: 0.02, 200, lambda n: "backup_won" if slow(n) else "backup_lost", learned_delay_ms=2.0),
        run(
            "adaptive",
            lambda n: 0.04 if slow(n) else 0.02,
            120,
            lambda n: ("backup_lost" if n % 25 == 0 else "backup_won") if slow(n) else "primary",
            learned_delay_ms=24.0,
        ),
    ]


def test_runs_survive_a_folder(tmp_path: Path) -> None:
    """Runs read back are equal to the written ones, including missing times and failures."""
    failed = Record(1, 0, 0.5, 0.5, end_s=0.6, status=429, error="http_429")
    written = Run("endpoint", {"target": "http://x/v1"}, [record(0, 0.02, replica="a"), failed])
    write_runs(Results(tmp_path, [], None), [written, Run("against", {}, [Record(0, 0, 0.0, 0.0)])])
    found, other = read_runs(tmp_path)
    assert found == written
    assert math.isnan(other.records[0].end_s)


def test_a_folder_without_runs_is_an_error(tmp_path: Path) -> None:
    """An error about missing or unreadable runs names file and line."""
    (tmp_path / "runs.json").write_text("{}")
    with pytest.raises(BenchError, match="has no runs"):
        read_runs(tmp_path)
    write_runs(Results(tmp_path, [], None), [Run("a", {}, [record(0, 0.02)])])
    text = (tmp_path / "requests.csv").read_text()
    (tmp_path / "requests.csv").write_text(text.replace("\na,0,", "\na,zero,"))
    with pytest.raises(BenchError, match=r"requests\.csv, line 2: a value is wrong"):
        read_runs(tmp_path)


def test_figures_are_those_of_the_records() -> None:
    """Figures contain quantiles, speed and waste, and count failures as infinite times."""
    found = figures(run("off", lambda _: 0.02, 104, lambda _: "primary"))
    assert found.waits["ttft"]["p50"].value == pytest.approx(20.0)
    assert found.waits["whole"]["p50"].value == pytest.approx(60.0)
    assert found.tokens_per_s == pytest.approx(100.0)
    assert found.extra_load == pytest.approx(0.04)
    assert (found.tokens, found.wasted_tokens) == (500, 20.0)
    broken = run("off", lambda _: 0.02, 100, lambda _: "primary")
    for each in broken.records[:10]:
        each.error = "http_500"
    found = figures(broken)
    assert found.errors == {"http_500": 10}
    assert found.waits["ttft"]["p95"].value == math.inf
    assert found.waits["ttft"]["p50"].value == pytest.approx(20.0)


def test_the_table_is_golden() -> None:
    """The overview of a known comparison has not changed."""
    grid = tables.overview(comparison.figures_by_policy(runs()))
    assert "\n".join(grid.lines()) == TABLE


def test_a_comparison_has_its_findings(tmp_path: Path) -> None:
    """Sentences name the useless signals, and give the p95 as a ratio with its cost."""
    lines = comparison.render(Results(tmp_path, [], None), runs(), "small print")
    message = [line for line in lines if line.startswith("- ")]
    assert message[:2] == [
        "- headers at once: a race ended by headers never hedges (0.0% extra load)",
        "- headers at once: a delay learned from TTFB hedges everything (100.0% extra load)",
    ]
    assert message[2].startswith("- headers at once: adaptive has 0.20x [")
    assert message[2].endswith("the p95 TTFT of off at 20.0% extra load")
    names = {path.name for path in tmp_path.iterdir()}
    assert {"tables.md", "figures.json", "ttft_cdf.png", "hedge_costs.svg", "ttfb_ttft.png"} <= names


def test_a_late_client_is_reported() -> None:
    """A run with a late client is marked in the table and has a warning."""
    late = run("off", lambda _: 0.02, 100, lambda _: "primary", lag_p99_ms=30.0)
    lines = load_rendering.render(None, [late], "")
    assert any("30 late!" in line for line in lines)
    assert any(line.startswith("The measuring client was late in off, flushed:") for line in lines)


def test_failures_are_in_a_table_of_their_own() -> None:
    """Classes of failure are columns; without failures there is no such table."""
    failed = run("off", lambda _: 0.02, 100, lambda _: "primary")
    failed.records[3].error = "timeout"
    grid = tables.errors([figures(failed)])
    assert grid is not None
    assert grid.lines() == ["failed        timeout", "off, flushed        1"]
    assert tables.errors([figures(each) for each in runs()]) is None


def test_a_ratio_is_that_of_the_runs() -> None:
    """Two runs of the same requests have a ratio, computed block by block."""
    _, off, _, _, adaptive = runs()
    found = compare_runs(adaptive, off, "ttft", 0.95)
    assert found.value == pytest.approx(0.2)


def test_compare_plans_its_rows() -> None:
    """Two header modes run with every policy, the others are shortened, and the episode is within the recorded span."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args(["--out", "x", "--requests", "1200", "--warm", "300", "--rps", "150"])
    found: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for row in run_specs(args):
        found.setdefault((row.part, row.mode), []).append((row.policy, row.count))
    assert [policy for policy, _ in found["headers", "flushed"]] == list(POLICIES)
    assert found["headers", "held"] == [(policy, 600) for policy in POLICIES]
    assert found["headers", "role first"] == [("ttfb", 300), ("adaptive", 300)]
    assert found["episode", "flushed"] == [("off", 1200), ("adaptive", 1200)]
    assert {row.slow_s for row in run_specs(args)} == {None, (2.7, 5.3)}


def test_decks_have_their_misses_and_their_seed() -> None:
    """Each replica's deck has the exact share of misses, differs from other decks, and depends on the seed."""
    experiment = Experiment(distribution("20ms"), distribution("200ms"), misses=0.2)
    decks = [experiment.deck(number) for number in range(2)]
    assert [deck.count("200.000ms") for deck in decks] == [100, 100]
    assert [deck.count("20.000ms") for deck in decks] == [400, 400]
    assert decks[0] != decks[1]
    assert experiment.deck(0) == decks[0]
    assert experiment.requests(20, "measured") == experiment.requests(20, "measured")
    assert experiment.requests(20, "measured") != experiment.requests(20, "warm")
    for mode in MODES:
        for profile in experiment.profiles(mode):
            parse_profile(profile)


def test_report_shows_a_folder_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`report` writes the same tables and plots again; two folders give ratios."""
    results = Results(tmp_path / "one", ["compare"], 1)
    comparison.render(results, write_runs(results, runs()), "small print")
    results.close(kind="compare", small_print="small print")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    assert main(["report", str(tmp_path / "one"), "--out", str(tmp_path / "again")]) == 0
    for name in ("tables.md", "figures.json", "ttft_cdf.svg", "hedge_costs.png"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "one" / name).read_bytes(), name
    capsys.readouterr()
    both = [str(tmp_path / "one"), str(tmp_path / "two")]
    assert main(["report", *both, "--out", str(tmp_path / "both")]) == 0
    assert "adaptive, flushed  1.00x [" in capsys.readouterr().out


def test_report_rejects_other_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Folders of other commands, of two kinds, without common runs, and the output folder itself are rejected."""

    def folder(name: str, kind: str, found: list[Run]) -> str:
        results = Results(tmp_path / name, [], 1)
        write_runs(results, found)
        results.close(kind=kind)
        return str(tmp_path / name)

    one, load = folder("one", "compare", runs()), folder("load", "load", runs())
    other, strange = folder("other", "compare", [Run("x", {}, [])]), folder("strange", "seeds", [])
    out = ["--out", str(tmp_path / "out")]
    for given, message in {
        (strange, *out): "was not written by compare or load",
        (one, load, *out): "name two folders of one kind",
        (one, other, *out): "the folders have no run in common",
        (one, "--out", one): "is one of the result folders",
    }.items():
        assert main(["report", *given]) == 1
        assert message in capsys.readouterr().err
