"""The budgets of a pool that several gateways share: own credits out, those of the others in. Pure.

What all have not spent is there for each: a gateway with few requests would never earn a whole hedge. Between two
exchanges several gateways may spend the same credits; the debt is repaid before any other hedge, so that the share of
hedges holds. Units: requests, tokens or money; seconds of the loop's clock.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from gateway.limits.budget import NO_CREDIT, Credit
from gateway.pool.rows import CREDIT, CREDIT_UNIT, checked

ROW: Final = ""  # name of the row; no replica has it


class SharedBudget(Protocol):
    """A budget that gateways share."""

    def own(self, now_s: float) -> Credit:
        """Return the part of this gateway."""

    def put_others(self, others: Credit, heads: int, now_s: float) -> None:
        """Replace the part of the others."""


class SharedCredits:
    """The exchange of some budgets.

    Args:
        budgets: the budgets, in an order that is the same at every gateway.
    """

    def __init__(self, budgets: Sequence[SharedBudget]) -> None:
        self._budgets = budgets

    def own(self, now_s: float) -> dict[str, Sequence[int]]:
        """Return the row of this gateway."""
        return {ROW: [round(CREDIT_UNIT * value) for budget in self._budgets for value in budget.own(now_s)]}

    def put(self, rows: Mapping[str, Sequence[int]], heads: int, now_s: float) -> None:
        """Replace the credits of the others.

        Raises:
            ValueError: they are out of range; nothing was replaced.
        """
        row = rows.get(ROW, ())
        parts = [row[2 * place : 2 * place + 2] for place in range(len(self._budgets))]
        others = [_credit(checked(part, CREDIT, max(1, heads - 1))) if len(part) > 1 else NO_CREDIT for part in parts]
        for budget, credit in zip(self._budgets, others, strict=True):
            budget.put_others(credit, heads, now_s)


def _credit(part: Sequence[int]) -> Credit:
    return Credit(part[0] / CREDIT_UNIT, part[1] / CREDIT_UNIT)
