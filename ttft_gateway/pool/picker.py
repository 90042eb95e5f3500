"""Picks a replica of a pool: the usable ones, and the best of them for a primary, failover or backup. Pure.

`pick_usual` picks nearly every primary, in one pass over the predictions, while all replicas are in their usual state.
The other functions serve any state and any routing: replicas that are suspect, taken out, cooling down, in slow start
or at a limit of their quota, pinned requests, weights. In the usual state both pick the same replica; tests compare
them. Each state is read from its owner at the time of the pick, so no copy can be out of date. Does not decide whether
a backup is sent.

Units: seconds of the loop's clock, tokens; `rand` is uniform in [0, 1).
"""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from operator import add, attrgetter, itemgetter
from typing import TYPE_CHECKING, Final

from ttft_gateway.estimation.predictor import TTFT_MIN_S
from ttft_gateway.estimation.stall_detector import StallDetector
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.hedging.parameters import ANSWER_WEIGHTS, HedgeParameters
from ttft_gateway.limits.ledger import Ledger
from ttft_gateway.pool.learning import Learning
from ttft_gateway.pool.loads import UNSEEN_S, Loads, ReplicaLoad
from ttft_gateway.pool.quotas import Quotas
from ttft_gateway.pool.streams import Streams
from ttft_gateway.routing.replicas import Breaker, Replica
from ttft_gateway.routing.ring import Ring
from ttft_gateway.routing.strategies import (
    Routing,
    backups,
    is_weighted,
    least_in_flight,
    most_cached,
    ramped,
    reachable,
    roomy,
    usable,
)

if TYPE_CHECKING:
    from ttft_gateway.pool.bills import Bills

_NEAR_TIE: Final = 1.1  # predictions within this ratio count as equal, so that load or another quota decides
_UNSEEN_RATIO: Final = 1.5  # a replica without requests gets one unless its prediction is worse by more than this ratio
_SHARE_MAX: Final = 1.25  # times an equal share of the streams in flight; above it an equally quick engine is picked
_IN_FLIGHT_MIN: Final = 4  # fewer streams in flight are no load
_FIRST_REQUEST_S: Final = 1.0  # a new replica gets the next primary after this time, if it has had none
_WEIGHED_RATIO: Final = 1.5  # with weights, predictions within this ratio of the best one count as equal
_PROBE_UNPAID: Final = 3.0  # times as long without a probe that could be hedged
_SEEN_S: Final = 0.999 * UNSEEN_S  # no replica is due for a request so soon after its last one, rounding included
_NO_LIMITS: Final = Ledger()  # for a replica without a quota

Choice = tuple[float, float, float, Replica, ReplicaLoad]
"""A replica for a primary, with its load.

The numbers before it: the time by which replicas are compared, which is the predicted TTFT with the cost of broken
answers, the overdue time of waiting attempts and the weighted time of the answer; the predicted TTFT; and the prompt
tokens that it has to compute.
"""

_Row = tuple[Replica, ReplicaLoad, Breaker, StallDetector, str]

_IN_FLIGHT: Final = attrgetter("in_flight")
_EXPECTED_S: Final = itemgetter(0)


class Picker:
    """Picks among the replicas of one pool.

    Args:
        can_hedge: returns True if a request that is sent now could be hedged immediately, or never.
        bills: chooses by the bill; None where the shortest time is chosen.

    Attributes:
        ring: selects the candidates of a large pool.
        tiers: rings for primaries and failovers, in order of preference.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        settings: HedgeParameters,
        loads: Loads,
        learning: Learning,
        quotas: Quotas,
        streams: Streams,
        can_hedge: Callable[[RequestFacts, float], bool],
        bills: "Bills | None" = None,
    ) -> None:
        self._replicas = tuple(replicas)
        self._settings = settings
        self._loads = loads
        self._learning = learning
        self._quotas = quotas
        self._streams = streams
        self._answer_weight = ANSWER_WEIGHTS[settings.prefer]
        self._can_hedge = can_hedge
        self._bills = bills
        self.ring = Ring(self._replicas)
        self._is_weighted = is_weighted(self._replicas)
        ordinary, reserve = ([each for each in replicas if each.backup_only is only] for only in (False, True))
        self.tiers = tuple(Ring(tier, self.ring) for tier in (ordinary, reserve) if tier) if reserve else (self.ring,)
        # The APIs that every replica serves, and None.
        self._common_apis = {None, *(frozenset.intersection(*(each.apis for each in replicas)) if replicas else ())}
        self._first_tier = first = self.tiers[0]
        # False without a replica that takes primaries.
        has_primaries = any(not replica.backup_only for replica in first.replicas)
        is_compared = settings.routing is Routing.PREDICTED and not self._is_weighted and has_primaries and not bills
        self._usual_apis = self._common_apis if is_compared else set()  # of the requests that `pick_usual` serves
        self._rows_of: dict[Replica, _Row] = {
            each: (each, loads.of[each], each.breaker, loads.of[each].stalls, each.name) for each in first.replicas
        }
        self._rows = 2 * list(self._rows_of.values())  # twice: from each start, a whole round follows
        self._seen_until_s = -math.inf  # time until which no replica of a small ring is due for a request
        self._doubted_s = -math.inf  # last request to a replica because it may be slow: one after the other is tested

    # a primary or failover

    def pick_usual(self, facts: RequestFacts, now_s: float, rand: float) -> Choice | None:
        """Pick the replica with the lowest prediction, or one that is due for a request; None in an unusual state."""
        if facts.api not in self._usual_apis or facts.pinned is not None:
            return None
        loads, ledgers, rows, count = self._loads, self._quotas.of, self._rows, len(self._rows_of)
        if self._first_tier.is_large:
            groups, rand = self._first_tier.random(rand, facts.prefixes)
            group = [self._rows_of[replica] for replica in next(groups)]
            rows, count = group + group, len(group)
        if now_s < loads.ramping_until_s:
            return None
        law = self._learning.predictor.law(now_s)
        if law is None:
            return None
        (b, s, c), scales = law
        uncached, prefixes, is_breaking = facts.prompt_tokens, facts.prefixes, now_s < loads.breaking_until_s
        idle_s = b + s * uncached
        choices: list[Choice] = []
        start = int(rand * count)  # the first one after a random start wins a tie
        for replica, load, breaker, stalls, name in rows[start : start + count]:
            if (
                replica.out
                or (breaker.eventful and (not breaker.is_closed(now_s) or breaker.is_full(now_s, replica.in_flight)))
                or (
                    ledgers
                    and now_s < ledgers.get(replica, _NO_LIMITS).restricts_until_s
                    and not self._quotas.is_free(replica, facts, now_s)
                )
            ):
                return None
            if prefixes:
                uncached = loads.uncached(facts, replica, now_s)
                idle_s = b + s * uncached
            ttft_s = (idle_s + c * load.pending) * scales.get(name, 1.0)
            if ttft_s < TTFT_MIN_S:
                ttft_s = TTFT_MIN_S
            expected_s = ttft_s
            if now_s > stalls.due_s or stalls.late or is_breaking:
                if stalls.is_suspect(now_s):
                    return None
                own_s = ttft_s + load.breaks.cost_s(now_s) if is_breaking else ttft_s
                expected_s = own_s + stalls.overdue_s(now_s)
            choices.append((expected_s, ttft_s, uncached, replica, load))
        best = min(choices, key=_EXPECTED_S)
        if (
            now_s >= self._seen_until_s
            or best[3].in_flight >= _IN_FLIGHT_MIN
            or self._streams.law is not None
            or self._learning.crowding.matters
        ):
            return self._compared(best, choices, rows[:count], facts, now_s)
        return best

    def pick(
        self,
        facts: RequestFacts,
        tried: Collection[Replica],
        now_s: float,
        rand: float,
        *,
        able: Callable[[Replica], bool] | None = None,
    ) -> Replica | None:
        """Pick a replica for a primary or failover, None if none is usable now; `able` excludes further replicas."""
        if now_s >= self._streams.due_s:
            self._streams.look(now_s)
        tiers = self.tiers if facts.pinned is None else (self.ring,)
        stalled: tuple[Ring, Sequence[Replica]] | None = None
        for ring in tiers:
            groups, rand = self._groups(ring, facts, rand)
            for group in groups:
                candidates = usable(self._in_reach(facts, group, tried), now_s)
                if self._quotas.of:
                    candidates = self._quotas.without_wait(candidates, facts, now_s)
                if able is not None:
                    candidates = [replica for replica in candidates if able(replica)]
                if not candidates:
                    continue
                if self._bills is None:  # the cheapest way is asked, although it often refuses
                    candidates = roomy(candidates, now_s)
                if ring is tiers[-1] or self._answers(candidates, now_s):
                    return self._pick_usable(ring, facts, candidates, now_s, rand)
                stalled = stalled or (ring, candidates)
        return None if stalled is None else self._pick_usable(stalled[0], facts, stalled[1], now_s, rand)

    def pick_ignoring_breakers(
        self,
        facts: RequestFacts,
        tried: Collection[Replica],
        now_s: float,
        rand: float,
        key_name: str | None = None,
    ) -> Replica | None:
        """Pick a replica with open breakers ignored: the last resort, better than rejecting the request.

        Those with the fewest failures are asked in turn: any may answer again, and one that refuses is quick.

        Args:
            key_name: name of a caller's key: only replicas that are out because they reject other callers' requests;
                None for any replica.
        """
        groups, rand = self._groups(self.ring, facts, rand)
        for group in groups:
            in_use = [
                replica
                for replica in self._in_reach(facts, group, tried)
                if not replica.out and (key_name is None or self._loads.of[replica].rejections.admits(key_name))
            ]
            candidates = self._quotas.without_wait(in_use, facts, now_s)
            if candidates:
                fewest = min(each.breaker.failures + each.breaker.broken for each in candidates)
                candidates = [each for each in candidates if each.breaker.failures + each.breaker.broken == fewest]
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
        waited_s: float = 0.0,
    ) -> Replica | None:
        """Pick a replica for a hedge: the healthy one with the lowest predicted TTFT; in a near tie, on another quota.

        A replica without room for hedges in its quota is picked only if no replica has any.

        Args:
            tried: replicas that the request was sent to; the backup has their boundaries.
            barred: other replicas that may not be picked.
            waited_s: time since the request was sent first.
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
        able = next(filter(None, healthy), None)
        if able is None:
            return None
        candidates = self._quotas.with_room(able, facts, now_s)
        if self._bills is not None:
            return self._bills.backup(candidates, facts, waited_s)
        predicted_s = self._predictions(facts, candidates, now_s)
        if predicted_s is None:
            return least_in_flight(candidates, rand)
        expected_s = self._with_answers(facts, candidates, predicted_s)
        best = candidates[_first_least(self._with_overdue(candidates, expected_s, now_s), rand)]
        if best.quota is None or best.quota != asking.quota:
            return best
        limit_s = _NEAR_TIE * expected_s[candidates.index(best)]
        near = zip(candidates, expected_s, strict=True)
        return next((each for each, each_s in near if each.quota != asking.quota and each_s <= limit_s), best)

    # state of a replica

    def predict(self, facts: RequestFacts, replica: Replica, now_s: float) -> float | None:
        """Return the predicted TTFT of a replica, None while there is no prediction."""
        uncached = self._loads.uncached(facts, replica, now_s) if facts.prefixes else facts.prompt_tokens
        return self._learning.predictor.predict(replica.name, uncached, self._loads.of[replica].pending, now_s)

    def answer_loss_s(self, facts: RequestFacts, late: Replica, backup: Replica) -> float:
        """Return the weighted time by which the rest of an answer is expected to take longer at a backup."""
        law = self._streams.law
        if law is None or not self._answer_weight:
            return 0.0
        late_s = law.answer_s(late.name, late.in_flight, facts.answer_tokens)
        backup_s = law.answer_s(backup.name, backup.in_flight + 1, facts.answer_tokens)
        return self._answer_weight * max(0.0, backup_s - late_s)

    # helpers of a primary in the usual state

    def _compared(
        self, best: Choice, choices: Sequence[Choice], rows: Sequence[_Row], facts: RequestFacts, now_s: float
    ) -> Choice:
        """Return a choice that is preferred to the best one.

        It is due for a request, expected to end its answer earlier, less crowded, or nearly as good and less busy.
        """
        is_breaking = now_s < self._loads.breaking_until_s
        if now_s >= self._seen_until_s:
            unseen, own_s, load = self._due(rows, choices, now_s), best[1], best[4]
            if is_breaking:
                own_s += load.breaks.cost_s(now_s)
            if unseen is not None and unseen[0] <= _UNSEEN_RATIO * own_s:
                return unseen
        predicted_s = [each[1] + each[4].breaks.cost_s(now_s) if is_breaking else each[1] for each in choices]
        times_s = self._times_s(facts, [each[3] for each in choices], predicted_s, [each[0] for each in choices], now_s)
        if times_s is not None:
            choices = [(time_s, *each[1:]) for each, time_s in zip(choices, times_s, strict=True)]
            best = min(choices, key=_EXPECTED_S)
        if _is_over_share(
            best[3], [each[3] for each in choices] if self._first_tier.is_large else self._first_tier.replicas
        ):
            return min((each for each in choices if each[0] <= _NEAR_TIE * best[0]), key=lambda each: each[3].in_flight)
        return best

    def _due(self, rows: Sequence[_Row], choices: Sequence[Choice], now_s: float) -> Choice | None:
        """Return the choice with a replica that is due for a request."""
        oldest_s = math.inf
        own_only = self._loads.processes > 1 and self._streams.law is not None
        for row in rows:
            seen_s = self._seen_s(row[0]) if own_only else row[1].used_s
            if seen_s < oldest_s:
                oldest_s = seen_s
        if not self._first_tier.is_large:
            self._seen_until_s = oldest_s + _SEEN_S
        if oldest_s > now_s - self._loads.doubted_s:
            return None
        due = self._due_among([row[0] for row in rows], now_s)
        return None if due is None else next(each for each in choices if each[3] is due)

    # helpers in any state

    def _due_among(self, candidates: Sequence[Replica], now_s: float) -> Replica | None:
        """Return the replica that is longest without a request if it is due for one; one that may be slow is sooner."""
        loads, doubted, unseen_s = self._loads.of, self._learning.predictor.doubted, self._loads.unseen_s
        soon_s = now_s - self._loads.doubted_s
        if doubted and self._doubted_s <= soon_s:
            soon = [each for each in candidates if each.name in doubted and loads[each].used_s <= soon_s]
            if soon:
                candidates, unseen_s, self._doubted_s = soon, self._loads.doubted_s, now_s
        unseen = min(candidates, key=self._seen_s)  # the first in the configured order
        return unseen if self._seen_s(unseen) <= now_s - unseen_s else None

    def _seen_s(self, replica: Replica) -> float:
        """Return the time of a replica's last request; with slow answers, requests of other gateways do not count.

        Speeds of answers are not shared: by another gateway's request, this gateway does not learn that they are quick
        again. All gateways together send as many requests to see it as one would.
        """
        loads = self._loads
        load, others = loads.of[replica], loads.processes - 1
        if others <= 0 or self._streams.slowness(replica.name) <= 1.0:
            return load.used_s
        return min(load.used_s, load.own_s + others * loads.unseen_s)

    def _times_s(
        self,
        facts: RequestFacts,
        candidates: Sequence[Replica],
        predicted_s: Sequence[float],
        expected_s: Sequence[float],
        now_s: float,
    ) -> Sequence[float] | None:
        """Return the times by which the candidates are compared for a primary; None for the expected ones.

        They are the expected times with the weighted times of the answers. While the number in flight is known to
        matter, it is counted in place of overdue attempts, which are some of it, and of half of what a prediction has
        of a queue: the geometric mean of the predicted TTFT, and of the time for the prompt alone.
        """
        answers_s, loads, law = (
            self._answer_costs_s(facts, candidates),
            self._loads,
            self._learning.predictor.law(now_s),
        )
        if self._learning.crowding.matters and law is not None:
            (b, s, _), _ = law
            least, is_breaking = 1 + min(map(_IN_FLIGHT, candidates)), now_s < loads.breaking_until_s
            crowded_s = []
            for replica, own_s in zip(candidates, predicted_s, strict=True):
                break_s = loads.of[replica].breaks.cost_s(now_s) if is_breaking else 0.0
                uncached = loads.uncached(facts, replica, now_s) if facts.prefixes else facts.prompt_tokens
                alone_s = max(TTFT_MIN_S, b + s * uncached)
                crowded_s.append(math.sqrt(alone_s * (own_s - break_s)) * (1 + replica.in_flight) / least + break_s)
            expected_s = crowded_s
        elif answers_s is None:
            return None
        return expected_s if answers_s is None else list(map(add, expected_s, answers_s))

    def _answer_costs_s(self, facts: RequestFacts, candidates: Sequence[Replica]) -> list[float] | None:
        """Return the weighted time by which each candidate ends an answer later than the quickest; None if unknown."""
        law, weight = self._streams.law, self._answer_weight
        if law is None or not weight:
            return None
        tokens_max = facts.answer_tokens
        costs_s = [weight * law.answer_s(each.name, each.in_flight + 1, tokens_max) for each in candidates]
        least_s = min(costs_s)
        return [cost_s - least_s for cost_s in costs_s]

    def _with_answers(
        self, facts: RequestFacts, candidates: Sequence[Replica], predicted_s: list[float]
    ) -> list[float]:
        """Return the predictions with the weighted times of the answers."""
        costs_s = self._answer_costs_s(facts, candidates)
        if costs_s is None:
            return predicted_s
        return [own_s + cost_s for own_s, cost_s in zip(predicted_s, costs_s, strict=True)]

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
            return [facts.pinned] if facts.pinned in self._loads.of else []
        able = group if facts.api in self._common_apis else self._able(facts, group)
        return reachable(able, tried, self._settings.crossing) if tried else able

    def _able(self, facts: RequestFacts, group: Sequence[Replica]) -> Sequence[Replica]:
        return [replica for replica in group if facts.api is None or facts.api in replica.apis]

    def _answers(self, candidates: Sequence[Replica], now_s: float) -> bool:
        """Return True if one of them is not suspect, or due for a probe."""
        stalls = [self._loads.of[replica].stalls for replica in candidates]
        return any(not each.is_suspect(now_s) for each in stalls) or any(
            each.take_probe(now_s, self._loads.probe_every_s) for each in stalls
        )

    def _takes_hedge(self, replica: Replica, now_s: float) -> bool:
        """Return True if it has answered and is not suspect.

        A backup-only replica gets no primary, so a hedge is its first request, and its probe while it is suspect.
        """
        load = self._loads.of[replica]
        stalls = load.stalls
        if load.is_new and not replica.backup_only:
            return False
        return not stalls.is_suspect(now_s) or (
            replica.backup_only and stalls.take_probe(now_s, self._loads.probe_every_s)
        )

    def _pick_usable(
        self, ring: Ring, facts: RequestFacts, candidates: Sequence[Replica], now_s: float, rand: float
    ) -> Replica:
        if self._bills is not None:
            roomy = self._quotas.with_headroom(candidates, now_s)
            return self._bills.pick(facts, roomy, now_s, rand)
        if now_s < self._loads.ramping_until_s:
            new = [replica for replica in candidates if self._loads.of[replica].is_new]
            for replica in new:
                if self._is_first_due(replica, now_s):
                    return replica
            to_best = bool(new) and self._settings.routing is Routing.PREDICTED
            candidates, rand = ramped(candidates, now_s, rand, to_best=to_best)
        loads = self._loads.of
        suspects = [replica for replica in candidates if loads[replica].stalls.is_suspect(now_s)]
        if 0 < len(suspects) < len(candidates):
            every_s = self._loads.probe_every_s
            if not self._can_hedge(facts, now_s):  # a probe is hedged immediately
                every_s *= _PROBE_UNPAID
            for replica in suspects:
                if loads[replica].stalls.take_probe(now_s, every_s):
                    return replica
            candidates = [replica for replica in candidates if replica not in suspects]
        if self._quotas.of:
            candidates = self._quotas.with_headroom(candidates, now_s)
        return self._pick_routed(ring, facts, candidates, now_s, rand)

    def _is_first_due(self, replica: Replica, now_s: float) -> bool:
        """Return True if a new replica waits for its first request, which shows whether it answers."""
        unused = self._loads.of[replica].used_s == -math.inf
        return unused and now_s >= replica.breaker.closed_s + _FIRST_REQUEST_S

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
        cached = {replica: self._loads.of[replica].memory.cached_bytes(facts.prefixes, now_s) for replica in candidates}
        return most_cached(candidates, cached, rand)

    def _quickest(self, facts: RequestFacts, candidates: Sequence[Replica], now_s: float, rand: float) -> Replica:
        """Pick the lowest predicted TTFT, or a replica without recent requests that may be as quick.

        Without such requests the gateway would never notice that a replica has recovered.
        """
        predicted_s = self._predictions(facts, candidates, now_s)  # first: it finds the replicas that are doubted
        due = self._due_among(candidates, now_s)
        if predicted_s is None:
            return due or least_in_flight(candidates, rand)
        expected_s = self._with_overdue(candidates, predicted_s, now_s)
        best = _first_least(expected_s, rand)
        if due is not None and expected_s[candidates.index(due)] <= _UNSEEN_RATIO * predicted_s[best]:
            return due
        times_s = self._times_s(facts, candidates, predicted_s, expected_s, now_s)
        if times_s is not None:
            expected_s, best = times_s, _first_least(times_s, rand)
        if self._is_weighted:
            near_s = _WEIGHED_RATIO * expected_s[best]
            near = [each for each, own_s in zip(candidates, expected_s, strict=True) if own_s <= near_s]
            return least_in_flight(near, rand)
        if _is_over_share(candidates[best], candidates):
            return _least_busy(candidates, expected_s, _NEAR_TIE * expected_s[best], rand)
        return candidates[best]

    def _with_overdue(self, candidates: Sequence[Replica], times_s: Sequence[float], now_s: float) -> Sequence[float]:
        """Return times of the candidates with the overdue time of their waiting attempts."""
        loads = self._loads.of
        return [own_s + loads[each].stalls.overdue_s(now_s) for each, own_s in zip(candidates, times_s, strict=True)]

    def _predictions(self, facts: RequestFacts, candidates: Sequence[Replica], now_s: float) -> list[float] | None:
        """Return the predicted TTFT of each candidate, None while there is no prediction."""
        loads, tokens = self._loads.of, facts.prompt_tokens
        if facts.prefixes:
            queries = [
                (each.name, self._loads.uncached(facts, each, now_s), loads[each].pending) for each in candidates
            ]
        else:
            queries = [(each.name, tokens, loads[each].pending) for each in candidates]
        predicted_s = self._learning.predictor.predict_each(queries, now_s)
        if now_s >= self._loads.breaking_until_s or predicted_s is None:
            return predicted_s
        return [own_s + loads[each].breaks.cost_s(now_s) for each, own_s in zip(candidates, predicted_s, strict=True)]


def _first_least(times_s: Sequence[float], rand: float) -> int:
    """Return the index of the least time, the first one after a random start, so that ties are spread."""
    count = len(times_s)
    start = int(rand * count)
    return min((index % count for index in range(start, start + count)), key=times_s.__getitem__)


def _least_busy(candidates: Sequence[Replica], times_s: Sequence[float], near_s: float, rand: float) -> Replica:
    """Return the least busy replica with a time of at most `near_s`, the first one after a random start."""
    count = len(candidates)
    start = int(rand * count)
    near = (index % count for index in range(start, start + count) if times_s[index % count] <= near_s)
    return min(map(candidates.__getitem__, near), key=_IN_FLIGHT)


def _is_over_share(best: Replica, candidates: Collection[Replica]) -> bool:
    """Return True if an engine, or a replica that has refused for load, has over 1.25 times its share of the streams.

    Running streams of an engine slow each other down, which TTFT does not show; nor does it show a limit on streams.
    """
    in_flight = best.in_flight
    if in_flight < _IN_FLIGHT_MIN or not (best.batches or best.breaker.full_at):
        return False
    streams: int = sum(map(_IN_FLIGHT, candidates))
    return in_flight * len(candidates) > _SHARE_MAX * streams
