"""Limits of a caller's key: requests and tokens per minute, and concurrency. Pure.

A request counts from its headers on, so that a key at its limit cannot send bodies. Its tokens (the prompt, and the
answer it may get) are reserved when the body is known, and settled with its usage. Independent of keys, headers and
models. Units: requests and tokens; now_s in seconds, of one clock.
"""

import enum
import math
from dataclasses import dataclass

import msgspec

from gateway.admission.wait_estimator import WaitEstimator
from ttft_gateway.limits.rates import LOCAL, LimitMaker, Rate


class Quantity(enum.Enum):
    """A limited quantity; the value is the word in messages and headers."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    CONCURRENCY = "concurrency"


class CallerLimits(msgspec.Struct, frozen=True):
    """Limits of one key; None for no limit."""

    requests_per_min: int | None = None
    tokens_per_min: int | None = None
    concurrency: int | None = None


class OverLimit(msgspec.Struct, frozen=True):
    """Reason for rejecting a request.

    Attributes:
        quantity: quantity that is exhausted.
        limit: limit of that quantity.
        asked: amount that this request needs.
        wait_s: time until the request could be admitted; None if it exceeds the limit itself.
        is_asking: True while the fleet's engine is asked for more, so that the request may be admitted in a moment.
        is_unknown: True if the limit may have room, but the fleet's engine is away.
    """

    quantity: Quantity
    limit: int
    asked: int
    wait_s: float | None
    is_asking: bool = False
    is_unknown: bool = False


class LimitStatus(msgspec.Struct, frozen=True):
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

    Args:
        limits: limits of the key.
        name: name of the key's limits, the same in every process.
        made: makes the limits.

    Attributes:
        waiting: requests that wait while the fleet's engine is asked for more, by quantity.
    """

    __slots__ = ("_requests", "_slots", "_tokens", "_wait_estimator", "limits", "waiting")

    def __init__(self, limits: CallerLimits, name: str = "", made: LimitMaker = LOCAL) -> None:
        self.limits = limits
        requests, tokens, concurrency = limits.requests_per_min, limits.tokens_per_min, limits.concurrency
        self._requests = None if requests is None else made.rate(f"{name}:requests", requests)
        self._tokens = None if tokens is None else made.rate(f"{name}:tokens", tokens)
        self._slots = made.slots(f"{name}:slots", math.inf if concurrency is None else concurrency)
        self._wait_estimator = WaitEstimator(concurrency or 1)
        self.waiting = dict.fromkeys(Quantity, 0)

    @property
    def in_flight(self) -> int:
        """Requests admitted and not ended."""
        return self._slots.taken

    def enter(self, now_s: float, *, at_once: bool = False) -> CallerTicket | OverLimit:
        """Count one request before its body is known, or return the reason for rejecting it.

        A rejected request takes nothing; with `at_once` none has to wait for an answer.
        """
        over = self._over(now_s, at_once=at_once)
        if over is not None:
            return over
        self._take(0.0, 1.0, now_s)
        self._slots.taken += 1
        return CallerTicket(0.0, now_s)

    def _over(self, now_s: float, *, at_once: bool) -> OverLimit | None:
        slots = self._slots
        if slots.taken >= slots.allowed:
            is_asking, limit = slots.is_asking(now_s, self.waiting[Quantity.CONCURRENCY]), self.limits.concurrency
            is_last = is_asking and at_once
            # no answer, and no share while the engine is away
            if limit is not None and slots.taken >= slots.allowed and not (is_last and slots.has_part):
                wait_s = self._wait_estimator.wait_s()
                is_unknown = slots.taken < limit and not is_asking and slots.is_refused
                is_asking = is_asking and not at_once
                return OverLimit(Quantity.CONCURRENCY, limit, slots.taken + 1, wait_s, is_asking, is_unknown)
        if self._requests is not None:
            return self._over_rate(Quantity.REQUESTS, self._requests, 1.0, now_s, at_once=at_once)
        return None

    def _over_rate(
        self, quantity: Quantity, rate: Rate, amount: float, now_s: float, *, at_once: bool
    ) -> OverLimit | None:
        """Return the reason for rejecting a request that a limit per minute has no room for, None if it has room."""
        wait_s, is_asking = rate.wait_s(amount, now_s, self.waiting[quantity]), rate.is_asking
        if is_asking and at_once:
            wait_s, is_asking = rate.part_wait_s(amount, now_s), False
        if wait_s <= 0:
            return None
        return OverLimit(quantity, rate.limit, math.ceil(amount), wait_s, is_asking, rate.is_refused)

    def reserve(
        self,
        ticket: CallerTicket,
        prompt_tokens: float,
        answer_tokens: float,
        now_s: float,
        *,
        at_once: bool = False,
    ) -> OverLimit | None:
        """Reserve the tokens of a request that has entered, or return the reason for rejecting it.

        A request is never admitted if its prompt alone exceeds the limit. If only prompt and longest possible answer
        together exceed it, the request waits for a full bucket: most answers are far shorter than their limit. With
        `at_once` it does not have to wait for an answer.
        """
        tokens = prompt_tokens + answer_tokens
        if self._tokens is not None:
            limit = self._tokens.limit
            if prompt_tokens > limit:
                return OverLimit(Quantity.TOKENS, limit, math.ceil(prompt_tokens), None)
            tokens = min(tokens, limit)
            over = self._over_rate(Quantity.TOKENS, self._tokens, tokens, now_s, at_once=at_once)
            if over is not None:
                return over
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
            LimitStatus(quantity, rate.limit, max(0, math.floor(rate.left(now_s))), rate.reset_s(now_s))
            for quantity, rate in rates
            if rate is not None
        ]

    def _close(self, ticket: CallerTicket, tokens: float, requests: float, now_s: float) -> bool:
        """Take the difference to the reservation; return False if the ticket was closed before."""
        if not ticket.is_open:
            return False
        ticket.is_open = False
        self._slots.release()
        self._take(tokens, requests, now_s)
        return True

    def _take(self, tokens: float, requests: float, now_s: float) -> None:
        if self._tokens is not None:
            self._tokens.take(tokens, now_s)
        if self._requests is not None:
            self._requests.take(requests, now_s)
