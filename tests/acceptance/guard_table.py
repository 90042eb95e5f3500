"""Prints what guards do beside streams that stop, stall or are slow: the table of docs/evaluation/streams.md.

Virtual time, so the figures are the same on every machine. `python tests/acceptance/guard_table.py` prints the table,
2,500 answers a row; `--count N` sets another number. Units: seconds, shares.
"""

import argparse
import sys

from stalling import LAWS, SHARED, Figures, run_law
from ttft_gateway.hedging.parameters import GuardMode

WORDS = 60
HEAD = "trouble", "shared", "guard", "longest gap p99.9", "answer p99", "guards", "lost", "tokens", "errors", "wrong"


def row(name: str, shared: str, guard: GuardMode, figures: Figures) -> tuple[str, ...]:
    """Return the cells of one row."""
    times = (f"{time_s:.2f} s" for time_s in (figures.gap_p999_s, figures.total_p99_s))
    shares = (f"{100 * share:.2g} %" for share in (figures.guards, figures.lost, figures.tokens))
    return name, shared or "no", guard.value, *times, *shares, str(figures.errors), str(figures.wrong)


def write(*cells: str) -> None:
    """Write one row."""
    sys.stdout.write(f"| {' | '.join(cells)} |\n")
    sys.stdout.flush()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2500)
    count = parser.parse_args().count
    write(*HEAD)
    write(*("---" for _ in HEAD))
    for name, law in LAWS.items():
        write(*row(name, "", GuardMode.OFF, run_law(law, guard=GuardMode.OFF, count=count, words=WORDS)))
        for shared in SHARED:
            write(*row(name, shared, GuardMode.AUTO, run_law(law, count=count, words=WORDS, shared=shared)))


if __name__ == "__main__":
    main()
