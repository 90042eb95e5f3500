"""The brain of one pool: everything a race asks about whom to send to, when to hedge and what an outcome teaches. Pure.

A pool is a set of interchangeable replicas of one model. The race tells it what happened and when; it answers with
values, never acts, never reads a clock. Which outcome teaches what stands in `gateway.hedging.outcomes`.

Units: seconds of the loop's clock, tokens; `rand` and `coin` are uniform in [0, 1).
"""

import enum
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from gateway.estimation.window import Window
from gateway.hedging.outcomes import MEANING, Bill, Denial, Outcome, Sample, Signal
from gateway.limits.budget import CreditBudget, Ticket
from gateway.routing.choose import backups, least_in_flight, usable
from gateway.routing.replicas import BreakerState, Replica

WARM_SAMPLES: Final = 20  # first contents before anything learned is believed
_REFRESH_S: Final = 0.5  # a learned delay is worked out again at most this often
_AGAIN_SHARE: Final = 0.12  # of the time waited: how soon a denied hedge is considered again
_COOL_DOWN_S: Final = 1.0  # after a 429 that does not say how long


class Policy(enum.Enum):
    """How a pool decides when a first token is late."""

    OFF = "off"
    STATIC = "static"  # after a fixed delay
    QUANTILE = "quantile"  # after a quantile of each replica's recent TTFT
    TTFB = "ttfb"  # the wrong signal, for comparison: a quantile of time to headers
    HEADERS = "headers"  # doubly wrong, for comparison: as ttfb, and headers stop the timer


@dataclass(frozen=True, slots=True)
class HedgeSettings:
    """How a pool hedges; the fields are those of `hedge:` in the configuration."""

    policy: Policy = Policy.QUANTILE
    budget: float = 0.10
    max_hedges: int = 1
    static_delay_s: float = 1.0
    quantile: float = 0.9
    hedge_delay_min_s: float = 0.020
    cold_start_delay_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Facts:
    """What a policy may know of a request.

    Attributes:
        prompt_tokens: estimated.
        hedge_off: why it may not be hedged, None when it may.
        deadline_s: the client waits no longer than this, None when it did not say.
    """

    prompt_tokens: int = 0
    hedge_off: Denial | None = None
    deadline_s: float | None = None


class AttemptView(Protocol):
    """What the pool may know of an attempt."""

    replica: Replica
    start_s: float
    content_s: float | None
    ticket: Ticket | None


@dataclass(frozen=True, slots=True)
class Hedge:
    """Start a backup there; the ticket is paid for."""

    replica: Replica
    ticket: Ticket
    why: str


@dataclass(frozen=True, slots=True)
class Deny:
    """No backup; ask again after again_after_s (infinite: never)."""

    reason: Denial
    again_after_s: float


class Pool:
    """One pool's state.

    Args:
        name: for people: the model's name, or with the fallback's number.
        replicas: at least one.
        settings: how it hedges.
    """

    def __init__(self, name: str, replicas: Sequence[Replica], settings: HedgeSettings) -> None:
        self.name = name
        self.replicas = tuple(replicas)
        self.settings = settings
        self.hedging_on = True  # the on-call switch
        self.budget = CreditBudget(settings.budget)
        self.ttft = {replica: Window() for replica in replicas}
        self.ttfb = {replica: Window() for replica in replicas}
        self._learned: dict[Replica, tuple[float, float]] = {}  # until when, delay

    @property
    def max_hedges(self) -> int:
        """Backups a request may have."""
        return 0 if self.settings.policy is Policy.OFF else self.settings.max_hedges

    @property
    def races_at_headers(self) -> bool:
        """Response headers count as an answer."""
        return self.settings.policy is Policy.HEADERS

    # before an attempt

    def earn(self, facts: Facts, now_s: float) -> None:
        """A request has come to this pool."""
        if facts.hedge_off is None and len(self.replicas) > 1:
            self.budget.earn(now_s)

    def pick(self, tried: Collection[Replica], now_s: float, rand: float) -> Replica | None:
        """Where a primary or failover goes, None when nothing is left here."""
        candidates = usable(self.replicas, tried, now_s)
        return least_in_flight(candidates, rand) if candidates else None

    def on_sent(self, attempt: AttemptView) -> None:
        """An attempt was sent."""
        attempt.replica.in_flight += 1
        attempt.replica.breaker.on_sent(attempt.start_s)

    def delay_s(self, attempt: AttemptView) -> float:
        """How long to wait for this attempt's first content before a hedge is considered."""
        settings = self.settings
        if len(self.replicas) < 2 or settings.policy is Policy.OFF:
            return math.inf
        if settings.policy is Policy.STATIC:
            return settings.static_delay_s
        until_s, delay_s = self._learned.get(attempt.replica, (-math.inf, 0.0))
        if attempt.start_s >= until_s:
            delay_s = self._learn(attempt.replica, attempt.start_s)
            self._learned[attempt.replica] = (attempt.start_s + _REFRESH_S, delay_s)
        return max(delay_s, settings.hedge_delay_min_s)

    def learned_s(self, replica: Replica) -> float | None:
        """The hedge delay last used for a replica, None before the first."""
        return self._learned[replica][1] if replica in self._learned else None

    # when one is late

    def decide(
        self, attempt: AttemptView, tried: Collection[Replica], now_s: float, rand: float
    ) -> Hedge | Deny:
        """Whether to race a late attempt, and where."""
        waited_s = now_s - attempt.start_s
        again_s = max(self.settings.hedge_delay_min_s, _AGAIN_SHARE * waited_s)
        if not self.hedging_on:
            return Deny(Denial.OFF, math.inf)
        candidates = backups(self.replicas, tried, now_s)
        if not candidates:
            return Deny(Denial.ALONE, again_s)
        ticket = self.budget.reserve(now_s)
        if ticket is None:
            return Deny(Denial.BUDGET, again_s)
        why = f"{attempt.replica.name} had no token after {1000 * waited_s:.0f} ms"
        return Hedge(least_in_flight(candidates, rand), ticket, why)

    # what was seen

    def on_headers(self, attempt: AttemptView, now_s: float) -> None:
        """Response headers came."""
        self.ttfb[attempt.replica].add_event(now_s - attempt.start_s, now_s)

    def on_content(self, attempt: AttemptView, now_s: float) -> BreakerState | None:
        """First content came; returns the breaker's state if this moved it."""
        self.ttft[attempt.replica].add_event(now_s - attempt.start_s, now_s)
        breaker = attempt.replica.breaker
        moved = breaker.state is not BreakerState.CLOSED
        breaker.on_success()
        return breaker.state if moved else None

    def on_end(
        self, attempt: AttemptView, outcome: Outcome, now_s: float, retry_after_s: float | None
    ) -> BreakerState | None:
        """An attempt is over; returns the breaker's state if this moved it."""
        meaning, replica = MEANING[outcome], attempt.replica
        replica.in_flight -= 1
        if attempt.ticket is not None:
            if meaning.bill is Bill.RELEASE:
                self.budget.release(attempt.ticket)
            else:
                self.budget.settle(attempt.ticket, 1.0)
        if meaning.sample is Sample.CENSORED and attempt.content_s is None:
            self.ttft[replica].add_censored(now_s - attempt.start_s, now_s)
        breaker, before = replica.breaker, replica.breaker.state
        if meaning.breaker is Signal.SUCCESS:
            breaker.on_success()
        elif meaning.breaker is Signal.FAILURE:
            breaker.on_failure(now_s)
        elif meaning.breaker is Signal.COOL_DOWN:
            breaker.cool_down(now_s + (_COOL_DOWN_S if retry_after_s is None else retry_after_s))
            breaker.on_undecided(now_s)
        else:
            breaker.on_undecided(now_s)
        return breaker.state if breaker.state is not before else None

    def _learn(self, replica: Replica, now_s: float) -> float:
        """The learned delay of one replica: a quantile of its window, or the cold start's delay."""
        windows = self.ttft if self.settings.policy is Policy.QUANTILE else self.ttfb
        if windows[replica].event_count(now_s) >= WARM_SAMPLES:
            return windows[replica].quantile(self.settings.quantile, now_s) or math.inf
        return self.settings.cold_start_delay_s
