"""What a pool's hedges may cost: a share of the requests and, at the same time, of the prompt tokens or of the spend.

Owns both credit budgets, what a request earns them, and what a hedge is charged. It must not know whether a hedge is
worth it, nor where requests go. A hedge has two costs: the prompt, once more, where the backup goes; and the rest of an
answer, where cancelling does not stop the bill. Either of the two may be the one that is cancelled, so the dearer one
counts.

Units: requests, tokens, money of the configuration's currency; now_s in seconds.
"""

import enum
from typing import Final

from gateway.hedging.contract import HedgeTickets
from gateway.limits.budget import CreditBudget
from gateway.limits.prices import Prices
from gateway.routing.replicas import Replica

_CACHED_PRICE: Final = 0.1  # of a cached prompt token, unless prices are known: what the large providers charge
_FREE: Final = Prices(0.0, 0.0, 0.0)


class BudgetUnit(enum.Enum):
    """What the second budget counts."""

    TOKENS = "tokens"  # prompt tokens, cached ones by their price
    COST = "cost"  # money


class HedgeBudget:
    """Both budgets of a pool.

    Args:
        share: of the traffic, for hedges.
        unit: what the second budget counts; money wants prices at every replica, one without counts as free.

    Attributes:
        requests: the budget of requests.
        cost: the budget of prompt tokens or money.
    """

    __slots__ = ("cost", "requests", "unit")

    def __init__(self, share: float, unit: BudgetUnit) -> None:
        self.unit = unit
        self.requests = CreditBudget(share)
        self.cost = CreditBudget(share)

    def earn_sent(self, replica: Replica, prompt_tokens: float, uncached: float, now_s: float, scale: float) -> None:
        """A request that may be hedged is sent; scale from 0 to 1 slows what it earns."""
        self.requests.earn(now_s, 1.0, scale)
        if self.unit is BudgetUnit.TOKENS:
            self.cost.earn(now_s, uncached + _cached_weight(replica.prices) * (prompt_tokens - uncached), scale)

    def earn_spent(self, cost: float | None, now_s: float, scale: float) -> None:
        """A request that may be hedged has got an answer, or some of it, for so much; None without prices."""
        if cost is not None and self.unit is BudgetUnit.COST:
            self.cost.earn(now_s, cost, scale)

    def hedge_cost(
        self, asking: Replica, backup: Replica, prompt_tokens: float, uncached: float, answer_tokens: float
    ) -> float:
        """What the second budget is charged for a hedge.

        Args:
            asking: where the request waits.
            backup: where it would go as well.
            prompt_tokens: of the prompt.
            uncached: of these, what the backup has to compute.
            answer_tokens: how long the answer is expected to be.
        """
        going_on = [replica for replica in (asking, backup) if replica.bills_cancelled]
        if self.unit is BudgetUnit.TOKENS:
            return uncached + (answer_tokens if going_on else 0.0)
        prompt = (backup.prices or _FREE).cost(prompt_tokens, prompt_tokens - uncached, 0.0)
        answers = [(replica.prices or _FREE).cost(0.0, 0.0, answer_tokens) for replica in going_on]
        return prompt + max(answers, default=0.0)

    def affords(self, cost: float, now_s: float) -> bool:
        """Whether both budgets have room for a hedge."""
        return self.requests.affords(now_s) and self.cost.affords(now_s, cost)

    def reserve(self, cost: float, now_s: float) -> HedgeTickets:
        """Take the credits of a hedge that is affordable."""
        request, volume = self.requests.reserve(now_s), self.cost.reserve(now_s, cost)
        assert request is not None
        assert volume is not None
        return HedgeTickets(request, volume)

    def settle(self, tickets: HedgeTickets) -> None:
        """The hedge has cost what it was charged."""
        self.requests.settle(tickets.request, tickets.request.cost)
        self.cost.settle(tickets.cost, tickets.cost.cost)

    def release(self, tickets: HedgeTickets) -> None:
        """The hedge has cost nothing: give everything back."""
        self.requests.release(tickets.request)
        self.cost.release(tickets.cost)

    def why_not(self, cost: float) -> str:
        """What is left of what a hedge would cost, for people."""
        requests, left = self.requests.credit, self.cost.credit
        if self.unit is BudgetUnit.COST:
            return f"the budget has {requests:.1f} of 1 request and {left:.3g} of {cost:.3g} to spend"
        return f"the budget has {requests:.1f} of 1 request and {left:.0f} of {cost:.0f} tokens"


def _cached_weight(prices: Prices | None) -> float:
    """What a cached prompt token counts, as a share of another one."""
    if prices is None or prices.prompt <= 0:
        return _CACHED_PRICE
    return prices.cached_prompt / prices.prompt
