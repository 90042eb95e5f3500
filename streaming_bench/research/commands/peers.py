"""`peers`: the default policy next to other published rules for hedging, in virtual time.

Owns options and the printed text. Units: as in arguments.py.
"""

import argparse
from pathlib import Path
from typing import Final

from streaming_bench import arguments, progress
from streaming_bench.research.peers import contest
from streaming_bench.simulation.scenario import load, with_load

_WORKLOADS: Final = "W1,W2,W3,W4,W5,W6,W7,W8,U17"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.usage = "%(prog)s [options]"
    add = parser.add_argument
    add("--workload", default=_WORKLOADS, metavar="NAME,...", help="workloads")
    add("--python", type=Path, metavar="FILE", help="interpreter of an environment with llm-routewise; default: no row")
    add("--own-routing", action="store_true", help="also run llm-routewise with the primaries that it chooses")
    add("--seeds", type=arguments.count, default=10, metavar="N", help="runs of each rule")
    add("--seed-first", type=arguments.count, default=501, metavar="N", help="first seed")
    add("--requests", type=arguments.count, metavar="N", help="requests of each run; default: the workload's")
    add("--load", type=arguments.positive, metavar="X", help="multiple of the workload's rate")


def run(args: argparse.Namespace) -> None:
    """Print a table for each workload."""
    seeds = range(args.seed_first, args.seed_first + args.seeds)
    for name in args.workload.split(","):
        scenario = load(name, args.requests)
        if args.load is not None:
            scenario = with_load(scenario, args.load)
        held = contest.hold(scenario, seeds, args.python, progress.bar(), routes=args.own_routing)
        print("\n".join(contest.table(held).markdown()), end="\n\n", flush=True)
