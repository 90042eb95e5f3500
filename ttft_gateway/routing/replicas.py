"""A replica as routing sees it: identity, load, and a circuit breaker. Pure.

The breaker opens after consecutive failures, and closes again after the first content of one probe with real traffic;
then the replica's share of the traffic grows for a while. A first content is no proof that answers are complete: broken
answers are counted apart, and only a complete answer resets their count. `ttft_gateway.hedging.outcomes` defines the
failures: never a loser, a client disconnect, or a caller's own error.

Units: seconds of the loop's clock.
"""

import enum
import math
from collections.abc import Callable

import msgspec

from ttft_gateway.apis.base import Api, Endpoint, LimitReader, Prefix
from ttft_gateway.limits.prices import Prices, TierPrices

FAILURES_TO_OPEN = 3  # consecutive; one or two are common
OPEN_S = 5.0  # first wait before a probe; doubles per failed probe
OPEN_S_MAX = 15.0  # a recovered replica is used again within this time
LIMITED_TO_COOL_DOWN = 3.0  # 429s, less half of the requests sent: fewer cost one more try each
_LIMITED_SHARE = 0.5
COOL_DOWN_S = 1.0  # wait after them
COOL_DOWN_S_MAX = 300.0  # a longer Retry-After is tested after this time: some are wrong by a factor of a thousand
FULL_S = 5.0  # for which a number of attempts in flight counts as too many
_FULL_WEIGHT = 1 / 4  # of an attempt, in the share that is refused with many in flight
_FULL_SHARE = 0.5  # above, the replica is full; below, it fails now and then
SLOW_START_S = 10.0  # a restarted server has cold caches and few connections
_SLOW_START_MIN = 0.1  # initial fraction of its share


class BreakerState(enum.Enum):
    """State of a breaker; the value is the metric label."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"  # one probe is under way


_SECRETS_MAX = 100  # keys of a replica that were replaced one after another while attempts were under way


class Breaker(msgspec.Struct):
    """Counts consecutive failures of one replica.

    Attributes:
        failures: consecutive failures before a first content.
        failing_s: time of the first one.
        pending: requests sent since then, less the failures after the first one.
        broken: consecutive answers that broke after their first content.
        limited: 429s less their tolerated share of the requests sent, from 0 to `LIMITED_TO_COOL_DOWN`.
        wait_s: duration of the next open phase.
        open_until_s: time before which no probe is sent.
        cooling_until_s: time before which nothing is sent (after a 429).
        full_at: number of other attempts in flight at the last refusal that may be for load; 0 before one.
        full_share: share of refusals among the last attempts that were sent with as many others in flight.
        full_until_s: time until which the replica counts as full.
        closed_s: time of the last return to closed; -inf if the breaker never opened.
        opened_s: time at which it last opened from closed; failed probes do not change it.
        eventful: False if it is closed, and nothing is counted that a complete answer would reset.
        rejecting: True while it is not closed because the replica rejects requests (`ttft_gateway.pool.rejections`).
    """

    state: BreakerState = BreakerState.CLOSED
    failures: int = 0
    failing_s: float = -math.inf
    pending: int = 0
    broken: int = 0
    limited: float = 0.0
    wait_s: float = OPEN_S
    open_until_s: float = 0.0
    cooling_until_s: float = 0.0
    full_at: int = 0
    full_share: float = 0.0
    full_until_s: float = -math.inf
    closed_s: float = -math.inf
    opened_s: float = -math.inf
    eventful: bool = False
    rejecting: bool = False

    def allows(self, now_s: float) -> bool:
        """Return True if a request may be sent; an open breaker admits one probe after its wait."""
        if now_s < self.cooling_until_s:
            return False
        if self.state is BreakerState.CLOSED:
            return True
        return self.state is BreakerState.OPEN and now_s >= self.open_until_s

    def is_closed(self, now_s: float) -> bool:
        """Return True if the replica is healthy: no probe is due and no cool-down runs."""
        return self.state is BreakerState.CLOSED and now_s >= self.cooling_until_s

    def on_sent(self, now_s: float) -> None:
        """Record a sent request; the first after the wait is the probe."""
        if self.state is BreakerState.OPEN and now_s >= self.open_until_s:
            self.state = BreakerState.HALF_OPEN
        if self.failures:
            self.pending += 1
        if self.limited:
            self.limited = max(0.0, self.limited - _LIMITED_SHARE)

    def share(self, now_s: float) -> float:
        """Return the fraction of its share of primaries that the replica gets: below 1 during slow start."""
        return max(_SLOW_START_MIN, min(1.0, (now_s - self.closed_s) / SLOW_START_S))

    def on_content(self, now_s: float, sent_s: float) -> None:
        """Record a first content: a probe closes the breaker, and opens it again if its answer breaks."""
        if self._is_outdated(sent_s):
            return
        self.failures = 0
        if self.state is BreakerState.HALF_OPEN:
            self.state = BreakerState.CLOSED
            self.rejecting = False
            self.closed_s = now_s
            self.broken = min(self.broken, FAILURES_TO_OPEN - 1)
            self.wait_s = min(2 * self.wait_s, OPEN_S_MAX)

    def on_success(self, now_s: float, sent_s: float) -> None:
        """Record a complete answer."""
        if self._is_outdated(sent_s):
            return
        if self.state is not BreakerState.CLOSED:
            self.closed_s = now_s
            self.state = BreakerState.CLOSED
            self.rejecting = False
        self.failures = self.broken = 0
        self.wait_s = OPEN_S
        self.eventful = self.limited > 0.0 or now_s < max(self.cooling_until_s, self.full_until_s)

    def _is_outdated(self, sent_s: float) -> bool:
        """Return True if the answer to a request does not show that the replica takes new ones.

        A replica that drains still ends what it has begun. The answer counts if many requests are pending that were
        sent after the first failure: then the replica may answer slowly, and fail at times.
        """
        if self.state is not BreakerState.CLOSED:
            return sent_s < self.opened_s
        return sent_s < self.failing_s and self.failures > 0 and self.pending < self.failures + FAILURES_TO_OPEN

    def on_failure(self, now_s: float, *, broken: bool = False) -> None:
        """Record a failure of the replica, before its first content or (`broken`) after it."""
        self.eventful = True
        if broken:
            self.broken += 1
        else:
            self.pending = self.pending - 1 if self.failures else 0
            self.failing_s = self.failing_s if self.failures else now_s
            self.failures += 1
        # A probe's rejection is disproved by another replica only after its end, when the breaker is open again.
        is_due = self.state is BreakerState.OPEN and now_s >= self.open_until_s
        if self.state is BreakerState.HALF_OPEN or is_due:
            self.wait_s = min(2 * self.wait_s, OPEN_S_MAX)
        elif max(self.failures, self.broken) < FAILURES_TO_OPEN:
            return
        self._open(now_s)

    def on_taken(self, now_s: float, others: int) -> None:
        """Record a first content of an attempt that was sent while `others` were in flight."""
        if others >= self.full_at > 0:
            self.full_share -= _FULL_WEIGHT * self.full_share
            if self.full_share <= _FULL_SHARE:
                self.full_until_s = min(self.full_until_s, now_s)

    def on_refusal(self, now_s: float, sent_s: float, others: int) -> bool:
        """Record a refusal; return True if it shows only that the replica is full.

        A full replica takes a request when one of its answers has ended. Without it, the others would be full, too. A
        replica that is down refuses with fewer attempts in flight as well, and one that fails now and then takes most
        of those with as many.

        Args:
            others: number of the replica's other attempts in flight when it was sent.
        """
        if not others:  # down
            return False
        is_full, is_closed = now_s < self.full_until_s, self.state is BreakerState.CLOSED
        if self.full_share > _FULL_SHARE and not is_full:  # while it was, it got few attempts that could show more
            self.full_share = _FULL_WEIGHT
        self.full_share += _FULL_WEIGHT * (1.0 - self.full_share)
        is_old = sent_s < self.full_until_s - FULL_S  # sent before the last refusal was known
        if is_closed and is_full and (is_old or self.full_at <= others):
            self.full_at = min(self.full_at, others)
            return True
        self.full_at = others
        if self.full_share <= _FULL_SHARE:
            return False
        self.full_until_s, self.eventful = now_s + FULL_S, True
        return is_closed and not is_full

    def is_full(self, now_s: float, in_flight: int) -> bool:
        """Return True if the replica has just refused a request while no more attempts were in flight."""
        return 0 < self.full_at <= in_flight and now_s < self.full_until_s

    def open_with_others(self, now_s: float) -> None:
        """Open although its own failures are too few: the failures of several gateways together are enough."""
        self.eventful = True
        self._open(now_s)

    def _open(self, now_s: float) -> None:
        if self.state is BreakerState.CLOSED:
            self.opened_s = now_s
        self.state = BreakerState.OPEN
        self.open_until_s = now_s + self.wait_s

    def trip(self, now_s: float) -> None:
        """Open immediately: the replica needs a repair before it can work."""
        self.failures = max(self.failures, FAILURES_TO_OPEN - 1)
        self.on_failure(now_s)

    def on_undecided(self, now_s: float) -> None:
        """Record an end without a verdict on the replica: a probe that lost its race must not block the next probe."""
        if self.state is BreakerState.HALF_OPEN:
            self.state = BreakerState.OPEN
            self.open_until_s = now_s

    def on_rate_limited(self, now_s: float, retry_after_s: float | None) -> None:
        """Record a 429: send nothing for its Retry-After, and after frequent 429s for at least 1 s.

        A Retry-After of 0, or a date that has passed, would send each request into the next 429 and another retry.
        """
        self.eventful = True
        self.limited = min(self.limited + 1.0, LIMITED_TO_COOL_DOWN)
        least_s = COOL_DOWN_S if self.limited == LIMITED_TO_COOL_DOWN else 0.0
        wait_s = max(least_s, min(retry_after_s or 0.0, COOL_DOWN_S_MAX))
        if wait_s:
            self.cool_down(now_s + wait_s)

    def cool_down(self, until_s: float) -> None:
        """Send nothing until then; never shortens a cool-down."""
        self.eventful = True
        self.cooling_until_s = max(self.cooling_until_s, until_s)

    def start_slowly(self, now_s: float) -> None:
        """Start the slow start: the replica was out, so its caches may be cold."""
        self.closed_s = now_s

    def end_cool_down(self) -> None:
        """Send again: a reload tests whether the provider still refuses."""
        self.cooling_until_s, self.limited = 0.0, 0.0


class Replica(msgspec.Struct, eq=False):
    """One endpoint of a pool.

    Attributes:
        name: unique name in its model.
        endpoint: endpoint that attempts open.
        quota: name of the quota that counts its requests; None if none is configured.
        boundary: region or vendor that a request must not leave (`ttft_gateway.routing.strategies.Crossing`); None if
            unset.
        hedgeable: True if hedges may go here: cancelling stops billing, or the configuration accepts the bill.
        bills_cancelled: True if a cancelled request is, or may be, billed as if it had run to its end.
        billing_unknown: True if `bills_cancelled` is an assumption.
        prices: token prices; None if not configured.
        tiers: prices of all tiers, if it is one tier of a provider; None if it is not.
        apis: APIs that the replica serves, directly or by translation.
        read_limits: reader of the rate limits in response headers; None if the provider sends none.
        counts_max_tokens: True if the provider charges a request's whole `max_tokens` to its rate limit in advance.
        prefills: kinds of answers that the replica continues from a given beginning.
        answers_as: name of its answers: replicas with the same name may continue each other's answers.
        no_prefill_until_s: loop time until which it is not asked to continue an answer: it has rejected or ignored the
            beginning of one.
        weight: its share of primaries relative to the weights of the other replicas.
        backup_only: True if it gets a primary only while no other replica of its pool can be used.
        batches: True for a self-hosted engine: its concurrent streams slow each other down.
        source: base URL, model at the replica and definition of a first token: its learned state is valid for these.
        in_flight: number of its attempts under way, of other gateways too as far as they are known.
        others_in_flight: number of attempts in `in_flight` that other gateways sent.
        taken_out: True while the operator has taken it out.
        locked: reason for which it cannot be used, None if it can: it has no valid token.
        out: True while it is taken out or locked: it gets no new attempts.
        renew: renews its token after a rejection, given the time at which the request was sent; None without a token.
        secrets: texts that its errors must not reveal: its key, keys before it, and the values of headers sent to it.
    """

    name: str
    endpoint: Endpoint
    quota: str | None = None
    boundary: str | None = None
    hedgeable: bool = True
    bills_cancelled: bool = False
    billing_unknown: bool = False
    prices: Prices | None = None
    tiers: TierPrices | None = None
    apis: frozenset[Api] = frozenset(Api)
    read_limits: LimitReader | None = None
    counts_max_tokens: bool = False
    prefills: frozenset[Prefix] = frozenset()
    answers_as: str = ""
    weight: int = 1
    backup_only: bool = False
    batches: bool = False
    source: str = ""
    secrets: tuple[str, ...] = ()
    no_prefill_until_s: float = -math.inf
    in_flight: int = 0
    others_in_flight: int = 0
    taken_out: bool = False
    locked: str | None = None
    out: bool = False
    renew: Callable[[float], None] | None = None
    breaker: Breaker = msgspec.field(default_factory=Breaker)

    def __repr__(self) -> str:
        """Return its name: its secrets are not shown."""
        return f"Replica({self.name!r})"

    def use_key(self, endpoint: Endpoint, secrets: tuple[str, ...], now_s: float) -> None:
        """Send further attempts to an endpoint that differs in its key; attempts under way end with the old key."""
        self.endpoint = endpoint
        self.secrets = tuple(dict.fromkeys((*secrets, *self.secrets)))[:_SECRETS_MAX]
        if self.breaker.state is not BreakerState.CLOSED:  # perhaps because of the old key
            self.breaker.on_success(now_s, now_s)

    def take_out(self, *, out: bool) -> None:
        """Take it out for the operator, or in."""
        self.taken_out = out
        self.out = out or self.locked is not None

    def lock(self, reason: str) -> None:
        """Take it out until it has a token."""
        self.locked, self.out = reason, True

    def use_token(self, secret: str, now_s: float, *, is_cure: bool) -> None:
        """Record that further attempts send a new token.

        Args:
            secret: the token, which its errors must not reveal.
            is_cure: True if the token before it was rejected, perhaps with the consequence of an open breaker.
        """
        self.secrets = tuple(dict.fromkeys((secret, *self.secrets)))[:_SECRETS_MAX]
        self.locked, self.out = None, self.taken_out
        if is_cure and self.breaker.state is not BreakerState.CLOSED:
            self.breaker.on_success(now_s, now_s)

    @property
    def own_in_flight(self) -> int:
        """Number of this gateway's attempts under way."""
        return self.in_flight - self.others_in_flight

    @property
    def cancel_stops_billing(self) -> bool | None:
        """False if a cancelled request is billed as if it had run to its end; None if that is unknown."""
        return None if self.billing_unknown else not self.bills_cancelled
