"""`judge`: hedging against no hedging on workloads it was not made for; fails if it does harm.

Owns options and the printed text. Units: as in arguments.py.
"""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, Final

from streaming_bench import arguments, progress
from streaming_bench.errors import BenchError
from streaming_bench.report.grid import percent, short
from streaming_bench.simulation.comparison import ComparisonPlan, compare
from streaming_bench.simulation.scenario import Check, Wanted, load, names

_HEADS: Final = (
    *("workload", "off: p50", "p99 ms", "hedging: p50", "p95", "p99", "p99.9 ms"),
    *("p99", "worst", "mean", "worst", "T mean", "worst", "hedges", "won", "429s", "off"),
)
_CELL: Final = 6  # narrowest column
_NO_HARM: Final = (
    Wanted("p99 <= 1.02x"),
    Wanted("mean <= 1.01x"),
    Wanted("total <= 1.01x"),
    Wanted("p99 <= 1.10x", worst=True),
    Wanted("mean <= 1.10x", worst=True),
    Wanted("total <= 1.10x", worst=True),
)
"""Bounds of every workload: hedging makes no workload slower."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.usage = "%(prog)s [options]"
    add = parser.add_argument
    add("--workload", metavar="NAME,...", help="workloads, such as U7,U8/1; default: U1 to U25 with their variants")
    add("--seeds", type=arguments.count, default=10, metavar="N", help="paired runs of each workload")
    add("--seed-first", type=arguments.count, default=201, metavar="N", help="first seed")
    add("--requests", type=arguments.count, metavar="N", help="requests of each run; default: the workload's")


def run(args: argparse.Namespace) -> None:
    """Run hedging and no hedging on each workload, and print a table and the bounds that do not hold.

    Raises:
        BenchError: A bound does not hold.
    """
    workloads = names("U") if args.workload is None else args.workload.split(",")
    seeds = tuple(range(args.seed_first, args.seed_first + args.seeds))
    failed: list[str] = []
    widths = [max(map(len, workloads)), *(max(len(head), _CELL) for head in _HEADS[1:])]
    _print(_HEADS, widths)
    for name in workloads:
        scenario = load(name, args.requests)
        rows = compare(scenario, ComparisonPlan(("adaptive", "off"), seeds), progress.bar())["rows"]
        assert isinstance(rows, list)
        _print(_cells(name, *rows), widths)
        missed = [check for check in judge(rows, scenario.wanted) if not check.holds]
        failed += [f"{name}: {check.bound} does not hold: {check.measured}" for check in missed]
    if failed:
        raise BenchError("\n".join(("hedging does harm or falls short", *failed)))


def judge(rows: Sequence[Mapping[str, Any]], wanted: Sequence[Wanted]) -> list[Check]:
    """Check the row of `adaptive` against the row of `off`."""
    by_policy = {row["policy"]: row for row in rows}
    return [bound.check(by_policy["adaptive"], by_policy["off"]) for bound in (*_NO_HARM, *wanted)]


def _print(cells: Sequence[str], widths: Sequence[int]) -> None:
    """Print one line immediately: all workloads take some time."""
    first, *others = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
    print("  ".join((first.lstrip().ljust(widths[0]), *others)), flush=True)


def _cells(name: str, hedging: Mapping[str, Any], off: Mapping[str, Any]) -> Sequence[str]:
    mean, worst = hedging["to_off"], hedging["to_off_max"]
    return [
        *(name, short(off["p50"]), short(off["p99"])),
        *(short(hedging[key]) for key in ("p50", "p95", "p99", "p999")),
        *(f"{ratios[key]:.2f}x" for key in ("p99", "mean", "total") for ratios in (mean, worst)),
        *(percent(hedging["hedges"]), percent(hedging["win_rate"], 0)),
        *(short(row["rate_limited_primaries"]) for row in (hedging, off)),
    ]
