"""Fan-out arithmetic: the probability that at least one of n calls is slow. Pure.

P = 1 - (1 - p)^n for independent calls, each slow with probability p. Units: shares as fractions of 1.
"""

from typing import Final

CALLS: Final = (1, 2, 5, 10, 20, 25, 50, 100, 200, 500, 1000)
SHARES: Final = (0.04, 0.01, 0.001, 0.0001)


def any_slow(share: float, calls: int) -> float:
    """Return the share of requests that wait for at least one slow call.

    Args:
        share: share of slow calls.
    """
    return float(1.0 - (1.0 - share) ** calls)
