"""One limit of a quota: a bucket that refills continuously, ours by counting and corrected by what responses say.

It must not know who takes from it, nor how many limits a quota has. Units: requests and tokens; seconds of one clock.
"""

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

from providers.base import RateLimit, Resource

SHORT_S: Final = 60.0
_UP_SHARE: Final = 0.25  # of its window is how long a bucket takes to believe that more is left than we counted,
_UP_S_MAX: Final = 15.0  # and no longer than this
_REFILL_S_MIN: Final = 1.0  # no bucket refills as a whole faster than this, whatever a header says


class Spend(NamedTuple):
    """What one request, or several, use of a quota."""

    prompt: int
    answer: int
    requests: int = 1

    @property
    def tokens(self) -> int:
        """All of them."""
        return self.prompt + self.answer

    def plus(self, other: "Spend") -> "Spend":
        """Both together."""
        return Spend(self.prompt + other.prompt, self.answer + other.answer, self.requests + other.requests)

    def minus(self, other: "Spend") -> "Spend":
        """The difference."""
        return Spend(self.prompt - other.prompt, self.answer - other.answer, self.requests - other.requests)


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
    """One bucket, for people: what a limit has left.

    Attributes:
        resource, window_s, limit: which limit.
        left: what is left of it; negative when more was sent than it allows.
        observed: it stands for what responses say, not for the configuration.
        enforce: primaries are refused when it is empty.
        age_s: since the last response that stated it; None for a configured one.
    """

    resource: Resource
    window_s: float
    limit: float
    left: float
    observed: bool
    enforce: bool
    age_s: float | None


class Bucket:
    """A limit that refills continuously, full at first.

    Args:
        limit: which.
        is_observed: it stands for what responses say, not for the configuration.

    Attributes:
        stated: the limit as the last response stated it.
        observed_by: number of the latest request whose answer has corrected it; 0 before.
    """

    __slots__ = (
        "_full_at_s",
        "_left",
        "_now_s",
        "_observed_s",
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
        self.is_observed = is_observed
        self.observed_by = 0
        self._observed_s = self._now_s = -math.inf
        self._left = limit.amount
        self._refill = limit.amount / limit.window_s
        self._full_at_s = -math.inf

    def cost(self, spend: Spend) -> int:
        """What of it this bucket counts."""
        if self.resource is Resource.REQUESTS:
            return spend.requests
        if self.resource is Resource.TOKENS:
            return spend.prompt + spend.answer
        return spend.prompt if self.resource is Resource.PROMPT_TOKENS else spend.answer

    def left(self, now_s: float) -> float:
        """What is left now; negative when more was sent than it allows."""
        if now_s > self._now_s:
            left = self._left
            if self._now_s < self._full_at_s:  # up to the stated reset at the pace that it implies
                until_s = min(now_s, self._full_at_s)
                left += (until_s - self._now_s) * self._refill
                self._now_s = until_s
            left += (now_s - self._now_s) * self.amount / self.window_s
            self._left = min(self.amount, left)
            self._now_s = now_s
        return self._left

    def wait_s(self, cost: float, now_s: float) -> float:
        """Seconds until so much is left, all of it for a cost above the limit; 0 when it is left now."""
        short = min(cost, self.amount) - self.left(now_s)
        if short <= 0:
            return 0.0
        soon_s = self._full_at_s - now_s
        if soon_s > 0:
            by_then = soon_s * self._refill
            if by_then >= short:
                return short / self._refill
            return soon_s + (short - by_then) * self.window_s / self.amount
        return short * self.window_s / self.amount

    def take(self, cost: float, now_s: float) -> None:
        """Take what is used; a negative cost gives back."""
        self._left = min(self.amount, self.left(now_s) - cost)

    def drain(self, now_s: float) -> None:
        """Whatever we counted, nothing is left."""
        self._left = min(0.0, self.left(now_s))

    def observe(self, stated: RateLimit, number: int, waited_s: float, sent_since: float, now_s: float) -> None:
        """Correct what is left by what the answer to a request states.

        The answer was written at some time between its request's arrival and its own. If at its arrival, requests that
        we sent since are not in it, and what refilled since is not, either: the lower of both readings counts. Less
        than we thought is believed at once, more only slowly: it may be an old figure, and our own count is fresh. The
        answer to an earlier request than the latest that was heard says nothing new.

        Args:
            stated: with `remaining` known and at most `self.stated`.
            number: of the request.
            waited_s: for its answer.
            sent_since: what requests after that one may use.
            now_s: when the answer came.
        """
        if number < self.observed_by or stated.remaining is None:
            return
        self.amount = self.stated
        pace = self.amount / self.window_s
        ours = min(self.left(now_s), self.amount)
        theirs = stated.remaining + min(0.0, pace * waited_s - sent_since)
        if theirs > ours and self.observed_by:
            up_s = min(_UP_SHARE * self.window_s, _UP_S_MAX)
            theirs = ours + (theirs - ours) * min(1.0, (now_s - self._observed_s) / up_s)
        self._left = theirs
        self._observed_s = now_s
        self.observed_by = number
        self._full_at_s = -math.inf
        if stated.reset_s is not None and 0 < stated.reset_s < math.inf and stated.remaining < self.amount:
            self._refill = min((self.amount - stated.remaining) / stated.reset_s, self.amount / _REFILL_S_MIN)
            self._full_at_s = now_s + stated.reset_s

    def state(self, now_s: float) -> BucketState:
        """For people."""
        age_s = now_s - self._observed_s if self.is_observed else None
        left = self.left(now_s)
        return BucketState(self.resource, self.window_s, self.amount, left, self.is_observed, self.enforce, age_s)
