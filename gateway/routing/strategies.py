"""Which replica next: who may be used at all, and the choices that need no prediction. Pure.

The power of two choices (Mitzenmacher, 2001): comparing two random candidates is nearly as good as comparing all, and
does not send every gateway of a fleet to the same replica at once.
"""

import enum
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from gateway.routing.replicas import BreakerState, Replica

_CLOSED: Final = BreakerState.CLOSED
_LOAD_BOUND: Final = 1.25  # times the mean in flight: affinity ends there (Mirrokni et al., bounded loads)


class Routing(enum.Enum):
    """How the replica of a primary is chosen; the value is the name in the settings."""

    PREDICTED = "predicted"  # lowest predicted TTFT
    LEAST_IN_FLIGHT = "least_in_flight"  # the less busy of two
    ROUND_ROBIN = "round_robin"
    PREFIX_AFFINITY = "prefix_affinity"  # whoever holds most of the prompt, if it is not busier than others


class Crossing(enum.Enum):
    """Which later attempts may leave the side that a request was sent to; the value is the name in the settings.

    A side is all replicas with the same `boundary`. Those without one are a side of their own: nobody has said where
    they are, so nothing may be assumed. Any replica may be the first.
    """

    NEVER = "never"
    FAILOVER = "failover"  # another attempt after a failure, fallbacks included; no hedge
    ALWAYS = "always"


def inside(replicas: Sequence[Replica], tried: Collection[Replica]) -> list[Replica]:
    """Replicas on a side that the request has been to; all of them while it has been nowhere."""
    if not tried:
        return list(replicas)
    sides = {replica.boundary for replica in tried}
    return [replica for replica in replicas if replica.boundary in sides]


def reachable(replicas: Sequence[Replica], tried: Collection[Replica], crossing: Crossing) -> list[Replica]:
    """Replicas that were not tried, on the sides a failover may go to, whatever their state."""
    reached = inside(replicas, tried) if crossing is Crossing.NEVER else replicas
    return [replica for replica in reached if replica not in tried]


def usable(replicas: Sequence[Replica], now_s: float) -> list[Replica]:
    """Those that their breaker lets a primary or failover through to."""
    return [
        replica
        for replica in replicas
        if ((breaker := replica.breaker).state is _CLOSED and now_s >= breaker.cooling_until_s)  # nearly always
        or breaker.allows(now_s)
    ]


def uncooled(replicas: Sequence[Replica], now_s: float) -> list[Replica]:
    """Those that were not told to wait, whatever else their breaker says."""
    return [replica for replica in replicas if now_s >= replica.breaker.cooling_until_s]


def backups(
    replicas: Sequence[Replica], tried: Collection[Replica], now_s: float, crossing: Crossing = Crossing.NEVER
) -> list[Replica]:
    """Replicas a hedge may go to: not tried, healthy for certain, and let through by boundaries."""
    reached = replicas if crossing is Crossing.ALWAYS else inside(replicas, tried)
    return [replica for replica in reached if replica not in tried and replica.breaker.is_closed(now_s)]


def ramped(candidates: Sequence[Replica], now_s: float, rand: float) -> tuple[Sequence[Replica], float]:
    """The candidates without those that have just come back, as often as their slow start says.

    Args:
        candidates: not empty.
        now_s: the time.
        rand: uniform in [0, 1).

    Returns:
        At least one candidate, and a random number that is uniform still.
    """
    share = min(replica.breaker.share(now_s) for replica in candidates)
    if share >= 1:
        return candidates, rand
    if rand < share:
        return candidates, rand / share
    rest = [replica for replica in candidates if replica.breaker.share(now_s) >= 1]
    return rest or candidates, (rand - share) / (1 - share)


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


def in_turn(replicas: Sequence[Replica], candidates: Collection[Replica], turn: int) -> tuple[Replica, int]:
    """The next candidate in the pool's order.

    Args:
        replicas: the pool's.
        candidates: at least one of them.
        turn: the index whose turn it is.

    Returns:
        The replica, and whose turn is next.
    """
    n = len(replicas)
    index = next(i % n for i in range(turn, turn + n) if replicas[i % n] in candidates)
    return replicas[index], (index + 1) % n


def most_cached(candidates: Sequence[Replica], cached: Mapping[Replica, int], rand: float) -> Replica:
    """Whoever holds most of the prompt among those not busier than 1.25 times the mean; the less busy of equals.

    Args:
        candidates: at least one.
        cached: how much of the prompt each is believed to hold.
        rand: uniform in [0, 1).
    """
    mean = (sum(replica.in_flight for replica in candidates) + 1) / len(candidates)
    free = [replica for replica in candidates if replica.in_flight + 1 <= math.ceil(_LOAD_BOUND * mean)]
    most = max(cached[replica] for replica in free)
    return least_in_flight([replica for replica in free if cached[replica] == most], rand)
