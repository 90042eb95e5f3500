"""Reproduced tables: the lab's files to the byte, its rules, and published figures next to reproduced ones."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming_bench.golden import golden_lab
from streaming_bench.progress import quiet
from streaming_bench.published import fan_out, python_port, sources, studies, threshold_lab
from streaming_bench.published.side_by_side import ReproducedRow, deviation, grid

LAB = Path(__file__).parent / "golden" / "lab"

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
    assert {calls: round(fan_out.any_slow(0.01, calls), 2 + (calls < 100)) for calls in sources.FAN_OUT} == dict(
        sources.FAN_OUT
    )
    assert fan_out.any_slow(0.04, 1) == pytest.approx(0.04)


def test_the_study_omits_its_delay() -> None:
    """The study's figures agree without the delay of 20 ms of hedged requests, and disagree with it."""
    study = replace(studies.THREE_SERVERS, rows=studies.THREE_SERVERS.rows[1:3])
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


def test_a_missing_port_is_explained(tmp_path: Path) -> None:
    """The error about a missing environment contains the commands that create it."""
    with pytest.raises(python_port.PortError, match="hedge-python"):
        python_port.reproduce(tmp_path / "python", [1], 1, quiet, real_time=False)
