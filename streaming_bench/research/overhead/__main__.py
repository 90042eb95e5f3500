"""Command line of the cost bench: `scripts/bench-gateway`, or `python -m streaming_bench.research.overhead`.

Measures the CPU time and the instructions of the gateway, next to nginx in front of the same back end, and prints a
table with the recorded run. Units: as in rows.py.
"""

import argparse
import json
import os
import platform
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from streaming_bench import arguments
from streaming_bench.errors import BenchError
from streaming_bench.report.grid import Grid, short
from streaming_bench.research.overhead import instructions, peers, proxies, standard
from streaming_bench.research.overhead.processes import Machine
from streaming_bench.research.overhead.rows import CostRow

RECORDED: Final = Path(__file__).resolve().parents[3] / "docs" / "performance.json"
_COUNT = "k instr."
_HEADS = (
    *("", "unit", "gateway", "user + kernel", _COUNT, "nginx", "user + kernel", _COUNT, "of nginx"),
    *("recorded", "of recorded"),
)
_FOREIGN_MAX: Final = 0.1  # more of it changes the cost of a request


def main() -> int:
    """Measure and print; return 0 for success, 1 for a failure, 130 for Ctrl-C."""
    args = _parser().parse_args()
    if not Path("/proc/self/schedstat").exists():
        print("/proc is missing; run the cost bench on Linux", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the processes end with this one
    facts, machine = machine_facts(), Machine()
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
    measured = instructions if args.instructions else standard
    rows: list[CostRow] = []
    for row in measured.rows(machine, args.rounds):
        rows.append(row)
        print(f"measured: {row.name}", file=sys.stderr)
    _warn([row.foreign for row in rows])
    grid = table(rows, read(RECORDED))
    if args.record:
        write(RECORDED, rows, facts)
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


def machine_facts() -> dict[str, object]:
    """Return the facts on which the figures depend."""
    found: dict[str, object] = {
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": [round(each, 1) for each in os.getloadavg()],  # before the run: other work makes caches cold
    }
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            found["cpu"] = value.strip()
            break
    return found


def write(file: Path, rows: Sequence[CostRow], facts: Mapping[str, object]) -> None:
    """Record a run; rows of earlier runs that were not measured in this one remain."""
    figures = _recorded_rows(file)
    for row in rows:
        cells = row._asdict().items()
        figures[row.name] = {key: round(value, 4) if isinstance(value, float) else value for key, value in cells}
    file.write_text(json.dumps({"machine": facts, "rows": figures}, indent=1) + "\n", encoding="utf-8")


def read(file: Path) -> dict[str, float]:
    """Return the gateway's figures of the recorded run; empty without a recorded run."""
    return {name: float(str(row["ours"])) for name, row in _recorded_rows(file).items()}


def _recorded_rows(file: Path) -> dict[str, dict[str, object]]:
    if not file.exists():
        return {}
    rows: dict[str, dict[str, object]] = json.loads(file.read_text(encoding="utf-8"))["rows"]
    return rows


def table(rows: Sequence[CostRow], recorded: Mapping[str, float]) -> Grid:
    """Return the table; a ratio below 1 means cheaper than nginx, or cheaper than the recorded run.

    Without hardware counters there are no columns for instructions.
    """
    counted = any(row.instructions is not None for row in rows)
    columns = [position for position, head in enumerate(_HEADS) if counted or head != _COUNT]
    lines = [_HEADS, *(_cells(row, recorded.get(row.name)) for row in rows)]
    heads, *cells = [tuple(line[position] for position in columns) for line in lines]
    return Grid(heads, cells)


def _cells(row: CostRow, before: float | None) -> tuple[str, ...]:
    return (
        row.name,
        row.unit,
        _number(row.ours),
        _split(row.ours, row.user),
        _number(row.instructions),
        _number(row.nginx),
        _split(row.nginx, row.nginx_user),
        _number(row.nginx_instructions),
        _ratio(row.ours, row.nginx),
        _number(before),
        _ratio(row.ours, before),
    )


def _number(value: float | None) -> str:
    return "" if value is None else short(value)


def _split(value: float | None, user: float | None) -> str:
    return "" if value is None or user is None else f"{short(user)} + {short(value - user)}"


def _ratio(value: float, other: float | None) -> str:
    return f"{value / other:.2f}" if other is not None and other > 0 and value > 0 else ""


if __name__ == "__main__":
    sys.exit(main())
