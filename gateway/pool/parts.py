"""The parts of one pool: replicas with their loads, learned state, budget; a reload takes them over. Pure.

`pool.py` changes it with every attempt. Units: seconds of the loop's clock, tokens.
"""

from collections.abc import Mapping, Sequence

from gateway.estimation.first_token import FirstTokenChoice
from gateway.hedging.budget import HedgeBudget
from gateway.hedging.contract import RequestFacts
from gateway.hedging.measure import NOT_MEASURED
from gateway.hedging.outcomes import Denial
from gateway.hedging.parameters import HedgeParameters
from gateway.hedging.plan import FirstEvent, Policy
from gateway.hedging.possible import never_hedged, target_of
from gateway.limits.ledger import Ledger
from gateway.pool.learning import Learning
from gateway.pool.loads import Loads
from gateway.pool.picker import Picker
from gateway.pool.quickest import Quickest
from gateway.pool.quotas import Quotas
from gateway.pool.rejections import Rejections
from gateway.routing.replicas import Replica


class PoolParts:
    """The objects and switches of one pool.

    Args:
        name: name for display: the model's name, with a number for a fallback.
        replicas: replicas with different names; none while their source has not found any.
        ledgers: ledgers by quota name; shared between pools.
        previous: pool that this one replaces after a reload, None without one; replicas that stay keep their state.
        ends_cool_downs: True if their cool-downs end, which tests whether their providers still refuse.
    """

    def __init__(
        self,
        name: str,
        replicas: Sequence[Replica],
        settings: HedgeParameters,
        ledgers: Mapping[str, Ledger] | None = None,
        previous: "PoolParts | None" = None,
        *,
        ends_cool_downs: bool = True,
    ) -> None:
        self.name = name
        self.replicas = tuple(replicas)
        self.settings = settings
        self.is_single = len(self.replicas) < 2
        self.max_hedges = 0 if settings.policy is Policy.OFF else settings.max_hedges  # of a request
        self.is_shadow = settings.policy is Policy.SHADOW
        self.withholds = self.is_shadow or settings.measure != NOT_MEASURED  # some granted hedges
        self.prefills = any(replica.prefills for replica in replicas)  # some can continue a given answer
        self.hedging_on = True  # the on-call switch
        self.stops_at_headers = settings.answered_by is FirstEvent.HEADERS
        self.budget = HedgeBudget(settings.budget, settings.budget_unit, settings.saved_hedges)
        self.first_token = FirstTokenChoice(settings.first_token)
        loads = None if previous is None else previous.loads
        new = [replica.name for replica in replicas if loads is None or replica not in loads.of]
        self.learning = Learning(new, settings)
        self.quotas = Quotas(replicas, ledgers or {}, self.learning)
        self.loads: Loads = Loads(replicas, self.learning, loads)
        self.picker = Picker(self.replicas, settings, self.loads, self.learning, self.quotas, self._can_hedge)
        self._quickest = Quickest(self.picker, settings, self.loads, self.learning, self.quotas)
        off = settings.policy is Policy.OFF or settings.budget <= 0
        self._never_hedged = never_hedged(list(map(target_of, replicas)), off=off, crossing=settings.crossing)
        if previous is not None:
            self._adopt_state(previous, ends_cool_downs=ends_cool_downs)

    def _adopt_state(self, old: "PoolParts", *, ends_cool_downs: bool) -> None:
        """Take over the state of a pool; its running attempts share that state and still count."""
        stay = self.loads.adopt_state(old.loads)
        for replica in stay if ends_cool_downs else ():
            replica.breaker.end_cool_down()
        names = [replica.name for replica in stay]
        self.learning.adopt_state(old.learning, names)
        if self.first_token.adopt_state(old.first_token, names):
            self.learning.restart()
        self.hedging_on = old.hedging_on
        if (self.settings.budget, self.settings.budget_unit) == (old.settings.budget, old.settings.budget_unit):
            self.budget = old.budget

    @property
    def has_hidden_reasoning(self) -> bool:
        """True if its first content follows hidden reasoning, which a backup would have to repeat in full."""
        return self.first_token.hides_reasoning and not self.settings.hedge_hidden_reasoning

    def switch(self, replica: Replica, now_s: float, *, out: bool) -> None:
        """Take a replica out, or in again with a slow start; its attempts under way continue."""
        replica.out = out
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

    def _can_hedge(self, facts: RequestFacts, now_s: float) -> bool:
        """Return True if a request could be hedged at once, or never."""
        is_off = facts.hedge_off is not None or not self.hedging_on or self.is_shadow or self.max_hedges == 0
        return is_off or self.budget.affords_prompt(facts.prompt_tokens, now_s)
