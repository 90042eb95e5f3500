"""The budgets of one pool in a row: what this gateway has earned and not spent, and what the others have. Pure.

The row has two places for each budget: the credits, and all that was earned since the row began. Earnings of the last
seconds, by which a budget is limited, fade: each gateway lets them fade by itself, so that nothing is sent while
nothing is earned or spent. Credits of a full budget fade as well; that is sent when they have halved. For a gateway
that begins, all that the others have earned before has faded.

Spent credits are sent at once, so that they are not spent again elsewhere; all else may wait.

Units: seconds of the loop's clock; the unit of a budget is requests, tokens or money.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from gateway.share.messages import BIN_S
from gateway.share.rows import CREDIT, CREDIT_UNIT, Row, checked
from ttft_gateway.limits.budget import NO_CREDIT, Credit, CreditBudget, RetryBudget

CREDITS: Final = " credits"  # of the row; no replica has it
_PERIOD_S: Final = 2.0  # between two rows while nothing is spent
_LATE_S: Final = _PERIOD_S + BIN_S  # of earnings, until the others have them
_SHARE: Final = 1 / 8  # of the credits, or of the earnings of the last seconds: smaller changes are not reported
_FADED_SHARE: Final = 1 / 2  # of the credits: they have faded by less


@dataclass(slots=True)
class _Budget:
    """One budget.

    Attributes:
        earned: earnings of this gateway since the row began.
        accrual: earnings of its last seconds, at `now_s`.
        reported: credits, earnings and earnings of the last seconds of the last row.
        seen: earnings of the others in their last row; None before the first.
        others: earnings of their last seconds, at `put_s`.
        is_gap: True if rows of the others are missing since.
    """

    of: CreditBudget | RetryBudget
    earned: float = 0.0
    accrual: float = 0.0
    now_s: float = -math.inf
    reported: tuple[float, float, float] = (0.0, 0.0, 0.0)
    seen: float | None = None
    others: float = 0.0
    put_s: float = -math.inf
    is_gap: bool = False

    def own(self, now_s: float) -> float:
        """Return the credits of this gateway, and add up what it has earned."""
        own = self.of.own(now_s)
        self.earned += max(0.0, own.accrual - self.accrual * self._rest(now_s - self.now_s))
        self.accrual, self.now_s = own.accrual, now_s
        return own.credit

    def change(self, credit: float) -> tuple[bool, bool]:
        """Return whether credits were spent since the last row, and whether something else has changed."""
        before, earned, accrual = self.reported
        tolerated = _SHARE * max(abs(before), self.accrual)
        fallen = before - credit
        is_spent = fallen - max(0.0, accrual - self.accrual) > tolerated
        has_earned = max(self.earned - earned, -fallen) > tolerated
        return is_spent, has_earned or fallen > _FADED_SHARE * abs(before)

    def put(self, credit: Credit, processes: int, now_s: float, *, are_same: bool) -> None:
        """Replace the credits of the others; they have earned evenly since the last row, or in a few seconds.

        Args:
            are_same: False if there are more or fewer others than in the last row: what they have earned is not new.
        """
        if self.seen is None:
            self.others = 0.0
        else:
            elapsed_s = now_s - self.put_s
            earned = max(0.0, credit.accrual - self.seen) if are_same else 0.0
            earned_s = elapsed_s if self.is_gap else min(elapsed_s, _LATE_S)
            part = (1.0 - self._rest(earned_s)) * self.of.accrual_s / earned_s if earned_s > 0.0 else 1.0
            self.others = self.others * self._rest(elapsed_s) + earned * part
        self.seen, self.put_s, self.is_gap = credit.accrual, now_s, False
        self.of.put_others(Credit(credit.credit, self.others), processes, now_s)

    def drop(self, processes: int, now_s: float, *, is_gap: bool) -> None:
        """Remove the credits of the others; with a gap, the next row goes on from the last one."""
        self.is_gap = is_gap
        self.seen = self.seen if is_gap else None
        self.of.put_others(NO_CREDIT, processes, now_s)

    def _rest(self, elapsed_s: float) -> float:
        """Return the part of the earnings of the last seconds that is left after a time."""
        return math.exp(-max(0.0, elapsed_s) / self.of.accrual_s)


class CreditRow:
    """The budgets of one pool.

    Args:
        budgets: in an order common to all gateways.

    Attributes:
        row: last row of this gateway.
        may_wait: True if the row has the same spent credits as the row before.
    """

    def __init__(self, budgets: Sequence[CreditBudget | RetryBudget]) -> None:
        self.row: Row = ()
        self.may_wait = False
        self._budgets = [_Budget(each) for each in budgets]
        self._due_s = -math.inf
        self._raw: list[float] = []  # credits after the last report; nothing has changed while they are the same
        self._processes = 0  # at the last row of the others

    def begin(self) -> None:
        """Begin the row again: the others do not have it any more."""
        self.row, self._due_s = (), -math.inf
        for each in self._budgets:
            each.earned = 0.0

    def is_due(self, now_s: float) -> bool:
        """Return True if a row is due while nothing is spent."""
        return now_s >= self._due_s

    def report(self, now_s: float) -> bool:
        """Replace the row if credits were spent, or if it is due and has changed; return True if it is replaced."""
        is_due = self.is_due(now_s)
        if self.row and not is_due and self._raw == [each.of.raw_credit for each in self._budgets]:
            return False
        own = [each.own(now_s) for each in self._budgets]
        self._raw = [each.of.raw_credit for each in self._budgets]
        changes = [each.change(credit) for each, credit in zip(self._budgets, own, strict=True)]
        is_spent = not self.row or any(spent for spent, _ in changes)
        if not is_spent and not is_due:
            return False
        self._due_s = now_s + _PERIOD_S
        if not is_spent and not any(changed for _, changed in changes):
            return False
        for each, credit in zip(self._budgets, own, strict=True):
            each.reported = (credit, each.earned, each.accrual)
        before = self.row
        self.row = [round(CREDIT_UNIT * value) for each in self._budgets for value in each.reported[:2]]
        self.may_wait = not is_spent
        return self.row != before

    def divide(self) -> None:
        """Report the credits with the next row: the credits of the start are divided between more gateways."""
        self._due_s = -math.inf

    def put(self, row: Row, processes: int, now_s: float) -> str:
        """Replace the credits of the others; return the reason if none count, because a value is out of range."""
        are_same, self._processes, fault = processes == self._processes, processes, ""
        try:
            found = [_credit(row[place : place + 2], max(1, processes - 1)) for place in range(0, len(row) - 1, 2)]
        except ValueError as error:
            fault, found = str(error), []
        for each, credit in zip_longest(self._budgets, found[: len(self._budgets)]):
            if credit is None:
                each.drop(processes, now_s, is_gap=False)
            else:
                each.put(credit, processes, now_s, are_same=are_same)
        return fault

    def drop(self, now_s: float) -> None:
        """Remove the credits of the others, until they are known again."""
        for each in self._budgets:
            each.drop(1, now_s, is_gap=True)


def _credit(part: Row, others: int) -> Credit:
    credit, earned = checked(part, CREDIT, others)
    return Credit(credit / CREDIT_UNIT, earned / CREDIT_UNIT)
