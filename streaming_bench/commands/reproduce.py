"""`reproduce`: the tables of five publications, run again and printed next to the published figures.

Owns options, the printed text and the written files. docs/evaluation/reproductions.md explains the differences. Units:
milliseconds and per cent in tables.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.ticker import FuncFormatter, PercentFormatter

from streaming_bench import arguments, progress
from streaming_bench.published import fan_out, python_port, sources, studies, threshold_lab
from streaming_bench.published.side_by_side import ReproducedRow, grid
from streaming_bench.report import plots
from streaming_bench.report.grid import Grid, percent
from streaming_bench.report.results import Results

_Parts = Sequence[Grid | str]

_COST_SEEDS: Final = 200  # of the lab, to show the influence of the seed
_SEED_FIRST: Final = 101


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    count, port = arguments.count, Path("port/bin/python")
    add = parser.add_argument
    add("table", choices=list(TABLES), help="the table")
    add("--out", type=Path, metavar="DIR", help="folder for tables, CSV files and a manifest")
    add("--seeds", type=count, default=3, metavar="N", help="runs of each row")
    add("--seed-first", type=count, metavar="N", help="first seed; default 101, for cost 1")
    add("--requests", type=count, metavar="N", help="requests of each run; default: the published number")
    add("--python", type=Path, default=port, help="python-port: interpreter of an environment with the port")
    add("--at-a-time", type=count, default=1, metavar="N", help="python-port: requests in flight")
    add("--real-time", action="store_true", help="python-port: use the machine's clock instead of virtual time")


def run(args: argparse.Namespace) -> None:
    """Run a table again."""
    first = args.seed_first or (threshold_lab.SEED if args.table == "cost" else _SEED_FIRST)
    results = None if args.out is None else Results(args.out, args.argv, first)
    parts = TABLES[args.table](args, first, results)
    for part in parts:
        print("\n".join(part.lines()) if isinstance(part, Grid) else part)
        print()
    if results is not None:
        results.markdown(f"{args.table}.md", f"Published and here: {args.table}", *parts)
        results.close(table=args.table)


def _microservice(args: argparse.Namespace, first: int, results: Results | None) -> _Parts:
    return _race(args, first, results, "microservice", studies.MICROSERVICE)


def _streaming(args: argparse.Namespace, first: int, results: Results | None) -> _Parts:
    headers = [studies.header_times(_seeds(args, first))]
    _csv(results, "streaming-headers", headers)
    flushed = _race(args, first, results, "streaming-flushed", studies.FLUSHED)
    held = _race(args, first, results, "streaming-held", studies.HELD)
    return [
        "streaming: arrival of flushed headers, from which a hedge at headers learns",
        grid(headers),
        *flushed,
        *held,
    ]


def _three_servers(args: argparse.Namespace, first: int, results: Results | None) -> _Parts:
    return _race(args, first, results, "three-servers", studies.THREE_SERVERS)


def _cost(_args: argparse.Namespace, first: int, results: Results | None) -> _Parts:
    """Return the lab's table for one seed and for 200 seeds, and write the lab's files."""
    lab = threshold_lab.draw(first)
    rows = {name: threshold_lab.threshold_cost(lab, name) for name in threshold_lab.THRESHOLDS}
    if results is not None:
        for name, (heads, lines) in threshold_lab.tables(lab).items():
            results.csv(f"{name}.csv", heads, lines)
    cells = []
    for name, row in rows.items():
        published = sources.COST[name]
        cells.append([f"{name}: lab", *(f"{value:g}" for value in published)])
        cells.append([f"{name}: here", *map(str, row.cells[1:])])
    table = Grid(["threshold", *(head.replace("_", " ") for head in threshold_lab.COST_HEADS[1:])], cells)
    return [f"cost of a threshold, seed {first}", table, *_other_seeds(first)]


def _other_seeds(first: int) -> _Parts:
    """Return the means over many seeds, grouped by the p99 of the baseline."""
    labs = [threshold_lab.draw(seed) for seed in range(first, first + _COST_SEEDS)]
    kinds: dict[str, list[dict[str, threshold_lab.ThresholdCost]]] = {
        "p99 of 200 ms, as published": [],
        "p99 below 100 ms": [],
    }
    for lab in labs:
        rows = {name: threshold_lab.threshold_cost(lab, name) for name in threshold_lab.THRESHOLDS}
        kinds["p99 of 200 ms, as published" if rows["p99"].baseline_p99_ms >= 200 else "p99 below 100 ms"].append(rows)
    heads = [
        "baseline",
        "seeds",
        *(f"{name}: {what}" for name in threshold_lab.THRESHOLDS for what in ("p99 ms", "hedges", "wasted ms")),
    ]
    cells = [[kind, f"{len(found)} of {len(labs)}", *_means(found)] for kind, found in kinds.items() if found]
    return [f"means over {len(labs)} seeds, by the p99 of the baseline", Grid(heads, cells)]


def _means(found: Sequence[Mapping[str, threshold_lab.ThresholdCost]]) -> list[str]:
    """Return the means of hedged p99, hedges and wasted work, threshold by threshold."""
    figures = [
        [figure for row in rows.values() for figure in (row.hedged_p99_ms, row.hedged_requests, row.wasted_work_ms)]
        for rows in found
    ]
    return [f"{sum(column) / len(column):.0f}" for column in zip(*figures, strict=True)]


def _fan_out(_args: argparse.Namespace, _first: int, results: Results | None) -> _Parts:
    heads = ["calls", *(f"p = {share:.2%}".replace(".00%", "%") for share in fan_out.SHARES), "published, p = 1%"]
    cells = [
        [
            *(f"{calls:,}", *(percent(fan_out.any_slow(share, calls), 2) for share in fan_out.SHARES)),
            percent(sources.FAN_OUT[calls]) if calls in sources.FAN_OUT else "",
        ]
        for calls in fan_out.CALLS
    ]
    if results is not None:
        rows = [[calls, *(fan_out.any_slow(share, calls) for share in fan_out.SHARES)] for calls in fan_out.CALLS]
        results.csv("fan-out.csv", ["calls", *(f"p={share:g}" for share in fan_out.SHARES)], rows)
        _draw_fan_out(results)
    return ["share of requests with at least one slow call of n", Grid(heads, cells)]


def _python_port(args: argparse.Namespace, first: int, results: Results | None) -> _Parts:
    seeds = _seeds(args, first)
    found = python_port.reproduce(args.python, seeds, args.at_a_time, progress.bar(), real_time=args.real_time)
    _csv(results, "python-port", found)
    clock = "real time" if args.real_time else "virtual time"
    return [f"the Python port's httpx rows, {clock}, {args.at_a_time} at a time, {args.seeds} seeds", grid(found)]


def _race(args: argparse.Namespace, first: int, results: Results | None, name: str, study: studies.Study) -> _Parts:
    title = name.replace("streaming-", "streaming, ")
    print(f"{title}: {studies.duration(study, args.seeds, args.requests)}", file=sys.stderr, flush=True)
    found = studies.reproduce(study, _seeds(args, first), args.requests, progress.bar())
    _csv(results, name, found)
    return [f"{title}: {study.workload}, seeds {first} to {first + args.seeds - 1}", grid(found)]


def _seeds(args: argparse.Namespace, first: int) -> range:
    return range(first, first + args.seeds)


def _csv(results: Results | None, name: str, found: Sequence[ReproducedRow]) -> None:
    """Write every figure by row and source."""
    if results is not None:
        rows: list[Sequence[str | float]] = []
        for one in found:
            for source, figures in ({**one.published, "here": one.here}).items():
                rows += [[one.name, source, key, value] for key, value in figures.items()]
        results.csv(f"{name}.csv", ["row", "source", "figure", "value"], rows)


def _draw_fan_out(results: Results) -> None:
    title = "One slow call in a hundred is most requests"
    below = "P = 1 - (1 - p)^n; calls independent of each other"
    with plots.picture(results, "fan-out", title, below=below) as (axes,):
        calls = np.geomspace(1, 1000, 200)
        for number, share in enumerate(fan_out.SHARES):
            given = plots.line_style("", number)
            label = f"{100 * share:g}% of calls are slow"
            axes.plot(calls, 1 - (1 - share) ** calls, color=given.colour, linewidth=3.5, label=label)
        for n, published in sources.FAN_OUT.items():
            axes.plot([n], [published], "o", color=plots.BLACK, markersize=11, zorder=5)
            axes.annotate(
                f"{published:.1%} at {n}".replace(".0%", "%"), (n, published), (12, -20), textcoords="offset points"
            )
        axes.set_xscale("log")
        axes.set_xlim(1, 1000)
        axes.set_ylim(0, 1.02)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _position: f"{value:,.0f}"))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_xlabel("calls per request")
        axes.set_ylabel("requests with at least one slow call")
        axes.legend(loc="center left")


TABLES: Final[Mapping[str, Callable[[argparse.Namespace, int, Results | None], _Parts]]] = {
    "microservice": _microservice,
    "streaming": _streaming,
    "three-servers": _three_servers,
    "cost": _cost,
    "fan-out": _fan_out,
    "python-port": _python_port,
}
"""What can be run again, by the name on the command line."""
