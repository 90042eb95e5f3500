"""`compare`: gains and costs of each policy, measured with the real gateway over real sockets.

Owns options, the order of the runs and the printed text. Units: as in arguments.py.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gateway.simulated.quantities import duration
from streaming_bench import arguments, progress
from streaming_bench.compare.experiment import POLICIES, Experiment
from streaming_bench.compare.processes import fleet
from streaming_bench.compare.rendering import render
from streaming_bench.compare.runner import RunSpec, measure_run
from streaming_bench.report.records import MODES, Run, write_runs
from streaming_bench.report.results import Results

_PARTS: Final = ("headers", "episode")
_MEASURING: Final = 0.95  # share of the time; after it comes drawing
_SHORT_FACTOR: Final = 4  # divisor of the number of requests in modes that only confirm the others


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.usage = "%(prog)s --out DIR [options]"
    modes = [mode.replace(" ", "-") for mode in MODES]
    policies, parts = ",".join(POLICIES), ",".join(_PARTS)
    count, law = arguments.count, arguments.distribution
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="DIR", help="folder for requests, tables, plots and a manifest")
    add("--policy", type=arguments.names("policy", *POLICIES), default=policies, help="policies to compare")
    add("--headers", type=arguments.names("mode", *modes), default=",".join(modes), help="header modes of the replicas")
    add("--part", type=arguments.names("part", *_PARTS), default=parts, help="parts of the comparison")
    add("--requests", type=count, default=700, metavar="N", help="recorded requests of each run")
    add("--warm", type=count, default=140, metavar="N", help="warm-up requests of each run")
    add("--rps", type=arguments.positive, default=100.0, metavar="R", help="requests per second")
    add("--ttft", type=law, default="lognormal:15ms,3ms", metavar="DIST", help="TTFT of a cache hit")
    add("--miss-ttft", type=law, default="lognormal:200ms,25ms", metavar="DIST", help="TTFT of a cache miss")
    add("--misses", type=arguments.percent, default="20", metavar="%", help="share of cache misses")
    add("--budget", type=arguments.percent, default="20", metavar="%", help="share of hedges")
    add("--static-delay", type=arguments.checked(_delay), default="26ms", metavar="TIME", help="delay of static")
    add("--replicas", type=count, default=4, metavar="N", help="number of simulated replicas")
    add("--seed", type=int, default=1, metavar="N", help="seed of arrivals and TTFTs")


def run(args: argparse.Namespace) -> None:
    """Measure all runs, write the results and print them."""
    experiment = Experiment(
        ttft=args.ttft,
        miss_ttft=args.miss_ttft,
        misses=args.misses,
        replicas=args.replicas,
        rate_per_s=args.rps,
        budget=args.budget,
        static_delay=args.static_delay,
        seed=args.seed,
    )
    results = Results(args.out, args.argv, args.seed)
    bar = progress.bar()
    runs = write_runs(results, _measure(experiment, run_specs(args), lambda name, done: bar(name, _MEASURING * done)))
    bar("tables and plots", _MEASURING)
    small_print = _small_print(args)
    lines = render(results, runs, small_print)
    results.close(kind="compare", small_print=small_print)
    bar("done", 1.0)
    print("\n".join(lines))
    print(f"\nwrote {results.folder}: see tables.md; manifest.json lists all files")


def run_specs(args: argparse.Namespace) -> list[RunSpec]:
    """Return the runs in order: two header modes in full, the others shortened, then a slow episode."""
    found = []
    modes = [mode.replace("-", " ") for mode in args.headers] if "headers" in args.part else []
    for mode in modes:
        few = {"flushed": 1, "held": 2}.get(mode, _SHORT_FACTOR)
        wanted = args.policy if few < _SHORT_FACTOR else [name for name in args.policy if name in ("ttfb", "adaptive")]
        found += [RunSpec(mode, policy, _fraction(args.warm, few), _fraction(args.requests, few)) for policy in wanted]
    if "episode" in args.part:
        third_s = args.requests / args.rps / 3
        slow_s = (round(third_s, 1), round(2 * third_s, 1))
        wanted = [name for name in args.policy if name in ("off", "adaptive")]
        found += [RunSpec("flushed", policy, args.warm, args.requests, "episode", slow_s) for policy in wanted]
    return found


def _measure(experiment: Experiment, specs: Sequence[RunSpec], bar: progress.Progress) -> list[Run]:
    total, done, runs = sum(spec.warm + spec.count for spec in specs), 0, []
    with fleet(experiment.profiles("flushed"), experiment.seed) as replicas:
        for spec in specs:
            runs.append(measure_run(replicas, experiment, spec, progress.of_run(bar, spec.name, done, total, 1)))
            done += spec.warm + spec.count
    return runs


def _fraction(count: int, few: int) -> int:
    return max(1, count // few)


def _delay(text: str) -> str:
    duration(text)
    return text


def _small_print(args: argparse.Namespace) -> str:
    return (
        f"{args.replicas} simulated replicas on real sockets, first token {args.ttft.text}, {100 * args.misses:g} % "
        f"{args.miss_ttft.text}; {args.requests:,} requests a row at {args.rps:g}/s, budget {100 * args.budget:g} %, "
        f"seed {args.seed}"
    )
