"""The command line of the bench: `python -m streaming_bench virtual ...`.

Owns options and what is printed. Units: on the command line a budget is in per cent and durations carry their unit.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from gateway.routing.choose import Routing
from providers.simulated.units import UnitError, duration
from streaming_bench import table
from streaming_bench.compare import Plan, compare
from streaming_bench.contenders import NAMES
from streaming_bench.golden import write_golden
from streaming_bench.scenario import faster, load
from streaming_bench.toml_table import ScenarioError

_BAR = 30

_T = TypeVar("_T")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        args.command(args)
    except ScenarioError as error:
        parser.error(str(error))
    return 0


def _virtual(args: argparse.Namespace) -> None:
    """Compare policies on a workload, print the tables."""
    scenario = load(args.workload)
    if args.requests is not None:
        scenario = replace(scenario, requests=args.requests)
    if args.load is not None:
        scenario = faster(scenario, args.load)
    result = compare(scenario, _plan(args), _progress if sys.stderr.isatty() else lambda _what, _done: None)
    rows = result["rows"]
    assert isinstance(rows, list)
    print(f"{scenario.name}: {scenario.about}; {scenario.requests:,} requests, {args.seeds} seeds; times in ms")
    print("\n".join(table.lines(rows)))
    for part in rows[0]["parts"]:
        print(f"\n{part}")
        print("\n".join(table.lines(rows, part)))
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


def _plan(args: argparse.Namespace) -> Plan:
    return Plan(
        policies=args.policy,
        seeds=tuple(range(args.seed_first, args.seed_first + args.seeds)),
        budget=args.budget,
        max_hedges=args.max_hedges,
        routing=Routing(args.routing),
        held=args.headers == "held",
        correlation=args.correlation,
        headroom=args.headroom,
        quantile=args.quantile,
        static_delay_s=args.static_delay,
        library_rps=args.library_rps,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m streaming_bench", description="What hedging buys, and its price.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    virtual = commands.add_parser("virtual", help="compare policies on a workload in virtual time")
    virtual.add_argument("--workload", required=True, metavar="NAME", help="W1 to W8, or the path of a .toml file")
    virtual.add_argument("--policy", type=_policies, default=("adaptive", "off"), help=f"some of {','.join(NAMES)}")
    virtual.add_argument("--budget", type=_checked(_percent), metavar="%", help="hedges, in per cent of the requests")
    virtual.add_argument("--max-hedges", type=_checked(_count), default=1, metavar="N", help="per request")
    virtual.add_argument("--seeds", type=_checked(_count), default=5, metavar="N", help="runs of each policy")
    virtual.add_argument("--seed-first", type=_checked(_count), default=1, metavar="N")
    virtual.add_argument("--requests", type=_checked(_count), metavar="N", help="instead of the workload's number")
    virtual.add_argument("--routing", choices=[routing.value for routing in Routing], default="predicted")
    virtual.add_argument(
        "--headers", choices=["flushed", "held"], default="flushed", help="where the workload has both"
    )
    virtual.add_argument("--correlation", type=_checked(_share), metavar="RHO", help="of rare events, 0 to 1")
    virtual.add_argument("--quantile", type=_checked(_share), metavar="Q", help="of quantile, ttfb and library: 0.9")
    virtual.add_argument("--static-delay", type=_checked(duration), metavar="TIME", help="of static and fan_out: 10ms")
    virtual.add_argument(
        "--library-rps", type=_checked(_positive), metavar="N", help="what the library is told to expect"
    )
    virtual.add_argument("--load", type=_checked(_positive), metavar="X", help="so many times the workload's rate")
    virtual.add_argument("--headroom", type=_checked(_positive), metavar="X", help="of quotas, times the mean traffic")
    virtual.add_argument("--json", type=Path, metavar="FILE", help="write rows and a manifest there")
    virtual.set_defaults(command=_virtual)
    golden = commands.add_parser("golden", help="write the small tables that the tests compare with")
    golden.add_argument("folder", type=Path, help="tests/streaming_bench/golden")
    golden.set_defaults(command=lambda args: write_golden(args.folder))
    return parser


def _policies(value: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in value.split(",")))
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no policy {unknown[0]!r}; write some of {','.join(NAMES)}")
    return names


def _checked(parse: Callable[[str], _T]) -> Callable[[str], _T]:
    """What argparse shows when a value cannot be read is the parser's own sentence."""

    def parsed(value: str) -> _T:
        try:
            return parse(value)
        except UnitError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parsed


def _count(value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise UnitError(f"found {value!r}; write a whole number, at least 1")
    return int(value)


def _positive(value: str) -> float:
    try:
        found = float(value)
    except ValueError:
        found = 0.0
    if not found > 0:
        raise UnitError(f"found {value!r}; write a number above 0")
    return found


def _percent(value: str) -> float:
    return _share(value.removesuffix("%"), top=100.0)


def _share(value: str, top: float = 1.0) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number <= top:
        raise UnitError(f"found {value!r}; write a number from 0 to {top:g}")
    return number / top


def _progress(what: str, done: float) -> None:
    filled = round(_BAR * done)
    end = "\n" if done >= 1 else ""
    print(
        f"\r[{'#' * filled}{'.' * (_BAR - filled)}] {100 * done:3.0f}% {what:30}", end=end, file=sys.stderr, flush=True
    )


if __name__ == "__main__":
    sys.exit(main())
