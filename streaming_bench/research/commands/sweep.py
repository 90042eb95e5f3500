"""`sweep`: latency against extra load with bounds, window lengths, accuracy, and outdated static thresholds.

Owns options, tables, plots and files; simulation/sweeps.py owns the runs. Units: milliseconds and per cent in tables.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from streaming_bench import arguments, progress
from streaming_bench.report import plots
from streaming_bench.report.grid import Grid, percent, short
from streaming_bench.report.plots import Frontier, Point
from streaming_bench.report.results import Results
from streaming_bench.research import sweeps
from streaming_bench.research.sweeps import AccuracyRow, DriftRow, FrontierRow, SweepSize, WindowRow

PARTS: Final = ("frontier", "windows", "accuracy", "drift")
FULL: Final = SweepSize(10_000, (101,), 1.0)
QUICK: Final = SweepSize(2_500, (101,), 0.2)
_QUICK_BUDGETS: Final = (0.02, 0.10, 0.30)
_QUICK_WORKLOADS: Final = ("W1", "W2")
_DRIFT_PHASES_S: Final = {
    "fast, 20-200 s": (20.0, 200.0),
    "slow, 220-400 s": (220.0, 400.0),
    "fast again, 420-600 s": (420.0, 600.0),
}
_DRIFT_HEDGES_MAX: Final = 0.10  # adaptive's budget
_BOUNDS: Final = ("best single hedge", "clairvoyant")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.usage = "%(prog)s --out DIR [options]"
    workloads = arguments.names("workload", *sweeps.WORKLOADS)
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="DIR", help="folder for tables, plots and a manifest")
    add("--part", type=arguments.names("part", *PARTS), default=",".join(PARTS), help="parts of the sweep")
    add("--workload", type=workloads, help=f"workloads of the frontier, one or more of {','.join(sweeps.WORKLOADS)}")
    add("--quick", action="store_true", help="coarse results in about a minute")
    add("--requests", type=arguments.count, metavar="N", help="requests of each run; default 10,000")
    add("--seeds", type=arguments.count, default=1, metavar="N", help="runs of each point of the frontier")
    add("--seed-first", type=arguments.count, default=101, metavar="N", help="first seed")


def run(args: argparse.Namespace) -> None:
    """Run the parts, print their tables and write everything."""
    usual = QUICK if args.quick else FULL
    seeds = tuple(range(args.seed_first, args.seed_first + args.seeds))
    size = SweepSize(args.requests or usual.requests, seeds, usual.drift)
    results = Results(args.out, args.argv, args.seed_first)
    pages: list[Grid | str] = []
    if "frontier" in args.part:
        budgets = _QUICK_BUDGETS if args.quick else sweeps.BUDGETS
        workloads = args.workload or (_QUICK_WORKLOADS if args.quick else sweeps.WORKLOADS)
        pages += _frontier(results, list(sweeps.frontier(workloads, sweeps.POLICIES, budgets, size, progress.bar())))
    if "windows" in args.part:
        pages += _windows(results, list(sweeps.windows(size, progress.bar())))
    if "accuracy" in args.part:
        pages += _accuracy(results, list(sweeps.accuracy(size, progress.bar())))
    if "drift" in args.part:
        pages += _drift(results, list(sweeps.drift(size, progress.bar())))
    for page in pages:
        print("\n".join(page.lines()) if isinstance(page, Grid) else f"\n{page}")
    results.markdown("sweep.md", "Sweep", *pages)
    results.close(parts=list(args.part), requests=size.requests)


def _frontier(results: Results, rows: Sequence[FrontierRow]) -> list[Grid | str]:
    results.csv("frontier.csv", FrontierRow._fields, rows)
    pages: list[Grid | str] = []
    for workload in dict.fromkeys(row.workload for row in rows):
        means = _means([row for row in rows if row.workload == workload])
        _draw_frontier(results, workload, means)
        pages.append(f"{workload}: latency in ms against extra requests")
        heads = ["policy", "budget", "requests +", "p50", "p95", "p99", "p99.9", "mean", "failed"]
        pages.append(Grid(heads, [_cells(row) for row in means]))
    return pages


def _means(rows: Sequence[FrontierRow]) -> list[FrontierRow]:
    """Return one row for each policy and budget: the means over the seeds."""
    kinds = dict.fromkeys((row.policy, row.budget) for row in rows)
    found = []
    for policy, budget in kinds:
        same = [row for row in rows if (row.policy, row.budget) == (policy, budget)]
        figures = [float(np.mean(column)) for column in zip(*(row[4:] for row in same), strict=True)]
        found.append(FrontierRow(same[0].workload, policy, budget, same[0].seed, *figures))
    return found


def _cells(row: FrontierRow) -> list[str]:
    latencies = (row.p50, row.p95, row.p99, row.p999, row.mean)
    shown = ["" if math.isnan(value) else short(value) for value in latencies]
    return [
        row.policy,
        percent(row.budget, 0),
        percent(row.extra),
        *shown,
        percent(row.failed, 2) if row.failed > 0 else "",
    ]


def _draw_frontier(results: Results, workload: str, rows: Sequence[FrontierRow]) -> None:
    name, title = f"frontier-{workload.lower()}", f"{workload}: what a backup buys, and its price"
    with plots.picture(results, name, title, panels=2, share_y=False) as panels:
        for axes, statistic in zip(panels, ("p99", "mean"), strict=True):
            policies: dict[str, list[Point]] = {}
            limits: dict[str, list[Point]] = {}
            for row in rows:
                side = limits if row.policy in _BOUNDS else policies
                side.setdefault(row.policy, []).append(Point(row.extra, getattr(row, statistic)))
            plots.frontier(axes, Frontier(policies, limits, statistic))
            axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        _legend_below(panels[0], columns=4)


def _legend_below(axes: Axes, columns: int) -> None:
    """Draw one legend for all panels below them, where no line is."""
    handles, labels = axes.get_legend_handles_labels()
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def _windows(results: Results, rows: Sequence[WindowRow]) -> list[Grid | str]:
    results.csv("windows.csv", WindowRow._fields, rows)
    phases = list(dict.fromkeys(row.phase for row in rows))
    cells = []
    for window_s in dict.fromkeys(row.window_s for row in rows):
        by = {row.phase: row for row in rows if row.window_s == window_s}
        cells.append([f"{window_s:g} s", *(f"{short(by[p].p99)} at {percent(by[p].hedges)}" for p in phases)])
    return [
        "W7, length of the window of the survival curve: p99 in ms and hedges, by phase",
        Grid(["window", *phases], cells),
    ]


def _accuracy(results: Results, rows: Sequence[AccuracyRow]) -> list[Grid | str]:
    results.csv("accuracy.csv", AccuracyRow._fields, rows)
    heads = ["accuracy", "workload", "d*", "of the late", "requests +", "p99", "mean"]
    cells = [
        [
            *(percent(row.accuracy), row.workload, f"{row.delay_x:.2f}x", percent(row.share, 0), percent(row.extra)),
            *(short(row.p99), short(row.mean)),
        ]
        for row in rows
    ]
    return ["relative accuracy of the sketch: the plan from the same draws, and its result", Grid(heads, cells)]


def _drift(results: Results, rows: Sequence[DriftRow]) -> list[Grid | str]:
    results.csv("drift.csv", DriftRow._fields, rows)
    with plots.picture(results, "drift", _winners(rows), panels=2, share_y=False) as (latency, load):
        for number, policy in enumerate(dict.fromkeys(row.policy for row in rows)):
            own = [row for row in rows if row.policy == policy]
            times = [row.from_s + sweeps.BUCKET_S / 2 for row in own]
            given = plots.line_style("" if policy.startswith("static") else policy, number + 1)
            lines = [(latency, [row.p99 for row in own])]
            if policy != "off":
                lines.append((load, [row.hedges for row in own]))
            for axes, values in lines:
                axes.plot(times, values, label=policy, color=given.colour, lw=given.width, ls=given.dashes)
        plots.log_ms(latency, vertical=True)
        latency.set_ylabel("p99 TTFT, by 20 s")
        load.set_ylabel("extra upstream requests")
        load.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        for axes in (latency, load):
            axes.set_xlabel("seconds into the day")
        _legend_below(latency, columns=5)
    return ["W7: p99 in ms and hedges, by phase", _phases(rows)]


def _phases(rows: Sequence[DriftRow]) -> Grid:
    cells = []
    for policy in dict.fromkeys(row.policy for row in rows):
        phases = [_phase(rows, policy, span_s) for span_s in _DRIFT_PHASES_S.values()]
        cells.append([policy, *(f"{short(p99)} at {percent(hedges)}" for p99, hedges in phases)])
    return Grid(["policy", *_DRIFT_PHASES_S], cells)


def _phase(rows: Sequence[DriftRow], policy: str, span_s: tuple[float, float]) -> tuple[float, float]:
    """Return the mean p99 in ms and the mean share of hedges of a policy in a span of time."""
    own = [row for row in rows if row.policy == policy and span_s[0] <= row.from_s < span_s[1]]
    return float(np.mean([row.p99 for row in own])), float(np.mean([row.hedges for row in own]))


def _winners(rows: Sequence[DriftRow]) -> str:
    """Return the policies with the lowest p99 in each phase, among those with at most the budget's share of hedges."""
    best = []
    for span_s in _DRIFT_PHASES_S.values():
        found = [(*_phase(rows, policy, span_s), policy) for policy in dict.fromkeys(row.policy for row in rows)]
        best.append(min(((p99, policy) for p99, hedges, policy in found if hedges <= _DRIFT_HEDGES_MAX), default=None))
    names = ["none" if each is None else each[1] for each in best]
    text = f"{names[0]} in every phase" if len(set(names)) == 1 else ", ".join(names)
    return f"Lowest p99 within {_DRIFT_HEDGES_MAX:.0%} hedges: {text}"
