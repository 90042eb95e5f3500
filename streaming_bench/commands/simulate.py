"""`simulate`: policies side by side on a workload, in virtual time.

Owns options and the printed text. Units: as in arguments.py.
"""

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from gateway.events import Event, Listener
from gateway.observe.logs import RequestLog
from streaming_bench import arguments, progress
from streaming_bench.errors import BenchError
from streaming_bench.simulation.comparison import ComparisonPlan, compare
from streaming_bench.simulation.policies import POLICY_NAMES
from streaming_bench.simulation.provider_quota import LimitHeaders
from streaming_bench.simulation.runner import ignore
from streaming_bench.simulation.scenario import load, with_load
from streaming_bench.simulation.summary import table
from ttft_gateway.hedging.parameters import DEFAULTS, Prefer
from ttft_gateway.routing.strategies import Routing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.usage = "%(prog)s --workload NAME [options]"
    count, positive, share = arguments.count, arguments.positive, arguments.share
    policies = arguments.names("policy", *POLICY_NAMES)
    limit_headers = [headers.value for headers in LimitHeaders]
    add = parser.add_argument
    names = "W1 to W8, U1 to U25, C1, C2, F1, T1, or the path of a .toml file"
    add("--workload", required=True, metavar="NAME", help=names)
    add("--policy", type=policies, default="adaptive,off", help=f"one or more of {','.join(POLICY_NAMES)}")
    add("--budget", type=arguments.percent, metavar="%", help="share of hedges; default: the gateway's")
    add("--ttft-target", type=arguments.duration, metavar="TIME", help="TTFT target of adaptive; default: none")
    add("--slo", type=arguments.duration, metavar="TIME", help="also show the share of requests above this TTFT")
    add("--max-hedges", type=count, default=DEFAULTS.max_hedges, metavar="N", help="maximum of backups per request")
    add("--seeds", type=count, default=5, metavar="N", help="runs of each policy")
    add("--seed-first", type=count, default=1, metavar="N", help="first seed")
    add("--requests", type=count, metavar="N", help="requests of each run; default: the workload's")
    add("--routing", choices=[routing.value for routing in Routing], default="predicted", help="routing of primaries")
    add("--prefer", choices=[each.value for each in Prefer], default="balanced", help="time that is kept short")
    add("--headers", choices=["flushed", "held"], default="flushed", help="in W2: at once, or with the first token")
    add("--correlation", type=share, metavar="RHO", help="correlation of rare events, 0 to 1")
    add("--quantile", type=share, metavar="Q", help="quantile of quantile, ttfb and library; default: the gateway's")
    add("--static-delay", type=arguments.duration, metavar="TIME", help="delay of static and fan_out")
    add("--library-rps", type=positive, metavar="N", help="request rate configured for the library")
    add("--load", type=positive, metavar="X", help="multiple of the workload's rate")
    add("--headroom", type=positive, metavar="X", help="quota as a multiple of the mean traffic")
    add("--limit-headers", choices=limit_headers, default="none", help="of W5 and W6; none: the limits are configured")
    add("--others", type=share, default=0.0, metavar="SHARE", help="share of each quota used by other clients, to 0.9")
    add("--gateways", type=count, default=1, metavar="N", help="gateways; each request goes to a random one")
    add(
        "--share",
        type=arguments.duration,
        metavar="TIME",
        help="time between two exchanges; default: nothing is shared",
    )
    add("--json", type=Path, metavar="FILE", help="file for rows and a manifest")
    add("--log", type=Path, metavar="FILE", help="file for the gateway's log of the run, of one policy and one seed")


def run(args: argparse.Namespace) -> None:
    """Compare policies on a workload and print the tables."""
    scenario = load(args.workload, args.requests)
    if args.load is not None:
        scenario = with_load(scenario, args.load)
    if args.log is not None and (len(args.policy) != 1 or args.seeds != 1):
        raise BenchError("--log has several runs; name one --policy, and set --seeds 1")
    with run_log(args.log) as listener:
        result = compare(scenario, _plan(args), progress.bar(), listener)
    rows = result["rows"]
    assert isinstance(rows, list)
    print(f"{scenario.name}: {scenario.about}; {scenario.requests:,} requests of each run; times in ms")
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
        prefer=Prefer(args.prefer),
        held=args.headers == "held",
        correlation=args.correlation,
        headroom=args.headroom,
        limit_headers=LimitHeaders(args.limit_headers),
        others=min(args.others, 0.9),
        quantile=args.quantile,
        static_delay_s=args.static_delay,
        library_rps=args.library_rps,
        ttft_target_s=args.ttft_target,
        slo_s=args.slo,
        gateways=args.gateways,
        share_s=args.share,
    )


_START_S: Final = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
_BATCH: Final = 500  # events


@contextmanager
def run_log(path: Path | None) -> Iterator[Listener]:
    """Open a log; return the function that takes the events. None for no log.

    Raises:
        BenchError: The file cannot be written.
    """
    if path is None:
        yield ignore
        return
    try:
        with path.open("wb") as file:
            log, events = RequestLog(file.write, lambda: _START_S), list[Event]()

            def listener(event: Event) -> None:
                events.append(event)
                if len(events) >= _BATCH:
                    log.on_events(events)
                    events.clear()

            yield listener
            log.on_events(events)
    except OSError as error:
        raise BenchError(f"cannot write {path}: {error.strerror}; name another file after --log") from error
