"""The limits of one caller's key: requests and tokens per minute, and concurrent requests. Pure.

A request counts from its headers on, so that a key at its limit cannot send bodies. Its tokens (the prompt, and the
answer it may get) are reserved when the body is known, and settled with its usage. A limit per minute is a bucket that
refills continuously and is initially full. Independent of keys, headers and models.

Units: requests and tokens; now_s in seconds, of one clock.
"""

import enum
import math
from dataclasses import dataclass
from typing import Final

from gateway.limits.wait_estimator import WaitEstimator

_WINDOW_S: Final = 60.0


class Quantity(enum.Enum):
    """A limited quantity; the value is the word in messages and headers."""

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
    """Reason for rejecting a request.

    Attributes:
        quantity: quantity that is exhausted.
        limit: limit of that quantity.
        asked: amount that this request needs.
        wait_s: time until the request could be admitted; None if it exceeds the limit itself.
    """

    quantity: Quantity
    limit: int
    asked: int
    wait_s: float | None


@dataclass(frozen=True, slots=True)
class LimitStatus:
    """Remaining amount of a limit per minute.

    Attributes:
        quantity: limited quantity.
        limit: amount per minute.
        remaining: remaining amount, at least 0.
        reset_s: time until the full limit is available.
    """

    quantity: Quantity
    limit: int
    remaining: int
    reset_s: float


@dataclass(slots=True, eq=False)
class CallerTicket:
    """One admitted request; it counts until it is settled or released, once."""

    tokens: float
    entered_s: float
    is_open: bool = True


class KeyLimiter:
    """Usage of one key.

    Attributes:
        in_flight: requests admitted and not ended.
    """

    __slots__ = ("_requests", "_tokens", "_wait_estimator", "in_flight", "limits")

    def __init__(self, limits: CallerLimits) -> None:
        self.limits = limits
        self.in_flight = 0
        self._requests = _Rate(limits.requests_per_min) if limits.requests_per_min is not None else None
        self._tokens = _Rate(limits.tokens_per_min) if limits.tokens_per_min is not None else None
        self._wait_estimator = WaitEstimator(limits.concurrency or 1)

    def enter(self, now_s: float) -> CallerTicket | OverLimit:
        """Count one request whose body is not yet known, or return the reason for rejecting it.

        A rejected request takes nothing.
        """
        limit = self.limits.concurrency
        if limit is not None and self.in_flight >= limit:
            return OverLimit(Quantity.CONCURRENCY, limit, self.in_flight + 1, self._wait_estimator.wait_s())
        if self._requests is not None:
            wait_s = self._requests.wait_s(1.0, now_s)
            if wait_s > 0:
                return OverLimit(Quantity.REQUESTS, self._requests.limit, 1, wait_s)
        self._take(0.0, 1.0, now_s)
        self.in_flight += 1
        return CallerTicket(0.0, now_s)

    def reserve(
        self, ticket: CallerTicket, prompt_tokens: float, answer_tokens: float, now_s: float
    ) -> OverLimit | None:
        """Reserve the tokens of a request that has entered, or return the reason for rejecting it.

        A request whose prompt alone exceeds the limit is never admitted. One that exceeds it only together with the
        longest possible answer waits for a full bucket: most answers are far shorter than their limit.
        """
        tokens = prompt_tokens + answer_tokens
        if self._tokens is not None:
            limit = self._tokens.limit
            if prompt_tokens > limit:
                return OverLimit(Quantity.TOKENS, limit, math.ceil(prompt_tokens), None)
            tokens = min(tokens, limit)
            wait_s = self._tokens.wait_s(tokens, now_s)
            if wait_s > 0:
                return OverLimit(Quantity.TOKENS, limit, math.ceil(tokens), wait_s)
        self._take(tokens, 0.0, now_s)
        ticket.tokens = tokens
        return None

    def settle(self, ticket: CallerTicket, tokens: float, now_s: float) -> None:
        """Record the usage of a request that has ended."""
        if self._close(ticket, tokens - ticket.tokens, 0.0, now_s):
            self._wait_estimator.ended(now_s - ticket.entered_s)

    def release(self, ticket: CallerTicket, now_s: float) -> None:
        """Give back everything taken by a request that was never sent to a replica."""
        self._close(ticket, -ticket.tokens, -1.0, now_s)

    def reject(self, ticket: CallerTicket, now_s: float) -> None:
        """Give back all but the request itself: a request that the caller got wrong counts."""
        self._close(ticket, -ticket.tokens, 0.0, now_s)

    def status(self, now_s: float) -> list[LimitStatus]:
        """Return the remaining amounts of the limits per minute."""
        rates = ((Quantity.REQUESTS, self._requests), (Quantity.TOKENS, self._tokens))
        return [
            LimitStatus(quantity, rate.limit, max(0, math.floor(rate.left(now_s))), rate.wait_s(rate.limit, now_s))
            for quantity, rate in rates
            if rate is not None
        ]

    def _close(self, ticket: CallerTicket, tokens: float, requests: float, now_s: float) -> bool:
        """Take the difference to the reservation; return False if the ticket was closed before."""
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
    """A bucket with a limit per minute."""

    __slots__ = ("_left", "_now_s", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._left = float(limit)
        self._now_s = -math.inf

    def left(self, now_s: float) -> float:
        """Return the remaining amount; negative if more was used than reserved."""
        if now_s > self._now_s:
            if self._left < self.limit:
                self._left = min(float(self.limit), self._left + (now_s - self._now_s) * self.limit / _WINDOW_S)
            self._now_s = now_s
        return self._left

    def take(self, amount: float, now_s: float) -> None:
        self._left = min(float(self.limit), self.left(now_s) - amount)

    def wait_s(self, amount: float, now_s: float) -> float:
        """Return the time until `amount` is available; a millionth of the limit counts as available (rounding)."""
        missing = amount - self.left(now_s)
        return missing * _WINDOW_S / self.limit if missing > 1e-6 * self.limit else 0.0
