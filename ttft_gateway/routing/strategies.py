"""Filters the replicas that may be used, and picks one by the strategies that need no prediction. Pure.

The power of two choices (Mitzenmacher, 2001): comparing two random candidates is nearly as good as comparing all, and
does not send every gateway of a fleet to the same replica at the same time.
"""

import enum
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from ttft_gateway.routing.replicas import Replica

_LOAD_BOUND: Final = (
    1.25  # times a replica's share of the attempts in flight: limit for affinity (Mirrokni et al., bounded loads)
)


class Routing(enum.Enum):
    """Strategy that picks a primary's replica; the value is the name in the settings."""

    PREDICTED = "predicted"  # lowest predicted TTFT
    LEAST_IN_FLIGHT = "least_in_flight"  # the less busy of two
    ROUND_ROBIN = "round_robin"
    PREFIX_AFFINITY = "prefix_affinity"  # most of the prompt cached, within a load limit


class Crossing(enum.Enum):
    """The later attempts that may cross a boundary; the value is the name in the settings.

    A side is the set of all replicas with the same `boundary`. Replicas without a boundary are a side of their own:
    their location is unknown, so nothing may be assumed. A request's first attempt may go to any replica.
    """

    NEVER = "never"
    FAILOVER = "failover"  # another attempt after a failure, fallbacks included; not a hedge
    ALWAYS = "always"


def inside(replicas: Sequence[Replica], tried: Collection[Replica]) -> list[Replica]:
    """Return the replicas on the sides of the tried ones; all replicas if none was tried."""
    if not tried:
        return list(replicas)
    sides = {replica.boundary for replica in tried}
    return [replica for replica in replicas if replica.boundary in sides]


def reachable(replicas: Sequence[Replica], tried: Collection[Replica], crossing: Crossing) -> list[Replica]:
    """Return the untried replicas that a failover may go to, in any breaker state."""
    allowed = inside(replicas, tried) if crossing is Crossing.NEVER else replicas
    return [replica for replica in allowed if replica not in tried]


def usable(replicas: Sequence[Replica], now_s: float) -> list[Replica]:
    """Return the replicas that are not taken out and have a breaker that admits a primary or failover."""
    return [replica for replica in replicas if not replica.out and replica.breaker.allows(now_s)]


def roomy(replicas: list[Replica], now_s: float) -> list[Replica]:
    """Return the replicas that are not known to be full, or all if they all are."""
    return [replica for replica in replicas if not replica.breaker.is_full(now_s, replica.in_flight)] or replicas


def uncooled(replicas: Sequence[Replica], now_s: float) -> list[Replica]:
    """Return the replicas without a cool-down, in any breaker state."""
    return [replica for replica in replicas if now_s >= replica.breaker.cooling_until_s]


def backups(
    replicas: Sequence[Replica], tried: Collection[Replica], now_s: float, crossing: Crossing = Crossing.NEVER
) -> list[Replica]:
    """Return the replicas that a hedge may go to: untried, not taken out, healthy, and within the boundaries.

    A replica that has just refused a request for load has no room for hedges.
    """
    allowed = replicas if crossing is Crossing.ALWAYS else inside(replicas, tried)
    healthy = [each for each in allowed if each not in tried and not each.out and each.breaker.is_closed(now_s)]
    return [each for each in healthy if now_s >= each.breaker.full_until_s]


def ramped(
    candidates: Sequence[Replica], now_s: float, rand: float, *, to_best: bool = False
) -> tuple[Sequence[Replica], float]:
    """Return the candidates; in the share of requests that slow start withholds, only candidates not in slow start.

    Args:
        candidates: at least one replica.
        rand: uniform random number in [0, 1).
        to_best: True if every request goes to the best candidate, which an idle replica in slow start may be: it is one
            for no more requests than it may get. Other routings spread requests over the candidates.

    Returns:
        At least one candidate, and a random number that is still uniform.
    """
    shares = [replica.breaker.share(now_s) for replica in candidates]
    share = min(shares)
    if share >= 1:
        return candidates, rand
    if to_best:
        weights = [replica.weight for replica in candidates]
        share = sum(weight * own for weight, own in zip(weights, shares, strict=True) if own < 1) / sum(weights)
    if rand < share:
        return candidates, rand / share
    rest = [replica for replica in candidates if replica.breaker.share(now_s) >= 1]
    return rest or candidates, (rand - share) / (1 - share)


def is_weighted(replicas: Sequence[Replica]) -> bool:
    """Return True if their weights differ."""
    return len({replica.weight for replica in replicas}) > 1


def least_in_flight(candidates: Sequence[Replica], rand: float) -> Replica:
    """Return the less busy of two random candidates, for their weights; the first drawn on a tie.

    Args:
        candidates: at least one replica.
        rand: uniform random number in [0, 1).
    """
    n = len(candidates)
    if n == 1:
        return candidates[0]
    if is_weighted(candidates):
        a, rand = _drawn(candidates, rand)
        b, _ = _drawn([replica for replica in candidates if replica is not a], rand)
        return b if b.in_flight * a.weight < a.in_flight * b.weight else a
    pair = int(rand * n * (n - 1))  # one number draws an ordered pair of different candidates
    first, second = divmod(pair, n - 1)
    if second >= first:
        second += 1
    a, b = candidates[first], candidates[second]
    return b if b.in_flight < a.in_flight else a


def _drawn(candidates: Sequence[Replica], rand: float) -> tuple[Replica, float]:
    """Draw a candidate by its weight; return it, and a random number that is still uniform."""
    position = rand * sum(replica.weight for replica in candidates)
    for replica in candidates:
        if position < replica.weight:
            return replica, position / replica.weight
        position -= replica.weight
    return candidates[-1], rand  # rounding


def turns(replicas: Sequence[Replica]) -> list[Replica]:
    """Return the order of a round robin: each replica as often as its weight, evenly spread."""
    places = [
        ((turn + 0.5) / replica.weight, index)
        for index, replica in enumerate(replicas)
        for turn in range(replica.weight)
    ]
    return [replicas[index] for _, index in sorted(places)]


def in_turn(order: Sequence[Replica], candidates: Collection[Replica], turn: int) -> tuple[Replica, int]:
    """Return the next candidate in an order.

    Args:
        order: all replicas of the pool, as returned by `turns`.
        candidates: at least one of them.
        turn: index of the next replica in the order.

    Returns:
        The replica, and the index of the next one.
    """
    n = len(order)
    index = next(i % n for i in range(turn, turn + n) if order[i % n] in candidates)
    return order[index], (index + 1) % n


def most_cached(candidates: Sequence[Replica], cached: Mapping[Replica, int], rand: float) -> Replica:
    """Return the replica with most of the prompt cached within 1.25 times its share of the load; in a tie the idlest.

    Args:
        candidates: at least one replica.
        cached: amount of the prompt that each replica is believed to have cached.
        rand: uniform random number in [0, 1).
    """
    load, weights = sum(replica.in_flight for replica in candidates) + 1, sum(replica.weight for replica in candidates)
    free = [
        each for each in candidates if each.in_flight + 1 <= math.ceil(_LOAD_BOUND * (load * each.weight / weights))
    ]
    most = max(cached[replica] for replica in free)
    return least_in_flight([replica for replica in free if cached[replica] == most], rand)
