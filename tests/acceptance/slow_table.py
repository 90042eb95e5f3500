"""Prints when a slow replica is named, however fast hedges win: the table of docs/evaluation/slow-replicas.md.

The gateway's race, pool and verdict in virtual time, so the figures are the same on every machine.
`python tests/acceptance/slow_table.py` prints the table, ten seeds a row, in half an hour; `--seeds N` sets
another number. Exit code 1 if a sign is missing after 30 requests of the replica and after two minutes, an alert does
not last, or another replica is called slow. Units: seconds, requests.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence
from typing import Final

from slow_replicas import Seen, Slowness, seen_of

OWN_MAX, TIME_S_MAX = 30, 120.0
"""Bounds, of which one has to hold."""

_KEPT_MIN: Final = 0.95  # of the time after the alert
_RATES: Final = (0.2, 1.0, 4.0, 20.0)
_HEAD: Final = "slow", "kind", "req/s", "median", "longest", "own requests", "primaries after", "kept", "others"
CASES: Final = [
    *(Slowness(factor, rate, kind) for factor in (3.0, 15.0) for kind in ("openai", "vllm") for rate in _RATES),
    *(Slowness(3.0, rate, replicas=2) for rate in _RATES),
    *(Slowness(factor, rate, always=True) for factor in (3.0, 15.0) for rate in _RATES),
    *(Slowness(4.0, rate, kind, decode=True) for kind in ("openai", "vllm") for rate in _RATES),
    *(Slowness(3.0, rate, gateways=gateways) for gateways in (2, 16) for rate in (1.0, 4.0)),
    *(Slowness(15.0, rate, gateways=gateways) for gateways in (2, 16) for rate in (1.0, 4.0)),
    *(Slowness(4.0, rate, decode=True, gateways=2) for rate in (1.0, 4.0)),
    *(Slowness(1.0, rate) for rate in _RATES),
    *(Slowness(1.0, 1.0, gateways=gateways) for gateways in (2, 16)),
]


def is_named(case: Slowness, seen: Seen) -> bool:
    """Return True if a slow replica was named in time and for long, and nothing else was."""
    if case.factor == 1.0:
        return seen.times_s["alert"] == float("inf") and not seen.others
    in_time = seen.own <= OWN_MAX or seen.last_s <= TIME_S_MAX
    return in_time and seen.kept >= _KEPT_MIN and not seen.others


def row(case: Slowness, seen: Sequence[Seen]) -> tuple[str, ...]:
    """Return the cells of one row."""
    what = "answers after the first token" if case.decode else "first tokens"
    since = " from the start" if case.always else ""
    slow = f"{what} {case.factor:g}x{since}, one of {case.replicas}" if case.factor > 1.0 else "nothing"
    slow += f", {case.gateways} gateways" if case.gateways > 1 else ""
    if case.factor == 1.0:
        named = sum(each.times_s["alert"] < float("inf") or bool(each.others) for each in seen)
        return slow, case.kind, f"{case.per_second:g}", "", "", "", "", "", f"{named}"
    lasts_s = [each.last_s for each in seen]
    times = f"{statistics.median(lasts_s):.0f} s", f"{max(lasts_s):.0f} s"
    own = f"{statistics.median(each.own for each in seen):.0f}, at most {max(each.own for each in seen):.0f}"
    primaries = f"{100 * statistics.mean(each.primaries for each in seen):.1f} %"
    kept = f"{100 * min(each.kept for each in seen):.0f} %"
    others = f"{sum(bool(each.others) for each in seen)}"
    return slow, case.kind, f"{case.per_second:g}", *times, own, primaries, kept, others


def main() -> int:
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--part", type=int, default=0, help="number of the first row")
    given = parser.parse_args()
    failed = 0
    for cells in (_HEAD, ["---"] * len(_HEAD)):
        sys.stdout.write(f"| {' | '.join(cells)} |\n")
    for case in CASES[given.part :]:
        seen = [seen_of(case, seed) for seed in range(1, given.seeds + 1)]
        failed += not all(is_named(case, each) for each in seen)
        sys.stdout.write(f"| {' | '.join(row(case, seen))} |\n")
        sys.stdout.flush()
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
