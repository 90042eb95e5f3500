"""Plans the next attempt of a request: pool and replica, or a wait, or that nothing is left.

Owns the order (siblings, the same replica once more, fallbacks, replicas with an open breaker) and the limits: attempts
of a request, attempts in a burst, retries of a model. It starts nothing and has no timer; the race carries out the
plan.

    untried sibling  ->  the same replica again  ->  untried replica of a fallback  ->  any untried replica
    (before all: the same replica, if it rejected the request mode)
                         (without siblings: one quick retry; a short Retry-After is waited out)

Units: seconds of the loop's clock.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from gateway.events import Role
from gateway.hedging.contract import RequestFacts
from gateway.hedging.outcomes import Outcome
from gateway.pool.pool import Pool
from gateway.race.attempt import Attempt
from gateway.race.context import Model
from gateway.race.failures import RetryHint, classify
from gateway.routing.replicas import COOL_DOWN_S, BreakerState, Replica
from gateway.share.fleet import ASK_WAIT_S, Patience
from providers.errors import RequestModeRejected, UpstreamError

FIRST_CHOICE: Final = "first choice"  # the reason for a primary
TRIES_MAX: Final = 4  # upstream attempts of a request; an SDK's own retries multiply them
TRIES_IN_BURST: Final = 3
BURST_S: Final = 3.0
_RETRY_S_MIN: Final = 0.05  # shortest wait before a retry of the only replica after a transient failure
_RETRY_S_SPREAD: Final = 0.2  # random addition to it: a thousand streams may have been cut at once
_WAIT_SPREAD: Final = 0.1  # random addition to a Retry-After, as a share: requests that got the same must not collide


Rand = Callable[[], float]
"""Returns uniform random numbers in [0, 1); called only to spread waits."""


class Pick(Protocol):
    """Asks a pool for a replica."""

    def __call__(self, pool: Pool, tried: Sequence[Replica], *, ignore_breakers: bool) -> Replica | None:
        """Return an untried replica, or None; `ignore_breakers` includes those with an open breaker."""


class SendTo(NamedTuple):
    """Send an attempt to this replica now."""

    pool: Pool
    replica: Replica


class WaitUntil(NamedTuple):
    """Plan again at this time."""

    until_s: float


class GiveUp(NamedTuple):
    """No attempt is left to try.

    Attributes:
        spent: True if an attempt was possible, but the retry budget was spent.
        wait_s: shortest wait if nothing was ever sent because every replica has to wait, else None.
    """

    spent: bool = False
    wait_s: float | None = None


class RetryPlan:
    """The retry policy of one request."""

    __slots__ = (
        "_facts",
        "_index",
        "_mode_retries",
        "_model",
        "_patience",
        "_retry_same",
        "_used_remedies",
        "_waited",
    )

    def __init__(self, model: Model, facts: RequestFacts) -> None:
        self._model = model
        self._facts = facts
        self._index = 0  # index of the pool in use
        self._retry_same: tuple[Replica, float] | None = None  # the same replica again, and the earliest time
        self._used_remedies: frozenset[RetryHint] = frozenset()  # remedies already used; each is tried once
        self._patience: Patience | None = None  # for leases; None before the first wait
        self._mode_retries = 0  # attempts repeated because a server rejected the request mode
        self._waited = False  # True after a Retry-After was waited out, which happens once

    def next(
        self, pick: Pick, attempts: Sequence[Attempt], errors: Sequence[UpstreamError], now_s: float, rand: Rand
    ) -> SendTo | WaitUntil | GiveUp:
        """Plan one more attempt; the first one is not charged to the retry budget.

        Args:
            pick: asks a pool for a replica.
            attempts: all attempts so far; those whose request could not be translated are not counted.
            errors: errors of the failed attempts, in order.
            rand: returns random numbers that spread waits.
        """
        limit = attempt_limit(attempts, self._facts, now_s) if attempts else None
        step = limit or self._choose(pick, attempts, errors, now_s, rand)
        if isinstance(step, SendTo):
            is_unclear = bool(errors) and classify(errors[-1]).outcome is Outcome.UNCLEAR_4XX
            if attempts and _sent(attempts) and not self._model.retries.take(now_s, unclear=is_unclear):
                return GiveUp(spent=True)
            self._retry_same = None
            if step.pool is not self._model.pools[self._index]:
                self._index = self._model.pools.index(step.pool)
        return step

    def recover(
        self, attempts: Sequence[Attempt], choose: Callable[[], SendTo | None], now_s: float
    ) -> SendTo | WaitUntil | GiveUp:
        """Plan an attempt that continues a broken stream, within the same limits on attempts.

        It is not charged to the retry budget: the broken stream's load is gone, so continuing it adds none.

        Args:
            attempts: all attempts so far.
            choose: chooses the replica, None if there is none.
        """
        return attempt_limit(attempts, self._facts, now_s) or choose() or GiveUp()

    def _choose(
        self, pick: Pick, attempts: Sequence[Attempt], errors: Sequence[UpstreamError], now_s: float, rand: Rand
    ) -> SendTo | WaitUntil | GiveUp:
        """Choose by the order at the top of this file."""
        pools, tried = self._model.pools, [attempt.replica for attempt in attempts] if attempts else ()
        if self._retry_same is not None and not self._retry_same[0].out:
            same, at_s = self._retry_same
            return WaitUntil(at_s) if now_s < at_s else SendTo(pools[self._index], same)
        if errors:
            rejected_modes = [attempt for attempt in attempts if attempt.error == RequestModeRejected.label]
            if len(rejected_modes) > self._mode_retries:
                self._mode_retries = len(rejected_modes)
                return SendTo(rejected_modes[-1].pool, rejected_modes[-1].replica)
            hint = classify(errors[-1]).hint
            is_unconfirmed = hint is RetryHint.CONFIRM and not any(attempt.live for attempt in attempts)
            if is_unconfirmed or hint is RetryHint.OTHER:
                usable = self._first_usable(pick, pools[self._index :], (), tried) if self._once(hint) else None
                return usable or GiveUp()
            if hint is RetryHint.FALLBACK:  # its siblings would send the same error
                fallbacks = pools[self._index + 1 :] if self._once(RetryHint.FALLBACK) else ()
                return self._first_usable(pick, fallbacks, fallbacks, tried) or GiveUp()
        replica = pick(pools[self._index], tried, ignore_breakers=False)
        if replica is not None:
            return SendTo(pools[self._index], replica)
        step: WaitUntil | SendTo | None = self._wait_for_lease(tried, now_s)
        step = step or self._wait_for_same(attempts, errors, now_s, rand)
        step = step or self._first_usable(pick, pools[self._index + 1 :], pools, tried)
        if step is not None:
            return step
        waits_s = [pool.picker.wait_s(self._facts, tried, now_s) for pool in pools] if not attempts else []
        return GiveUp(wait_s=min((wait_s for wait_s in waits_s if wait_s is not None), default=None))

    def _wait_for_lease(self, tried: Sequence[Replica], now_s: float) -> WaitUntil | None:
        """Wait while the fleet is asked for more of a quota, at most 100 ms in all; no setting forbids that."""
        pool = self._model.pools[self._index]
        if pool.quotas.is_shared and pool.picker.wait_s(self._facts, tried, now_s) == ASK_WAIT_S:
            self._patience = self._patience or Patience()
            if self._patience.lasts(now_s):
                return WaitUntil(now_s + ASK_WAIT_S)
        return None

    def _wait_for_same(
        self, attempts: Sequence[Attempt], errors: Sequence[UpstreamError], now_s: float, rand: Rand
    ) -> WaitUntil | None:
        """Wait for a replica of this pool that may soon recover, before a fallback is used; None if there is none."""
        pool = self._model.pools[self._index]
        if not attempts:  # all replicas are cooling down after responses to other requests
            wait_s = pool.picker.wait_s(self._facts, (), now_s)
            return None if wait_s is None else self._wait(wait_s, now_s, rand)
        own = [attempt for attempt in attempts if attempt.pool is pool]
        waits_s = [(wait_s, attempt.replica) for attempt in own if (wait_s := _wait_s(attempt)) is not None]
        if waits_s:
            wait_s, replica = min(waits_s, key=lambda wait: wait[0])
            wait = self._wait(wait_s, now_s, rand)
            if wait is not None:
                self._retry_same = (replica, wait.until_s)
                return wait
        is_only = len(own) == 1 and errors and classify(errors[-1]).hint is RetryHint.SAME
        # One request probes an open breaker: the quick retry would be a second one.
        if is_only and own[0].replica.breaker.state is BreakerState.CLOSED and self._once(RetryHint.SAME):
            wait = WaitUntil(now_s + _RETRY_S_MIN + _RETRY_S_SPREAD * rand())
            self._retry_same = (own[0].replica, wait.until_s)
            return wait
        return None

    def _wait(self, wait_s: float, now_s: float, rand: Rand) -> WaitUntil | None:
        """Return a wait for a Retry-After, if it is short and the request's first one."""
        if self._waited or wait_s > self._model.timeouts.retry_after_s_max:
            return None
        self._waited = True
        return WaitUntil(now_s + wait_s * (1 + _WAIT_SPREAD * rand()))

    def _once(self, hint: RetryHint) -> bool:
        first = hint not in self._used_remedies
        self._used_remedies |= {hint}
        return first

    def _first_usable(
        self, pick: Pick, pools: Sequence[Pool], ignore_breakers: Sequence[Pool], tried: Sequence[Replica]
    ) -> SendTo | None:
        """Return the first usable replica of `pools`, else of `ignore_breakers`, open breakers included."""
        for candidates, ignored in ((pools, False), (ignore_breakers, True)):
            for pool in candidates:
                replica = pick(pool, tried, ignore_breakers=ignored)
                if replica is not None:
                    return SendTo(pool, replica)
        return None


def attempt_limit(attempts: Sequence[Attempt], facts: RequestFacts, now_s: float) -> WaitUntil | GiveUp | None:
    """Return the limit that forbids another attempt or backup now, None if there is none.

    A replica that rejects the request mode has not begun the request, so a key's own limit does not count it.
    """
    sent = _sent(attempts)
    if len(sent) >= TRIES_MAX:
        return GiveUp()
    if facts.attempts_max is not None:
        begun = sum(attempt.error != RequestModeRejected.label for attempt in sent)
        if begun >= facts.attempts_max:
            return GiveUp()
    if len(sent) >= TRIES_IN_BURST and now_s < (free_at_s := sent[-TRIES_IN_BURST].start_s + BURST_S):
        return WaitUntil(free_at_s)
    return None


def _sent(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Return the attempts that count against the limits."""
    return [attempt for attempt in attempts if attempt.outcome is not Outcome.UNSUPPORTED]


def _wait_s(attempt: Attempt) -> float | None:
    """Return the time for which the replica must not be used; None without a Retry-After or rate limit."""
    if attempt.retry_after_s is not None:
        return attempt.retry_after_s
    return COOL_DOWN_S if attempt.outcome is Outcome.RATE_LIMITED else None


def why_started(role: Role, errors: Sequence[UpstreamError]) -> str:
    """Return the reason for a primary or a failover, as text; `errors` are those of the attempts before it."""
    if role is Role.PRIMARY:
        return FIRST_CHOICE
    return f"after {errors[-1].label}" if errors else "the previous attempt is overdue"


def beyond_boundary(pools: Sequence[Pool], tried: Sequence[Replica]) -> tuple[str, ...]:
    """Return the names of the replicas that a boundary excludes from a failover, given those already tried."""
    return tuple(
        replica.name
        for pool in pools
        for replica in pool.replicas
        if replica not in tried and replica not in pool.picker.reachable(tried)
    )
