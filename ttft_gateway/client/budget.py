"""The limit on the backups of a client: one budget for everything that its transports send. No I/O.

Every request earns a share of a backup. A backup of any model, host or method takes one, so that an outage of thousands
of hosts adds no more than an outage of one. A program may end after a few requests. So the first fraction of a backup
is drawn at random, and in the mean over many short processes exactly the share is sent. Each of the first requests that
is answered in time lends half of its share in addition, up to twelve backups: a program that works well can hedge
its first stragglers. An outage is lent nothing, also if half of its requests are answered in time: requests lend
while at least three quarters of all that were sent are answered in time.

Units: backups, prompt tokens; now_s in seconds.
"""

import os
import threading
import weakref
from collections.abc import Callable
from typing import Final

from ttft_gateway.client.config import check_number
from ttft_gateway.hedging.budget import BudgetUnit, HedgeBudget
from ttft_gateway.hedging.calibration import Expectation, Rescue
from ttft_gateway.hedging.contract import HedgeTickets
from ttft_gateway.hedging.parameters import DEFAULTS
from ttft_gateway.limits.budget import Ticket

_LENT_SHARE: Final = 0.5  # of what a request earns
_IN_TIME_MIN: Final = 3  # requests answered in time for each other one, late or not yet answered; a usual tail has nine
_LENT_MAX: Final = 12.0  # backups


class Budget:
    """A limit that several transports share: `HedgingTransport(budget=budget)`.

    Args:
        percent: largest number of backups in percent of the requests, and of their prompt tokens.

    Attributes:
        lock: held while the state of a transport with this budget is read or changed.
        percent: the argument.

    Raises:
        ValueError: the percentage is out of its range.
    """

    lock: threading.Lock

    def __init__(self, percent: float = 100 * DEFAULTS.budget) -> None:
        check_number("percent", percent, 0.0, 100.0)
        self.percent = float(percent)
        self.clear()
        _ALL.add(self)

    def clear(self) -> None:
        """Start anew, as in a process that has sent nothing."""
        self.lock = threading.Lock()
        self._credits: ClientCredits | None = None

    def credits(self, rand: Callable[[], float]) -> "ClientCredits":
        """Return the credits; the lock is held.

        Args:
            rand: returns random numbers in [0, 1).
        """
        if self._credits is None:
            self._credits = ClientCredits(self.percent / 100, rand())
        return self._credits


class ClientCredits(HedgeBudget):
    """The credits of a budget, for all pools of all transports.

    Args:
        share: backups as a fraction of the requests.
        drawn: fraction of a backup that can be paid at the first request.

    Attributes:
        begun: requests that were sent and may be hedged, while it lends.
        is_lending: True until as much was lent as may be.
    """

    def __init__(self, share: float, drawn: float) -> None:
        super().__init__(share, BudgetUnit.TOKENS, drawn)
        self._share = share
        self._lent = 0.0
        self._in_time = 0  # requests while it lends
        self.begun = 0
        self.is_lending = True

    def lend(self, prompt_tokens: float) -> None:
        """Lend a part of what a request has earned, because it was answered in time, unless too many are late."""
        self._in_time += 1
        if self._in_time < _IN_TIME_MIN * (self.begun - self._in_time):
            return
        lent = _LENT_SHARE * self._share
        self.requests.spend(-lent)
        self.cost.spend(-lent * prompt_tokens)
        self._lent += lent
        self.is_lending = self._lent < _LENT_MAX

    def affords(self, cost: float, now_s: float) -> bool:
        """Return True if both budgets can pay for a backup; one without a prompt is not held up by debts of tokens."""
        return self.requests.affords(now_s) and (cost <= 0.0 or self.cost.affords(now_s, cost))

    def reserve(self, cost: float, now_s: float, expected: Expectation | Rescue | None = None) -> HedgeTickets:
        """Take the credits of a backup that `affords` has approved."""
        if cost > 0.0:
            return super().reserve(cost, now_s, expected)
        ticket = self.requests.reserve(now_s)
        assert ticket is not None
        return HedgeTickets(ticket, Ticket(0.0), expected)


_ALL: "weakref.WeakSet[Budget]" = weakref.WeakSet()


def _after_fork() -> None:
    for budget in _ALL:
        budget.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
