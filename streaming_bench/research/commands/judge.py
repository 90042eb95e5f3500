"""`judge`: hedging against no hedging on workloads it was not made for; fails if it does harm.

A bound holds or fails by the 95 % interval over the seeds; more seeds are run while one is open. Owns options and the
printed text. Units: as in arguments.py.
"""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from streaming_bench import arguments, progress
from streaming_bench.errors import BenchError
from streaming_bench.report.grid import percent, short
from streaming_bench.report.stats import Estimate
from streaming_bench.simulation import summary
from streaming_bench.simulation.comparison import ComparisonPlan, figures_of
from streaming_bench.simulation.policies import PLACEBO
from streaming_bench.simulation.scenario import BoundState, Check, Scenario, Wanted, load, names
from streaming_bench.simulation.summary import SimulatedFigures

_POLICIES: Final = ("adaptive", "off", PLACEBO)
_HEADS: Final = (
    *("workload", "off: p50", "p99 ms", "hedging: p99.9 ms", "p99", "p99 of placebo", "mean", "T mean"),
    *("hedges", "won", "429s", "off", "failed", "off", "seeds"),
)
_WIDTHS: Final = {"p99": 17, "p99 of placebo": 17, "mean": 17, "T mean": 17}  # a ratio with its interval
_NO_HARM: Final = (
    Wanted("p99 <= 1.02x"),
    Wanted("mean <= 1.01x"),
    Wanted("total <= 1.01x"),
    Wanted("failed <= 1x"),
    Wanted("rate_limited_primaries <= 1x"),
)
"""Bounds of every workload: hedging makes no workload slower, and fails or rejects no request."""


class Judged(NamedTuple):
    """One workload.

    Attributes:
        rows: rows of hedging, of no hedging, and of the placebo.
        seeds: number of seeds that were run.
    """

    rows: Mapping[str, Mapping[str, Any]]
    checks: Sequence[Check]
    seeds: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.usage = "%(prog)s [options]"
    add = parser.add_argument
    add("--workload", metavar="NAME,...", help="workloads, such as U7,U8/1; default: U1 to U25 with their variants")
    add("--seeds", type=arguments.count, default=5, metavar="N", help="paired runs of each workload, to begin with")
    add("--seeds-max", type=arguments.count, default=20, metavar="N", help="maximum while a bound is open")
    add("--seed-first", type=arguments.count, default=201, metavar="N", help="first seed")
    add("--requests", type=arguments.count, metavar="N", help="requests of each run; default: the workload's")


def run(args: argparse.Namespace) -> None:
    """Run hedging and no hedging on each workload, and print a table and the bounds that do not hold.

    Raises:
        BenchError: A bound fails.
    """
    workloads = names("U") if args.workload is None else args.workload.split(",")
    failed: list[str] = []
    still_open: list[str] = []
    widths = [max(map(len, workloads)), *(_WIDTHS.get(head, max(len(head), 6)) for head in _HEADS[1:])]
    _print(_HEADS, widths)
    for name in workloads:
        judged = judge(load(name, args.requests), args.seed_first, args.seeds, max(args.seeds, args.seeds_max))
        _print(_cells(name, judged), widths)
        for check in judged.checks:
            if check.verdict is not BoundState.HOLDS:
                found = f"{name}: {check.bound} {check.verdict.value}: {check.measured}"
                (failed if check.verdict is BoundState.FAILS else still_open).append(found)
    if still_open:
        print("\n".join(("", "bounds within their interval, neither held nor failed:", *still_open)))
    if failed:
        raise BenchError("\n".join(("hedging does harm or falls short", *failed)))


def judge(scenario: Scenario, first: int, seeds: int, seeds_max: int) -> Judged:
    """Run a workload until no bound is open: with `seeds` seeds, then with twice as many, up to `seeds_max`."""
    found: dict[str, dict[str, list[SimulatedFigures]]] = {}
    done = 0
    while True:
        plan = ComparisonPlan(_POLICIES, tuple(range(first + done, first + seeds)))
        for policy, parts in figures_of(scenario, plan, progress.bar()).items():
            for part, figures in parts.items():
                found.setdefault(policy, {}).setdefault(part, []).extend(figures)
        rows = {policy: summary.row(policy, parts, found["off"]) for policy, parts in found.items()}
        checks = checked(rows["adaptive"], rows["off"], scenario.wanted)
        if seeds >= seeds_max or all(check.verdict is not BoundState.OPEN for check in checks):
            return Judged(rows, checks, seeds)
        done, seeds = seeds, min(2 * seeds, seeds_max)


def checked(adaptive: Mapping[str, Any], off: Mapping[str, Any], wanted: Sequence[Wanted]) -> list[Check]:
    """Check the row of `adaptive` against the row of `off`."""
    return [bound.check(adaptive, off) for bound in (*_NO_HARM, *wanted)]


def _print(cells: Sequence[str], widths: Sequence[int]) -> None:
    """Print one line immediately: all workloads take some time."""
    first, *others = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
    print("  ".join((first.lstrip().ljust(widths[0]), *others)), flush=True)


def _cells(name: str, judged: Judged) -> Sequence[str]:
    hedging, off, placebo = (judged.rows[policy] for policy in _POLICIES)
    return [
        *(name, short(off["p50"]), short(off["p99"]), short(hedging["p999"])),
        *(ratio_text(row["to_off"][key]) for row, key in ((hedging, "p99"), (placebo, "p99"))),
        *(ratio_text(hedging["to_off"][key]) for key in ("mean", "total")),
        *(percent(hedging["hedges"]), percent(hedging["win_rate"], 0)),
        *(short(row[key]) for key in ("rate_limited_primaries", "failed") for row in (hedging, off)),
        str(judged.seeds),
    ]


def ratio_text(found: Mapping[str, float]) -> str:
    """Return a ratio with its interval."""
    estimate = Estimate(**found)
    interval = f"{estimate.low:.2f}, {estimate.high:.2f}" if estimate.known else "-"
    return f"{estimate.value:.2f}x [{interval}]"
