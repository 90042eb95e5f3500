"""Reproduced tables: the lab's files to the byte, its rules, and published figures next to reproduced ones."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming_bench.progress import quiet
from streaming_bench.research import parallel_calls
from streaming_bench.research.commands import reproduce
from streaming_bench.research.commands.update_golden import golden_lab
from streaming_bench.research.published import python_port, sources, studies, threshold_lab
from streaming_bench.research.published.side_by_side import ReproducedRow, deviation, gains, grid
from streaming_bench.research.published.studies import RetryRule, retried_s

LAB = Path(__file__).parents[1] / "golden" / "lab"

attempts_ms = st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 3000)), min_size=1, max_size=200)


def test_the_labs_files_are_golden() -> None:
    """The lab's files have the same bytes in every run, on every supported version of Python."""
    assert golden_lab() == {path.name: path.read_text(encoding="utf-8") for path in LAB.glob("*.csv")}
    assert golden_lab() == golden_lab()


@pytest.mark.parametrize("threshold", threshold_lab.THRESHOLDS)
def test_the_lab_agrees_with_its_table(threshold: str) -> None:
    """Thresholds and the baseline's p99 are the published ones, the hedged p99 is within 5 %."""
    row, expected = (
        threshold_lab.threshold_cost(threshold_lab.draw(threshold_lab.SEED), threshold),
        sources.COST[threshold],
    )
    assert (row.threshold_ms, row.baseline_p99_ms, row.total_requests) == (expected[0], expected[1], expected[6])
    assert row.hedged_p99_ms == pytest.approx(expected[2], rel=0.05)


@given(attempts_ms, st.sampled_from(list(threshold_lab.THRESHOLDS)))
def test_a_hedge_shortens_and_what_it_wastes_is_the_losers_time(pairs: list[tuple[int, int]], threshold: str) -> None:
    """No request gets slower; the wasted work is the losers' time until the winner's end."""
    lab = threshold_lab.LabDraws([a for a, _ in pairs], [b for _, b in pairs])
    row = threshold_lab.threshold_cost(lab, threshold)
    hedged = threshold_lab.hedged_ms(lab, row.threshold_ms)
    assert all(after <= before for after, before in zip(hedged, lab.primaries_ms, strict=True))
    late = [(a, b, took) for (a, b), took in zip(pairs, hedged, strict=True) if a > row.threshold_ms]
    assert row.hedged_requests == len(late)
    assert row.wasted_work_ms == sum(took if took < a else took - row.threshold_ms for a, _, took in late)


def test_the_fan_out_arithmetic() -> None:
    """The published shares for 1 % of slow calls are right, and a single call is slow with its own probability."""
    assert {calls: round(parallel_calls.any_slow(0.01, calls), 2 + (calls < 100)) for calls in sources.FAN_OUT} == dict(
        sources.FAN_OUT
    )
    assert parallel_calls.any_slow(0.04, 1) == pytest.approx(0.04)


def test_the_study_omits_its_delay() -> None:
    """The study's figures agree without the delay of 20 ms of hedged requests, and disagree with it."""
    study = replace(studies.three_servers(), rows=studies.three_servers().rows[1:3])
    found = {row.name: row for row in studies.reproduce(study, [101], 2_500, quiet)}
    expected = sources.THREE_SERVERS["20 ms to all others"]["study"]
    without = found["the same, without the delay"].here
    assert all(without[key] == pytest.approx(expected[key], rel=0.05) for key in ("mean", "p95", "p99", "p100"))
    assert found["20 ms to all others"].here["p99"] > 1.2 * expected["p99"]


def test_the_duration_is_told_in_advance() -> None:
    """The minutes follow from the number of runs and of requests."""
    assert studies.duration(studies.FLUSHED, 3, None) == "12 runs of 50,000 requests, about 2 minutes on an idle core"
    assert studies.duration(studies.FLUSHED, 1, 1_000).endswith(
        "4 runs of 1,000 requests, less than a minute on an idle core"
    )


def test_published_and_reproduced_figures_share_a_table() -> None:
    """A row has its published and its reproduced figures, their deviation, and the range over the seeds."""
    expected = {"paper": {"p50": 10.0, "p99": 100.0, "extra": 0.05}}
    row = ReproducedRow(
        "static", {"p50": 11.0, "p99": 90.0, "p999": 200.0, "extra": 0.07}, expected, {"p99": (80.0, 95.0)}
    )
    assert grid([row]).rows == [
        ["static: paper", "10", "100", "", "5.0%"],
        ["static: here", "11", "90", "200", "7.0%"],
        ["    off by, paper", "+10.0%", "-10.0%", "", "+2.0 points"],
        ["    seeds from, to", "", "80-95", "", ""],
    ]
    assert deviation("p999", row.here, expected["paper"]) is None


def test_a_missing_port_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error about a missing environment contains the commands that create it."""
    monkeypatch.setattr(python_port, "ROWS", python_port.ROWS[2:3])
    with pytest.raises(python_port.PortError, match="hedge-python"):
        python_port.measure(python_port.Benchmark(tmp_path / "python", requests=2), "httpx", [1], quiet)


def test_the_libraries_get_the_same_numbers() -> None:
    """Without hedging the driver reproduces the p50; a fixed delay cuts the tail, on the numbers of the same seed."""
    runs = {row.name: figures for row, figures in measured().items()}
    bare, static = runs["no hedging"][0], runs["static 10 ms, ttft_gateway"][0]
    assert bare["p50"] == pytest.approx(5.8, rel=0.1)
    assert bare["extra"] == 0.0
    assert static["p50"] == pytest.approx(bare["p50"], rel=0.01)
    assert static["p99"] < 0.5 * bare["p99"]
    assert 0.0 < static["extra"] < 0.2
    assert python_port.verdict(measured()) is None  # without the port


def test_the_budget_limits_the_adaptive_row() -> None:
    """With a budget of 0 the adaptive row adds no request, and the row with a fixed delay keeps its own."""
    benchmark = python_port.Benchmark(None, requests=100, budget=0.0)
    extra = {row.name: runs[0]["extra"] for row, runs in python_port.measure(benchmark, "httpx", [101], quiet).items()}
    assert extra["adaptive, ttft_gateway"] == 0.0 < extra["static 10 ms, ttft_gateway"]


@cache
def measured() -> dict[python_port.LibraryRow, list[python_port.Figures]]:
    """Runs of the rows that need no foreign package."""
    return python_port.measure(python_port.Benchmark(None, requests=300), "httpx", [101], quiet)


def test_the_verdict_compares_the_adaptive_rows() -> None:
    """The ratio of the means, the geometric mean of the ratios, their intervals, and the added requests of both."""
    rows = {row.library: row for row in python_port.ROWS if row.policy == "adaptive"}
    own, port = (
        [{"p99": p99, "extra": extra} for p99 in values]
        for values, extra in (((10, 40, 10, 40), 0.1), ((20, 20, 20, 20), 0.2))
    )
    found = python_port.verdict({rows[python_port.OWN]: own, rows[python_port.PORT]: port})
    assert found is not None
    assert found.p99_ratio == pytest.approx((1.25, -0.13, 2.63), abs=0.01)
    assert found.p99_ratio_paired == pytest.approx((1.0, 0.28, 3.57), abs=0.01)
    assert (found.extra, found.better) == ((0.1, 0.2), 2)
    assert "1.00x [0.28, 3.57] geometric mean" in found.line(4)


@pytest.mark.parametrize(
    ("attempts_s", "expected"),
    [
        ([0.004, 1.0, 1.0], (0.004, 0)),  # in time
        ([0.050, 0.004, 1.0], (0.010 + 0.005 + 0.004, 1)),
        ([0.050, 0.050, 0.004], (0.010 + 0.005 + 0.010 + 0.010 + 0.004, 2)),
        ([0.050, 0.050, 0.090], (0.010 + 0.005 + 0.010 + 0.010 + 0.090, 2)),  # the last has no timeout
        ([0.050], (0.050, 0)),
    ],
)
def test_a_retry_starts_after_the_timeout_and_its_backoff(attempts_s: list[float], expected: tuple[float, int]) -> None:
    """The wait doubles before each retry, and a cancelled attempt never answers."""
    assert retried_s(attempts_s, RetryRule(0.010, 0.005)) == pytest.approx(expected)


def test_a_retry_leaves_a_longer_tail_than_a_hedge() -> None:
    """With the delay of the hedge as its timeout, p99 with retries is over 1.3 times that with hedges."""
    study = replace(studies.MICROSERVICE, rows=studies.MICROSERVICE.rows[1:2])
    [hedged] = studies.reproduce(study, [101], 3_000, quiet)
    retried = {row.name: row for row in studies.retry_rows(study, [101], 3_000)}
    assert retried["retry after 10 ms, backoff 10 ms"].here["p99"] > 1.3 * hedged.here["p99"]
    assert retried["retry after 50 ms, backoff 10 ms"].here["p99"] > 3 * hedged.here["p99"]


def test_the_studys_table_of_a_gain() -> None:
    """The columns are the published ones; the figures of the publication give its differences."""
    before, after = (sources.THREE_SERVERS[name]["study"] for name in ("round robin", "20 ms to all others"))
    table = gains(before, after)
    assert table.heads == ["Metric", "Original", "Hedged", "Absolute Diff", "% Improvement"]
    assert table.rows[2] == ["p99", "87.88", "19.13", "68.75", "78.23%"]
    assert [row[0] for row in table.rows] == ["mean", "p95", "p99", "p100"]


def test_a_hedge_to_one_other_server_costs_less_than_to_all() -> None:
    """The delay and the number of servers are options; other ones than the published are compared with nothing."""
    study = studies.three_servers(0.030, to_all=False)
    found = studies.reproduce(replace(study, rows=study.rows[1:2]), [101], 2_000, quiet)
    assert (found[0].name, dict(found[0].published)) == ("30 ms to one other", {})
    assert 0.0 < found[0].here["extra"] < 0.03


def test_the_labs_options() -> None:
    """Duration, concurrency, interval and threshold decide the rows; without options they are the published ones."""
    options = threshold_lab.LabOptions(seconds=6, per_second=200, interval_s=4, threshold="p90")
    lab = threshold_lab.draw(1, options)
    tables = threshold_lab.tables(lab, options)
    assert len(lab.primaries_ms) == 1_200
    assert list(tables) == ["cost-table", "baseline", "hedged-p90"]
    assert [row[0] for row in tables["baseline"][1]] == [4, 6]  # the last interval is shorter


def test_operations_are_timed() -> None:
    """Every operation can be repeated; only the update of the sketch has a published time."""
    operations = reproduce.operations()
    table = reproduce.operation_table([(each, reproduce.measured_ns(each._replace(number=2))) for each in operations])
    assert [row[2] for row in table.rows] == ["35 (Go)", "", "", "", ""]
    assert all(float(row[1].replace(",", "")) >= 0 for row in table.rows)


def test_calls_in_parallel_through_the_gateway() -> None:
    """Each request waits for the slowest of its calls, over real sockets, and every call reaches a replica."""
    [found] = parallel_calls.measure([3], ["off"], 5, 101, warm_calls=3)
    assert (found.calls, found.policy, len(found.times_s), found.extra) == (3, "off", 5, 0.0)
    assert list(found.times_s) == sorted(found.times_s)
    assert 0.0 <= found.slow <= 1.0
