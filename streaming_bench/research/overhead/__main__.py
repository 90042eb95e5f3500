"""Command line of the cost bench: `scripts/bench-gateway`, or `python -m streaming_bench.research.overhead`.

Measures the CPU time and the instructions of the gateway, next to nginx in front of the same back end. No units.
"""

import argparse
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from streaming_bench import arguments
from streaming_bench.errors import BenchError
from streaming_bench.report.grid import Grid
from streaming_bench.research.overhead import cost_table, growth, instructions, peers, proxies, standard
from streaming_bench.research.overhead.processes import Machine
from streaming_bench.research.overhead.rows import CostRow

RECORDED: Final = Path(__file__).resolve().parents[3] / "docs" / "performance.json"
_FOREIGN_MAX: Final = 0.1  # more of it changes the cost of a request


def main() -> int:
    """Measure and print; return 0 for success, 1 for a failure, 130 for Ctrl-C."""
    args = _parser().parse_args()
    if not Path("/proc/self/schedstat").exists():
        print("/proc is missing; run the cost bench on Linux", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the processes end with this one
    facts, machine = cost_table.machine(), Machine()
    print(", ".join(f"{name} {value}" for name, value in facts.items()), file=sys.stderr)
    try:
        if args.peers is None:
            grid = _rows(machine, args, facts)
        else:
            grid = _peers(machine, dict(args.peers) or installed(), args.rounds)
    except BenchError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print("\n".join(grid.markdown()))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/bench-gateway",
        description="Measures the CPU time and the instructions of a request and of a token.",
        formatter_class=arguments.DefaultsFormatter,
    )
    add, one = parser.add_argument, parser.add_mutually_exclusive_group().add_argument
    add("--rounds", type=arguments.count, default=3, metavar="N", help="rounds, of which the median counts")
    one("--growth", choices=sorted(growth.PARTS), nargs="*", help="measure the growth of the cost: all parts, or some")
    one("--instructions", action="store_true", help="count instructions: hardware counters, or else valgrind")
    one(
        "--peers",
        type=peer,
        nargs="*",
        metavar="NAME[=PROGRAM]",
        help=f"measure beside other proxies: {', '.join(proxies.PROXIES)}; without a name, all in PATH",
    )
    add("--record", action="store_true", help=f"record this run in {RECORDED.name}; not with --peers")
    return parser


def peer(value: str) -> tuple[str, str | None]:
    """Read the name of a proxy and the path of its program."""
    name, _, program = value.partition("=")
    if name not in proxies.PROXIES:
        raise argparse.ArgumentTypeError(f"there is no proxy {name!r}; write one of {', '.join(proxies.PROXIES)}")
    return name, program or None


def installed() -> dict[str, str | None]:
    """Return the proxies in PATH; print how to get the others."""
    found = {name: proxies.find(name) for name in proxies.PROXIES}
    for name, program in found.items():
        if program is None:
            print(f"{name} is not installed; install it ({proxies.PROXIES[name].get})", file=sys.stderr)
    return {name: program for name, program in found.items() if program is not None}


def _rows(machine: Machine, args: argparse.Namespace, facts: Mapping[str, object]) -> Grid:
    """Measure the rows that the arguments select, and record them if asked."""
    if args.instructions:
        measuring = instructions.rows(machine, args.rounds)
    elif args.growth is not None:
        measuring = growth.rows(machine, args.growth or list(growth.PARTS), args.rounds)
    else:
        measuring = standard.rows(machine, args.rounds)
    rows: list[CostRow] = []
    for row in measuring:
        rows.append(row)
        print(f"measured: {row.name}", file=sys.stderr)
    _warn([row.foreign for row in rows])
    grid = cost_table.table(rows, cost_table.read(RECORDED))
    if args.record:
        cost_table.write(RECORDED, rows, facts)
    return grid


def _peers(machine: Machine, programs: Mapping[str, str | None], count: int) -> Grid:
    figures = list(peers.measure(machine, programs, count))
    _warn([each.foreign for each in figures])
    return peers.table(figures)


def _warn(foreign: Sequence[float]) -> None:
    """Print a warning if other processes used the measured core."""
    if max(foreign) > _FOREIGN_MAX:
        print(
            f"other processes used up to {max(foreign):.0%} of the measured core, so figures are too high; run again",
            file=sys.stderr,
        )


if __name__ == "__main__":
    sys.exit(main())
