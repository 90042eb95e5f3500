"""Picks the replica of a primary while all replicas are in their usual state: one pass over their predictions. Pure.

Nearly every request takes this way. A replica that is suspect, taken out, cooling down, in slow start or at a limit of
its quota, a pinned request, weights and other routings take the general way of `picker.py`, which picks the same
replica in the usual state, too; tests compare the two. Each state is read from its owner at the time of the pick, so no
copy can be out of date.

Units: seconds of the loop's clock, tokens.
"""

import math
from collections.abc import Sequence
from operator import attrgetter, itemgetter
from typing import Final

from gateway.estimation.predictor import TTFT_MIN_S
from gateway.estimation.stall_detector import StallDetector
from gateway.hedging.contract import RequestFacts
from gateway.hedging.parameters import HedgeParameters
from gateway.limits.ledger import Ledger
from gateway.pool.learning import Learning
from gateway.pool.loads import UNSEEN_S, Loads, ReplicaLoad
from gateway.pool.picker import IN_FLIGHT_MIN, NEAR_TIE, UNSEEN_RATIO, Picker, common_apis, is_over_share
from gateway.pool.quotas import Quotas
from gateway.routing.replicas import Breaker, Replica
from gateway.routing.strategies import Routing, is_weighted

Choice = tuple[float, float, float, Replica, ReplicaLoad]
"""A replica for a primary, with its load.

The numbers before it: the expected TTFT by which replicas are compared, which is the predicted one with the cost of
broken answers and the overdue time of waiting attempts; the predicted TTFT; and the prompt tokens that it has to
compute.
"""

_Row = tuple[Replica, ReplicaLoad, Breaker, StallDetector, str]

_SEEN_S: Final = 0.999 * UNSEEN_S  # no replica is due for a request so soon after its last one, rounding included

_NO_LIMITS: Final = Ledger()  # for a replica without a quota

_EXPECTED_S: Final = itemgetter(0)
_USED_S: Final = attrgetter("used_s")


class Quickest:
    """Picks among the replicas of one pool."""

    __slots__ = ("_apis", "_count", "_learning", "_loads", "_quotas", "_ring", "_rows", "_rows_of", "_seen_until_s")

    def __init__(
        self, picker: Picker, settings: HedgeParameters, loads: Loads, learning: Learning, quotas: Quotas
    ) -> None:
        self._loads = loads
        self._learning = learning
        self._quotas = quotas
        self._ring = ring = picker.tiers[0]
        replicas = picker.ring.replicas
        # False without any replica, or without one that takes primaries.
        is_usual = any(not replica.backup_only for replica in ring.replicas)
        is_compared = settings.routing is Routing.PREDICTED and not is_weighted(replicas) and is_usual
        self._apis = common_apis(replicas) if is_compared else set()  # those of the requests that are served here
        self._rows_of: dict[Replica, _Row] = {
            each: (each, loads.of[each], each.breaker, loads.of[each].stalls, each.name) for each in ring.replicas
        }
        self._count = len(self._rows_of)
        self._rows = 2 * list(self._rows_of.values())  # twice: from each start, a whole round follows
        self._seen_until_s = -math.inf  # time until which no replica of a small ring is due for a request

    def pick(self, facts: RequestFacts, now_s: float, rand: float) -> Choice | None:
        """Pick the replica with the lowest prediction, or one that is due for a request; None for the general way."""
        if facts.api not in self._apis or facts.pinned is not None:
            return None
        loads, ledgers, rows, count = self._loads, self._quotas.of, self._rows, self._count
        if self._ring.is_large:
            groups, rand = self._ring.random(rand, facts.prefixes)
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
                or (breaker.eventful and not breaker.is_closed(now_s))
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
        if now_s >= self._seen_until_s or best[3].in_flight >= IN_FLIGHT_MIN:
            return self._compared(best, choices, rows[:count], now_s)
        return best

    def _compared(self, best: Choice, choices: Sequence[Choice], rows: Sequence[_Row], now_s: float) -> Choice:
        """Return a choice that is preferred to the best one: due for a request, or nearly as good and less busy."""
        if now_s >= self._seen_until_s:
            unseen, own_s, load = self._unseen(rows, choices, now_s), best[1], best[4]
            if now_s < self._loads.breaking_until_s:
                own_s += load.breaks.cost_s(now_s)
            if unseen is not None and unseen[0] <= UNSEEN_RATIO * own_s:
                return unseen
        if is_over_share(best[3], [each[3] for each in choices] if self._ring.is_large else self._ring.replicas):
            return min((each for each in choices if each[0] <= NEAR_TIE * best[0]), key=_streams)
        return best

    def _unseen(self, rows: Sequence[_Row], choices: Sequence[Choice], now_s: float) -> Choice | None:
        """Return the choice whose replica is longest without a request, if it is due for one."""
        load = min((row[1] for row in rows), key=_USED_S)  # the first in the configured order
        if not self._ring.is_large:
            self._seen_until_s = load.used_s + _SEEN_S
        if load.used_s > now_s - self._loads.unseen_s:
            return None
        return next(each for each in choices if each[4] is load)


def _streams(choice: Choice) -> int:
    return choice[3].in_flight
