"""The policy of one pool: picks replicas, decides on hedges, and learns from outcomes. Pure.

A pool is a set of interchangeable replicas of one model. The race reports events with their times; the pool returns
values, never acts, never reads a clock. A reload takes over its state. `picker.py` picks replicas, `learning.py`
learns, `hedging/gate.py` decides whether a backup is worth its cost, and `hedging/outcomes.py` has the effects of each
outcome.

Units: seconds of the loop's clock, tokens; `rand` and `coin` are uniform in [0, 1).
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final
from weakref import proxy

from ttft_gateway.apis.base import Api, RateLimit
from ttft_gateway.estimation.first_token import FirstTokenChoice
from ttft_gateway.hedging import gate
from ttft_gateway.hedging.budget import BudgetUnit, HedgeBudget
from ttft_gateway.hedging.calibration import Rescue
from ttft_gateway.hedging.charges import Disposition, charge
from ttft_gateway.hedging.contract import (
    AttemptView,
    Denied,
    Forecast,
    Hedge,
    HedgeTickets,
    Primary,
    RequestFacts,
    others_of,
)
from ttft_gateway.hedging.gate import Candidate, Deny, WaitingAttempt
from ttft_gateway.hedging.measure import NOT_MEASURED, Measured, Shadow, draw, drawn_ttft_s, reason_of, shadow_of
from ttft_gateway.hedging.outcomes import (
    OUTCOME_EFFECTS,
    REFUSALS_FOR_LOAD,
    Bill,
    BreakerSignal,
    Denial,
    Outcome,
    Sample,
    was_answering,
    why_hedged,
    why_low_gain,
    why_no_quota,
)
from ttft_gateway.hedging.parameters import GuardMode, HedgeParameters, Prefer, thrift_of
from ttft_gateway.hedging.plan import FirstEvent, Policy
from ttft_gateway.hedging.possible import EXPLANATIONS, never_hedged, target_of
from ttft_gateway.limits.ledger import Ledger
from ttft_gateway.pool.guards import Guards
from ttft_gateway.pool.learning import Learning
from ttft_gateway.pool.loads import Loads, ReplicaLoad
from ttft_gateway.pool.picker import Picker
from ttft_gateway.pool.quotas import Quotas
from ttft_gateway.pool.rejections import Rejections
from ttft_gateway.pool.streams import Streams
from ttft_gateway.routing.replicas import BreakerState, Replica

if TYPE_CHECKING:
    from ttft_gateway.pool.bills import Bills

_CROWD_REPLICAS: Final = 16  # of a larger pool, not every attempt is a sample of its crowd
_EMPTY, _SUCCESS, _COST = Outcome.EMPTY, BreakerSignal.SUCCESS, BudgetUnit.COST


class Pool:
    """One pool of replicas.

    Args:
        name: name for display: the model's name, with a number for a fallback.
        replicas: replicas with different names; none while their source has not found any.
        ledgers: ledgers by quota name; shared between pools.
        previous: pool that this one replaces after a reload, else None; the state of replicas that stay is taken over.
        has_fallback: True if another pool continues its answers.
        ends_cool_downs: True if their cool-downs end, which tests whether their providers still refuse.
    """

    def __init__(
        self,
        name: str,
        replicas: Sequence[Replica],
        settings: HedgeParameters,
        ledgers: Mapping[str, Ledger] | None = None,
        previous: "Pool | None" = None,
        *,
        has_fallback: bool = False,
        ends_cool_downs: bool = True,
    ) -> None:
        self.name = name
        self.replicas = tuple(replicas)
        self.settings = settings
        self._count = len(self.replicas)
        self.is_single = self._count < 2
        self.sees_crowds = not self.is_single
        self._crowd_every = 1 + self._count // _CROWD_REPLICAS
        self.max_hedges = 0 if settings.policy is Policy.OFF else settings.max_hedges  # of a request
        self.is_shadow = settings.policy is Policy.SHADOW
        self.withholds = self.is_shadow or settings.measure != NOT_MEASURED  # some granted hedges
        self.has_fallback = has_fallback
        self.hedging_on = True  # the on-call switch
        self.stops_at_headers = settings.answered_by is FirstEvent.HEADERS
        by_bill = settings.prefer is Prefer.COST
        self.budget = HedgeBudget(settings.budget, settings.budget_unit, settings.saved_hedges)
        self.first_token = FirstTokenChoice(settings.first_token)
        loads = None if previous is None else previous.loads
        new = [replica.name for replica in replicas if loads is None or replica not in loads.of]
        self._thrift = thrift_of(settings, has_engines=any(replica.batches for replica in replicas))
        self.learning = Learning(new, settings, self._thrift)
        self.quotas = Quotas(replicas, ledgers or {}, self.learning)
        self.loads: Loads = Loads(replicas, self.learning, loads)
        self.streams = Streams([replica.name for replica in replicas])
        self.bills: Bills | None = None
        own = proxy(self)  # without a cycle, a pool that a reload replaces is freed at once
        if by_bill:
            from ttft_gateway.pool import bills  # few pools need it

            self.bills = bills.Bills(self.replicas, settings, self.learning, partial(Pool._is_hedged, own))
            self.budget = self.bills.budget
        self.picker = Picker(
            self.replicas,
            settings,
            self.loads,
            self.learning,
            self.quotas,
            self.streams,
            partial(Pool._can_hedge, own),
            self.bills,
        )
        off = settings.policy is Policy.OFF or settings.budget <= 0
        is_alone = self.is_single and not has_fallback
        is_guarded = settings.guard is GuardMode.AUTO and not (off or by_bill or self.is_shadow or is_alone)
        self.guards = Guards([replica.name for replica in replicas], is_on=is_guarded)
        self._never_hedged = never_hedged(list(map(target_of, replicas)), off=off, crossing=settings.crossing)
        if previous is not None:
            self._adopt_state(previous, ends_cool_downs=ends_cool_downs)

    def _adopt_state(self, old: "Pool", *, ends_cool_downs: bool) -> None:
        """Take over the state of a pool; its running attempts share that state and still count."""
        stay = self.loads.adopt_state(old.loads)
        for replica in stay if ends_cool_downs else ():
            replica.breaker.end_cool_down()
        names = [replica.name for replica in stay]
        self.learning.adopt_state(old.learning, names)
        self.streams.adopt_state(old.streams, names)
        self.guards.adopt_state(old.guards, names)
        if self.first_token.adopt_state(old.first_token, names):
            self.learning.restart()
        self.hedging_on = old.hedging_on
        if self.bills is not None and old.bills is not None:
            self.bills.adopt_state(old.bills, names)
        if (self.bills is None) is not (old.bills is None):
            return
        if (self.settings.budget, self.settings.budget_unit) == (old.settings.budget, old.settings.budget_unit):
            self.budget = old.budget
            if self.bills is not None:
                self.bills.budget = old.budget

    @property
    def has_hidden_reasoning(self) -> bool:
        """True if its first content follows hidden reasoning, which a backup would have to repeat in full."""
        return self.first_token.hides_reasoning and not self.settings.hedge_hidden_reasoning

    def switch(self, replica: Replica, now_s: float, *, out: bool) -> None:
        """Take a replica out, or in again with a slow start; its attempts under way continue."""
        replica.take_out(out=out)
        if not out:
            replica.breaker.start_slowly(now_s)
            self.loads.on_recovered(now_s)

    def welcome(self, new: Sequence[Replica], now_s: float) -> None:
        """Start replicas slowly that were added to a pool in use; they get no hedge before their first content."""
        if not self.loads.has_requests or len(new) == len(self.replicas):  # nothing else could serve
            return
        for replica in new:
            replica.breaker.start_slowly(now_s)
            self.learning.predictor.start_at_median(replica.name)
            self.loads.of[replica].is_new = True
            self.loads.on_recovered(now_s)

    def never_hedged(self, replica: Replica) -> Denial | None:
        """Return the reason for which requests sent to a replica are not hedged, however late; None if some can be."""
        configured = self._never_hedged[replica.name]
        if configured is not None or not self.has_hidden_reasoning:
            return configured
        others = (each.name for each in self.replicas if each is not replica)
        is_by_work = self.first_token.is_sometimes_by_work
        return None if is_by_work(replica.name) and any(map(is_by_work, others)) else Denial.HIDDEN_REASONING

    def rejections(self, replica: Replica) -> Rejections:
        """Return the judge of a replica's rejections."""
        return self.loads.of[replica].rejections

    def answer_tokens(self, facts: RequestFacts) -> float:
        """Return the expected length of the answer: the p90 of recent ones, at most the request's own limit."""
        p90_tokens = self.learning.answer_tokens
        return p90_tokens if facts.answer_tokens is None else min(p90_tokens, facts.answer_tokens)

    def pending_tokens(self, replica: Replica) -> float:
        """Return the prompt tokens of its attempts without first content."""
        return self.loads.of[replica].pending

    # before an attempt

    def begin(self, facts: RequestFacts, now_s: float, rand: float) -> Primary | None:
        """Choose the replica of a request's primary and count the attempt as sent; None in an unusual state.

        Does the same as `picker.pick`, `on_sent` and `delay_s`, which serve any state. An exception leaves nothing
        counted as sent.
        """
        if now_s >= self.streams.due_s:
            self.streams.look(now_s)
        choice = self.picker.pick_usual(facts, now_s, rand)
        if choice is None:
            return None
        _, ttft_s, uncached, replica, _ = choice
        target_s = facts.ttft_target_s or self.settings.ttft_target_s
        if self.is_single or (self.first_token.hides_reasoning and self._is_hidden(replica, facts)):
            delay_s = math.inf
        else:
            delay_s = self._planned_delay_s(replica, ttft_s, target_s, facts.coin, now_s)
        forecast = self._sent(next(self.loads.numbers), replica, facts, None, ttft_s, uncached, now_s, is_first=True)
        forecast.others = replica.in_flight
        replica.in_flight += 1
        if self.sees_crowds:
            self._see_crowd(forecast, replica)
        if replica.breaker.eventful:
            replica.breaker.on_sent(now_s)
        return Primary(replica, forecast, delay_s)

    def on_sent(
        self, attempt: AttemptView, facts: RequestFacts, tickets: HedgeTickets | None, *, is_first: bool
    ) -> None:
        """Count an attempt that is sent, and attach its forecast.

        Args:
            facts: facts about its call.
            tickets: credits that pay for it, None if it is no hedge.
            is_first: True if it is the request's first attempt in this pool, which earns credits if it may be hedged.
        """
        replica, now_s = attempt.replica, attempt.start_s
        replica.in_flight += 1
        replica.breaker.on_sent(now_s)
        load, uncached = self.loads.of[replica], self.loads.uncached(facts, replica, now_s)
        ttft_s = self.learning.predictor.predict(replica.name, uncached, load.pending, now_s)
        number = next(self.loads.numbers)
        forecast = self._sent(number, replica, facts, tickets, ttft_s, uncached, now_s, is_first=is_first)
        forecast.others = replica.in_flight - 1
        if self.sees_crowds:
            self._see_crowd(forecast, replica)
        attempt.forecast = forecast

    def waits_for_hidden(self, attempt: AttemptView) -> bool:
        """Return True if the first token of an attempt follows hidden reasoning."""
        forecast = attempt.forecast
        return self.has_hidden_reasoning and (forecast is None or not forecast.by_work)

    def delay_s(self, attempt: AttemptView, facts: RequestFacts) -> float:
        """Return the time to wait for this attempt's first content before a hedge is considered."""
        if self.is_single or (self.first_token.hides_reasoning and self.waits_for_hidden(attempt)):
            return math.inf
        now_s = attempt.start_s
        if (
            self.settings.policy is not Policy.OFF
            and self.bills is None
            and self.loads.is_suspect(attempt.replica, now_s)
        ):
            return self.settings.hedge_delay_min_s
        if self.bills is not None:
            is_backup = attempt.forecast is not None and attempt.forecast.tickets is not None
            return self.bills.delay_s(attempt.replica, facts, now_s, is_backup=is_backup)
        target_s = None if attempt.forecast is None else attempt.forecast.target_s
        return self._planned_delay_s(attempt.replica, self._predicted(attempt), target_s, facts.coin, now_s)

    # a late attempt

    def decide(
        self,
        facts: RequestFacts,
        asking: AttemptView,
        live: Iterable[AttemptView],
        tried: Collection[Replica],
        now_s: float,
        rand: float,
    ) -> Hedge | Denied:
        """Decide on a hedge for a late attempt; a returned hedge is already paid for."""
        if facts.hedge_off is not None:
            return Denied(facts.hedge_off, math.inf, EXPLANATIONS[facts.hedge_off])
        if self.waits_for_hidden(asking):
            return Denied(Denial.HIDDEN_REASONING, math.inf, EXPLANATIONS[Denial.HIDDEN_REASONING])
        if not self.hedging_on:
            return Denied(Denial.OFF, math.inf, "hedging is switched off")
        late, waited_s = asking.replica, now_s - asking.start_s
        barred: Collection[Replica] = ()
        if self.has_hidden_reasoning:  # a backup without signs of work could win only after its reasoning
            barred = {each for each in self.replicas if not self.first_token.by_work(each.name, facts.api)}
        since_s = asking.start_s if self.bills is None else min(each.start_s for each in live)
        replica = self.picker.backup(facts, late, tried, now_s, rand, barred, now_s - since_s)
        if replica is None:
            again_s = max(self.settings.hedge_delay_min_s, waited_s)
            reason = self.never_hedged(late) or Denial.NO_REPLICA
            return Denied(reason, again_s, EXPLANATIONS[reason])
        if self.bills is not None:
            has_room = self.quotas.has_room(replica, facts, now_s)
            return self.bills.decide(late, replica, facts, waited_s, now_s, has_room=has_room)
        uncached = self.loads.uncached(facts, replica, now_s)
        cost = self.budget.hedge_cost(late, replica, facts.prompt_tokens, uncached, self.answer_tokens(facts))
        is_rescue = self.loads.is_suspect(late, now_s) and self.learning.rescues.allows(facts.coin)
        predicted_s = self.picker.predict(facts, replica, now_s)
        decision = gate.decide(
            Candidate(
                predicted_s if predicted_s is not None else 0.0,
                self.settings.gain_min_engine if replica.batches else self.settings.gain_min,
                self.quotas.has_room(replica, facts, now_s),
                self.picker.answer_loss_s(facts, late, replica),
            ),
            asking=WaitingAttempt(self._predicted(asking), waited_s),
            others=[
                WaitingAttempt(self._predicted(other), now_s - other.start_s) for other in live if other is not asking
            ],
            plan=None if is_rescue else self.learning.plan(late.name, now_s),
            has_credit=self.budget.affords(cost, now_s),
            delay_s_min=self.settings.hedge_delay_min_s,
            correction=self.learning.calibration.of(facts.coin),
            thrift=1.0 if self._thrift == 1.0 else max(self._thrift, self.budget.scarcity()),
        )
        if isinstance(decision, Deny):
            return Denied(decision.reason, decision.again_after_s, self._why_denied(decision, replica, cost, now_s))
        rescue = Rescue(self._predicted(asking), waited_s, predicted_s or 0.0) if is_rescue else None
        tickets = self.budget.reserve(cost, now_s, decision.expected or rescue)
        self.learning.second_hedges.count(second=len(tried) > 1)
        return Hedge(replica, tickets, why_hedged(late.name, waited_s, predicted_s, decision.gain_s))

    # events of an attempt

    def on_limits(self, attempt: AttemptView, limits: Sequence[RateLimit], now_s: float) -> None:
        """Learn the rate limits of response headers."""
        self.quotas.observe(attempt, limits, now_s)

    def on_work(self, attempt: AttemptView, api: Api | None, now_s: float) -> bool:
        """Learn from an attempt's first sign of work; return True if it is its first token."""
        headers_s, forecast = attempt.headers_s, attempt.forecast
        if headers_s is not None and self.first_token.add_sign(attempt.replica.name, api, now_s - headers_s):
            self.learning.restart()
        if forecast is None or not forecast.by_work:
            return False
        self._on_first_token(attempt, forecast, self.loads.of[attempt.replica], now_s)
        return True

    def on_content(self, attempt: AttemptView, now_s: float) -> BreakerState | None:
        """Learn from first content; return the breaker's state if it changed."""
        replica, forecast = attempt.replica, attempt.forecast
        load = self.loads.of[replica]
        load.is_new, load.cold_until_s = False, -math.inf
        load.contents, load.content_s = load.contents + 1, now_s
        load.rejections.on_content(now_s)
        if forecast is not None:
            if replica.breaker.full_at:
                replica.breaker.on_taken(now_s, forecast.others)
            if attempt.first_token_s is None:
                self._on_first_token(attempt, forecast, load, now_s)
            if forecast.timed and not (self.is_single or attempt.is_paced):
                self.streams.begin(forecast.number, attempt, forecast.prompt_tokens, now_s)
        return self._answered(attempt, replica.breaker.on_content, now_s) if replica.breaker.eventful else None

    def on_refusal(self, attempt: AttemptView) -> None:
        """Count an attempt as answered by a policy refusal, which is no sample of its TTFT."""
        if attempt.forecast is not None and attempt.first_token_s is None:
            load = self.loads.of[attempt.replica]
            load.pending = max(0.0, load.pending - attempt.forecast.uncached)
            load.stalls.failed(attempt.forecast.number)

    def on_end(
        self,
        attempt: AttemptView,
        outcome: Outcome,
        now_s: float,
        retry_after_s: float | None,
        *,
        by_tokens: bool = False,
    ) -> BreakerState | None:
        """Settle an attempt that ended and learn from it; return the breaker's state if it changed.

        Args:
            retry_after_s: the upstream's Retry-After, None if it sent none.
            by_tokens: True for a 429 about tokens.
        """
        replica, forecast, breaker = attempt.replica, attempt.forecast, attempt.replica.breaker
        if forecast is not None and forecast.number in self.streams.followed:
            self.streams.end(forecast.number, now_s)
        if attempt.watch is not None:
            self.guards.end(attempt, attempt.watch, now_s)
        replica.in_flight -= 1
        if attempt.headers_s is not None:
            self.learning.ttfb[replica.name].add_event(attempt.headers_s - attempt.start_s, now_s)
        if forecast is not None:
            self._settle(attempt, forecast, outcome, now_s)
            if attempt.content_s is None and attempt.first_token_s is None:
                self._unanswered(attempt, forecast, outcome, now_s)
        is_at_fault = outcome is _EMPTY and self.loads.on_empty(replica)
        signal = BreakerSignal.TRIP if is_at_fault else OUTCOME_EFFECTS[outcome].breaker
        if signal is _SUCCESS:
            self._succeeded(attempt, now_s)
            return self._answered(attempt, breaker.on_success, now_s) if breaker.eventful else None
        old_state, is_broken = breaker.state, outcome is Outcome.CUT
        if is_broken:
            self.loads.on_answer(replica, now_s, broken=True)
        if signal is BreakerSignal.FAILURE:
            self._failed(attempt, outcome, now_s)
        elif outcome is Outcome.CLIENT_GONE and was_answering(attempt.events, now_s - attempt.last_s):
            breaker.on_success(now_s, attempt.start_s)
        elif signal is BreakerSignal.TRIP:
            breaker.trip(now_s)
        else:
            if signal is BreakerSignal.COOL_DOWN:
                self.quotas.rate_limited(attempt, now_s, retry_after_s, by_tokens=by_tokens)
            breaker.on_undecided(now_s)
        return breaker.state if breaker.state is not old_state else None

    # what hedges save

    def shadow(
        self, facts: RequestFacts, late: AttemptView, number: int, hedge: Hedge, waited_s: float, rand: float
    ) -> Shadow:
        """Describe a hedge that was granted for attempt `number` of its request, and is not sent."""
        now_s, backup = late.start_s + waited_s, hedge.replica
        expected_s = self.picker.predict(facts, backup, now_s)
        return shadow_of(
            hedge,
            late.replica,
            number,
            after_s=waited_s,
            reason=reason_of(hedge, suspect=self.loads.is_suspect(late.replica, now_s)),
            tokens=(facts.prompt_tokens, self.loads.uncached(facts, backup, now_s), self.answer_tokens(facts)),
            expected_s=expected_s,
            drawn_s=drawn_ttft_s(self.learning.last_plan(late.replica.name), expected_s, rand),
        )

    def measure(self, late: AttemptView, number: int, rand: float) -> Measured | None:
        """Draw the measurement of a hedge that was granted for attempt `number` of its request."""
        is_cheap = not (late.replica.batches and self.learning.is_slow)
        return draw(self.settings.measure, number, cheap=is_cheap, rand=rand)

    def on_loser_read(self, loser: AttemptView, winner: AttemptView) -> None:
        """Charge an attempt that has lost and is read on; the saving of its winner will be exact."""
        if loser.forecast is not None:
            self.budget.spend_on_loser(loser.replica, loser.forecast.uncached)
        if winner.forecast is not None and winner.first_token_s is None:
            winner.forecast.exact = True

    def on_saving_measured(self, winner: AttemptView, saved_s: float) -> None:
        """Learn how much a winner has saved, after the attempt that lost has shown its first token."""
        forecast, first_s = winner.forecast, winner.first_token_s
        if forecast is not None and forecast.exact and forecast.tickets is not None and first_s is not None:
            self.learning.add_measured_hedge(forecast.tickets.expected, first_s - winner.start_s, saved_s)

    # helpers

    def _can_hedge(self, facts: RequestFacts, now_s: float) -> bool:
        """Return True if a request could be hedged immediately, or never."""
        is_off = facts.hedge_off is not None or not self.hedging_on or self.is_shadow or self.max_hedges == 0
        return is_off or self.budget.affords_prompt(facts.prompt_tokens, now_s)

    def _is_hedged(self, facts: RequestFacts) -> bool:
        """Return True if a request may be backed up when it is late."""
        may_be = facts.hedge_off is None and self.hedging_on and self.max_hedges > 0
        return may_be and not self.has_hidden_reasoning and not self.is_shadow

    def _is_hidden(self, replica: Replica, facts: RequestFacts) -> bool:
        """Return True if the first token of a new attempt would follow hidden reasoning."""
        return self.has_hidden_reasoning and not self.first_token.by_work(replica.name, facts.api)

    def _planned_delay_s(
        self, replica: Replica, predicted_s: float, target_s: float | None, coin: float, now_s: float
    ) -> float:
        """Return the delay of a hedge by the plan for a replica, or the cold-start delay before there is one."""
        plan, delay_s_min = self.learning.plan(replica.name, now_s), self.settings.hedge_delay_min_s
        if plan is None:
            return max(self.settings.cold_start_delay_s, delay_s_min)
        if target_s is None:
            return plan.delay_s(predicted_s=predicted_s, coin=coin, delay_s_min=delay_s_min)
        return plan.target_delay_s(target_s, predicted_s, coin=coin, delay_s_min=delay_s_min)

    def _succeeded(self, attempt: AttemptView, now_s: float) -> None:
        loads, usage, forecast = self.loads, attempt.usage, attempt.forecast
        if now_s < loads.breaking_until_s:
            loads.on_answer(attempt.replica, now_s, broken=False)
        if usage is not None and forecast is not None and forecast.timed and self.first_token.add_usage(usage):
            self.learning.restart()
        rejections = loads.of[attempt.replica].rejections
        if rejections.requests:  # an answer without content
            rejections.on_content(now_s)

    def _failed(self, attempt: AttemptView, outcome: Outcome, now_s: float) -> None:
        """Report a failure to its replica's breaker, unless it only shows that the replica is full or has a queue."""
        replica, breaker, is_known = attempt.replica, attempt.replica.breaker, False
        if outcome is Outcome.TTFT_TIMEOUT:
            is_answering = self.loads.of[replica].content_s >= attempt.start_s
            is_known = is_answering and breaker.state is BreakerState.CLOSED
        elif outcome is Outcome.FAILED and attempt.status in REFUSALS_FOR_LOAD:
            is_known = breaker.on_refusal(now_s, attempt.start_s, others_of(attempt))
        if not is_known:
            breaker.on_failure(now_s, broken=outcome is Outcome.CUT)

    def _answered(
        self, attempt: AttemptView, report: Callable[[float, float], None], now_s: float
    ) -> BreakerState | None:
        """Report an answer after failures to its replica's breaker; return the breaker's state if it changed."""
        breaker = attempt.replica.breaker
        old_state = breaker.state
        report(now_s, attempt.start_s)
        if breaker.state is old_state:
            return None
        self.loads.on_recovered(now_s)  # the slow start begins
        return breaker.state

    def _sent(
        self,
        number: int,
        replica: Replica,
        facts: RequestFacts,
        tickets: HedgeTickets | None,
        ttft_s: float | None,
        uncached: float,
        now_s: float,
        *,
        is_first: bool,
    ) -> Forecast:
        """Count an attempt that is sent, and return its forecast; its load, which `on_end` takes off, comes last.

        Args:
            ttft_s: predicted TTFT; None before the first sample.
            uncached: prompt tokens that the replica has to compute.
        """
        load, first_token = self.loads.of[replica], self.first_token
        by_work = first_token.times_work and first_token.by_work(replica.name, facts.api)
        is_hidden = first_token.hides_reasoning and self.has_hidden_reasoning and not by_work
        earns = facts.hedge_off is None and not is_hidden and (not self.is_single or self.has_fallback)
        forecast = Forecast(
            number,
            ttft_s,
            facts.prompt_tokens,
            uncached,
            load.pending,
            facts.timed,
            earns,
            self._never_hedged[replica.name] or (Denial.HIDDEN_REASONING if is_hidden else None),
            tickets,
            None,
            by_work,
        )
        if is_first:
            forecast.target_s = facts.ttft_target_s or self.settings.ttft_target_s
            self.loads.on_request(now_s)
            if earns:
                self.budget.earn_sent(replica, facts.prompt_tokens, uncached, now_s, self.learning.earning)
        if facts.prefixes:
            load.memory.remember(facts.prefixes, now_s)
            self.picker.ring.sent(replica, facts.prefixes)
        if self.quotas.of:
            forecast.quota = self.quotas.reserve(replica, facts, now_s, is_hedge=tickets is not None)
        if self.bills is not None:
            self.bills.book(forecast, replica.name, facts)
        if now_s < load.cold_until_s:
            forecast.cold = True
        load.stalls.sent(number, ttft_s if ttft_s is not None and self._is_sample(forecast) else math.inf, now_s)
        load.pending += uncached
        load.sent += 1
        load.used_s = load.own_s = now_s
        return forecast

    def _see_crowd(self, forecast: Forecast, replica: Replica) -> None:
        """Note the crowd of the replica of an attempt that was just sent."""
        if forecast.number % self._crowd_every or forecast.cold:
            return
        others = -1
        for each in self.replicas:
            others += each.in_flight
        forecast.crowd = math.log(replica.in_flight / (1.0 + others / self._count))

    def _why_denied(self, denied: Deny, replica: Replica, cost: float, now_s: float) -> str:
        if denied.gain_s is not None and denied.asked_s is not None:
            return why_low_gain(replica.name, denied.gain_s, denied.asked_s)
        if denied.reason is Denial.QUOTA:
            return why_no_quota(replica.name, self.quotas.headroom(replica, now_s))
        return self.budget.why_not(cost)

    def _is_sample(self, forecast: Forecast) -> bool:
        """Return True if the TTFT of an attempt is learned: all learned times belong to one kind of event."""
        first_token = self.first_token
        return forecast.timed and (not first_token.hides_reasoning or forecast.by_work is first_token.times_work)

    def _on_first_token(self, attempt: AttemptView, forecast: Forecast, load: ReplicaLoad, now_s: float) -> None:
        """Learn from content, or from the sign of work that is timed in its place."""
        ttft_s, pending, learning = now_s - attempt.start_s, load.pending - forecast.uncached, self.learning
        load.pending = pending if pending > 0.0 else 0.0
        load.stalls.first_content(forecast.number, now_s)
        if forecast.tickets is not None and not (forecast.exact or forecast.cold):
            learning.add_hedge(forecast.tickets.expected, ttft_s, won=True)
        if self._is_sample(forecast):
            name = attempt.replica.name
            if not forecast.cold:
                learning.predictor.add(name, ttft_s, forecast.uncached, forecast.pending, now_s)
            if forecast.crowd is not None and forecast.ttft_s is not None:
                learning.crowding.add(forecast.crowd, ttft_s, forecast.ttft_s)
            learning.add_content(name, ttft_s, None if forecast.cold else forecast.ttft_s, now_s)
            if self.bills is not None:
                self.bills.add_content(name, ttft_s, forecast.uncached, now_s)

    def _predicted(self, attempt: AttemptView) -> float:
        if attempt.forecast is None or attempt.forecast.ttft_s is None:
            return self.settings.cold_start_delay_s
        return attempt.forecast.ttft_s

    def _settle(self, attempt: AttemptView, forecast: Forecast, outcome: Outcome, now_s: float) -> None:
        """Release the reservations that were not used, and earn credits for the cost."""
        usage = attempt.usage
        if forecast.tickets is not None:
            is_free = OUTCOME_EFFECTS[outcome].bill is Bill.RELEASE
            (self.budget.release if is_free else self.budget.settle)(forecast.tickets)
        if usage is not None and usage.completion_tokens is not None:
            self.learning.add_answer(usage.completion_tokens, now_s)
        if forecast.quota is not None:
            self.quotas.close(attempt, forecast.quota, OUTCOME_EFFECTS[outcome].bill, now_s)
        if self.bills is not None:
            self.bills.settle(attempt, forecast, outcome, now_s)
        elif self.budget.unit is _COST and forecast.earns and attempt.content_s is not None:
            spent = charge(attempt, outcome, Disposition.WINNER, forecast.prompt_tokens, self.learning.answer_tokens)
            self.budget.earn_spent(spent.cost, now_s, self.learning.earning)

    def _unanswered(self, attempt: AttemptView, forecast: Forecast, outcome: Outcome, now_s: float) -> None:
        """Learn from an attempt that ended without first content."""
        load, name, waited_s = self.loads.of[attempt.replica], attempt.replica.name, now_s - attempt.start_s
        if outcome is Outcome.LOST and forecast.tickets is not None and not forecast.cold:
            self.learning.add_hedge(forecast.tickets.expected, waited_s, won=False)
        load.pending = max(0.0, load.pending - forecast.uncached)
        if OUTCOME_EFFECTS[outcome].sample is Sample.CENSORED and self._is_sample(forecast):
            load.stalls.given_up(forecast.number, now_s)
            if not forecast.cold:
                self.learning.predictor.add_late(name, waited_s, forecast.uncached, forecast.pending, now_s)
            self.learning.add_given_up(name, waited_s, None if forecast.cold else forecast.ttft_s, now_s)
            if self.bills is not None:
                self.bills.add_given_up(name, waited_s, forecast.uncached, now_s)
        else:
            load.stalls.failed(forecast.number)
            if self.bills is not None and OUTCOME_EFFECTS[outcome].breaker is not BreakerSignal.NONE:
                self.bills.add_refused(name)
