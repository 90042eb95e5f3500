"""The hedge budget of a pool: a share of its requests and, at the same time, of its prompt tokens or its cost.

Owns both credit budgets: the credits that requests earn, and the charge for a hedge. Does not decide whether a hedge is
worth sending, nor where requests go. A hedge has two costs: the prompt, sent once more to the backup; and the end of
an answer, if cancelling does not stop billing. Either attempt may be the cancelled one, so the dearer answer counts.

Units: requests, tokens, money in the configuration's currency; now_s in seconds.
"""

import enum
from typing import Final

from ttft_gateway.hedging.calibration import Expectation, Rescue
from ttft_gateway.hedging.contract import HedgeTickets
from ttft_gateway.limits.budget import SAVED_COSTS, CreditBudget
from ttft_gateway.limits.prices import Prices
from ttft_gateway.routing.replicas import Replica

_CACHED_PRICE: Final = 0.1  # of an uncached token, if no prices are configured: the large providers' price
_FREE: Final = Prices(0.0, 0.0, 0.0)


class BudgetUnit(enum.Enum):
    """Unit of the second budget; the value is the name in the settings."""

    TOKENS = "tokens"  # prompt tokens; cached ones are weighted by their price
    COST = "cost"  # money


_TOKENS: Final = BudgetUnit.TOKENS


class HedgeBudget:
    """Both credit budgets of a pool.

    Args:
        share: hedges as a fraction of the traffic.
        unit: unit of the second budget. `COST` needs prices for every replica; a replica without prices counts as free.
        saved: hedges that can be paid at the first request.
        cost: the second budget, None for one like the first.

    Attributes:
        requests: budget of requests.
        cost: budget of prompt tokens or money.
    """

    def __init__(
        self, share: float, unit: BudgetUnit, saved: float = SAVED_COSTS, cost: CreditBudget | None = None
    ) -> None:
        self.unit = unit
        self.requests = CreditBudget(share, saved)
        self.cost = cost or CreditBudget(share, saved)
        self._opens = cost is None  # with the first prompt, for a hedge before an answer has earned money

    def earn_sent(self, replica: Replica, prompt_tokens: float, uncached: float, now_s: float, scale: float) -> None:
        """Credit a sent request that may be hedged; `scale` (0 to 1) slows the earning."""
        self.requests.earn(now_s, 1.0, scale)
        if self.unit is _TOKENS:
            cached = prompt_tokens - uncached
            self.cost.earn(now_s, uncached + _cached_weight(replica.prices) * cached if cached else uncached, scale)
        elif self._opens:
            self.cost.open((replica.prices or _FREE).cost(prompt_tokens, 0.0, 0.0))

    def earn_spent(self, cost: float | None, now_s: float, scale: float) -> None:
        """Credit the cost of a full or partial answer to a request that may be hedged; None: no prices."""
        if cost is not None and self.unit is BudgetUnit.COST:
            self.cost.earn(now_s, cost, scale)

    def hedge_cost(
        self, current: Replica, backup: Replica, prompt_tokens: float, uncached: float, answer_tokens: float
    ) -> float:
        """Return the charge to the second budget for a hedge.

        Args:
            current: replica of the attempt that waits.
            backup: replica of the hedge.
            prompt_tokens: tokens of the prompt.
            uncached: prompt tokens that the backup has to compute.
            answer_tokens: expected length of the answer, in tokens.
        """
        if self.unit is BudgetUnit.TOKENS:
            return uncached + (answer_tokens if current.bills_cancelled or backup.bills_cancelled else 0.0)
        return hedge_money(current, backup, prompt_tokens, uncached, answer_tokens)

    def affords(self, cost: float, now_s: float) -> bool:
        """Return True if both budgets can pay for a hedge."""
        return self.requests.affords(now_s) and self.cost.affords(now_s, cost)

    def scarcity(self) -> float:
        """Return the missing part of the credits that can be saved: 1 if a budget has none, 0 if both are full."""
        left = min((each.credit / each.cap if each.cap else 0.0) for each in (self.requests, self.cost))
        return max(0.0, min(1.0, 1.0 - left))

    def affords_prompt(self, tokens: float, now_s: float) -> bool:
        """Return True if both budgets can pay for a hedge with a prompt of this length; prices are ignored."""
        return self.affords(tokens if self.unit is BudgetUnit.TOKENS else 0.0, now_s)

    def reserve(self, cost: float, now_s: float, expected: Expectation | Rescue | None = None) -> HedgeTickets:
        """Take the credits of a hedge that `affords` has approved; `expected` is for the calibration of the gate."""
        request_ticket, cost_ticket = self.requests.reserve(now_s), self.cost.reserve(now_s, cost)
        assert request_ticket is not None
        assert cost_ticket is not None
        return HedgeTickets(request_ticket, cost_ticket, expected)

    def settle(self, tickets: HedgeTickets) -> None:
        """Charge the reserved credits of a hedge that was sent."""
        self.requests.settle(tickets.request, tickets.request.cost)
        self.cost.settle(tickets.cost, tickets.cost.cost)

    def release(self, tickets: HedgeTickets) -> None:
        """Give back the credits of a hedge that was not billed."""
        self.requests.release(tickets.request)
        self.cost.release(tickets.cost)

    def spend_on_loser(self, replica: Replica, prompt_tokens: float) -> None:
        """Charge the reading of a lost attempt to its first token: one token, on an engine also the prompt.

        Nothing is charged where the whole answer is billed anyway: the hedge was charged for it.
        """
        if replica.bills_cancelled:
            return
        prompt = prompt_tokens if replica.batches else 0.0  # at most: part of it is computed already
        if self.unit is BudgetUnit.TOKENS:
            self.cost.spend(prompt + 1.0)
        else:
            self.cost.spend((replica.prices or _FREE).cost(prompt, 0.0, 1.0))

    def why_not(self, cost: float) -> str:
        """Describe the credits that are missing, for the log."""
        requests_left, cost_left = self.requests.credit, self.cost.credit
        if self.unit is BudgetUnit.COST:
            second = f"cost {cost_left:.3g} ({cost:.3g} needed)"
        else:
            second = f"{cost_left:.0f} tokens ({cost:.0f} needed)"
        return f"the hedge budget is too low: {requests_left:.1f} requests (1 needed), {second}"


def hedge_money(
    current: Replica, backup: Replica, prompt_tokens: float, uncached: float, answer_tokens: float
) -> float:
    """Return the cost of a hedge in money, from the arguments of `HedgeBudget.hedge_cost`."""
    prompt = (backup.prices or _FREE).cost(prompt_tokens, prompt_tokens - uncached, 0.0)
    billed_on = [replica for replica in (current, backup) if replica.bills_cancelled]
    answers = [(replica.prices or _FREE).cost(0.0, 0.0, answer_tokens) for replica in billed_on]
    return prompt + max(answers, default=0.0)


def _cached_weight(prices: Prices | None) -> float:
    if prices is None or prices.prompt <= 0:
        return _CACHED_PRICE
    return prices.cached_prompt / prices.prompt
