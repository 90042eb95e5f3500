"""`reproduce`: the tables and plots of five publications, run again and printed next to the published figures.

Owns options, the printed text and the written files. docs/evaluation/reproductions.md explains the differences. Units:
milliseconds and per cent in tables.
"""

import argparse
import random
import sys
import time
import timeit
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from streaming_bench import arguments, progress
from streaming_bench.report.grid import Grid, percent, short
from streaming_bench.report.results import Results
from streaming_bench.research import parallel_calls
from streaming_bench.research.published import diagrams, drawings, python_port, sources, studies, threshold_lab
from streaming_bench.research.published.side_by_side import ReproducedRow, gains, grid
from streaming_bench.simulation.runner import SimulatedRun
from ttft_gateway.estimation.window import Window
from ttft_gateway.hedging.plan import Survival, plan_adaptive
from ttft_gateway.limits.budget import CreditBudget

_Parts = Sequence[Grid | str]

_COST_SEEDS: Final = 200  # of the lab, to show the influence of the seed
_SEED_FIRST: Final = 101
_CALLS: Final = (1, 5, 10, 20)
_FAN_OUT_REQUESTS: Final = 100
_PORT_REQUESTS: Final = 500
_SAMPLES: Final = 10_000
_TIMED_BLOCKS: Final = 7  # the lowest CPU time of a block counts, which other processes disturb least
_WORKLOAD: Final = "Lognormal mean 5 ms, sd 2 ms, 5% stragglers ten times as slow."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    count, duration = arguments.count, arguments.duration
    parser.usage = "%(prog)s TABLE [options]"
    add = parser.add_argument
    add("table", choices=list(TABLES), help="the table")
    add("--out", type=Path, metavar="DIR", help="folder for tables, plots, CSV files and a manifest")
    add("--seeds", type=count, default=3, metavar="N", help="runs of each row")
    add("--seed-first", type=count, metavar="N", help="first seed; default 101, for cost 1")
    add("--requests", type=count, metavar="N", help="requests of each run; default: the published number")
    add("--after", type=duration, default="20ms", metavar="TIME", help="three-servers: delay of a hedge")
    add("--to", choices=("all", "one"), default="all", help="three-servers: hedge to all other servers, or to one")
    add("--duration", type=duration, default="5s", metavar="TIME", help="cost: duration, whole seconds")
    add("--concurrency", type=count, default=10, metavar="N", help="cost: a hundredth of the requests per second")
    add("--snapshot-interval", type=duration, default="1s", metavar="TIME", help="cost: interval of the tables")
    add("--hedge-threshold", choices=list(threshold_lab.THRESHOLDS), help="cost: only this one over time")
    add(
        "--python",
        type=Path,
        metavar="FILE",
        help="python-port, frameworks: interpreter of an environment with the port",
    )
    add("--at-a-time", type=count, default=1, metavar="N", help="python-port, frameworks: requests in flight")
    add("--budget", type=arguments.percent, default="10", metavar="%", help="the same: budget of ttft_gateway")
    add("--real-time", action="store_true", help="python-port: real connections instead of virtual time")


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
    title, found = _race(args, first, results, "microservice", studies.MICROSERVICE)
    if results is not None:
        about = f"50,000 requests, 20 at a time. {_WORKLOAD}"
        drawings.percentiles(results, "eval", "Hedging against stragglers", {"microservice": found}, about)
    retries = studies.retry_rows(studies.MICROSERVICE, _seeds(args, first), args.requests)
    _csv(results, "microservice-retries", retries)
    return [title, grid(found), "retries with a doubling backoff, at most two, on the same draws", grid(retries)]


def _streaming(args: argparse.Namespace, first: int, results: Results | None) -> _Parts:
    headers = [studies.header_times(_seeds(args, first))]
    _csv(results, "streaming-headers", headers)
    flushed_title, flushed = _race(args, first, results, "streaming-flushed", studies.FLUSHED)
    held_title, held = _race(args, first, results, "streaming-held", studies.HELD)
    if results is not None:
        groups = {"headers at once": flushed, "headers with the first token": held}
        about = "Time to the first token: lognormal mean 15 ms, sd 3 ms; one in five a cache miss of 200 ms, sd 25 ms."
        drawings.percentiles(results, "eval_streaming", "Hedging streams", groups, about)
    return [
        "streaming: arrival of flushed headers, from which a hedge at headers learns",
        grid(headers),
        flushed_title,
        grid(flushed),
        held_title,
        grid(held),
    ]


def _three_servers(args: argparse.Namespace, first: int, results: Results | None) -> _Parts:
    study = studies.three_servers(args.after, to_all=args.to == "all")
    runs: dict[str, SimulatedRun] = {}
    title, found = _race(args, first, results, "three-servers", study, runs.__setitem__)
    before, after, without = found[:3]
    if results is not None:
        drawings.response_times(results, runs[before.name], runs[after.name])
        drawings.request_rates(results, runs[before.name], runs[after.name])
    published = [sources.THREE_SERVERS[name]["study"] for name in ("round robin", "20 ms to all others")]
    return [
        title,
        grid(found),
        "the study's table, published",
        gains(*published),
        f"here: {after.name}",
        gains(before.here, after.here),
        "here: the same without the delay of hedged requests, as the study must have counted",
        gains(before.here, without.here),
    ]


def _cost(args: argparse.Namespace, first: int, results: Results | None) -> _Parts:
    """Return the lab's table for one seed and for 200 seeds, and write the lab's files."""
    whole = [round(value) for value in (args.duration, args.snapshot_interval)]
    options = threshold_lab.LabOptions(max(1, whole[0]), 100 * args.concurrency, max(1, whole[1]), args.hedge_threshold)
    lab = threshold_lab.draw(first, options)
    rows = {name: threshold_lab.threshold_cost(lab, name) for name in threshold_lab.THRESHOLDS}
    if results is not None:
        tables = threshold_lab.tables(lab, options)
        for name, (heads, lines) in tables.items():
            results.csv(f"{name}.csv", heads, lines)
        threshold = args.hedge_threshold or "p95"
        runs = {name: tables[name][1] for name in ("baseline", f"hedged-{threshold}")}
        drawings.latency_comparison(results, runs, threshold_lab.SECOND_HEADS, threshold)
        drawings.cost_table(results, list(rows.values()))
    cells = []
    for name, row in rows.items():
        published = sources.COST[name]
        cells.append([f"{name}: lab", *(f"{value:g}" for value in published)])
        cells.append([f"{name}: here", *map(str, row.cells[1:])])
    table = Grid(["threshold", *(head.replace("_", " ") for head in threshold_lab.COST_HEADS[1:])], cells)
    others = _other_seeds(first) if options == threshold_lab.PUBLISHED else []
    return [f"cost of a threshold, seed {first}", table, *others]


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
    heads = [
        "calls",
        *(f"p = {share:.2%}".replace(".00%", "%") for share in parallel_calls.SHARES),
        "published, p = 1%",
    ]
    cells = [
        [
            *(f"{calls:,}", *(percent(parallel_calls.any_slow(share, calls), 2) for share in parallel_calls.SHARES)),
            percent(sources.FAN_OUT[calls]) if calls in sources.FAN_OUT else "",
        ]
        for calls in parallel_calls.CALLS
    ]
    if results is not None:
        rows = [
            [calls, *(parallel_calls.any_slow(share, calls) for share in parallel_calls.SHARES)]
            for calls in parallel_calls.CALLS
        ]
        results.csv("fan-out.csv", ["calls", *(f"p={share:g}" for share in parallel_calls.SHARES)], rows)
        drawings.fan_out(results)
    return ["share of requests with at least one slow call of n", Grid(heads, cells)]


def _parallel_calls(args: argparse.Namespace, first: int, results: Results | None) -> _Parts:
    """Measure requests of n simultaneous calls through the gateway, with hedging off and on."""
    cells: list[list[str]] = []
    figures: list[list[str | float]] = []
    requests = args.requests or _FAN_OUT_REQUESTS
    for one in parallel_calls.measure(_CALLS, ("off", "adaptive"), requests, first):
        p50_ms, p95_ms = (1000 * float(np.quantile(one.times_s, q)) for q in (0.5, 0.95))
        expected = parallel_calls.any_slow(parallel_calls.SLOW_SHARE, one.calls)
        cells.append(
            [
                *(f"{one.calls}, {one.policy}", percent(one.slow), percent(expected) if one.policy == "off" else ""),
                *(short(p50_ms), short(p95_ms), percent(one.extra)),
            ]
        )
        figures.append([one.calls, one.policy, one.slow, expected, p50_ms, p95_ms, one.extra])
    heads = ["calls, hedging", "over 1 s", "1 - 0.99^n", "p50 ms", "p95 ms", "requests +"]
    if results is not None:
        results.csv("parallel-calls.csv", ["calls", "policy", "slow", "expected", "p50_ms", "p95_ms", "extra"], figures)
    about = f"{requests} requests of n calls at once through the gateway; 1% of the calls take 2 s, the others 150 ms"
    return [f"{about}; times are those of the slowest call", Grid(heads, cells)]


def _libraries(
    args: argparse.Namespace, first: int, results: Results | None, clients: Sequence[str], *, real_time: bool
) -> _Parts:
    """Run the port's benchmark over client libraries, and compare `ttft_gateway` with the port."""
    requests = args.requests or _PORT_REQUESTS
    benchmark = python_port.Benchmark(args.python, requests, args.at_a_time, args.budget, real_time)
    parts: list[Grid | str] = []
    groups: dict[str, Sequence[ReproducedRow]] = {}
    clock = "real connections" if real_time else "virtual time"
    for client in clients:
        runs = python_port.measure(benchmark, client, _seeds(args, first), progress.bar())
        if not runs:
            parts.append(f"{client}: left out, because it or its transport is not installed")
            continue
        groups[client] = python_port.reproduced(client, runs)
        _csv(results, client, groups[client])
        title = f"{client}, {clock}, {args.at_a_time} at a time, {args.seeds} seeds, our budget {percent(args.budget)}"
        parts += [title, grid(groups[client])]
        beside = python_port.verdict(runs)
        parts.append("without the port: --python names its environment" if beside is None else beside.line(args.seeds))
    if results is not None and groups:
        name = "eval_multi_framework" if len(clients) > 1 else "eval_python_port"
        title = "Hedging by client library" if len(clients) > 1 else "Beside the Python port"
        about = f"{benchmark.requests} requests, {args.at_a_time} at a time, {clock}, {args.seeds} seeds. {_WORKLOAD}"
        drawings.percentiles(results, name, title, groups, about)
    return parts


def _diagrams(_args: argparse.Namespace, _first: int, results: Results | None) -> _Parts:
    if results is None:
        return ["diagrams are files: use --out DIR"]
    diagrams.draw_all(results)
    return ["drawn: straggler-failure, window-rotation, decision-flow and hedge, the last one also as hedge.gif"]


def _micro(_args: argparse.Namespace, _first: int, results: Results | None) -> _Parts:
    found = [(each, measured_ns(each)) for each in operations()]
    if results is not None:
        results.csv("micro.csv", ["operation", "ns", "published_ns"], [[a.name, ns, a.published_ns] for a, ns in found])
    return ["time of one operation, the lowest mean of 7 blocks", operation_table(found)]


class Operation(NamedTuple):
    """One operation of the policy.

    Attributes:
        name: name of the row.
        call: the operation.
        number: repetitions in a block.
        published_ns: published time; None if there is none.
    """

    name: str
    call: Callable[[], object]
    number: int
    published_ns: float | None = None


def operations() -> list[Operation]:
    """Return the operations on a window of 10,000 samples in 50 s."""
    rng = random.Random(1)
    values = [rng.lognormvariate(-5.3, 0.4) for _ in range(_SAMPLES)]
    window, filled, ratios, budget = Window(), Window(), Window(), CreditBudget(0.1)
    for number, value in enumerate(values):
        filled.add_event(value, number / 200)
        ratios.add_event(value / 0.005, number / 200)
    end_s = _SAMPLES / 200
    curve = Survival(ratios.bins(end_s))
    numbers = iter(range(1_000_000_000))

    def add() -> None:
        number = next(numbers)
        window.add_event(values[number % _SAMPLES], number / 200)

    def quantile() -> None:
        filled.add_event(0.005, end_s)  # a sample makes the sums old
        filled.quantile(0.9, end_s)

    def earn() -> None:
        budget.earn(next(numbers) / 200)

    def spend() -> None:
        ticket = budget.reserve(0.0)
        if ticket is not None:
            budget.release(ticket)

    return [
        Operation("add a sample to the window", add, 20_000, sources.SKETCH_UPDATE_NS),
        Operation("p90 of the window after a new sample", quantile, 300),
        Operation("plan from the window", lambda: plan_adaptive(curve, budget=0.1, first_share=0.1), 30),
        Operation("credit a request", earn, 20_000),
        Operation("reserve and release a hedge's credit", spend, 20_000),
    ]


def measured_ns(operation: Operation) -> float:
    """Return the CPU time of one call: the lowest mean of the blocks."""
    blocks_s = timeit.repeat(operation.call, timer=time.process_time, number=operation.number, repeat=_TIMED_BLOCKS)
    return 1e9 * min(blocks_s) / operation.number


def operation_table(found: Sequence[tuple[Operation, float]]) -> Grid:
    """Return the table of times."""
    rows = [
        [each.name, f"{time_ns:,.0f}", "" if each.published_ns is None else f"{each.published_ns:g} (Go)"]
        for each, time_ns in found
    ]
    return Grid(["operation", "ns here", "ns published"], rows)


def _race(
    args: argparse.Namespace,
    first: int,
    results: Results | None,
    name: str,
    study: studies.Study,
    seen: studies.Seen = lambda _name, _run: None,
) -> tuple[str, Sequence[ReproducedRow]]:
    title = name.replace("streaming-", "streaming, ")
    print(f"{title}: {studies.duration(study, args.seeds, args.requests)}", file=sys.stderr, flush=True)
    found = studies.reproduce(study, _seeds(args, first), args.requests, progress.bar(), seen)
    _csv(results, name, found)
    return f"{title}: {study.workload}, seeds {first} to {first + args.seeds - 1}", found


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


TABLES: Final[Mapping[str, Callable[[argparse.Namespace, int, Results | None], _Parts]]] = {
    "microservice": _microservice,
    "streaming": _streaming,
    "three-servers": _three_servers,
    "cost": _cost,
    "fan-out": _fan_out,
    "parallel-calls": _parallel_calls,
    "python-port": lambda args, first, out: _libraries(args, first, out, ("httpx",), real_time=args.real_time),
    "frameworks": lambda args, first, out: _libraries(args, first, out, python_port.CLIENTS, real_time=True),
    "diagrams": _diagrams,
    "micro": _micro,
}
"""What can be run again, by the name on the command line."""
