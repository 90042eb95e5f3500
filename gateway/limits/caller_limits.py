"""What one caller's key may use: requests and tokens a minute, and requests at a time. Pure.

Tokens are reserved when a request enters (its prompt, and the answer it may get) and settled with what it has used. A
limit a minute is a bucket that refills continuously and is full at first. It must not know keys, headers or models.

Units: requests and tokens; now_s in seconds, of one clock.
"""

import enum
import math
from dataclasses import dataclass
from typing import Final

from gateway.limits.wait_estimator import WaitEstimator

_WINDOW_S: Final = 60.0


class Quantity(enum.Enum):
    """What is limited; the value is the word in messages and headers."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    CONCURRENCY = "concurrency"


@dataclass(frozen=True, slots=True)
class CallerLimits:
    """Limits of one key; None for no limit."""

    requests_per_min: int | None = None
    tokens_per_min: int | None = None
    concurrency: int | None = None


@dataclass(frozen=True, slots=True)
class OverLimit:
    """Why a request may not enter.

    Attributes:
        quantity: what there is too little of.
        limit: how much there may be.
        asked: how much this request needs.
        wait_s: when it may enter; None: never, it is larger than the limit.
    """

    quantity: Quantity
    limit: int
    asked: int
    wait_s: float | None


@dataclass(frozen=True, slots=True)
class LimitStatus:
    """What a limit a minute has left.

    Attributes:
        quantity: what is limited.
        limit: a minute.
        remaining: at least 0.
        reset_s: until all is there again.
    """

    quantity: Quantity
    limit: int
    remaining: int
    reset_s: float


@dataclass(slots=True, eq=False)
class CallerTicket:
    """One request that has entered; it counts until it is given back, once."""

    tokens: float
    entered_s: float
    is_open: bool = True


class KeyLimiter:
    """What one key uses.

    Args:
        limits: what it may use.

    Attributes:
        in_flight: requests that have entered and not ended.
    """

    __slots__ = ("_requests", "_tokens", "_wait_estimator", "in_flight", "limits")

    def __init__(self, limits: CallerLimits) -> None:
        self.limits = limits
        self.in_flight = 0
        self._requests = _Rate(limits.requests_per_min) if limits.requests_per_min is not None else None
        self._tokens = _Rate(limits.tokens_per_min) if limits.tokens_per_min is not None else None
        self._wait_estimator = WaitEstimator(limits.concurrency or 1)

    def reserve(self, prompt_tokens: float, answer_tokens: float, now_s: float) -> CallerTicket | OverLimit:
        """Let one request in, or say why not; one that is refused takes nothing.

        A request whose prompt alone is over the limit can never enter. One that is over it only with the answer it may
        get waits for a full bucket: most answers are far shorter than they may be.
        """
        limit = self.limits.concurrency
        if limit is not None and self.in_flight >= limit:
            return OverLimit(Quantity.CONCURRENCY, limit, self.in_flight + 1, self._wait_estimator.wait_s())
        tokens = prompt_tokens + answer_tokens
        requests_s = tokens_s = 0.0
        if self._requests is not None:
            requests_s = self._requests.wait_s(1.0, now_s)
        if self._tokens is not None:
            limit = self._tokens.limit
            if prompt_tokens > limit:
                return OverLimit(Quantity.TOKENS, limit, math.ceil(prompt_tokens), None)
            tokens = min(tokens, limit)
            tokens_s = self._tokens.wait_s(tokens, now_s)
            if tokens_s > requests_s:
                return OverLimit(Quantity.TOKENS, limit, math.ceil(tokens), tokens_s)
        if self._requests is not None and requests_s > 0:
            return OverLimit(Quantity.REQUESTS, self._requests.limit, 1, requests_s)
        self._take(tokens, 1.0, now_s)
        self.in_flight += 1
        return CallerTicket(tokens, now_s)

    def settle(self, ticket: CallerTicket, tokens: float, now_s: float) -> None:
        """The request is over and has used so many tokens."""
        if self._close(ticket, tokens - ticket.tokens, 0.0, now_s):
            self._wait_estimator.ended(now_s - ticket.entered_s)

    def release(self, ticket: CallerTicket, now_s: float) -> None:
        """The request was never sent to a replica: it costs nothing."""
        self._close(ticket, -ticket.tokens, -1.0, now_s)

    def status(self, now_s: float) -> list[LimitStatus]:
        """What its limits a minute have left."""
        rates = ((Quantity.REQUESTS, self._requests), (Quantity.TOKENS, self._tokens))
        return [
            LimitStatus(quantity, rate.limit, max(0, math.floor(rate.left(now_s))), rate.wait_s(rate.limit, now_s))
            for quantity, rate in rates
            if rate is not None
        ]

    def _close(self, ticket: CallerTicket, tokens: float, requests: float, now_s: float) -> bool:
        """Take the difference to what was reserved; False where that was done before."""
        if not ticket.is_open:
            return False
        ticket.is_open = False
        self.in_flight -= 1
        self._take(tokens, requests, now_s)
        return True

    def _take(self, tokens: float, requests: float, now_s: float) -> None:
        if self._tokens is not None:
            self._tokens.take(tokens, now_s)
        if self._requests is not None:
            self._requests.take(requests, now_s)


class _Rate:
    """A bucket of what is allowed a minute."""

    __slots__ = ("_left", "_now_s", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._left = float(limit)
        self._now_s = -math.inf

    def left(self, now_s: float) -> float:
        """What is left now; negative where more was used than had been reserved."""
        if now_s > self._now_s:
            if self._left < self.limit:
                self._left = min(float(self.limit), self._left + (now_s - self._now_s) * self.limit / _WINDOW_S)
            self._now_s = now_s
        return self._left

    def take(self, amount: float, now_s: float) -> None:
        """Take what is used; a negative amount gives back."""
        self._left = min(float(self.limit), self.left(now_s) - amount)

    def wait_s(self, amount: float, now_s: float) -> float:
        """How long until so much is there, 0 when it is; a millionth is not waited for: floats do not add up."""
        missing = amount - self.left(now_s)
        return missing * _WINDOW_S / self.limit if missing > 1e-6 * self.limit else 0.0
