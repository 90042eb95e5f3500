"""Credit budgets of hedges and of retries: earned from measured traffic, saved up to a cap, taken with tickets.

`CreditBudget` serves both budgets of a pool: requests (every cost is 1) and prompt tokens (a request earns by its
weighted tokens, a hedge costs its uncached ones). Independent of the purpose of a cost and of its requests. In any n
requests, at most share * (the weight of these n) + cap credits are spent, plus the overdraft of the last hedge (none if
all costs are 1). Hedges far below the mean cost may add to an overdraft, up to three caps.

Units: credits are requests or tokens; now_s in seconds.
"""

from math import exp, inf
from typing import Final

# docs/design/0005
import msgspec

_CAP_COSTS: Final = 3.0
SAVED_COSTS: Final = _CAP_COSTS / 2  # at the first request
_CAP_ACCRUAL_S: Final = 6.0
_OVERDRAW_SHARE: Final = 0.9  # of the cap; without it, a prompt longer than the cap could never be hedged
_COST_CAPS_MAX: Final = 3.0  # a dearer hedge would leave a debt that blocks hundreds of other hedges
_CHEAP: Final = 0.1  # of the mean cost: the debt of a dear hedge bars no cheaper one, which costs hardly anything
_MEAN_WEIGHT: Final = 0.02  # of a new cost in the mean cost: the last 50 requests
# Finagle's retry budget with a lower floor: a fifth more requests double no load
_RETRY_SHARE: Final = 0.2
_RETRIES_PER_S: Final = 1.0  # floor for low traffic
_RETRIES_SAVED: Final = 10.0
_RETRY_ACCRUAL_S: Final = 10.0


class Ticket(msgspec.Struct, eq=False):
    """Credits taken for one hedge until the ticket is settled or released; only the first call has an effect."""

    cost: float
    is_open: bool = True


class Credit(msgspec.Struct, frozen=True, gc=False):
    """A part of a budget.

    Attributes:
        credit: credits; negative after an overdraft.
        accrual: earnings of the last seconds.
    """

    credit: float = 0.0
    accrual: float = 0.0


NO_CREDIT: Final = Credit()


class CreditBudget:
    """A bucket of credits, with some saved at its first request.

    Several processes share one bucket: credits of the other processes may be spent here, too. In a full bucket,
    requests of the mean cost change only the cap: it grows by what they earn, at most.

    Args:
        share: fraction of the traffic's weight that may be spent, 0.1 for ten per cent; 0 grants no hedge.
        saved: credits at the first request, as a multiple of its cost. More than half of the cap is lost after some
            seconds without the traffic that would earn it.
        accrual_s: time of which the earnings are part of the cap.

    Attributes:
        accrual_s: time constant with which earnings of the last seconds fade.
        processes: number of processes that share the bucket.
    """

    def __init__(self, share: float, saved: float = SAVED_COSTS, accrual_s: float = _CAP_ACCRUAL_S) -> None:
        self.share = share
        self.accrual_s = accrual_s
        self._saved = saved
        self._credit = 0.0  # unused while the bucket is full
        self._is_full = False
        self._cost_mean = 0.0
        self._accrual = 0.0  # decaying earnings: in steady traffic, the earnings of `accrual_s`
        self._now_s = 0.0
        self._others = NO_CREDIT  # part of the credits that other processes have, as of _put_s
        self._put_s = 0.0
        self._divided = 1  # number of processes between which the credits of the start are divided
        self.processes = 1

    @property
    def credit(self) -> float:
        """Remaining credits; negative until an overdraft is repaid."""
        return self.cap if self._is_full else self._credit

    @property
    def cap(self) -> float:
        """Maximum of `credit` as of the last request or hedge: 3 mean costs and 6 s of accrual."""
        return _CAP_COSTS * self._cost_mean + self._accrual

    @property
    def own_credit(self) -> float:
        """Part of `credit` that other processes do not report."""
        return self.credit - self._others.credit

    @property
    def raw_credit(self) -> float:
        """Credits without what fades by itself: the same number as long as nothing is earned, spent or read."""
        return self._credit

    @property
    def own_cap(self) -> float:
        """An equal part of `cap`."""
        return self.cap / self.processes

    def open(self, cost: float) -> None:
        """Credit what is saved at the first request, if nothing was earned yet: earnings may follow its answer."""
        if not self._cost_mean and self.share > 0.0:
            self._adapt(cost)

    def earn(self, now_s: float, cost: float = 1.0, scale: float = 1.0) -> None:
        """Credit one request that may be hedged.

        Args:
            cost: weight of the request; 1 in a budget of requests.
            scale: 0 to 1, slows the earning.
        """
        earned = self.share * cost * scale
        if earned <= 0:
            return
        if cost != self._cost_mean:
            self._adapt(cost)
        if now_s < self._now_s:
            now_s = self._now_s
        self._accrual = accrual = self._accrual * exp((self._now_s - now_s) / self.accrual_s) + earned
        self._now_s = now_s
        if self._is_full:
            return
        self._credit = credit = self._credit + earned
        if self.processes > 1:
            self._credit = self._clipped(credit, self.cap)
        elif credit >= _CAP_COSTS * self._cost_mean + accrual:
            self._is_full = True

    def _adapt(self, cost: float) -> None:
        """Adapt the mean cost, and with it the cap, to another cost; the first cost brings the saved credits."""
        self._credit, self._is_full = self.credit, False
        if self._cost_mean:
            self._cost_mean += _MEAN_WEIGHT * (cost - self._cost_mean)
        else:
            self._cost_mean = cost
            self._divided = self.processes
            self._credit += self._saved * cost / self.processes
            self._accrual += (self._saved - SAVED_COSTS) * cost / self.processes

    def reserve(self, now_s: float, cost: float = 1.0) -> Ticket | None:
        """Take the credits of one hedge; return None if there are too few.

        A cost above 0.9 of the cap is granted at that credit and overdraws; the debt is repaid before any other hedge
        that costs a tenth of the mean or more. A cost above three caps is never granted.
        """
        if not self.affords(now_s, cost):
            return None
        self._credit -= cost
        return Ticket(cost)

    def affords(self, now_s: float, cost: float = 1.0) -> bool:
        """Return True if `reserve` would grant a ticket."""
        self._fade(now_s)
        cap = self.cap
        self._credit = min(self._credit, cap) if self.processes == 1 else self._clipped(self._credit, cap)
        if cost > _COST_CAPS_MAX * cap:
            return False
        if cost < _CHEAP * self._cost_mean:
            return self._credit > -_COST_CAPS_MAX * cap
        return self._credit >= min(cost, _OVERDRAW_SHARE * cap) and (self._credit > 0 or cost <= 0)

    def settle(self, ticket: Ticket, cost: float) -> None:
        """Charge the actual cost of a hedge that was sent, in place of the reserved one."""
        if ticket.is_open:
            ticket.is_open = False
            self.spend(cost - ticket.cost)

    def spend(self, cost: float) -> None:
        """Charge a cost that a hedge has caused later; it may leave a debt."""
        self._credit, self._is_full = self.credit - cost, False

    def release(self, ticket: Ticket) -> None:
        """Give back the credits of a hedge that was not sent."""
        self.settle(ticket, 0.0)

    def own(self, now_s: float) -> Credit:
        """Return the part of the credits that this process has earned and not spent."""
        self._fade(now_s)
        if self.processes > 1:
            self._credit = self._clipped(self._credit, self.cap)
        return Credit(self._credit - self._others.credit, self._own_accrual())

    def put_others(self, others: Credit, processes: int, now_s: float) -> None:
        """Replace the part that the other processes have; `processes` is the number of all processes.

        The credits of the start exist once: a process that has them from a time when it did not know the others divides
        them, and no process counts more than a cap until all have done so.
        """
        own = self.own(now_s)
        own_credit = own.credit
        if self._cost_mean and processes > self._divided:
            own_credit *= self._divided / processes if own_credit > 0.0 else 1.0
            self._divided = processes
        self._accrual = own.accrual + others.accrual
        if self._cost_mean:
            others = Credit(min(others.credit, max(0.0, self.cap - own_credit)), others.accrual)
        self._credit = own_credit + others.credit
        self._others, self._put_s, self.processes = others, self._now_s, processes

    def _fade(self, now_s: float) -> None:
        self._credit, self._is_full = self.credit, False
        if now_s > self._now_s:
            self._accrual *= exp((self._now_s - now_s) / self.accrual_s)
            self._now_s = now_s

    def _own_accrual(self) -> float:
        return max(0.0, self._accrual - self._others.accrual * exp((self._put_s - self._now_s) / self.accrual_s))

    def _clipped(self, credit: float, cap: float) -> float:
        own_cap = _CAP_COSTS * self._cost_mean / self.processes + self._own_accrual()
        return _clipped(credit, cap, self._others.credit, own_cap)


def _clipped(credit: float, cap: float, others: float, own_cap: float) -> float:
    """Return the credits of all processes after this one has given up its part of the credits above the cap."""
    own = credit - others
    return credit if credit <= cap else others + max(min(own, own_cap), own - (credit - cap))


class RetryBudget:
    """Budget of retries after failures, shared by all requests of a model: a fifth of the requests, and one per second.

    In any n requests within t seconds at most 0.2 * n + t retries are granted, plus the credits saved before: ten, and
    the credits earned by the traffic of the last seconds. As many again may follow unclear rejections, so that one
    caller's invalid requests do not use up the retries of all. Several processes share one budget. In a full budget, a
    request changes only the maximum.

    Attributes:
        accrual_s: time constant with which earnings of the last seconds fade.
        processes: number of processes that share the budget.
    """

    accrual_s: Final = _RETRY_ACCRUAL_S

    def __init__(self) -> None:
        self._credit = self._unclear_credit = _RETRIES_SAVED  # unused while the budget is full
        self._is_full = False
        self._accrual = 0.0  # earnings decaying with 10 s
        self._now_s = self._put_s = -inf
        self._others = NO_CREDIT
        self.processes = 1

    @property
    def raw_credit(self) -> float:
        """Credits without what time adds: the same number as long as nothing is earned, taken or read."""
        return self._credit

    def earn(self, now_s: float) -> None:
        """Credit a new request."""
        if self._is_full and now_s >= self._now_s:
            self._accrual = self._accrual * exp((self._now_s - now_s) / _RETRY_ACCRUAL_S) + _RETRY_SHARE
            self._now_s = now_s
            return
        self._pass(now_s)
        self._is_full = self.processes == 1 and self._credit == self._unclear_credit == _RETRIES_SAVED + self._accrual
        self._accrual += _RETRY_SHARE
        self._credit += _RETRY_SHARE
        self._unclear_credit += _RETRY_SHARE

    def take(self, now_s: float, *, unclear: bool = False) -> bool:
        """Take one retry, after an unclear rejection or another failure; return False if none is left."""
        self._pass(now_s)
        if unclear:
            if self._unclear_credit < 1.0:
                return False
            self._unclear_credit -= 1.0
            return True
        if self._credit < 1.0:
            return False
        self._credit -= 1.0
        return True

    def _pass(self, now_s: float) -> None:
        if self._is_full:
            self._credit = self._unclear_credit = _RETRIES_SAVED + self._accrual
            self._is_full = False
        if now_s > self._now_s:
            elapsed_s = now_s - self._now_s
            self._accrual *= exp(-elapsed_s / _RETRY_ACCRUAL_S)
            credit_max, earned = _RETRIES_SAVED + self._accrual, elapsed_s * _RETRIES_PER_S
            self._now_s = now_s
            if self.processes == 1:
                credit, unclear_credit = self._credit + earned, self._unclear_credit + earned
                self._credit = credit if credit < credit_max else credit_max
                self._unclear_credit = unclear_credit if unclear_credit < credit_max else credit_max
                return
            earned /= self.processes
            own_max = _RETRIES_SAVED / self.processes + self._own_accrual()
            self._credit = _clipped(self._credit + earned, credit_max, self._others.credit, own_max)
            self._unclear_credit = min(own_max, self._unclear_credit + earned)

    def own(self, now_s: float) -> Credit:
        """Return the part of the retries that this process has earned and not spent."""
        self._pass(now_s)
        return Credit(self._credit - self._others.credit, self._own_accrual())

    def put_others(self, others: Credit, processes: int, now_s: float) -> None:
        """Replace the part that the other processes have; `processes` is the number of all processes."""
        own, share = self.own(now_s), self.processes / processes  # credits saved at the start exist once
        self._credit = own.credit * (share if own.credit > 0 else 1.0) + others.credit
        self._unclear_credit *= share
        self._accrual = own.accrual + others.accrual
        self._others, self._put_s, self.processes = others, self._now_s, processes

    def _own_accrual(self) -> float:
        if self._others is NO_CREDIT:
            return self._accrual
        return max(0.0, self._accrual - self._others.accrual * exp((self._put_s - self._now_s) / _RETRY_ACCRUAL_S))
