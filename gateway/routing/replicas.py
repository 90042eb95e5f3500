"""A replica as routing sees it: who it is, what it is doing, and whether its breaker lets it be used. Pure.

The breaker opens after consecutive failures, and closes again through one probe of real traffic; then the replica
gets more and more of its share for a while. What counts as a failure is decided elsewhere
(`gateway.hedging.outcomes`): never a loser, a client that left, or a caller's own error.

Units: seconds of the loop's clock.
"""

import enum
import math
from dataclasses import dataclass, field

from gateway.limits.prices import Prices
from providers.base import Api, Endpoint, LimitReader

FAILURES_TO_OPEN = 3  # in a row; one or two are weather
OPEN_S = 5.0  # first wait before a probe; doubles per failed probe
OPEN_S_MAX = 15.0  # a replica that came back is used again within this time
SLOW_START_S = 10.0  # a server that has just come back has cold caches and few connections
_SLOW_START_MIN = 0.1  # of its share, at first


class BreakerState(enum.Enum):
    """What the breaker lets through; the value is the metric label."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"  # one probe is under way


@dataclass(slots=True)
class Breaker:
    """Counts failures in a row of one replica.

    Attributes:
        state: what it lets through.
        failures: in a row.
        wait_s: how long it stays open the next time.
        open_until_s: no probe before.
        cooling_until_s: nothing before (a 429 with its Retry-After).
        closed_s: when it closed after having been open, infinitely long ago where it never was.
    """

    state: BreakerState = BreakerState.CLOSED
    failures: int = 0
    wait_s: float = OPEN_S
    open_until_s: float = 0.0
    cooling_until_s: float = 0.0
    closed_s: float = -math.inf

    def allows(self, now_s: float) -> bool:
        """Whether a request may be sent; half-open lets one probe through."""
        if now_s < self.cooling_until_s:
            return False
        if self.state is BreakerState.CLOSED:
            return True
        return self.state is BreakerState.OPEN and now_s >= self.open_until_s

    def is_closed(self, now_s: float) -> bool:
        """Whether the replica is healthy for certain: no probe is due, nobody told it to wait."""
        return self.state is BreakerState.CLOSED and now_s >= self.cooling_until_s

    def on_sent(self, now_s: float) -> None:
        """A request was sent; the first after the wait is the probe."""
        if self.state is BreakerState.OPEN and now_s >= self.open_until_s:
            self.state = BreakerState.HALF_OPEN

    def share(self, now_s: float) -> float:
        """How much of its share of primaries the replica gets: 1, less while it has just come back."""
        return max(_SLOW_START_MIN, min(1.0, (now_s - self.closed_s) / SLOW_START_S))

    def on_success(self, now_s: float) -> None:
        """A content event or a complete answer came."""
        if self.state is not BreakerState.CLOSED:
            self.closed_s = now_s
        self.state = BreakerState.CLOSED
        self.failures = 0
        self.wait_s = OPEN_S

    def on_failure(self, now_s: float) -> None:
        """The replica failed."""
        self.failures += 1
        if self.state is BreakerState.HALF_OPEN:
            self.wait_s = min(2 * self.wait_s, OPEN_S_MAX)
        elif self.failures < FAILURES_TO_OPEN:
            return
        self.state = BreakerState.OPEN
        self.open_until_s = now_s + self.wait_s

    def trip(self, now_s: float) -> None:
        """The replica cannot work until somebody mends it: open at once."""
        self.failures = max(self.failures, FAILURES_TO_OPEN - 1)
        self.on_failure(now_s)

    def on_undecided(self, now_s: float) -> None:
        """An attempt ended that says nothing about the replica: a probe that lost its race must not block the next."""
        if self.state is BreakerState.HALF_OPEN:
            self.state = BreakerState.OPEN
            self.open_until_s = now_s

    def cool_down(self, until_s: float) -> None:
        """Send nothing until then (a 429 with its Retry-After)."""
        self.cooling_until_s = max(self.cooling_until_s, until_s)


@dataclass(slots=True, eq=False)
class Replica:
    """One endpoint of a pool.

    Attributes:
        name: unique in its model.
        endpoint: what an attempt opens.
        quota: whoever counts its limits, None when nobody is known to.
        boundary: region or vendor that a request must not leave (`gateway.routing.strategies.Crossing`).
        gain_min: what a backup here must be expected to save, as a multiple of its own TTFT.
        hedgeable: hedges may go here: cancelling stops the bill, or whoever configured it accepts the bill.
        bills_cancelled: a cancelled request is billed as if it had gone on, or may be.
        prices: of its tokens, None where they are not configured.
        apis: in which it can be asked.
        read_limits: reads the rate limits in a response's headers; None where none are stated.
        counts_max_tokens: whoever counts its limits takes a request's whole `max_tokens` beforehand.
        prefills: goes on with an answer whose beginning it is given.
        batches: an engine of one's own: the streams it has under way slow each other down.
        secrets: what no error of its may tell: its key, and the values of headers that are sent to it.
        in_flight: attempts under way.
        breaker: whether it may be used.
    """

    name: str
    endpoint: Endpoint
    quota: str | None = None
    boundary: str | None = None
    gain_min: float = 0.25
    hedgeable: bool = True
    bills_cancelled: bool = False
    prices: Prices | None = None
    apis: frozenset[Api] = frozenset(Api)
    read_limits: LimitReader | None = None
    counts_max_tokens: bool = False
    prefills: bool = False
    batches: bool = False
    secrets: tuple[str, ...] = field(default=(), repr=False)
    in_flight: int = 0
    breaker: Breaker = field(default_factory=Breaker)
