"""What a quota has left, as far as we know: a mirror of the provider's counting, with tickets for what is under way.

It binds hedges and advises primaries (docs/limits.md). It must not know headers, replicas or money; what is not known
is unknown, never zero, and stops nothing. Configured and observed limits stand side by side and all of them must have
room, so the lower one wins.

Units: requests and tokens; now_s in seconds, of one clock; windows and resets in seconds.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from gateway.limits.bucket import SHORT_S, Bucket, BucketState, Limit, Spend
from providers.base import RateLimit

_KEEP: Final = 0.6  # of a bucket, which a hedge leaves for primaries
_KEEP_LIMITED: Final = 0.8  # the same for a while after a 429: our mirror was wrong
_LIMITED_S: Final = 300.0
_KEEP_LONG: Final = 0.1  # of a bucket whose window is longer than a minute: most of a day's quota is there to be used
_GUESS_S_MIN: Final = 1.0  # what a 429 without a time asks for, at least
_GUESS_S_MAX: Final = 60.0  # and at most: then it is found out


class Totals(NamedTuple):
    """Tokens so far, whole ones: reserved = settled + released + under_way, always."""

    reserved: int
    settled: int
    released: int

    @property
    def under_way(self) -> int:
        """Reserved by requests that have not ended."""
        return self.reserved - self.settled - self.released


@dataclass(slots=True, eq=False)
class QuotaTicket:
    """One request under way and what was reserved for it; settled or released once.

    Attributes:
        number: of this request at this quota.
        spend: the tokens reserved.
        sent_s: when it was sent.
        sent_before: what had been reserved at this quota so far, this request included.
        is_open: it has not ended.
    """

    number: int
    spend: Spend
    sent_s: float
    sent_before: Spend
    is_open: bool = True


class Ledger:
    """Mirrors one quota.

    Args:
        limits: the configured limits; without any, only what responses say counts.
    """

    __slots__ = ("_buckets", "_cool_until_s", "_limited_s", "_released", "_reserved", "_sent", "_settled")

    def __init__(self, limits: Iterable[Limit] = ()) -> None:
        self._buckets = [Bucket(limit) for limit in limits]  # observed ones follow
        self._limited_s = -math.inf
        self._cool_until_s = -math.inf
        self._sent = Spend(0, 0, 0)
        self._reserved = self._settled = self._released = 0

    # tickets

    def reserve(self, spend: Spend, now_s: float) -> QuotaTicket:
        """A request is being sent that may use so much; never refused, see `room_for_hedge` and `refuses`."""
        for bucket in self._buckets:
            bucket.take(bucket.cost(spend), now_s)
        self._reserved += spend.tokens
        self._sent = self._sent.plus(spend)
        return QuotaTicket(self._sent.requests, spend, now_s, self._sent)

    def settle(self, ticket: QuotaTicket, used: Spend, now_s: float) -> None:
        """The request has ended and used so many tokens."""
        if self._close(ticket, used, now_s):
            beyond = max(0, used.tokens - ticket.spend.tokens)
            self._reserved += beyond
            self._settled += used.tokens
            self._released += ticket.spend.tokens + beyond - used.tokens

    def release(self, ticket: QuotaTicket, now_s: float) -> None:
        """The request has ended and was not counted by the provider."""
        if self._close(ticket, Spend(0, 0, 0), now_s):
            self._released += ticket.spend.tokens

    @property
    def totals(self) -> Totals:
        """Tokens reserved, settled and released since the start."""
        return Totals(self._reserved, self._settled, self._released)

    # questions

    def room_for_hedge(self, spend: Spend, now_s: float) -> bool:
        """Whether a hedge that may use so much leaves enough for primaries."""
        if self.cooling_s(now_s) > 0:
            return False
        limited = now_s < self._limited_s + _LIMITED_S
        if limited and not self._buckets:
            return False  # a 429 is all that is known of this quota
        keep = _KEEP_LIMITED if limited else _KEEP
        return all(
            bucket.left(now_s) - bucket.cost(spend)
            >= bucket.amount * (keep if bucket.window_s <= SHORT_S else _KEEP_LONG)
            for bucket in self._buckets
        )

    def headroom(self, now_s: float) -> float:
        """The smallest share that any bucket has left, at least 0; 1 if nothing is known."""
        return min((max(0.0, bucket.left(now_s) / bucket.amount) for bucket in self._buckets), default=1.0)

    def refuses(self, spend: Spend, now_s: float) -> bool:
        """Whether even a primary may not be sent: in a cool-down, or at an enforced limit."""
        return self.wait_s(spend, now_s) > 0

    def wait_s(self, spend: Spend, now_s: float) -> float:
        """Seconds until a primary may be sent that may use so much; 0 when it may be sent now."""
        wait_s = self.cooling_s(now_s)
        for bucket in self._buckets:
            if bucket.enforce:
                wait_s = max(wait_s, bucket.wait_s(bucket.cost(spend), now_s))
        return wait_s

    def cooling_s(self, now_s: float) -> float:
        """Seconds until the cool-down is over; 0 when there is none."""
        return max(0.0, self._cool_until_s - now_s)

    def state(self, now_s: float) -> list[BucketState]:
        """Every bucket, configured ones first."""
        return [bucket.state(now_s) for bucket in self._buckets]

    # what the provider says

    def cool_down(self, until_s: float) -> None:
        """Send nothing until then; never shortens a cool-down."""
        self._cool_until_s = max(self._cool_until_s, until_s)

    def rate_limited(self, ticket: QuotaTicket, now_s: float, retry_after_s: float | None = None) -> None:
        """The provider answered 429: all wait, and hedges keep their distance for 5 minutes.

        Args:
            ticket: of the request that was refused.
            now_s: when the answer came.
            retry_after_s: how long it asked to wait; None when it did not say. Then it is what the limits that the same
                answer stated need to have room again, and nothing if it stated none.
        """
        self._limited_s = now_s
        guess_s = 0.0
        for bucket in self._buckets:
            if bucket.observed_by == ticket.number:
                guess_s = max(guess_s, bucket.wait_s(bucket.cost(ticket.spend), now_s))
            elif bucket.window_s <= SHORT_S:
                bucket.drain(now_s)  # one of them is used up, and nobody says which
        if retry_after_s is None and guess_s > 0:
            retry_after_s = min(max(guess_s, _GUESS_S_MIN), _GUESS_S_MAX)
        if retry_after_s is not None:
            self.cool_down(now_s + retry_after_s)

    def observe(self, ticket: QuotaTicket, limits: Sequence[RateLimit], now_s: float) -> None:
        """Correct the mirror by what a response says; nonsense is ignored.

        Args:
            ticket: of the request that was answered.
            limits: what its answer states.
            now_s: when it was received.
        """
        sent_since, waited_s = self._sent.minus(ticket.sent_before), now_s - ticket.sent_s
        for stated in limits:
            bucket = self._observed(stated)
            if bucket is not None and stated.remaining is not None and 0 <= stated.remaining <= bucket.stated:
                bucket.observe(stated, ticket.number, waited_s, bucket.cost(sent_since), now_s)

    # inside

    def _observed(self, stated: RateLimit) -> Bucket | None:
        """The bucket that stands for a limit as responses state it; None while the limit itself is unknown."""
        kin = [bucket for bucket in self._buckets if bucket.resource is stated.resource]
        known = next((bucket for bucket in kin if bucket.is_observed and bucket.window_s == stated.window_s), None)
        limit = stated.limit
        if limit is None or not 0 < limit < math.inf:
            if known is not None:
                return known
            if not kin:
                return None
            limit = kin[0].amount * stated.window_s / kin[0].window_s  # a share of the configured one
        if known is None and stated.remaining is not None and 0 <= stated.remaining <= limit:
            known = Bucket(Limit(stated.resource, limit, stated.window_s), is_observed=True)
            self._buckets.append(known)
        if known is not None:
            known.stated = limit
        return known

    def _close(self, ticket: QuotaTicket, used: Spend, now_s: float) -> bool:
        """Take the difference to what was reserved from every bucket that does not know better since."""
        if not ticket.is_open:
            return False
        ticket.is_open = False
        more = used.minus(ticket.spend)
        for bucket in self._buckets:
            if bucket.observed_by < ticket.number:
                bucket.take(bucket.cost(more), now_s)
        return True


class LedgerRegistry(Mapping[str, Ledger]):
    """Every ledger by its quota's name.

    Args:
        configured: quotas that the configuration states limits of.
        before: the ledgers of a configuration that this one follows; what is counted as before goes on with them.
    """

    def __init__(self, configured: Mapping[str, Sequence[Limit]], previous: "LedgerRegistry | None" = None) -> None:
        self._configured = {name: tuple(limits) for name, limits in configured.items()}
        self._old: tuple[dict[str, Ledger], dict[str, tuple[Limit, ...]]] = ({}, {})
        if previous is not None:
            self._old = (previous._ledgers, previous._configured)
        self._ledgers: dict[str, Ledger] = {name: self._made(name) for name in configured}
        self._implied: dict[tuple[str, str | None, str], str] = {} if previous is None else dict(previous._implied)

    def __getitem__(self, name: str) -> Ledger:
        return self._ledgers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._ledgers)

    def __len__(self) -> int:
        return len(self._ledgers)

    def named(self, name: str) -> str:
        """A quota that a replica names, whether or not its limits are configured."""
        if name not in self._ledgers:
            self._ledgers[name] = self._made(name)
        return name

    def implied(self, base_url: str, host: str, key: str | None, model: str) -> str:
        """The quota of a replica that names none.

        Args:
            base_url: where it is.
            host: of base_url, for the quota's name.
            key: sent to it; never part of the name.
            model: what it calls the model.
        """
        counted = (base_url.rstrip("/"), key, model)
        if counted not in self._implied:
            name, number = f"{host}/{model}", 1
            taken = {*self._ledgers, *self._implied.values()}
            while name in taken:  # another key, or a path of the same host
                number += 1
                name = f"{host}/{model}#{number}"
            self._implied[counted] = name
        return self.named(self._implied[counted])

    def _made(self, name: str) -> Ledger:
        """The ledger of before if its configured limits are the same, else a new one."""
        ledgers, configured = self._old
        limits = self._configured.get(name, ())
        return ledgers[name] if name in ledgers and configured.get(name, ()) == limits else Ledger(limits)
