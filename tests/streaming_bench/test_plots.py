"""What plots show, read back from their axes."""

import math
from importlib import import_module
from typing import Any

import pytest

from streaming_bench.report.records import Record, Run
from streaming_bench.report.stats import Estimate
from streaming_bench.research.sweeps import DriftRow

pytest.importorskip("matplotlib")
figure: Any = import_module("matplotlib.figure")
plots = import_module("streaming_bench.report.plots")
sweep = import_module("streaming_bench.research.commands.sweep")
figures = import_module("streaming_bench.report.figures")


def axes() -> Any:
    """Empty axes."""
    return figure.Figure().subplots()


def test_a_line_ends_where_the_other_series_has_its_turn() -> None:
    """Two endpoints take turns of 3 s: the line of one has a gap during each turn of the other."""
    drawn = axes()
    times_s = [second + part / 10 for second in (0, 1, 2, 6, 7, 8, 12) for part in range(10)]
    plots.over_time(drawn, times_s, [100.0] * len(times_s), "a", 0)
    [line] = drawn.lines
    assert [None if math.isnan(x) else x for x in line.get_xdata()] == [0.5, 1.5, 2.5, None, 6.5, 7.5, 8.5, None, 12.5]
    assert [math.isnan(y) for y in line.get_ydata()] == [math.isnan(x) for x in line.get_xdata()]


def test_bars_have_their_intervals() -> None:
    """An interval is drawn where it is known, from end to end, and fits in the panel."""
    drawn = axes()
    plots.bars(drawn, {"off": Estimate(200.0, 180.0, 400.0), "adaptive": Estimate(50.0, -math.inf, math.inf)}, "{}")
    [segments] = [container.lines[2][0] for container in drawn.containers if hasattr(container, "lines")]
    assert [[x for x, _ in segment] for segment in segments.get_segments()] == [[180.0, 400.0], [50.0, 50.0]]
    assert drawn.get_xlim()[1] > 400.0


def test_extra_load_has_an_interval() -> None:
    """The replicas count the load; the interval comes from blocks of requests."""
    records = [Record(n, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0.01, 60, 5, 200, attempts=1 + (n % 10 == 0)) for n in range(500)]
    load = figures.extra_load(Run("adaptive", {"upstream_requests": 560.0}, records))
    assert load.value == pytest.approx(0.12)
    assert load.low <= load.value <= load.high < 0.2
    assert not figures.extra_load(Run("adaptive", {"upstream_requests": 560.0}, records[:100])).known


def test_the_title_of_the_drift_follows_its_data() -> None:
    """The title names the policy with the lowest p99 in each phase, if it is within the budget."""
    levels = {"adaptive": (10.0, 134.0, 10.0), "static 6 ms": (11.0, 70.0, 9.0), "static 80 ms": (39.0, 120.0, 39.0)}
    hedges = {"adaptive": 0.09, "static 6 ms": 0.5, "static 80 ms": 0.05}
    rows = [
        DriftRow(policy, from_s, p99, p99, hedges[policy])
        for policy, each in levels.items()
        for from_s, p99 in zip((100.0, 300.0, 500.0), each, strict=True)
    ]
    assert sweep._winners(rows) == "Lowest p99 within 10% hedges: adaptive, static 80 ms, adaptive"
    for policy, only in (("adaptive", "adaptive in every phase"), ("static 6 ms", "none in every phase")):
        assert sweep._winners([row for row in rows if row.policy == policy]).endswith(f": {only}")
