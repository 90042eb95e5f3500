"""`virtual`: policies side by side on a workload, in virtual time.

Owns options and what is printed. Units: as in arguments.py.
"""

import argparse
import json
from pathlib import Path

from gateway.routing.strategies import Routing
from providers.simulated.quantities import duration
from streaming_bench import arguments, progress
from streaming_bench.simulation.comparison import ComparisonPlan, compare
from streaming_bench.simulation.policies import POLICY_NAMES
from streaming_bench.simulation.provider_quota import LimitHeaders
from streaming_bench.simulation.scenario import load, with_load, with_requests
from streaming_bench.simulation.summary import table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be typed behind the command."""
    count, positive = arguments.checked(arguments.count), arguments.checked(arguments.positive)
    share, percent = arguments.checked(arguments.share), arguments.checked(arguments.percent)
    add = parser.add_argument
    add("--workload", required=True, metavar="NAME", help="W1 to W8, or the path of a .toml file")
    add(
        "--policy",
        type=arguments.names("policy", *POLICY_NAMES),
        default=("adaptive", "off"),
        help=f"some of {','.join(POLICY_NAMES)}",
    )
    add("--budget", type=percent, metavar="%", help="hedges, in per cent of the requests")
    add("--max-hedges", type=count, default=1, metavar="N", help="per request")
    add("--seeds", type=count, default=5, metavar="N", help="runs of each policy")
    add("--seed-first", type=count, default=1, metavar="N")
    add("--requests", type=count, metavar="N", help="instead of the workload's number")
    add("--routing", choices=[routing.value for routing in Routing], default="predicted")
    add("--headers", choices=["flushed", "held"], default="flushed", help="where the workload has both")
    add("--correlation", type=share, metavar="RHO", help="of rare events, 0 to 1")
    add("--quantile", type=share, metavar="Q", help="of quantile, ttfb and library: 0.9")
    add("--static-delay", type=arguments.checked(duration), metavar="TIME", help="of static and fan_out: 10ms")
    add("--library-rps", type=positive, metavar="N", help="what the library is told to expect")
    add("--load", type=positive, metavar="X", help="so many times the workload's rate")
    add("--headroom", type=positive, metavar="X", help="of quotas, times the mean traffic")
    add(
        "--limit-headers",
        choices=[headers.value for headers in LimitHeaders],
        default="none",
        help="what W5 and W6 state of their limits; with none the gateway is told them",
    )
    add("--others", type=share, default=0.0, metavar="SHARE", help="of each quota, used by somebody else; 0 to 0.9")
    add("--json", type=Path, metavar="FILE", help="write rows and a manifest there")


def run(args: argparse.Namespace) -> None:
    """Compare policies on a workload, print the tables."""
    scenario = load(args.workload)
    if args.requests is not None:
        scenario = with_requests(scenario, args.requests)
    if args.load is not None:
        scenario = with_load(scenario, args.load)
    result = compare(scenario, _plan(args), progress.bar())
    rows = result["rows"]
    assert isinstance(rows, list)
    print(f"{scenario.name}: {scenario.about}; {scenario.requests:,} requests, {args.seeds} seeds; times in ms")
    print("\n".join(table(rows).lines()))
    for part in rows[0]["parts"]:
        print(f"\n{part}")
        print("\n".join(table(rows, part).lines()))
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


def _plan(args: argparse.Namespace) -> ComparisonPlan:
    return ComparisonPlan(
        policies=args.policy,
        seeds=tuple(range(args.seed_first, args.seed_first + args.seeds)),
        budget=args.budget,
        max_hedges=args.max_hedges,
        routing=Routing(args.routing),
        held=args.headers == "held",
        correlation=args.correlation,
        headroom=args.headroom,
        limit_headers=LimitHeaders(args.limit_headers),
        others=min(args.others, 0.9),
        quantile=args.quantile,
        static_delay_s=args.static_delay,
        library_rps=args.library_rps,
    )
