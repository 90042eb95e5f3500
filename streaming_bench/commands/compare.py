"""`compare`: what hedging buys and costs with each policy, measured with the real gateway over real sockets.

Owns options, the order of the rows and what is printed. Units: as in arguments.py.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from providers.simulated.quantities import distribution, duration
from streaming_bench import arguments, progress
from streaming_bench.compare.experiment import POLICIES, Experiment
from streaming_bench.compare.processes import fleet
from streaming_bench.compare.rendering import render
from streaming_bench.compare.runner import RunSpec, measure_run, progress_spans
from streaming_bench.report.records import MODES, Run, write_runs
from streaming_bench.report.results import Results

_PARTS: Final = ("headers", "episode")
_MEASURING: Final = 0.95  # of the time; the rest is drawing
_SHORT_FACTOR: Final = 4  # in modes that only show that the same happens again, so many times fewer requests are sent


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be typed behind the command."""
    count, share = arguments.checked(arguments.count), arguments.checked(arguments.percent)
    law, modes = arguments.checked(distribution), tuple(mode.replace(" ", "-") for mode in MODES)
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="DIR", help="write requests, tables, pictures and a manifest there")
    add("--policy", type=arguments.names("policy", *POLICIES), default=POLICIES, help=f"some of {','.join(POLICIES)}")
    add("--headers", type=arguments.names("mode", *modes), default=modes, help=f"some of {','.join(modes)}")
    add("--part", type=arguments.names("part", *_PARTS), default=_PARTS, help=f"some of {','.join(_PARTS)}")
    add("--requests", type=count, default=700, metavar="N", help="measured in a row: 700")
    add("--warm", type=count, default=140, metavar="N", help="sent before those: 140")
    add("--rps", type=arguments.checked(arguments.positive), default=100.0, metavar="R", help="requests/s: 100")
    add("--ttft", type=law, default="lognormal:15ms,3ms", metavar="LAW", help="of a hit: lognormal:15ms,3ms")
    add("--miss-ttft", type=law, default="lognormal:200ms,25ms", metavar="LAW", help="of a miss: lognormal:200ms,25ms")
    add("--misses", type=share, default=0.2, metavar="%", help="share of misses: 20")
    add("--budget", type=share, default=0.2, metavar="%", help="of hedges: 20")
    add("--static-delay", type=arguments.checked(_delay), default="26ms", metavar="TIME", help="of static: 26ms")
    add("--replicas", type=count, default=4, metavar="N", help="4")
    add("--seed", type=int, default=1, metavar="N", help="of times and of what replicas draw: 1")


def run(args: argparse.Namespace) -> None:
    """Run the rows, write and print what came of them."""
    scene = Experiment(
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
    runs = write_runs(results, _measure(scene, run_specs(args), lambda name, done: bar(name, _MEASURING * done)))
    bar("tables and pictures", _MEASURING)
    small_print = _small_print(args)
    lines = render(results, runs, small_print)
    results.close(kind="compare", small_print=small_print)
    bar("done", 1.0)
    print("\n".join(lines))
    print(f"\n{results.folder}: tables.md and more, as manifest.json lists it")


def run_specs(args: argparse.Namespace) -> list[RunSpec]:
    """What is run, in order: both header modes in full, the others in short, then a slow episode."""
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


def _measure(scene: Experiment, planned: Sequence[RunSpec], bar: progress.Progress) -> list[Run]:
    spans, runs = progress_spans(planned), []
    with fleet(scene.profiles("flushed"), scene.seed) as replicas:
        for row in planned:
            begin, end = spans[row]
            count = row.warm + row.count

            def tell(done: int, row: RunSpec = row, begin: float = begin, end: float = end, count: int = count) -> None:
                if done % 10 == 0 or done == count:
                    bar(row.name, begin + (end - begin) * done / count)

            runs.append(measure_run(replicas, scene, row, tell))
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
