"""Picks a replica of a pool: the usable ones, and the best of them for a primary, failover or backup. Pure.

Owns the load of each replica (`ReplicaLoad`), the detection of suspects, and the slow start of replicas that come back.
Does not decide whether a backup is sent.

Units: seconds of the loop's clock, tokens; `rand` is uniform in [0, 1).
"""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from gateway.estimation.break_share import BreakShare
from gateway.estimation.prefixes import PrefixMemory, uncached_tokens
from gateway.estimation.stall_detector import StallDetector
from gateway.hedging.contract import RequestFacts
from gateway.hedging.parameters import HedgeParameters
from gateway.pool.learning import Learning
from gateway.pool.quotas import Quotas
from gateway.pool.rejections import Rejections
from gateway.routing.replicas import SLOW_START_S, Replica
from gateway.routing.ring import Ring
from gateway.routing.strategies import (
    Routing,
    backups,
    is_weighted,
    least_in_flight,
    most_cached,
    ramped,
    reachable,
    usable,
)

_NEAR_TIE: Final = 1.1  # predictions within this ratio count as equal, so that another quota decides
_SHARE_MAX: Final = 1.25  # times an equal share of the streams in flight; above it an equally quick engine is picked
_IN_FLIGHT_MIN: Final = 4  # fewer streams in flight are no load
_WEIGHED_RATIO: Final = 1.5  # with weights, predictions within this ratio of the best one count as equal
_BREAKS_S: Final = 600.0  # time after a broken answer in which complete ones are counted, too
_UNSEEN_S: Final = 5.0  # a replica without a request for this long gets the next primary; longer, ...
_UNSEEN_REQUESTS: Final = 12.0  # ... if an equal share of the traffic has not brought it this number of requests
_PROBE_S: Final = 5.0  # time between two primaries of a suspect replica; longer, ...
_PROBE_REQUESTS: Final = 50.0  # ... if the pool has not had this number of requests: 2 % of them are enough
_PROBE_UNPAID: Final = 3.0  # times as long without a probe that could be hedged
_MEMORY_S: Final = 30.0  # time for which levels are remembered; longer, ...
_MEMORY_REQUESTS: Final = 75.0  # ... until an equal share of the traffic has brought a replica this number of requests
_GAP_WEIGHT: Final = 0.02  # of the last time between two requests in their mean
_UNSEEN_RATIO: Final = 1.5  # unless its prediction is over the best one by more than this ratio


@dataclass(slots=True)
class ReplicaLoad:
    """The estimated load of a replica.

    Attributes:
        rejections: judge of its rejections.
        breaks: share of answers that broke after their first content.
        stalls: attempts without first content.
        memory: prompts in its prefix cache.
        pending: prompt tokens of attempts without first content.
        used_s: time of the last attempt sent to it.
    """

    rejections: Rejections
    breaks: BreakShare = field(default_factory=BreakShare)
    stalls: StallDetector = field(default_factory=StallDetector)
    memory: PrefixMemory = field(default_factory=PrefixMemory)
    pending: float = 0.0
    used_s: float = -math.inf


class Picker:
    """Picks among the replicas of one pool.

    Args:
        can_hedge: returns True if a request that is sent now could be hedged at once, or never.

    Attributes:
        loads: loads by replica; the pool updates them.
        ring: selects the candidates of a large pool.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        settings: HedgeParameters,
        learning: Learning,
        quotas: Quotas,
        can_hedge: Callable[[RequestFacts, float], bool],
    ) -> None:
        self._replicas = tuple(replicas)
        self._settings = settings
        self._learning = learning
        self._quotas = quotas
        self._can_hedge = can_hedge
        self.loads = {replica: ReplicaLoad(Rejections(replica.breaker)) for replica in replicas}
        self.ring = Ring(self._replicas)
        self._is_weighted = is_weighted(self._replicas)
        ordinary, reserve = ([each for each in replicas if each.backup_only is only] for only in (False, True))
        # rings for primaries and failovers, in order of preference
        self._tiers = tuple(Ring(tier, self.ring) for tier in (ordinary, reserve) if tier) if reserve else (self.ring,)
        self._request_s = math.inf  # time of the last request
        self._unseen_s, self._probe_every_s = _UNSEEN_S, _PROBE_S
        self._gap_s = 0.0  # mean time between two requests
        self._breaking_until_s = -math.inf  # end of the time in which answers are counted because one broke
        self._ramping_until_s = -math.inf  # end of the slow start of the last replica that came back
        self._common_apis = {None, *frozenset.intersection(*(each.apis for each in replicas))}  # APIs of every replica

    def adopt_state(self, old: "Picker") -> list[Replica]:
        """Take over the state of another picker and return the replicas that stay; running attempts share the loads."""
        stay = [replica for replica in self._replicas if replica in old.loads]
        self._request_s, self._gap_s = old._request_s, old._gap_s
        self.loads |= {replica: old.loads[replica] for replica in stay}
        self._ramping_until_s = old._ramping_until_s
        self._breaking_until_s = old._breaking_until_s
        return stay

    def on_request(self, now_s: float) -> None:
        """Count a request: with little traffic, what was learned is remembered for longer."""
        if now_s > self._request_s:
            self._gap_s += _GAP_WEIGHT * (now_s - self._request_s - self._gap_s)
            share_s = len(self._replicas) * self._gap_s
            self._unseen_s = max(_UNSEEN_S, _UNSEEN_REQUESTS * share_s)
            self._probe_every_s = max(_PROBE_S, _PROBE_REQUESTS * self._gap_s)
            self._learning.predictor.memory_s = max(_MEMORY_S, _MEMORY_REQUESTS * share_s)
        self._request_s = now_s

    def on_recovered(self, now_s: float) -> None:
        """Start the slow start after a breaker has closed: its replica's share of primaries grows step by step."""
        self._ramping_until_s = now_s + SLOW_START_S

    def on_answer(self, replica: Replica, now_s: float, *, broken: bool) -> None:
        """Count an answer that was complete, or broke after its first content."""
        if broken:
            self._breaking_until_s = now_s + _BREAKS_S
        elif now_s >= self._breaking_until_s:
            return
        self.loads[replica].breaks.add(now_s, broken=broken)

    # a primary or failover

    def pick(
        self, facts: RequestFacts, tried: Collection[Replica], now_s: float, rand: float, *, prefills: bool = False
    ) -> Replica | None:
        """Pick a replica for a primary or failover, None if none is usable now; `prefills` requires prefill support."""
        tiers = self._tiers if facts.pinned is None else (self.ring,)
        stalled: tuple[Ring, Sequence[Replica]] | None = None
        for ring in tiers:
            groups, rand = self._groups(ring, facts, rand)
            for group in groups:
                candidates = usable(self._in_reach(facts, group, tried), now_s)
                if self._quotas.of:
                    candidates = self._quotas.without_wait(candidates, facts, now_s)
                if prefills:
                    candidates = [replica for replica in candidates if replica.prefills]
                if not candidates:
                    continue
                if ring is tiers[-1] or self._answers(candidates, now_s):
                    return self._pick_usable(ring, facts, candidates, now_s, rand)
                stalled = stalled or (ring, candidates)
        return None if stalled is None else self._pick_usable(stalled[0], facts, stalled[1], now_s, rand)

    def pick_ignoring_breakers(
        self, facts: RequestFacts, tried: Collection[Replica], now_s: float, rand: float
    ) -> Replica | None:
        """Pick a replica with open breakers ignored: the last resort, better than rejecting the request."""
        groups, rand = self._groups(self.ring, facts, rand)
        for group in groups:
            in_use = [replica for replica in self._in_reach(facts, group, tried) if not replica.out]
            candidates = self._quotas.without_wait(in_use, facts, now_s)
            if candidates:
                return self._pick_usable(self.ring, facts, candidates, now_s, rand)
        return None

    def reachable(self, tried: Collection[Replica]) -> list[Replica]:
        """Return the untried replicas within the boundaries of a failover, in any state."""
        return reachable(self._replicas, tried, self._settings.crossing)

    def wait_s(self, facts: RequestFacts, tried: Collection[Replica], now_s: float) -> float | None:
        """Return the time until the first untried replica is usable; None if there is none, or one is usable now.

        A replica waits for a provider's Retry-After, or for room at an enforced limit.
        """
        in_use = [replica for replica in self._in_reach(facts, self._replicas, tried) if not replica.out]
        return min((self._quotas.wait_s(replica, facts, now_s) for replica in in_use), default=0.0) or None

    # a backup

    def backup(
        self,
        facts: RequestFacts,
        asking: Replica,
        tried: Collection[Replica],
        now_s: float,
        rand: float,
        barred: Collection[Replica] = (),
    ) -> Replica | None:
        """Pick a replica for a hedge: lowest predicted TTFT of the healthy ones, another quota in a near tie.

        Args:
            tried: replicas that the request was sent to; their boundaries are those of the backup.
            barred: other replicas that may not be picked.
        """
        groups, rand = self.ring.random(rand, facts.prefixes)
        healthy = (
            [
                replica
                for replica in backups(self._able(facts, group), tried, now_s, self._settings.crossing)
                if replica.hedgeable and replica not in barred and self._takes_hedge(replica, now_s)
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
        return next((each for each, each_s in near if each.quota != asking.quota and each_s <= limit_s), best)

    # state of a replica

    def is_suspect(self, replica: Replica, now_s: float) -> bool:
        """Return True if it holds requests without answering them."""
        return self.loads[replica].stalls.is_suspect(now_s)

    def predict(self, facts: RequestFacts, replica: Replica, now_s: float) -> float | None:
        """Return the predicted TTFT of a replica, None while there is no prediction."""
        uncached = self.uncached(facts, replica, now_s) if facts.prefixes else facts.prompt_tokens
        return self._learning.predictor.predict(replica.name, uncached, self.loads[replica].pending, now_s)

    def uncached(self, facts: RequestFacts, replica: Replica, now_s: float) -> float:
        """Return the prompt tokens that a replica has to compute."""
        if not facts.prefixes:
            return facts.prompt_tokens
        cached = self.loads[replica].memory.cached_bytes(facts.prefixes, now_s)
        return uncached_tokens(facts.prompt_tokens, facts.prompt_bytes, cached)

    # inside

    def _groups(self, ring: Ring, facts: RequestFacts, rand: float) -> tuple[Iterable[Sequence[Replica]], float]:
        """Return the groups of candidates for a primary or failover, and a random number for the pick among them."""
        if not ring.is_large:
            return (ring.replicas,), rand
        if self._settings.routing is Routing.ROUND_ROBIN:
            return ring.in_turn(), rand
        return ring.random(rand, facts.prefixes)

    def _in_reach(self, facts: RequestFacts, group: Sequence[Replica], tried: Collection[Replica]) -> Sequence[Replica]:
        """Return the reachable replicas that support the request; a pinned request starts on its replica only."""
        if facts.pinned is not None and facts.pinned not in tried and not facts.pinned.out:
            return [facts.pinned] if facts.pinned in self.loads else []
        able = group if facts.api in self._common_apis else self._able(facts, group)
        return reachable(able, tried, self._settings.crossing) if tried else able

    def _able(self, facts: RequestFacts, group: Sequence[Replica]) -> Sequence[Replica]:
        return [replica for replica in group if facts.api is None or facts.api in replica.apis]

    def _answers(self, candidates: Sequence[Replica], now_s: float) -> bool:
        """Return True if one of them is not suspect, or due for a probe."""
        stalls = [self.loads[replica].stalls for replica in candidates]
        return any(not each.is_suspect(now_s) for each in stalls) or any(
            each.take_probe(now_s, self._probe_every_s) for each in stalls
        )

    def _takes_hedge(self, replica: Replica, now_s: float) -> bool:
        """Return True if it is not suspect; a suspect backup-only replica gets no primary, so its probe is a hedge."""
        stalls = self.loads[replica].stalls
        return not stalls.is_suspect(now_s) or (replica.backup_only and stalls.take_probe(now_s, self._probe_every_s))

    def _pick_usable(
        self, ring: Ring, facts: RequestFacts, candidates: Sequence[Replica], now_s: float, rand: float
    ) -> Replica:
        if now_s < self._ramping_until_s:
            candidates, rand = ramped(candidates, now_s, rand)
        loads = self.loads
        suspects = [replica for replica in candidates if loads[replica].stalls.is_suspect(now_s)]
        if 0 < len(suspects) < len(candidates):
            every_s = self._probe_every_s
            if not self._can_hedge(facts, now_s):  # a probe is hedged at once
                every_s *= _PROBE_UNPAID
            for replica in suspects:
                if loads[replica].stalls.take_probe(now_s, every_s):
                    return replica
            candidates = [replica for replica in candidates if replica not in suspects]
        if self._quotas.of:
            candidates = self._quotas.with_headroom(candidates, now_s)
        return self._pick_routed(ring, facts, candidates, now_s, rand)

    def _pick_routed(
        self, ring: Ring, facts: RequestFacts, candidates: Sequence[Replica], now_s: float, rand: float
    ) -> Replica:
        """Pick among usable replicas by the pool's routing."""
        routing = self._settings.routing
        if routing is Routing.PREDICTED:
            return self._quickest(facts, candidates, now_s, rand)
        if routing is Routing.LEAST_IN_FLIGHT:
            return least_in_flight(candidates, rand)
        if routing is Routing.ROUND_ROBIN:
            return ring.take_turn(candidates)
        cached = {replica: self.loads[replica].memory.cached_bytes(facts.prefixes, now_s) for replica in candidates}
        return most_cached(candidates, cached, rand)

    def _quickest(self, facts: RequestFacts, candidates: Sequence[Replica], now_s: float, rand: float) -> Replica:
        """Pick the lowest predicted TTFT, or a replica without recent requests that may be as quick.

        Without such requests the gateway would never notice that a replica has recovered.
        """
        loads, unseen = self.loads, candidates[0]
        for replica in candidates:
            if loads[replica].used_s < loads[unseen].used_s:
                unseen = replica
        is_due = loads[unseen].used_s <= now_s - self._unseen_s
        predicted_s = self._predictions(facts, candidates, now_s)
        if predicted_s is None:
            return unseen if is_due else least_in_flight(candidates, rand)
        best, index = self._best(candidates, predicted_s, now_s, rand)
        if is_due:
            expected_s = predicted_s[candidates.index(unseen)] + loads[unseen].stalls.overdue_s(now_s)
            if expected_s <= _UNSEEN_RATIO * predicted_s[index]:
                return unseen
        if self._is_weighted:
            return self._weighed(candidates, predicted_s, _WEIGHED_RATIO * predicted_s[index], now_s, rand)
        if best.batches and best.in_flight >= _IN_FLIGHT_MIN:
            return self._least_busy(candidates, predicted_s, index, now_s, rand)
        return best

    def _weighed(
        self, candidates: Sequence[Replica], predicted_s: Sequence[float], near_s: float, now_s: float, rand: float
    ) -> Replica:
        """Return a replica by weight and load, of those with an expected TTFT of at most `near_s`."""
        each_s = zip(candidates, predicted_s, strict=True)
        near = [each for each, own_s in each_s if own_s + self.loads[each].stalls.overdue_s(now_s) <= near_s]
        return least_in_flight(near or candidates, rand)

    def _least_busy(
        self, candidates: Sequence[Replica], predicted_s: Sequence[float], best: int, now_s: float, rand: float
    ) -> Replica:
        """Return the best replica; if it is over its share, the least busy one of those in a near tie with it.

        Running streams slow each other down, which TTFT does not show.
        """
        count, in_flight = len(candidates), [each.in_flight for each in candidates]
        if in_flight[best] * count <= _SHARE_MAX * sum(in_flight):
            return candidates[best]
        waits = (self.loads[each].stalls for each in candidates)
        expected_s = [each_s + wait.overdue_s(now_s) for each_s, wait in zip(predicted_s, waits, strict=True)]
        start, near_s = int(rand * count), _NEAR_TIE * expected_s[best]
        near = (index % count for index in range(start, start + count) if expected_s[index % count] <= near_s)
        return candidates[min(near, key=in_flight.__getitem__)]  # the first one after a random start wins a tie

    def _best(
        self, candidates: Sequence[Replica], predicted_s: Sequence[float], now_s: float, rand: float
    ) -> tuple[Replica, int]:
        """Return the replica with the lowest predicted TTFT plus overdue time of its attempts, and its index."""
        loads, count, best, best_s = self.loads, len(candidates), 0, math.inf
        index = int(rand * count)
        for _ in range(count):  # from a random start, so that ties are spread
            expected_s = predicted_s[index] + loads[candidates[index]].stalls.overdue_s(now_s)
            if expected_s < best_s:
                best, best_s = index, expected_s
            index = index + 1 if index + 1 < count else 0
        return candidates[best], best

    def _predictions(self, facts: RequestFacts, candidates: Sequence[Replica], now_s: float) -> list[float] | None:
        """Return the predicted TTFT of each candidate, None while there is no prediction."""
        loads, tokens = self.loads, facts.prompt_tokens
        if facts.prefixes:
            queries = [(each.name, self.uncached(facts, each, now_s), loads[each].pending) for each in candidates]
        else:
            queries = [(each.name, tokens, loads[each].pending) for each in candidates]
        predicted_s = self._learning.predictor.predict_each(queries, now_s)
        if now_s >= self._breaking_until_s or predicted_s is None:
            return predicted_s
        return [own_s + loads[each].breaks.cost_s(now_s) for each, own_s in zip(candidates, predicted_s, strict=True)]
