"""Compares the intervals of a hold-out with the truth where tails are heavy; part of the step proof of scripts/nightly.

A late request takes a Pareto time (1.3, up to 60 s) without a hedge, and with it the same time or less. Both times are
drawn once for 600 requests; then hedges are withheld at random again and again. The rows have the share of requests
that a hedge does not help: there the times of both arms are alike, which no request shows.

Units: seconds; shares are fractions of 1.
"""

import random
import sys
from typing import Final

from gateway.proof.effect import direct_effect
from gateway.proof.tally import Group, Tally

_REQUESTS: Final = 600
_LIMIT_S: Final = 60.0
_SLO_S: Final = 3.0
_DRAWS: Final = 10  # of one population


def times_s(unhelped: float, rng: random.Random) -> list[tuple[float, float]]:
    """Draw the times of each request without and with a hedge.

    Args:
        unhelped: share of the requests that take as long with the hedge.
    """
    found = []
    for _ in range(_REQUESTS):
        without_s = min(_LIMIT_S, rng.paretovariate(1.3))
        hedged_s = 0.5 + 0.3 * (rng.random() < 0.3) * (rng.paretovariate(1.3) - 1.0)
        found.append((without_s, without_s if rng.random() < unhelped else min(without_s, hedged_s)))
    return found


def coverage(unhelped: float, withheld: float, draws: int) -> float:
    """Return the share of intervals of the avoided SLO misses that contain the truth."""
    rng = random.Random(f"{unhelped}/{withheld}")
    covering, pairs = 0, list[tuple[float, float]]()
    for draw in range(draws):
        if draw % _DRAWS == 0:
            pairs = times_s(unhelped, rng)
        counts = Tally(_SLO_S, _LIMIT_S)
        for without_s, with_s in pairs:
            is_withheld = rng.random() < withheld
            counts.add(Group.WITHHELD if is_withheld else Group.GRANTED, without_s if is_withheld else with_s)
        saved = direct_effect(counts).misses.saved
        truth = sum((without_s > _SLO_S) - (with_s > _SLO_S) for without_s, with_s in pairs)
        covering += saved is not None and saved.low <= truth <= saved.high
    return covering / draws


def main() -> int:
    """Print the coverage of each row; returns 1 if one is below 92 %."""
    is_bad = False
    for unhelped in (0.0, 0.5, 1.0):
        for withheld in (0.1, 0.3, 0.5):
            found = coverage(unhelped, withheld, 1_000)
            sys.stdout.write(f"{unhelped:.0%} not helped, {withheld:.0%} withheld: {found:.1%} contain the truth\n")
            is_bad |= found < 0.92
    return is_bad


if __name__ == "__main__":
    sys.exit(main())
