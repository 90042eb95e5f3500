"""Limits that many processes share: each leases a part from the engine, and spends it without asking. Pure.

Requests take from the unspent amount of a lease; below 0 it is a debt, which the next ask settles. The amount is filled
before it is empty, while limit and fleet are large enough for that; otherwise the requests that need more wait for one
ask. It is small, because no other process can use it. Only the engine refuses. While the engine is away, a process
spends the unspent amount and its part of the limit (`Fleet.part`). Slots are leased in the same way (leased_slots.py).

Units: requests, tokens and slots; seconds of the loop's clock.
"""

import math
from collections.abc import Sequence
from typing import ClassVar, Final, Protocol

from gateway.share.debts import SEGMENTS_MAX, Segment, Spending, ages_of, merged
from gateway.share.fleet import ASK_WAIT_S, IDLE_S, QUIET_S, Fleet, Requester, WhenAway
from gateway.share.leased_slots import LeasedSlots
from gateway.share.low_limits import UNUSED, LowLimits
from gateway.share.messages import AGE_S_MAX, Answer, Ask, BucketAnswer, BucketAsk, keep_silent
from ttft_gateway.apis.base import RateLimit
from ttft_gateway.limits.bucket import MARGIN_SHARE, Bucket, BucketState, Limit, QuotaBucket, Spend, counted
from ttft_gateway.limits.rates import RATE_WINDOW_S, Rate, Slots
from ttft_gateway.pool.learned import Drop

_AHEAD_SHARE: Final = 0.01  # of the limit: what all processes together lease ahead, so that no other one lacks more
_USUAL_SHARE: Final = 0.05  # of the limit: a usual request of every process; if it is larger, nothing is leased ahead
_USUAL_WEIGHT: Final = 0.05  # of a new request in the usual size
_FRESH_S: Final = 1.5  # age up to which the amount left in the last answer is divided
_SLOPE_S_MIN: Final = 1.0  # time over which a change of what is left is extended; two answers may be 1 ms apart
_UNSURE_S: Final = 0.5  # of the refill: used after a late reply, while other processes may still use all that is left
_SURE_SHARE: Final = 1 / 2  # of the limit: others cannot use up more before the engine counts as away
_SETTLE_S: Final = 1.0  # after a return, until all processes have reported what they have spent
_REFUSED_S: Final = 1.0  # wait that is reported while the engine is away and nothing may be used without it
_WAIT_S_MIN: Final = 0.01  # shortest wait after a refusal
_BUG_S: Final = 1.0  # without an answer, and without the asker's decision that the engine is away
_ROUNDING: Final = 1e-6  # of the limit: counts as available


class Leases:
    """The leases of one process: makes limits that the fleet shares.

    Args:
        drop: receives reports of other processes that are out of range.

    Attributes:
        fleet: state of sharing.
        low: exchanges how far the limits are used up.
        held: leases with an unspent amount, a debt or slots.
        divided: leases that have divided what is left since the engine went away, by key.
        mismatches: own and lower amount of each limit that another process has lower, by key.
    """

    def __init__(self, fleet: Fleet, drop: Drop = keep_silent) -> None:
        self.fleet = fleet
        self.low = LowLimits(drop)
        self.held: dict[HeldLease, None] = {}
        self.divided: dict[str, Lease] = {}
        self.mismatches: dict[str, tuple[float, float]] = {}
        self._report = 0

    def rate(self, name: str, limit: int) -> Rate:
        """Return a limit per minute."""
        return LeasedRate(self, name, limit)

    def slots(self, name: str, limit: float) -> Slots:
        """Return a limit on concurrency."""
        return Slots(limit) if limit == math.inf else LeasedSlots(self, name, limit)

    def bucket(self, name: str, limit: Limit) -> QuotaBucket:
        """Return one configured limit of a quota; one that is not enforced is not leased."""
        return LeasedBucket(self, name, limit) if limit.enforce else Bucket(limit)

    def tick(self, now_s: float) -> None:
        """Let each lease in use ask for what is due."""
        self.divided.clear()
        for lease in tuple(self.held):
            lease.tick(now_s)

    def number_report(self, now_s: float) -> int:
        """Return the number of a report, higher than before, and than before a restart."""
        self._report = max(self._report + 1, int(1e6 * now_s))
        return self._report

    def note_amount(self, key: str, own: float, counts: float) -> None:
        """Record, or clear, that another process has a lower limit."""
        if counts < own:
            self.mismatches[key] = (own, counts)
        elif self.mismatches:
            self.mismatches.pop(key, None)


class HeldLease(Requester, Protocol):
    """A lease in use.

    Attributes:
        key: name of the limit in the fleet.
    """

    key: str

    @property
    def unspent(self) -> float:
        """Amount that is leased and not in use; negative for a debt."""

    @property
    def owed(self) -> float:
        """Debt of this process, and of the fleet at the last answer."""

    @property
    def size(self) -> float:
        """The whole limit."""

    def tick(self, now_s: float) -> None:
        """Ask for what is due; called about every 0.1 s while the engine answers."""


class Lease:
    """The lease of one bucket.

    Args:
        leases: the leases of the process.
        key: name of the bucket in the fleet.
        amount: size of the bucket.
        window_s: time in which it refills.
        margin: part of the bucket that is never used; the refill is the same.
    """

    __slots__ = (
        "_alone_number",
        "_amount",
        "_claim_s",
        "_epoch",
        "_fills_ahead",
        "_fleet",
        "_hint_left",
        "_hint_s",
        "_is_asking",
        "_is_drained",
        "_leases",
        "_left",
        "_need",
        "_quiet_until_s",
        "_refill",
        "_report",
        "_seen_s",
        "_sent",
        "_sent_spending",
        "_share_left",
        "_share_rest",
        "_share_s",
        "_slope",
        "_spending",
        "_unspent",
        "_unsure_spending",
        "_usable",
        "_used_s",
        "_usual",
        "_waiting",
        "_want_s",
        "_wanted",
        "_was_alone",
        "key",
        "window_s",
    )

    def __init__(self, leases: Leases, key: str, amount: float, window_s: float, *, margin: float = 0.0) -> None:
        self.key = key
        self.window_s = window_s
        self._leases = leases
        self._fleet = leases.fleet
        self._usable = 1 - margin
        self._amount = self._usable * amount
        self._refill = amount / window_s
        self._unspent = 0.0
        self._need = 0.0  # amount that a waiting request needs
        self._waiting: int | None = 0  # other requests that wait; None if they are not counted
        self._is_asking = self._is_drained = False
        self._sent = 0.0  # debt in the ask under way; negative for an amount that is given back
        self._spending: Spending | None = None  # without the engine, and not in an ask yet
        self._sent_spending: Sequence[Segment] = ()  # in asks without an answer
        self._report = 0  # its number
        self._unsure_spending: list[Segment] = []  # reported since the return; another loss now would lose it
        self._hint_left, self._hint_s = 0.0, -math.inf  # amount and time before it
        self._wanted = 0.0  # amount asked for in it
        self._want_s = -math.inf  # when that began
        # the last answer
        self._left = self._amount
        self._seen_s = -math.inf
        self._slope = 0.0  # change per second of what is left, at most 0
        self._epoch = 0
        self._was_alone = False  # since then
        self._claim_s = -math.inf  # time from which a limit without an answer is filled, as if it had been used up
        self._quiet_until_s = -math.inf
        self._fills_ahead = True  # False for a limit that is small for the fleet
        # use
        self._usual = 0.0  # size of a request, 0 before the first
        self._used_s = -math.inf
        # alone
        self._alone_number = 0
        self._share_left = 0.0
        self._share_rest = 0.0  # unused until the engine counts as away
        self._share_s = 0.0

    # for requests

    def left(self, now_s: float) -> float:
        """Return an estimate of what the fleet has left; alone, what this process may use."""
        if self._fleet.is_alone:
            return max(0.0, self._unspent) + self._share(now_s)
        if self._seen_s == -math.inf:
            return self._left
        return min(self._amount, self._own + self._left + (now_s - self._seen_s) * self._refill)

    def wait_s(self, cost: float, now_s: float, waiting: int | None = None) -> float:
        """Return the seconds until `cost`, or all of the limit if that is less, is available; 0 for now.

        The engine is asked if the unspent amount is too small; `ASK_WAIT_S` is returned until it has answered.

        Args:
            waiting: requests that wait for an answer, without the one that calls; None if they are not counted.
        """
        return 0.0 if cost <= self._unspent else self._wait_s(min(cost, self._amount), now_s, waiting)

    def part_wait_s(self, cost: float, now_s: float) -> float:
        """Return the seconds until this process's part of what the last answer left has room; 0 for now."""
        part, left = 1 / max(1, self._fleet.processes), self.left(now_s) - self._own
        missing = min(cost, self._amount) - self._own - min(part * left, self._unsure(part, left))
        return max(_WAIT_S_MIN, missing / self._refill) if missing > _ROUNDING * self._amount else 0.0

    def take(self, cost: float, now_s: float) -> None:
        """Take `cost`; a negative cost gives back."""
        if cost > 0:
            self._used_s = now_s
            self._usual += (_USUAL_WEIGHT if self._usual else 1.0) * (cost - self._usual)
        if self._fleet.is_alone:
            self._take_alone(cost, now_s)
            return
        unspent = self._unspent = self._unspent - cost
        if (
            unspent < (self._usual if self._fills_ahead else 0.0)
            and not self._is_asking
            and now_s >= self._quiet_until_s
        ):
            self._want(now_s)

    def drain(self, now_s: float) -> None:
        """Empty the bucket of the fleet, whatever its count."""
        self._unspent = min(0.0, self._unspent)
        self._share_left, self._share_rest = min(0.0, self._share(now_s)), 0.0
        self._left = min(0.0, self._left)
        self._is_drained = True
        if not self._is_asking and not self._fleet.is_alone:
            self._want(now_s)

    def reset_s(self, now_s: float) -> float:
        """Return the time until the full limit is available."""
        return max(0.0, self._amount - self.left(now_s)) / self._refill

    def hand_over(self, now_s: float) -> tuple[float, float, float, float]:
        """Return what another lease of this limit goes on with alone; this one still reports what it has spent."""
        self._own_spending()
        self._leases.held[self] = None
        return self._share(now_s), self._share_rest, self._share_s, self._claim_s

    @property
    def unspent(self) -> float:
        """Amount that is leased and not spent; negative for a debt."""
        return self._unspent - self._spent_alone

    @property
    def owed(self) -> float:
        """Debt of this process, and of the fleet at the last answer."""
        sent = max(0.0, self._sent) + sum(amount for _, _, amount in self._sent_spending)
        return max(0.0, self._spent_alone - self._unspent) + sent + max(0.0, -self._left)

    @property
    def size(self) -> float:
        """The usable part of the limit."""
        return self._amount

    def part_left(self, now_s: float) -> float:
        """Return the part that is left by the last answer, with the refill since."""
        return min(1.0, (self._left + (now_s - self._seen_s) * self._refill) / self._amount)

    @property
    def is_asking(self) -> bool:
        """True while the engine is asked for more, and answers."""
        return self._is_asking and not self._fleet.is_alone

    @property
    def is_refused(self) -> bool:
        """True while nothing may be used without the engine, which is away."""
        return self._fleet.is_alone and not self._fleet.part

    def tick(self, now_s: float) -> None:
        """Settle debts, and give back an unused amount."""
        if self._is_asking:
            return
        is_idle = self._unspent > 0 and now_s >= self._used_s + IDLE_S
        is_surplus = self._unspent > self._ahead + self._usual  # after requests that used less than they reserved
        if self._unspent < 0 or self._is_drained or is_idle or is_surplus or self._has_report:
            self._want(now_s)
        elif self._unspent == 0:
            del self._leases.held[self]

    # for the asker

    def ask(self, now_s: float) -> Ask | None:
        """Return the ask: settle the debt or give back a surplus, and lease for what waits and what comes next."""
        is_idle = now_s >= self._used_s + IDLE_S and not self._need
        waits = (self._waiting or 0) * (self._usual or self._need)
        if self._waiting is None and self._fills_ahead and now_s < self._seen_s + QUIET_S:
            waits = 2 * self._wanted  # the last answer was used up at once
        needed = self._need + waits
        held = needed + (0.0 if is_idle else self._ahead)
        kept = max(0.0, min(self._unspent, held))
        self._sent, self._unspent = kept - self._unspent, kept
        least, want = max(0.0, self._need - kept), held - kept
        is_drained, self._is_drained, self._need, self._waiting, self._wanted = self._is_drained, False, 0.0, 0, want
        if self._spending is not None and not self._sent_spending:
            self._sent_spending, self._spending = self._spending.take(), None
            self._report = self._leases.number_report(now_s)
        hint, hint_s = self._hint()
        return BucketAsk(
            self.key,
            self._amount,
            self._usable * self.window_s,
            want,
            least,
            self._sent,
            hint,
            self._epoch,
            is_drained,
            0.0 if hint is None else min(now_s - hint_s, AGE_S_MAX),
            ages_of(self._sent_spending, now_s),
            self._report,
        )

    def answered(self, answer: Answer, now_s: float) -> None:
        """Add the grant to the unspent amount."""
        assert isinstance(answer, BucketAnswer)
        self._note_spending(answer, now_s)
        self._is_asking, self._sent = False, 0.0
        self._unspent += answer.granted
        if now_s > self._seen_s:
            self._slope = min(0.0, (answer.left - self._left) / max(now_s - self._seen_s, _SLOPE_S_MIN))
        self._left, self._seen_s, self._epoch = answer.left, now_s, answer.epoch
        self._was_alone = False
        if answer.granted < self._wanted:
            self._quiet_until_s = now_s + min(answer.wait_s or QUIET_S, QUIET_S)
        if answer.left < UNUSED * self._amount:
            self._leases.low.note(self)
        self._fills_ahead = self._fleet.processes * self._usual <= _USUAL_SHARE * self._amount
        self._leases.held[self] = None
        self._leases.note_amount(self.key, self._amount / self._usable, answer.amount / self._usable)
        if self._sent_spending:
            self._want(now_s)

    def lost(self, now_s: float) -> None:
        """Put the debt back: whether it was counted is unknown. A report is sent again, and counts once."""
        self._is_asking = False
        self._unspent -= self._sent
        self._sent = 0.0

    # helpers

    def _wait_s(self, need: float, now_s: float, waiting: int | None) -> float:
        if need <= self._unspent + _ROUNDING * self._amount:
            return 0.0
        if self._fleet.is_alone:
            return self._alone_wait_s(need, now_s)
        if self._is_asking and now_s >= self._want_s + _BUG_S:
            return 0.0  # only an answer refuses
        if not self._is_asking:
            left = self.left(now_s)
            if now_s < self._quiet_until_s and left < need:
                return max(_WAIT_S_MIN, (need - left) / self._refill)
        self._need, self._waiting = max(self._need, need), waiting
        if not self._is_asking:
            self._want(now_s)
        return ASK_WAIT_S

    def _want(self, now_s: float) -> None:
        self._is_asking, self._want_s = True, now_s
        self._fleet.want(self)

    @property
    def _own(self) -> float:
        """Unspent amount, less the debt in the ask under way."""
        return self._unspent - self._sent

    @property
    def _ahead(self) -> float:
        """Unspent amount for the next requests."""
        if not self._fills_ahead:
            return 0.0
        return max(self._usual, _AHEAD_SHARE * self._amount / max(1, self._fleet.processes))

    @property
    def _has_report(self) -> bool:
        return self._spending is not None or bool(self._sent_spending)

    @property
    def _spent_alone(self) -> float:
        """Amount that was spent without the engine, and is in no ask yet."""
        return 0.0 if self._spending is None else self._spending.total

    def _note_spending(self, answer: BucketAnswer, now_s: float) -> None:
        """Report again what an engine has lost before all processes had reported; remember what it counts until then.

        An answer from that time is no hint: the engine did not count what the others had spent.
        """
        reported, self._sent_spending = self._sent_spending, ()
        if self._unsure_spending and answer.epoch != self._epoch:
            self._sent_spending, self._unsure_spending = self._unsure_spending, []
            self._report = self._leases.number_report(now_s)
        if now_s < self._fleet.back_since_s + _SETTLE_S:
            counted = (now_s, now_s, answer.granted + self._sent)
            self._unsure_spending = merged([*self._unsure_spending, *reported, counted], SEGMENTS_MAX)
        else:
            self._unsure_spending = []
            self._hint_left, self._hint_s = answer.left, now_s

    def _own_spending(self) -> Spending:
        spending = self._spending = self._spending or Spending(self.window_s)
        return spending

    def _hint(self) -> tuple[float | None, float]:
        """Return the amount last seen in the bucket, or the amount from which this process has spent, and its time."""
        if self._hint_s > -math.inf:
            return self._hint_left, self._hint_s
        return (0.0, self._claim_s) if self._sent_spending and self._claim_s > -math.inf else (None, 0.0)

    def _take_alone(self, cost: float, now_s: float) -> None:
        """Take from the unspent amount, then from the part of this process; give back in the opposite order."""
        share = self._share(now_s)
        spent = max(0.0, cost - max(0.0, self._unspent)) if cost > 0 else max(cost, -self._spent_alone)
        self._unspent -= cost - spent
        if spent:
            self._share_left = share - spent
            settled = spent / self._fleet.size if self._fleet.when_away is WhenAway.ALONE else spent
            self._own_spending().add(settled, now_s)
        self._leases.held[self] = None

    def _alone_wait_s(self, need: float, now_s: float) -> float:
        part = self._fleet.part
        if not part:
            return _REFUSED_S
        need = min(need, part * self._amount)  # where the part is smaller than a request, it is saved up and overdrawn
        missing = need - max(0.0, self._unspent) - self._share(now_s)
        return missing / (part * self._refill) if missing > _ROUNDING * self._amount else 0.0

    def _unsure(self, part: float, left: float) -> float:
        """Return what this process may use of what is left while others may still use all of it."""
        return max(_UNSURE_S * part * self._refill, self._usual, part * (left - _SURE_SHARE * self._amount))

    def _begin_alone(self, part: float) -> None:
        """Divide what is left.

        After an older answer, what the others have used since is in their reports, and a usual request is always
        admitted: the limit may be exceeded by one of each process. An answer just after a return does not count what
        others have not reported yet: there is no more than this process had left before, with the refill since.
        """
        since_s, is_new, least = self._fleet.alone_since_s, self._seen_s == -math.inf, 0.0
        age_s = since_s - self._seen_s
        if age_s <= _FRESH_S:
            left = self._left + self._slope * age_s
            unsure = self._unsure(part, left)
        else:
            unsure = 0.0 if is_new else self._unsure(part, 0.0)
            others = self._leases.low.others_left(self.key, since_s)
            left = 0.0 if others is None else self._amount * min(others, self.part_left(since_s))
            least = min(self._usual, part * self._amount)
            if is_new and others is None:
                self._claim_s = since_s
        share = max(part * left, least)
        if self._seen_s < self._fleet.back_since_s + _SETTLE_S and self._share_s:
            before = self._share_left + self._share_rest + (since_s - self._share_s) * part * self._refill
            share = min(share, before)
        self._share_left = min(share, unsure) if part < 1 else share
        self._share_rest = share - self._share_left

    def _share(self, now_s: float) -> float:
        """Return what is left of this process's part of the limit."""
        fleet = self._fleet
        part = fleet.part
        if self._alone_number != fleet.times_alone:
            self._alone_number = fleet.times_alone
            before = self._leases.divided.get(self.key)
            self._leases.divided[self.key] = self
            if before is not None:  # of this limit before a reload
                self._share_left, self._share_rest, self._share_s, self._claim_s = before.hand_over(now_s)
            else:
                if not self._was_alone:
                    self._begin_alone(part)
                self._share_s = fleet.alone_since_s
            self._was_alone = True
        if fleet.is_away and self._share_rest:
            self._share_left, self._share_rest = self._share_left + self._share_rest, 0.0
        if now_s > self._share_s:
            refilled = (now_s - self._share_s) * part * self._refill
            self._share_left = min(part * self._amount, self._share_left + refilled)
            self._share_s = now_s
        return self._share_left


class LeasedRate(Lease):
    """A limit per minute that the fleet shares.

    Attributes:
        limit: amount per minute.
    """

    __slots__ = ("limit",)

    def __init__(self, leases: Leases, key: str, limit: int) -> None:
        super().__init__(leases, key, limit, RATE_WINDOW_S)
        self.limit = limit


class LeasedBucket(Lease):
    """An enforced limit of a quota that the fleet shares; responses do not correct it.

    Attributes: see `limits.bucket.QuotaBucket`.
    """

    is_shared: ClassVar[bool] = True
    __slots__ = ("amount", "enforce", "is_observed", "observed_by", "resource", "stated")

    def __init__(self, leases: Leases, key: str, limit: Limit) -> None:
        super().__init__(leases, key, limit.amount, limit.window_s, margin=MARGIN_SHARE)
        self.resource = limit.resource
        self.amount = self.stated = limit.amount
        self.enforce = limit.enforce
        self.is_observed = False
        self.observed_by = 0

    def cost(self, spend: Spend) -> int:
        """Return the part of a spend that this bucket counts."""
        return counted(self.resource, spend)

    def was_not_counted(self, cost: float) -> None:
        """Do nothing: usage by others is not counted."""

    def observe(self, stated: RateLimit, number: int, waited_s: float, sent_since: float, now_s: float) -> None:
        """Do nothing: each observed limit has another bucket."""

    def state(self, now_s: float) -> BucketState:
        """Return a snapshot."""
        return BucketState(self.resource, self.window_s, self.amount, self.left(now_s), False, self.enforce, None)
