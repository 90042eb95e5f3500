"""What a quota has left, as far as we know: a mirror of the provider's counting, with tickets for what is under way.

It binds hedges and advises primaries (hedging.md section 6). It must not know headers, replicas or money; what is not
known is unknown, never zero, and stops nothing. Configured and observed limits stand side by side and all of them must
have room, so the lower one wins.

Units: requests and tokens; now_s in seconds, of one clock; windows and resets in seconds.
"""

import enum
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_KEEP: Final = 0.6  # of a bucket, which a hedge leaves for primaries
_KEEP_LIMITED: Final = 0.8  # the same for a while after a 429: our mirror was wrong
_LIMITED_S: Final = 300.0
_KEEP_LONG: Final = 0.1  # of a bucket whose window is longer than a minute: most of a day's quota is there to be used
_SHORT_S: Final = 60.0
_REFILL_S_MIN: Final = 1.0  # no bucket refills as a whole faster than this, whatever a header says


class Resource(enum.Enum):
    """What a limit counts."""

    REQUESTS = "requests"
    TOKENS = "tokens"


@dataclass(frozen=True, slots=True)
class Limit:
    """One configured limit.

    Attributes:
        resource: what it counts.
        amount: how many per window, above 0.
        window_s: 60 for RPM and TPM, 86,400 for daily limits.
        enforce: primaries, too, are refused at this limit.
    """

    resource: Resource
    amount: float
    window_s: float = 60.0
    enforce: bool = False


@dataclass(frozen=True, slots=True)
class BucketState:
    """One bucket, for people: what a limit has left."""

    resource: Resource
    window_s: float
    observed: bool
    limit: float
    left: float


@dataclass(slots=True, eq=False)
class QuotaTicket:
    """One request under way and the tokens reserved for it; settled or released once."""

    tokens: float
    reserved_s: float
    is_open: bool = True


class Ledger:
    """Mirrors one quota.

    Args:
        limits: the configured limits; without any, only what responses say counts.
    """

    __slots__ = ("_buckets", "_cool_until_s", "_limited_s")

    def __init__(self, limits: Iterable[Limit] = ()) -> None:
        self._buckets = [_Bucket(limit) for limit in limits]  # observed ones follow
        self._limited_s = -math.inf
        self._cool_until_s = -math.inf

    def reserve(self, tokens: float, now_s: float) -> QuotaTicket:
        """One request is being sent that may use so many tokens; never refused, see `room_for_hedge` and `refuses`."""
        for bucket in self._buckets:
            bucket.take(bucket.cost(tokens), now_s)
        return QuotaTicket(tokens, now_s)

    def settle(self, ticket: QuotaTicket, tokens: float, now_s: float) -> None:
        """The request has used so many tokens."""
        self._close(ticket, tokens - ticket.tokens, 0.0, now_s)

    def release(self, ticket: QuotaTicket, now_s: float) -> None:
        """The request was not counted by the provider."""
        self._close(ticket, -ticket.tokens, -1.0, now_s)

    def room_for_hedge(self, tokens: float, now_s: float) -> bool:
        """Whether a hedge that may use so many tokens leaves enough for primaries."""
        if self.cooling_s(now_s) > 0:
            return False
        keep = _KEEP_LIMITED if now_s < self._limited_s + _LIMITED_S else _KEEP
        return all(
            bucket.left(now_s) - bucket.cost(tokens)
            >= bucket.amount * (keep if bucket.window_s <= _SHORT_S else _KEEP_LONG)
            for bucket in self._buckets
        )

    def headroom(self, now_s: float) -> float:
        """The smallest share that any bucket has left, at least 0; 1 if nothing is known."""
        return min((max(0.0, bucket.left(now_s) / bucket.amount) for bucket in self._buckets), default=1.0)

    def refuses(self, tokens: float, now_s: float) -> bool:
        """Whether even a primary may not be sent: in a cool-down, or at an enforced limit."""
        return self.cooling_s(now_s) > 0 or any(
            bucket.enforce and bucket.left(now_s) < bucket.cost(tokens) for bucket in self._buckets
        )

    def cooling_s(self, now_s: float) -> float:
        """Seconds until the cool-down is over; 0 when there is none."""
        return max(0.0, self._cool_until_s - now_s)

    def cool_down(self, until_s: float) -> None:
        """Send nothing until then; never shortens a cool-down."""
        self._cool_until_s = max(self._cool_until_s, until_s)

    def rate_limited(self, now_s: float, retry_after_s: float | None = None) -> None:
        """The provider answered 429: hedges keep their distance for 5 minutes, all wait as long as it asked."""
        self._limited_s = now_s
        if retry_after_s is not None:
            self.cool_down(now_s + retry_after_s)

    def observe(
        self,
        resource: Resource,
        now_s: float,
        *,
        limit: float | None,
        remaining: float | None,
        reset_s: float | None = None,
        window_s: float = 60.0,
    ) -> None:
        """Overwrite what was observed of one limit with what a response says; nonsense is ignored.

        Args:
            resource: what the limit counts.
            now_s: when the response was received.
            limit: per window; None or not above 0 to use what is known.
            remaining: what is left; None or negative is unknown.
            reset_s: when it will be full again; None or 0 is unknown, then it refills over its window.
            window_s: its window.
        """
        known = [bucket for bucket in self._buckets if bucket.resource is resource and bucket.window_s == window_s]
        if limit is None or not 0 < limit < math.inf:
            limit = known[-1].amount if known else None
        if limit is None or remaining is None or not 0 <= remaining <= limit:
            return
        if not known or not known[-1].is_observed:
            known.append(_Bucket(Limit(resource, limit, window_s)))
            self._buckets.append(known[-1])
        known[-1].observe(limit, remaining, reset_s, now_s)

    def state(self, now_s: float) -> list[BucketState]:
        """Every bucket, configured ones first."""
        return [
            BucketState(bucket.resource, bucket.window_s, bucket.is_observed, bucket.amount, bucket.left(now_s))
            for bucket in self._buckets
        ]

    def _close(self, ticket: QuotaTicket, tokens: float, requests: float, now_s: float) -> None:
        """Take the difference to what was reserved from every bucket that does not know better since."""
        if not ticket.is_open:
            return
        ticket.is_open = False
        for bucket in self._buckets:
            if bucket.observed_s <= ticket.reserved_s:
                bucket.take(tokens if bucket.resource is Resource.TOKENS else requests, now_s)


class _Bucket:
    """A limit that refills continuously, full at first."""

    __slots__ = ("_left", "_now_s", "_refill", "amount", "enforce", "observed_s", "resource", "window_s")

    def __init__(self, limit: Limit) -> None:
        self.resource = limit.resource
        self.amount = limit.amount
        self.window_s = limit.window_s
        self.enforce = limit.enforce
        self.observed_s = -math.inf
        self._left = limit.amount
        self._refill = limit.amount / limit.window_s
        self._now_s = -math.inf

    @property
    def is_observed(self) -> bool:
        """It stands for what responses say, not for the configuration."""
        return self.observed_s > -math.inf

    def cost(self, tokens: float) -> float:
        """What one request with so many tokens takes."""
        return tokens if self.resource is Resource.TOKENS else 1.0

    def left(self, now_s: float) -> float:
        """What is left now; negative when more was sent than it allows."""
        if now_s > self._now_s:
            self._left = min(self.amount, self._left + (now_s - self._now_s) * self._refill)
            self._now_s = now_s
        return self._left

    def take(self, cost: float, now_s: float) -> None:
        """Take what is used; a negative cost gives back."""
        self._left = min(self.amount, self.left(now_s) - cost)

    def observe(self, amount: float, left: float, reset_s: float | None, now_s: float) -> None:
        """Set what a response says, and how fast it refills if it is known when it is full again."""
        self.amount = amount
        self._left = left
        self._now_s = self.observed_s = now_s
        self._refill = amount / self.window_s
        if reset_s is not None and 0 < reset_s < math.inf and left < amount:
            self._refill = min((amount - left) / reset_s, amount / _REFILL_S_MIN)
