"""Where a request goes: which replicas of a pool may be used, and which is best for a primary, failover, backup. Pure.

Owns the load of each replica (`ReplicaLoad`), who of them is suspect, and how those come back that have been away.
Whether a backup is wanted is not asked here.

Units: seconds of the loop's clock, tokens; `rand` is uniform in [0, 1).
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from gateway.estimation.prefixes import PrefixMemory, uncached_tokens
from gateway.estimation.stall_detector import StallDetector
from gateway.hedging.contract import RequestFacts
from gateway.hedging.parameters import HedgeParameters
from gateway.pool.learning import Learning
from gateway.pool.quotas import Quotas
from gateway.routing.replicas import SLOW_START_S, Replica
from gateway.routing.ring import Ring
from gateway.routing.strategies import (
    Routing,
    backups,
    in_turn,
    least_in_flight,
    most_cached,
    ramped,
    reachable,
    usable,
)

_NEAR_TIE: Final = 1.1  # predictions this close are equal, and another quota decides
_SHARE_MAX: Final = 1.25  # times its share of what is in flight: beyond, a primary goes to an engine as quick,
_IN_FLIGHT_MIN: Final = 4  # but a few streams are no load
_UNSEEN_S: Final = 5.0  # a replica without a request for so long gets the next primary,
_UNSEEN_RATIO: Final = 1.5  # unless it is predicted to be that much slower than the best


@dataclass(slots=True)
class ReplicaLoad:
    """What a replica is thought to be busy with.

    Attributes:
        stalls: its attempts without a first content.
        memory: the prompts in its prefix cache.
        pending: prompt tokens it has been sent and not yet answered.
        used_s: when it was last sent something.
    """

    stalls: StallDetector = field(default_factory=StallDetector)
    memory: PrefixMemory = field(default_factory=PrefixMemory)
    pending: float = 0.0
    used_s: float = -math.inf


class Picker:
    """The choice among the replicas of one pool.

    Args:
        replicas: of the pool.
        settings: how it routes.
        learning: predicts their TTFT.
        quotas: theirs.

    Attributes:
        loads: by replica; the pool keeps them up to date.
        ring: which replicas of a large pool are looked at.
    """

    def __init__(
        self, replicas: Sequence[Replica], settings: HedgeParameters, learning: Learning, quotas: Quotas
    ) -> None:
        self._replicas = tuple(replicas)
        self._settings = settings
        self._learning = learning
        self._quotas = quotas
        self.loads = {replica: ReplicaLoad() for replica in replicas}
        self.ring = Ring(self._replicas)
        self._turn = 0
        self._ramping_until_s = -math.inf  # a replica has just come back
        self._by_all = {None, *frozenset.intersection(*(each.apis for each in replicas))}  # APIs no replica is without

    def adopt_state(self, old: "Picker") -> list[Replica]:
        """Go on where another one was; loads of attempts under way are shared. Returns the replicas that stay."""
        stay = [replica for replica in self._replicas if replica in old.loads]
        self.loads |= {replica: old.loads[replica] for replica in stay}
        self._ramping_until_s = old._ramping_until_s
        return stay

    def came_back(self, now_s: float) -> None:
        """A breaker has closed: its replica gets its share of primaries little by little."""
        self._ramping_until_s = now_s + SLOW_START_S

    # a primary or failover

    def pick(
        self, facts: RequestFacts, tried: Collection[Replica], now_s: float, rand: float, *, prefills: bool = False
    ) -> Replica | None:
        """Where an attempt goes that is no hedge, None when nothing here may be used now; `prefills`: only to such."""
        groups, rand = self._groups(facts, rand)
        for group in groups:
            candidates = usable(self._in_reach(facts, group, tried), now_s)
            if self._quotas.of:
                candidates = self._quotas.unrefused(candidates, facts, now_s)
            if prefills:
                candidates = [replica for replica in candidates if replica.prefills]
            if candidates:
                return self._picked(facts, candidates, now_s, rand)
        return None

    def pick_any(self, facts: RequestFacts, tried: Collection[Replica], now_s: float, rand: float) -> Replica | None:
        """The same when nothing else is left: open breakers are ignored, because a shut pool helps nobody."""
        groups, rand = self._groups(facts, rand)
        for group in groups:
            candidates = self._quotas.unrefused(self._in_reach(facts, group, tried), facts, now_s)
            if candidates:
                return self._picked(facts, candidates, now_s, rand)
        return None

    def reachable(self, tried: Collection[Replica]) -> list[Replica]:
        """Replicas that were not tried and that boundaries let a failover go to, whatever their state."""
        return reachable(self._replicas, tried, self._settings.crossing)

    def wait_s(self, facts: RequestFacts, tried: Collection[Replica], now_s: float) -> float | None:
        """How long until a replica may be used that was not tried, if all of them have to wait; else None.

        They wait for a provider's Retry-After, or for room at an enforced limit.
        """
        in_reach = self._in_reach(facts, self._replicas, tried)
        return min((self._quotas.wait_s(replica, facts, now_s) for replica in in_reach), default=0.0) or None

    # a backup

    def backup(
        self, facts: RequestFacts, asking: Replica, tried: Collection[Replica], now_s: float, rand: float
    ) -> Replica | None:
        """Where a hedge would go: lowest predicted TTFT among the healthy, another quota where nearly equal."""
        groups, rand = self.ring.random(rand, facts.prefixes)
        healthy = (
            [
                replica
                for replica in backups(self._able(facts, group), tried, now_s, self._settings.crossing)
                if replica.hedgeable and not self.is_suspect(replica, now_s)
            ]
            for group in groups
        )
        candidates = next(filter(None, healthy), None)
        if candidates is None:
            return None
        predicted_s = self._predictions(facts, candidates, now_s)
        if predicted_s is None:
            return least_in_flight(candidates, rand)
        best, _ = self._best(candidates, predicted_s, now_s, rand)
        if best.quota is None or best.quota != asking.quota:
            return best
        limit_s = _NEAR_TIE * predicted_s[candidates.index(best)]
        near = zip(candidates, predicted_s, strict=True)
        return next((one for one, one_s in near if one.quota != asking.quota and one_s <= limit_s), best)

    # what is known of a replica

    def is_suspect(self, replica: Replica, now_s: float) -> bool:
        """It holds requests without answering them."""
        return self.loads[replica].stalls.is_suspect(now_s)

    def predict(self, facts: RequestFacts, replica: Replica, now_s: float) -> float | None:
        """The TTFT to expect of a replica, None while nothing is known."""
        uncached = self.uncached(facts, replica, now_s) if facts.prefixes else facts.prompt_tokens
        return self._learning.predictor.predict(replica.name, uncached, self.loads[replica].pending, now_s)

    def uncached(self, facts: RequestFacts, replica: Replica, now_s: float) -> float:
        """Prompt tokens a replica has to compute."""
        if not facts.prefixes:
            return facts.prompt_tokens
        cached = self.loads[replica].memory.cached_bytes(facts.prefixes, now_s)
        return uncached_tokens(facts.prompt_tokens, facts.prompt_bytes, cached)

    # inside

    def _groups(self, facts: RequestFacts, rand: float) -> tuple[Iterable[Sequence[Replica]], float]:
        """Which replicas to look at for a primary or failover, and a random number for the choice among them."""
        if not self.ring.is_large:
            return (self._replicas,), rand
        if self._settings.routing is Routing.ROUND_ROBIN:
            return self.ring.in_turn(self._turn), rand
        return self.ring.random(rand, facts.prefixes)

    def _in_reach(self, facts: RequestFacts, group: Sequence[Replica], tried: Collection[Replica]) -> Sequence[Replica]:
        """Of those in reach, who can serve the request; what is pinned to a replica begins there and nowhere else."""
        if facts.pinned is not None and facts.pinned not in tried:
            return [facts.pinned] if facts.pinned in self.loads else []
        able = group if facts.api in self._by_all else self._able(facts, group)
        return reachable(able, tried, self._settings.crossing) if tried else able

    def _able(self, facts: RequestFacts, group: Sequence[Replica]) -> Sequence[Replica]:
        """Replicas that can be asked in the API that the client speaks."""
        return [replica for replica in group if facts.api is None or facts.api in replica.apis]

    def _picked(self, facts: RequestFacts, candidates: Sequence[Replica], now_s: float, rand: float) -> Replica:
        if now_s < self._ramping_until_s:
            candidates, rand = ramped(candidates, now_s, rand)
        loads = self.loads
        suspects = [replica for replica in candidates if loads[replica].stalls.is_suspect(now_s)]
        if 0 < len(suspects) < len(candidates):
            for replica in suspects:
                if loads[replica].stalls.take_probe(now_s):
                    return replica
            candidates = [replica for replica in candidates if replica not in suspects]
        if self._quotas.of:
            candidates = self._quotas.with_headroom(candidates, now_s)
        return self._routed(facts, candidates, now_s, rand)

    def _routed(self, facts: RequestFacts, candidates: Sequence[Replica], now_s: float, rand: float) -> Replica:
        """Where a primary or failover goes, of those that may be used."""
        routing = self._settings.routing
        if routing is Routing.PREDICTED:
            return self._quickest(facts, candidates, now_s, rand)
        if routing is Routing.LEAST_IN_FLIGHT:
            return least_in_flight(candidates, rand)
        if routing is Routing.ROUND_ROBIN:
            replica, self._turn = in_turn(self._replicas, candidates, self._turn)
            return replica
        cached = {replica: self.loads[replica].memory.cached_bytes(facts.prefixes, now_s) for replica in candidates}
        return most_cached(candidates, cached, rand)

    def _quickest(self, facts: RequestFacts, candidates: Sequence[Replica], now_s: float, rand: float) -> Replica:
        """Lowest predicted TTFT; or one that has had nothing for seconds and may be as good.

        What is never asked is never found to be back.
        """
        loads, unseen = self.loads, candidates[0]
        for replica in candidates:
            if loads[replica].used_s < loads[unseen].used_s:
                unseen = replica
        is_due = loads[unseen].used_s <= now_s - _UNSEEN_S
        predicted_s = self._predictions(facts, candidates, now_s)
        if predicted_s is None:
            return unseen if is_due else least_in_flight(candidates, rand)
        best, place = self._best(candidates, predicted_s, now_s, rand)
        if is_due:
            expected_s = predicted_s[candidates.index(unseen)] + loads[unseen].stalls.overdue_s(now_s)
            if expected_s <= _UNSEEN_RATIO * predicted_s[place]:
                return unseen
        if best.batches and best.in_flight >= _IN_FLIGHT_MIN:
            return self._relieved(candidates, predicted_s, place, now_s, rand)
        return best

    def _relieved(
        self, candidates: Sequence[Replica], predicted_s: Sequence[float], best: int, now_s: float, rand: float
    ) -> Replica:
        """The best, or who is least busy of those predicted hardly slower, if it is busier than its share.

        Streams under way slow each other down, which no TTFT shows.
        """
        count, busy = len(candidates), [one.in_flight for one in candidates]
        if busy[best] * count <= _SHARE_MAX * sum(busy):
            return candidates[best]
        waits = (self.loads[one].stalls for one in candidates)
        expected_s = [one_s + wait.overdue_s(now_s) for one_s, wait in zip(predicted_s, waits, strict=True)]
        first, near_s = int(rand * count), _NEAR_TIE * expected_s[best]
        near = (place % count for place in range(first, first + count) if expected_s[place % count] <= near_s)
        return candidates[min(near, key=busy.__getitem__)]  # of equals the one whose turn it is

    def _best(
        self, candidates: Sequence[Replica], predicted_s: Sequence[float], now_s: float, rand: float
    ) -> tuple[Replica, int]:
        """Lowest predicted TTFT, ages of waiting attempts included, and its place among the candidates."""
        loads, count, best, best_s = self.loads, len(candidates), 0, math.inf
        place = int(rand * count)
        for _ in range(count):  # equals are taken in turn
            expected_s = predicted_s[place] + loads[candidates[place]].stalls.overdue_s(now_s)
            if expected_s < best_s:
                best, best_s = place, expected_s
            place = place + 1 if place + 1 < count else 0
        return candidates[best], best

    def _predictions(self, facts: RequestFacts, candidates: Sequence[Replica], now_s: float) -> list[float] | None:
        """The TTFT to expect of each, None while nothing is known."""
        loads, tokens = self.loads, facts.prompt_tokens
        if facts.prefixes:
            asked = [(one.name, self.uncached(facts, one, now_s), loads[one].pending) for one in candidates]
        else:
            asked = [(one.name, tokens, loads[one].pending) for one in candidates]
        return self._learning.predictor.predict_each(asked, now_s)
