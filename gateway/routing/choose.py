"""Which replica next: who may be used at all, and the better of two random ones. Pure.

The power of two choices (Mitzenmacher, 2001): comparing two random candidates is nearly as good as comparing all, and
does not send every gateway of a fleet to the same replica at once.
"""

from collections.abc import Collection, Sequence

from gateway.routing.replicas import Replica


def usable(replicas: Sequence[Replica], tried: Collection[Replica], now_s: float) -> list[Replica]:
    """Replicas a primary or failover may go to: not tried yet and let through by their breaker.

    If no breaker of the whole pool lets anything through, breakers are ignored: a shut pool helps nobody.
    """
    allowed = [replica for replica in replicas if replica.breaker.allows(now_s)]
    return [replica for replica in (allowed or replicas) if replica not in tried]


def backups(replicas: Sequence[Replica], tried: Collection[Replica], now_s: float) -> list[Replica]:
    """Replicas a hedge may go to: not tried, healthy for certain, and on the same side of every boundary tried."""
    return [
        replica
        for replica in replicas
        if replica not in tried
        and replica.breaker.allows(now_s)
        and all(replica.boundary == other.boundary for other in tried)
    ]


def least_in_flight(candidates: Sequence[Replica], rand: float) -> Replica:
    """The less busy of two random candidates; the first drawn where they are equal.

    Args:
        candidates: at least one.
        rand: uniform in [0, 1).
    """
    n = len(candidates)
    if n == 1:
        return candidates[0]
    pair = int(rand * n * (n - 1))  # one number draws an ordered pair of different candidates
    first, second = divmod(pair, n - 1)
    if second >= first:
        second += 1
    a, b = candidates[first], candidates[second]
    return b if b.in_flight < a.in_flight else a
