"""Command line of the cost bench: `scripts/bench-gateway`, or `python -m streaming_bench.overhead`.

Measures the CPU time of the gateway, next to nginx in front of the same back end. No units.
"""

import argparse
import sys
from pathlib import Path
from typing import Final

from streaming_bench import arguments
from streaming_bench.errors import BenchError
from streaming_bench.overhead import cost_table, growth
from streaming_bench.overhead.processes import Machine
from streaming_bench.overhead.rows import CostRow, standard

RECORDED: Final = Path(__file__).resolve().parents[2] / "docs" / "performance.json"
_FOREIGN_MAX: Final = 0.1  # more of it changes the cost of a request


def main() -> int:
    """Measure and print; return 0 for success, 1 for a failure, 130 for Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench-gateway",
        description="Measures the CPU time of a request and of a token.",
        formatter_class=arguments.DefaultsFormatter,
    )
    add = parser.add_argument
    add("--rounds", type=arguments.count, default=3, metavar="N", help="rounds, of which the median counts")
    add("--growth", choices=sorted(growth.PARTS), nargs="*", help="measure the growth of the cost: all parts, or some")
    add("--record", action="store_true", help=f"record this run in {RECORDED.name}")
    args = parser.parse_args()
    if not Path("/proc/self/schedstat").exists():
        print("/proc is missing; run the cost bench on Linux", file=sys.stderr)
        return 1
    facts, machine, rows = cost_table.machine(), Machine(), list[CostRow]()
    print(", ".join(f"{name} {value}" for name, value in facts.items()), file=sys.stderr)
    try:
        parts = args.growth or list(growth.PARTS)
        measuring = standard(machine, args.rounds) if args.growth is None else growth.rows(machine, parts, args.rounds)
        for row in measuring:
            rows.append(row)
            print(f"measured: {row.name}", file=sys.stderr)
    except BenchError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    foreign = max(row.foreign for row in rows)
    if foreign > _FOREIGN_MAX:
        print(
            f"other processes used up to {foreign:.0%} of the measured core, so figures are too high; run again",
            file=sys.stderr,
        )
    print("\n".join(cost_table.table(rows, cost_table.read(RECORDED)).markdown()))
    if args.record:
        cost_table.write(RECORDED, rows, facts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
