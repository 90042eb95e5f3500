"""The brain of one pool: everything a race asks about whom to send to, when to hedge and what an outcome teaches. Pure.

A pool is a set of interchangeable replicas of one model. The race tells it what happened and when; it answers with
values, never acts, never reads a clock. What was learned is `learning.py`'s, whether a backup is worth its price
`gate.py`'s, which outcome teaches what `outcomes.py`'s.

Units: seconds of the loop's clock, tokens; `rand` and `coin` are uniform in [0, 1).
"""

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gateway.estimation.prefixes import PrefixMemory, uncached_tokens
from gateway.estimation.suspect import Waits
from gateway.hedging import gate
from gateway.hedging.allowance import Allowance, BudgetOf
from gateway.hedging.charges import Standing, charge
from gateway.hedging.gate import Candidate, Deny, Waiting
from gateway.hedging.learning import Learning
from gateway.hedging.outcomes import MEANING, Bill, Denial, Outcome, Sample, Signal
from gateway.hedging.plan import Plan, Policy
from gateway.hedging.quotas import Quotas
from gateway.hedging.settings import HedgeSettings
from gateway.hedging.terms import AttemptView, Denied, Facts, Hedge, HedgeTickets, Sent
from gateway.limits.ledger import Ledger
from gateway.routing.choose import (
    Routing,
    backups,
    in_turn,
    least_in_flight,
    most_cached,
    ramped,
    reachable,
    usable,
)
from gateway.routing.replicas import SLOW_START_S, BreakerState, Replica
from gateway.routing.ring import Ring
from providers.base import RateLimit

_SLOW_LEVEL: Final = 1.5  # a fleet slower than this against its own law earns credits slower
_NEAR_TIE: Final = 1.1  # predictions this close are equal, and another quota decides
_HIDDEN_SHARE_MAX: Final = 0.2  # of recent answers; beyond it a pool is not hedged
_UNSEEN_S: Final = 5.0  # a replica without a request for so long gets the next primary,
_UNSEEN_RATIO: Final = 1.5  # unless it is predicted to be that much slower than the best


@dataclass(slots=True)
class _Load:
    """What a replica is thought to be busy with."""

    waits: Waits = field(default_factory=Waits)
    memory: PrefixMemory = field(default_factory=PrefixMemory)
    pending: float = 0.0
    used_s: float = -math.inf


class Pool:
    """One pool's state.

    Args:
        name: for people: the model's name, or with the fallback's number.
        replicas: at least one, with different names.
        settings: how it hedges.
        ledgers: by quota name; shared between pools.
        heir_of: the pool that this one follows after a reload; what it has learned goes on with the replicas that stay.
    """

    def __init__(
        self,
        name: str,
        replicas: Sequence[Replica],
        settings: HedgeSettings,
        ledgers: Mapping[str, Ledger] | None = None,
        heir_of: "Pool | None" = None,
    ) -> None:
        self.name = name
        self.replicas = tuple(replicas)
        self.settings = settings
        self.hedging_on = True  # the on-call switch
        self.races_at_headers = settings.policy is Policy.HEADERS  # response headers count as an answer
        self.allowance = Allowance(settings.budget, settings.budget_of)
        self.learning = Learning([replica.name for replica in replicas], settings)
        self._loads = {replica: _Load() for replica in replicas}
        self.quotas = Quotas(replicas, ledgers or {}, self.learning)
        self._ring = Ring(self.replicas)
        self._numbers = itertools.count()
        self._turn = 0
        self._ramping_until_s = -math.inf  # a replica has just come back
        if heir_of is not None:
            self._inherit(heir_of)
        self._mixed = len({replica.apis for replica in replicas}) > 1  # not all can be asked in every API

    @property
    def max_hedges(self) -> int:
        """Backups a request may have."""
        return 0 if self.settings.policy is Policy.OFF else self.settings.max_hedges

    def _inherit(self, old: "Pool") -> None:
        """Go on where a pool was; its attempts under way share what is taken over, so they still count."""
        stay = [replica for replica in self.replicas if replica in old._loads]
        self._loads |= {replica: old._loads[replica] for replica in stay}
        self.learning.inherit(old.learning, [replica.name for replica in stay])
        self.hedging_on = old.hedging_on
        self._ramping_until_s = old._ramping_until_s
        if (self.settings.budget, self.settings.budget_of) == (old.settings.budget, old.settings.budget_of):
            self.allowance = old.allowance

    @property
    def thinks_unseen(self) -> bool:
        """Its first tokens follow reasoning that is not shown, and a backup would have to think as long."""
        return self.learning.hidden_share > _HIDDEN_SHARE_MAX and not self.settings.hidden_reasoning

    # before an attempt

    def reachable(self, tried: Collection[Replica]) -> list[Replica]:
        """Replicas that were not tried and that boundaries let a failover go to, whatever their state."""
        return reachable(self.replicas, tried, self.settings.crossing)

    def pick(
        self, facts: Facts, tried: Collection[Replica], now_s: float, rand: float, *, prefills: bool = False
    ) -> Replica | None:
        """Where an attempt goes that is no hedge, None when nothing here may be used now; `prefills`: only to such."""
        groups, rand = self._groups(facts, rand)
        for group in groups:
            candidates = usable(self._unrefused(facts, group, tried, now_s), now_s)
            if prefills:
                candidates = [replica for replica in candidates if replica.prefills]
            if candidates:
                return self._picked(facts, candidates, now_s, rand)
        return None

    def pick_any(self, facts: Facts, tried: Collection[Replica], now_s: float, rand: float) -> Replica | None:
        """The same when nothing else is left: open breakers are ignored, because a shut pool helps nobody."""
        groups, rand = self._groups(facts, rand)
        for group in groups:
            candidates = self._unrefused(facts, group, tried, now_s)
            if candidates:
                return self._picked(facts, candidates, now_s, rand)
        return None

    def wait_s(self, facts: Facts, tried: Collection[Replica], now_s: float) -> float | None:
        """How long until a replica may be used that was not tried, if all of them have to wait; else None.

        They wait for a provider's Retry-After, or for room at an enforced limit.
        """
        waits_s = [self.quotas.wait_s(replica, facts, now_s) for replica in self._in_reach(facts, self.replicas, tried)]
        return min(waits_s, default=0.0) or None

    def _groups(self, facts: Facts, rand: float) -> tuple[Iterator[Sequence[Replica]], float]:
        """Which replicas to look at for a primary or failover, and a random number for the choice among them."""
        if self.settings.routing is Routing.ROUND_ROBIN:
            return self._ring.in_turn(self._turn), rand
        return self._ring.random(rand, facts.prefixes)

    def _picked(self, facts: Facts, candidates: list[Replica], now_s: float, rand: float) -> Replica:
        if now_s < self._ramping_until_s:
            candidates, rand = ramped(candidates, now_s, rand)
        healthy = [replica for replica in candidates if not self.is_suspect(replica, now_s)]
        if len(healthy) < len(candidates) and healthy:
            for replica in candidates:
                if replica not in healthy and self._loads[replica].waits.take_probe(now_s):
                    return replica
            candidates = healthy
        return self._routed(facts, self.quotas.with_headroom(candidates, now_s), now_s, rand)

    def earn(self, facts: Facts, replica: Replica, now_s: float) -> None:
        """A request that may be hedged goes to this replica: it earns credits."""
        if self._earns(facts):
            uncached = self._uncached(facts, replica, now_s)
            self.allowance.earn_sent(replica, facts.prompt_tokens, uncached, now_s, self._earning())

    def on_sent(self, attempt: AttemptView, facts: Facts, tickets: HedgeTickets | None) -> None:
        """An attempt is sent: count it, and keep what is expected of it."""
        replica, now_s = attempt.replica, attempt.start_s
        replica.in_flight += 1
        replica.breaker.on_sent(now_s)
        load = self._loads[replica]
        uncached = self._uncached(facts, replica, now_s)
        predicted_s = self.learning.predictor.predict(replica.name, uncached, load.pending, now_s)
        quota = self.quotas.reserve(replica, facts, now_s)
        attempt.sent = Sent(
            next(self._numbers),
            predicted_s,
            facts.prompt_tokens,
            uncached,
            load.pending,
            facts.timed,
            self._earns(facts),
            tickets,
            quota,
        )
        load.pending += uncached
        load.used_s = now_s
        late_from_s = math.inf if predicted_s is None or not facts.timed else predicted_s
        load.waits.sent(attempt.sent.number, late_from_s, now_s)
        load.memory.remember(facts.prefixes, now_s)
        self._ring.sent(replica, facts.prefixes)

    def delay_s(self, attempt: AttemptView, facts: Facts) -> float:
        """How long to wait for this attempt's first content before a hedge is considered."""
        if len(self.replicas) < 2 or self.thinks_unseen:
            return math.inf
        settings, now_s = self.settings, attempt.start_s
        if settings.policy is not Policy.OFF and self.is_suspect(attempt.replica, now_s):
            return settings.hedge_delay_min_s
        plan = self.learning.plan(attempt.replica.name, now_s)
        if plan is None:
            return settings.cold_start_delay_s
        return plan.delay_s(
            predicted_s=self._predicted(attempt), coin=facts.coin, delay_s_min=settings.hedge_delay_min_s
        )

    # when one is late

    def decide(
        self,
        facts: Facts,
        asking: AttemptView,
        live: Iterable[AttemptView],
        tried: Collection[Replica],
        now_s: float,
        rand: float,
    ) -> Hedge | Denied:
        """Whether to race a late attempt, and where; a hedge is paid for by then."""
        if self.thinks_unseen:
            return Denied(Denial.OFF, math.inf, "its answers begin with reasoning that is not shown")
        if not self.hedging_on:
            return Denied(Denial.OFF, math.inf, "hedging is switched off")
        replica = self._backup(facts, asking, tried, now_s, rand)
        waited_s = now_s - asking.start_s
        if replica is None:
            again_s = max(self.settings.hedge_delay_min_s, waited_s)
            return Denied(Denial.ALONE, again_s, "no other healthy replica may be tried")
        cost = self._hedge_cost(facts, asking.replica, replica, now_s)
        predicted_s = self._predict(facts, replica, now_s)
        decision = gate.decide(
            Candidate(
                replica,
                predicted_s if predicted_s is not None else 0.0,
                self.settings.gain_min if self.settings.gain_min is not None else replica.gain_min,
                self.quotas.has_room(replica, facts, now_s),
            ),
            asking=Waiting(self._predicted(asking), waited_s),
            others=[Waiting(self._predicted(other), now_s - other.start_s) for other in live if other is not asking],
            plan=self._gating_plan(asking, now_s),
            has_credit=self.allowance.affords(cost, now_s),
            delay_s_min=self.settings.hedge_delay_min_s,
        )
        if isinstance(decision, Deny):
            return Denied(decision.reason, decision.again_after_s, self._why_not(decision, replica, cost, now_s))
        tickets = self.allowance.reserve(cost, now_s)
        self.learning.second_hedges.count(second=len(tried) > 1)
        return Hedge(replica, tickets, _why(asking, waited_s, predicted_s, decision.gain_s))

    # what was seen

    def on_limits(self, attempt: AttemptView, limits: Sequence[RateLimit], now_s: float) -> None:
        """Response headers stated rate limits."""
        self.quotas.observe(attempt, limits, now_s)

    def on_content(self, attempt: AttemptView, now_s: float) -> BreakerState | None:
        """First content came; returns the breaker's state if this moved it."""
        replica, sent, ttft_s = attempt.replica, attempt.sent, now_s - attempt.start_s
        if sent is not None:
            load = self._loads[replica]
            load.pending = max(0.0, load.pending - sent.uncached)
            load.waits.first_content(sent.number, now_s)
            if sent.timed:
                self.learning.predictor.add(replica.name, ttft_s, sent.uncached, sent.pending, now_s)
                self.learning.add_content(replica.name, ttft_s, sent.predicted_s, now_s)
        return self._succeeded(replica, now_s)

    def on_refusal(self, attempt: AttemptView) -> None:
        """A policy refusal came first: it has answered, which says nothing of how fast it is."""
        if attempt.sent is not None:
            load = self._loads[attempt.replica]
            load.pending = max(0.0, load.pending - attempt.sent.uncached)
            load.waits.failed(attempt.sent.number)

    def on_end(
        self, attempt: AttemptView, outcome: Outcome, now_s: float, retry_after_s: float | None
    ) -> BreakerState | None:
        """An attempt is over, the upstream may have asked to wait; returns the breaker's state if this moved it."""
        meaning, replica = MEANING[outcome], attempt.replica
        replica.in_flight -= 1
        if attempt.headers_s is not None:
            self.learning.add_headers(replica.name, attempt.headers_s - attempt.start_s, now_s)
        if attempt.sent is not None:
            self._settle(attempt, attempt.sent, meaning.bill, now_s)
            self._earn_spent(attempt, attempt.sent, outcome, now_s)
            if attempt.content_s is None:
                self._unanswered(attempt, attempt.sent, meaning.sample, now_s)
        breaker, before = replica.breaker, replica.breaker.state
        if meaning.breaker is Signal.SUCCESS:
            return self._succeeded(replica, now_s)
        if meaning.breaker is Signal.FAILURE:
            breaker.on_failure(now_s)
        elif meaning.breaker is Signal.TRIP:
            breaker.trip(now_s)
        else:
            if meaning.breaker is Signal.COOL_DOWN:
                self.quotas.rate_limited(attempt, now_s, retry_after_s)
            breaker.on_undecided(now_s)
        return breaker.state if breaker.state is not before else None

    def _succeeded(self, replica: Replica, now_s: float) -> BreakerState | None:
        """It works; returns the breaker's state if this moved it."""
        moved = replica.breaker.state is not BreakerState.CLOSED
        replica.breaker.on_success(now_s)
        if not moved:
            return None
        self._ramping_until_s = now_s + SLOW_START_S
        return replica.breaker.state

    # for people

    def is_suspect(self, replica: Replica, now_s: float) -> bool:
        """It holds requests without answering them."""
        return self._loads[replica].waits.is_suspect(now_s)

    def usual_delay_s(self, replica: Replica, now_s: float) -> float | None:
        """When a request with an empty prompt would be considered for a hedge; None: never, or nothing is learned."""
        plan = self.learning.last_plan(replica.name)
        if plan is None or len(self.replicas) < 2 or not math.isfinite(plan.delay):
            return None
        predicted_s = self._predict(Facts(), replica, now_s)
        if predicted_s is None:
            return None
        return plan.delay_s(predicted_s=predicted_s, coin=0.0, delay_s_min=self.settings.hedge_delay_min_s)

    def answer_tokens(self, facts: Facts) -> float:
        """How long the answer to a request may be expected to be: the p90 of recent ones, within its own bound."""
        usual = self.learning.answer_tokens
        return usual if facts.answer_tokens is None else min(usual, facts.answer_tokens)

    def pending_tokens(self, replica: Replica) -> float:
        """Prompt tokens it has been sent and not yet answered."""
        return self._loads[replica].pending

    # inside

    def _in_reach(self, facts: Facts, group: Sequence[Replica], tried: Collection[Replica]) -> list[Replica]:
        """Of those in reach, who can serve the request; what is pinned to a replica begins there and nowhere else."""
        if facts.pinned is not None and facts.pinned not in tried:
            return [facts.pinned] if facts.pinned in self._loads else []
        return reachable(self._able(facts, group), tried, self.settings.crossing)

    def _able(self, facts: Facts, group: Sequence[Replica]) -> Sequence[Replica]:
        """Replicas that can be asked in the API that the client speaks."""
        if not self._mixed:
            return group
        return [replica for replica in group if facts.api is None or facts.api in replica.apis]

    def _routed(self, facts: Facts, candidates: Sequence[Replica], now_s: float, rand: float) -> Replica:
        """Where a primary or failover goes, of those that may be used."""
        routing = self.settings.routing
        if routing is Routing.PREDICTED:
            best = self._best(facts, candidates, now_s, rand)
            return self._unseen(facts, candidates, best, now_s) or best
        if routing is Routing.LEAST_IN_FLIGHT:
            return least_in_flight(candidates, rand)
        if routing is Routing.ROUND_ROBIN:
            replica, self._turn = in_turn(self.replicas, candidates, self._turn)
            return replica
        cached = {replica: self._loads[replica].memory.cached_bytes(facts.prefixes, now_s) for replica in candidates}
        return most_cached(candidates, cached, rand)

    def _unseen(self, facts: Facts, candidates: Sequence[Replica], best: Replica, now_s: float) -> Replica | None:
        """One that has had nothing for seconds and may be as good: what is never asked is never found to be back."""
        unseen = min(candidates, key=lambda replica: self._loads[replica].used_s)
        if self._loads[unseen].used_s > now_s - _UNSEEN_S:
            return None
        expected_s, best_s = self._predict(facts, unseen, now_s), self._predict(facts, best, now_s)
        if expected_s is None or best_s is None:
            return unseen
        return unseen if expected_s + self._loads[unseen].waits.overdue_s(now_s) <= _UNSEEN_RATIO * best_s else None

    def _best(self, facts: Facts, candidates: Sequence[Replica], now_s: float, rand: float) -> Replica:
        """Lowest predicted TTFT, ages of waiting attempts included; by load while nothing is known."""
        best, best_s = None, math.inf
        start = int(rand * len(candidates))
        for replica in (*candidates[start:], *candidates[:start]):  # equals are taken in turn
            predicted_s = self._predict(facts, replica, now_s)
            if predicted_s is None:
                return least_in_flight(candidates, rand)
            predicted_s += self._loads[replica].waits.overdue_s(now_s)
            if predicted_s < best_s:
                best, best_s = replica, predicted_s
        assert best is not None
        return best

    def _backup(
        self, facts: Facts, asking: AttemptView, tried: Collection[Replica], now_s: float, rand: float
    ) -> Replica | None:
        """Where a hedge would go: lowest predicted TTFT among the healthy, another quota where nearly equal."""
        groups, rand = self._ring.random(rand, facts.prefixes)
        healthy = (
            [
                replica
                for replica in backups(self._able(facts, group), tried, now_s, self.settings.crossing)
                if replica.hedgeable and not self.is_suspect(replica, now_s)
            ]
            for group in groups
        )
        candidates = next(filter(None, healthy), None)
        if candidates is None:
            return None
        best = self._best(facts, candidates, now_s, rand)
        if best.quota is None or best.quota != asking.replica.quota:
            return best
        limit_s = _NEAR_TIE * (self._predict(facts, best, now_s) or 0.0)
        for replica in candidates:
            predicted_s = self._predict(facts, replica, now_s)
            if replica.quota != asking.replica.quota and predicted_s is not None and predicted_s <= limit_s:
                return replica
        return best

    def _why_not(self, denied: Deny, replica: Replica, cost: float, now_s: float) -> str:
        """Why a backup was not started, for people."""
        if denied.gain_s is not None and denied.asked_s is not None:
            saved, asked = 1000 * denied.gain_s, 1000 * denied.asked_s
            return f"a backup on {replica.name} would save {saved:.0f} ms, {asked:.0f} ms are asked"
        if denied.reason is Denial.QUOTA:
            left = self.quotas.headroom(replica, now_s)
            return f"{left:.0%} of the quota of {replica.name} is left, and is kept for primaries"
        return self.allowance.why_not(cost)

    def _unrefused(
        self, facts: Facts, group: Sequence[Replica], tried: Collection[Replica], now_s: float
    ) -> list[Replica]:
        """Replicas within reach that need not wait for their provider."""
        return self.quotas.unrefused(self._in_reach(facts, group, tried), facts, now_s)

    def _gating_plan(self, asking: AttemptView, now_s: float) -> Plan | None:
        return self.learning.plan(asking.replica.name, now_s)

    def _predict(self, facts: Facts, replica: Replica, now_s: float) -> float | None:
        uncached = self._uncached(facts, replica, now_s) if facts.prefixes else facts.prompt_tokens
        return self.learning.predictor.predict(replica.name, uncached, self._loads[replica].pending, now_s)

    def _predicted(self, attempt: AttemptView) -> float:
        """What was predicted for it; the cold start's delay where nothing was."""
        if attempt.sent is None or attempt.sent.predicted_s is None:
            return self.settings.cold_start_delay_s
        return attempt.sent.predicted_s

    def _uncached(self, facts: Facts, replica: Replica, now_s: float) -> float:
        if not facts.prefixes:
            return facts.prompt_tokens
        cached = self._loads[replica].memory.cached_bytes(facts.prefixes, now_s)
        return uncached_tokens(facts.prompt_tokens, facts.prompt_bytes, cached)

    def _earns(self, facts: Facts) -> bool:
        """Whether a request earns credits: only one that may be hedged."""
        return facts.hedge_off is None and len(self.replicas) > 1 and not self.thinks_unseen

    def _earning(self) -> float:
        """How fast credits are earned: slower where the whole fleet is slow."""
        return min(1.0, _SLOW_LEVEL / self.learning.predictor.level_median)

    def _hedge_cost(self, facts: Facts, asking: Replica, backup: Replica, now_s: float) -> float:
        uncached = self._uncached(facts, backup, now_s)
        return self.allowance.cost(asking, backup, facts.prompt_tokens, uncached, self.answer_tokens(facts))

    def _earn_spent(self, attempt: AttemptView, sent: Sent, outcome: Outcome, now_s: float) -> None:
        """An answer, or some of it, has gone out: its cost is spend, whichever attempt it came from."""
        if sent.earns and attempt.content_s is not None and self.allowance.of is BudgetOf.SPEND:
            spent = charge(attempt, outcome, Standing.WINNER, sent.prompt_tokens, self.learning.answer_tokens)
            self.allowance.earn_spent(spent.cost, now_s, self._earning())

    def _settle(self, attempt: AttemptView, sent: Sent, bill: Bill, now_s: float) -> None:
        """Give back what was reserved and not used."""
        release = bill is Bill.RELEASE
        if sent.tickets is not None:
            (self.allowance.release if release else self.allowance.settle)(sent.tickets)
        usage = attempt.usage
        if usage is not None and usage.completion_tokens is not None:
            self.learning.add_answer(usage.completion_tokens, now_s)
            if bill is Bill.SETTLE:
                self.learning.add_hidden(hidden=bool(usage.hidden_tokens))
        self.quotas.close(attempt, bill, now_s)

    def _unanswered(self, attempt: AttemptView, sent: Sent, sample: Sample, now_s: float) -> None:
        """An attempt ended without a first content."""
        load, name, waited_s = self._loads[attempt.replica], attempt.replica.name, now_s - attempt.start_s
        load.pending = max(0.0, load.pending - sent.uncached)
        if sample is Sample.CENSORED and sent.timed:
            load.waits.given_up(sent.number, now_s)
            self.learning.predictor.add_late(name, waited_s, sent.uncached, sent.pending, now_s)
            self.learning.add_given_up(name, waited_s, sent.predicted_s, now_s)
        else:
            load.waits.failed(sent.number)


def _why(asking: AttemptView, waited_s: float, predicted_s: float | None, gain_s: float | None) -> str:
    """Why a backup was started, for people."""
    text = f"{asking.replica.name} had no token after {1000 * waited_s:.0f} ms"
    if predicted_s is not None:
        text += f", {1000 * predicted_s:.0f} ms expected here"
    if gain_s is not None:
        text += f", saving {1000 * gain_s:.0f} ms"
    return text
