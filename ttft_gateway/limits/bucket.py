"""One limit of a quota: a bucket that refills continuously, maintained by counting and corrected by response headers.

Independent of the requests that take from it, and of the quota's other limits. Units: requests and tokens; seconds of
one clock.
"""

import math
from typing import ClassVar, Final, Protocol

import msgspec

from ttft_gateway.apis.base import RateLimit, Resource

SHORT_S: Final = 60.0
_RISE_SHARE: Final = 0.25  # of its window: time in which a bucket adopts a reading above its own count,
_RISE_S_MAX: Final = 15.0  # and the maximum of that time
_REFILL_S_MIN: Final = 1.0  # shortest time for a full refill, whatever a header states
# Of an enforced limit, never used: 0.6 s of its refill. Requests that reach the provider sooner than earlier requests
# did, by up to this time, would otherwise be rejected.
MARGIN_SHARE: Final = 0.01


class Spend(msgspec.Struct, frozen=True, gc=False):
    """Usage of a quota by one or more requests."""

    prompt: int
    answer: int
    requests: int = 1

    @property
    def tokens(self) -> int:
        """Prompt and answer tokens together."""
        return self.prompt + self.answer

    def plus(self, other: "Spend") -> "Spend":
        """Return the sum."""
        return Spend(self.prompt + other.prompt, self.answer + other.answer, self.requests + other.requests)

    def minus(self, other: "Spend") -> "Spend":
        """Return the difference."""
        return Spend(self.prompt - other.prompt, self.answer - other.answer, self.requests - other.requests)


class Limit(msgspec.Struct, frozen=True):
    """One configured limit.

    Attributes:
        resource: resource that is limited.
        amount: amount per window, above 0.
        window_s: length of the window: 60 for RPM and TPM, 86,400 for daily limits.
        enforce: True if primaries, too, are rejected at this limit.
    """

    resource: Resource
    amount: float
    window_s: float = 60.0
    enforce: bool = False


class BucketState(msgspec.Struct, frozen=True):
    """Snapshot of one bucket for the admin address and metrics.

    Attributes:
        resource, window_s, limit: the limit.
        left: remaining amount; negative after more was sent than the limit allows.
        observed: True if the limit comes from responses, False if from the configuration.
        enforce: True if primaries are rejected while the bucket is empty.
        age_s: time since the last response that stated the limit; None for a configured limit.
        others_s: usage that responses showed and the gateway did not cause, in seconds of the limit's refill.
    """

    resource: Resource
    window_s: float
    limit: float
    left: float
    observed: bool
    enforce: bool
    age_s: float | None
    others_s: float = 0.0


class QuotaBucket(Protocol):
    """A limit of a quota, as its ledger uses it; `Bucket` describes the methods.

    Attributes:
        resource, amount, window_s, enforce: the limit.
        is_observed: True if the limit comes from responses, False if from the configuration.
        stated: the limit in the last response.
        observed_by: number of the latest request with a response that corrected the bucket; 0 before the first.
        is_shared: True if the fleet shares it.
    """

    is_shared: ClassVar[bool]
    resource: Resource
    amount: float
    window_s: float
    enforce: bool
    is_observed: bool
    stated: float
    observed_by: int

    def cost(self, spend: Spend) -> int: ...
    def left(self, now_s: float) -> float: ...
    def wait_s(self, cost: float, now_s: float) -> float: ...
    def take(self, cost: float, now_s: float) -> None: ...
    def drain(self, now_s: float) -> None: ...
    def was_not_counted(self, cost: float) -> None: ...
    def observe(self, stated: RateLimit, number: int, waited_s: float, sent_since: float, now_s: float) -> None: ...
    def state(self, now_s: float) -> BucketState: ...


def counted(resource: Resource, spend: Spend) -> int:
    """Return the part of a spend that a limit on a resource counts."""
    if resource is Resource.REQUESTS:
        return spend.requests
    if resource is Resource.TOKENS:
        return spend.prompt + spend.answer
    return spend.prompt if resource is Resource.PROMPT_TOKENS else spend.answer


class Bucket:
    """A limit that refills continuously, initially full.

    Args:
        limit: the limit.
        is_observed: True if the limit comes from responses, False if from the configuration.

    Attributes:
        stated: the limit in the last response.
        observed_by: number of the latest request with a response that corrected the bucket; 0 before the first.
    """

    is_shared: ClassVar[bool] = False
    __slots__ = (
        "_full_at_s",
        "_left",
        "_margin",
        "_now_s",
        "_observed_s",
        "_others_s",
        "_refill",
        "amount",
        "enforce",
        "is_observed",
        "observed_by",
        "resource",
        "stated",
        "window_s",
    )

    def __init__(self, limit: Limit, *, is_observed: bool = False) -> None:
        self.resource = limit.resource
        self.amount = self.stated = limit.amount
        self.window_s = limit.window_s
        self.enforce = limit.enforce
        self._margin = MARGIN_SHARE * limit.amount if limit.enforce else 0.0
        self.is_observed = is_observed
        self.observed_by = 0
        self._observed_s = self._now_s = -math.inf
        self._left = limit.amount
        self._others_s = 0.0
        self._refill = limit.amount / limit.window_s
        self._full_at_s = -math.inf

    def cost(self, spend: Spend) -> int:
        """Return the part of a spend that this bucket counts."""
        return counted(self.resource, spend)

    def left(self, now_s: float) -> float:
        """Return the remaining amount; negative after more was sent than the limit allows."""
        if now_s > self._now_s:
            left = self._left
            if self._now_s < self._full_at_s:  # until the stated reset, at the rate that it implies
                until_s = min(now_s, self._full_at_s)
                left += (until_s - self._now_s) * self._refill
                self._now_s = until_s
            left += (now_s - self._now_s) * self.amount / self.window_s
            self._left = min(self.amount, left)
            self._now_s = now_s
        return self._left

    def wait_s(self, cost: float, now_s: float) -> float:
        """Return the seconds until `cost`, or all of the limit if that is less, is available; 0 for now.

        An enforced limit has a margin.
        """
        missing = min(cost + self._margin, self.amount) - self.left(now_s)
        if missing <= 0:
            return 0.0
        to_reset_s = self._full_at_s - now_s
        if to_reset_s > 0:
            refilled = to_reset_s * self._refill
            if refilled >= missing:
                return missing / self._refill
            return to_reset_s + (missing - refilled) * self.window_s / self.amount
        return missing * self.window_s / self.amount

    def take(self, cost: float, now_s: float) -> None:
        """Take `cost` from the bucket; a negative cost gives back."""
        self._left = min(self.amount, self.left(now_s) - cost)

    def drain(self, now_s: float) -> None:
        """Empty the bucket, whatever its own count."""
        left = self.left(now_s)
        self._others_s += max(0.0, left) * self.window_s / self.amount
        self._left = min(0.0, left)

    def was_not_counted(self, cost: float) -> None:
        """Correct the usage by others: the last response returned this cost of a request that was rejected."""
        self._others_s += cost * self.window_s / self.amount

    def observe(self, stated: RateLimit, number: int, waited_s: float, sent_since: float, now_s: float) -> None:
        """Correct the remaining amount by the limits in a response.

        The provider computed them at some time between the arrival of the request and of its response. If it was at the
        request's arrival, they exclude requests that were sent since then, and also the refill since then: the lower of
        both readings counts. A reading below our own count is taken over immediately, a higher one only gradually: it
        may be old, and our own count is fresh. The response to an earlier request than the latest one read is ignored.

        Args:
            stated: limit with a known `remaining` of at most `self.stated`.
            number: number of the request.
            waited_s: time from the request to its response.
            sent_since: maximum usage of requests sent after that one.
            now_s: arrival time of the response.
        """
        if number < self.observed_by or stated.remaining is None:
            return
        self.amount = self.stated
        rate = self.amount / self.window_s
        counted_left = min(self.left(now_s), self.amount)
        stated_left = stated.remaining + min(0.0, rate * waited_s - sent_since)
        if stated_left > counted_left and self.observed_by:
            rise_s = min(_RISE_SHARE * self.window_s, _RISE_S_MAX)
            stated_left = counted_left + (stated_left - counted_left) * min(1.0, (now_s - self._observed_s) / rise_s)
        if self.observed_by:
            self._others_s += (counted_left - stated_left) / rate
        self._left = stated_left
        self._observed_s = now_s
        self.observed_by = number
        self._full_at_s = -math.inf
        if stated.reset_s is not None and 0 < stated.reset_s < math.inf and stated.remaining < self.amount:
            self._refill = min((self.amount - stated.remaining) / stated.reset_s, self.amount / _REFILL_S_MIN)
            self._full_at_s = now_s + stated.reset_s

    def state(self, now_s: float) -> BucketState:
        """Return a snapshot."""
        age_s = now_s - self._observed_s if self.is_observed else None
        left = self.left(now_s)
        limit = (self.resource, self.window_s, self.amount)
        return BucketState(*limit, left, self.is_observed, self.enforce, age_s, self._others_s)
