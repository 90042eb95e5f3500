"""Picks the replica of a primary while all replicas are in their usual state: one pass over their predictions. Pure.

Nearly every request takes this way. A replica that is suspect, taken out, cooling down, in slow start or at a limit of
its quota, a pinned request, weights and other routings take the general way of `picker.py`, which picks the same
replica in the usual state, too; tests compare the two. Each state is read from its owner at the time of the pick, so no
copy can be out of date.

Units: seconds of the loop's clock, tokens.
"""

import math
from operator import attrgetter
from typing import Final

import msgspec

from gateway.estimation.predictor import TTFT_MIN_S
from gateway.hedging.contract import RequestFacts
from gateway.hedging.parameters import HedgeParameters
from gateway.pool.learning import Learning
from gateway.pool.loads import Loads, ReplicaLoad
from gateway.pool.picker import NEAR_TIE, UNSEEN_RATIO, Picker, common_apis, is_over_share
from gateway.pool.quotas import Quotas
from gateway.routing.replicas import BreakerState, Replica
from gateway.routing.strategies import Routing, is_weighted


class Choice(msgspec.Struct, gc=False):
    """A replica for a primary.

    Attributes:
        expected_s: predicted TTFT by which replicas are compared: `own_s` and the overdue time of waiting attempts.
        own_s: `ttft_s` and the cost of broken answers.
        ttft_s: predicted TTFT.
        uncached: prompt tokens that the replica has to compute.
    """

    expected_s: float
    own_s: float
    ttft_s: float
    uncached: float
    replica: Replica
    load: ReplicaLoad


_CLOSED: Final = BreakerState.CLOSED
_EXPECTED_S: Final = attrgetter("expected_s")
_STREAMS: Final = attrgetter("replica.in_flight")


class Quickest:
    """Picks among the replicas of one pool."""

    __slots__ = ("_apis", "_is_compared", "_learning", "_loads", "_quotas", "_ring")

    def __init__(
        self, picker: Picker, settings: HedgeParameters, loads: Loads, learning: Learning, quotas: Quotas
    ) -> None:
        self._loads = loads
        self._learning = learning
        self._quotas = quotas
        self._ring = picker.tiers[0]
        replicas = picker.ring.replicas
        # False without any replica, or without one that takes primaries.
        is_usual = any(not replica.backup_only for replica in self._ring.replicas)
        self._is_compared = settings.routing is Routing.PREDICTED and not is_weighted(replicas) and is_usual
        self._apis = common_apis(replicas)

    def pick(self, facts: RequestFacts, now_s: float, rand: float) -> Choice | None:
        """Pick the replica with the lowest prediction, or one that is due for a request; None for the general way."""
        if not self._is_compared or facts.pinned is not None or facts.api not in self._apis:
            return None
        ring = self._ring
        replicas = ring.replicas
        if ring.is_large:
            groups, rand = ring.random(rand, facts.prefixes)
            replicas = next(groups)
        loads, quotas = self._loads, self._quotas
        if now_s < loads.ramping_until_s or (quotas.of and not all(quotas.is_free(r, facts, now_s) for r in replicas)):
            return None
        law = self._learning.predictor.law(now_s)
        if law is None:
            return None
        (b, s, c), levels = law
        tokens, prefixes = facts.prompt_tokens, facts.prefixes
        is_breaking = now_s < loads.breaking_until_s
        choices: list[Choice] = []
        unseen: Choice | None = None
        unseen_s, streams = math.inf, 0
        for replica in replicas:
            load, name, breaker = loads.of[replica], replica.name, replica.breaker
            stalls, due_s = load.stalls, load.stalls.due_s
            if (
                replica.out
                or breaker.state is not _CLOSED
                or now_s < breaker.cooling_until_s
                or ((stalls.late or now_s > due_s) and stalls.is_suspect(now_s))
            ):
                return None
            uncached = loads.uncached(facts, replica, now_s) if prefixes else tokens
            ttft_s = b + s * uncached + c * load.pending
            if name in levels:
                ttft_s *= levels[name]
            if ttft_s < TTFT_MIN_S:
                ttft_s = TTFT_MIN_S
            own_s = ttft_s + load.breaks.cost_s(now_s) if is_breaking else ttft_s
            expected_s = own_s + (now_s - due_s) if now_s > due_s else own_s
            choice = Choice(expected_s, own_s, ttft_s, uncached, replica, load)
            choices.append(choice)
            streams += replica.in_flight
            if load.used_s < unseen_s:
                unseen, unseen_s = choice, load.used_s
        count = len(choices)
        start = int(rand * count)
        turned = choices[start:] + choices[:start]  # the first one after a random start wins a tie
        best = min(turned, key=_EXPECTED_S)
        if unseen_s <= now_s - loads.unseen_s and unseen and unseen.expected_s <= UNSEEN_RATIO * best.own_s:
            return unseen
        if not is_over_share(best.replica, count, streams):
            return best
        return min((each for each in turned if each.expected_s <= NEAR_TIE * best.expected_s), key=_STREAMS)
