"""Plans the next attempt of a request: pool and replica, or a wait, or that nothing is left.

Owns the order (siblings, the same replica once more, fallbacks, replicas with an open breaker, a second round) and the
limits: attempts of a request, attempts in a burst, retries of a model, the caller's deadline. It starts nothing and has
no timer; the race executes the plan.

    untried sibling  ->  same replica again  ->  untried one of a fallback  ->  any untried replica  ->  second round
    (before all: the same replica, if it rejected the request mode)
    (a sibling that only lost the race to the attempt that failed counts as untried, after the others)
                         (without siblings: one quick retry; a short Retry-After is waited out)

The second round is for a fault that all replicas share for a moment, such as a restart of the proxy before them. Every
replica that failed is asked once more, one after the other, if all of this holds: its last failure was transient; the
first transient failure of the request is less than 1 s old; its breaker is closed, or opened less than 1 s ago, because
in a crowd the first failures of such a fault open all breakers; the pause of 0.3 to 0.5 s before the round ends before
the caller's deadline. Because of the pause its attempts are no burst; the other limits hold. After the round, or 1 s of
failures, a retry by the client would only repeat it: an outage gets no second rounds and no retries of clients. A
request that ends before that for another reason may be retried by the client.

An attempt was not sent if its API cannot express the request: plans and limits ignore it, but its replica was tried.

Units: seconds of the loop's clock.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from gateway.events import Role
from gateway.race.attempt import Attempt
from gateway.race.context import Model
from gateway.share.fleet import ASK_WAIT_S, WaitAllowance
from ttft_gateway.apis.errors import RequestModeRejected, Unsupported, UpstreamError
from ttft_gateway.hedging.contract import ATTEMPTS_MAX, RequestFacts
from ttft_gateway.hedging.failures import RetryHint, classify
from ttft_gateway.hedging.outcomes import Outcome
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import COOL_DOWN_S, BreakerState, Replica

FIRST_CHOICE: Final = "first choice"  # the reason for a primary
TRIES_IN_BURST: Final = 3
_REQUESTS_MAX: Final = 3 * ATTEMPTS_MAX  # the request mode is rejected at most twice before an attempt
BURST_S: Final = 3.0
_RETRY_S_MIN: Final = 0.05  # shortest wait before a retry of the only replica after a transient failure
_RETRY_S_SPREAD: Final = 0.2  # random addition to it: a thousand streams may have been cut together
_BLIP_S: Final = 1.0  # transient failures for longer than this are an outage, which another round would only load
_ROUND_S_MIN: Final = 0.3  # shortest pause before the second round; the first retry of OpenAI's SDKs comes after 0.4 s
_ROUND_S_SPREAD: Final = 0.2  # random addition to it, as above
_WAIT_SPREAD: Final = 0.1  # random addition to a Retry-After, as a share: requests that got the same must not collide


Rand = Callable[[], float]
"""Returns uniform random numbers in [0, 1); called only to spread waits."""


class Pick(Protocol):
    """Asks a pool for a replica."""

    def __call__(self, pool: Pool, tried: Sequence[Replica], *, ignore_breakers: bool) -> Replica | None:
        """Return an untried replica, or None; `ignore_breakers` includes replicas with an open breaker."""


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
        retry_helps: True if a retry by the client may succeed: the retry budget was spent, or the failures may be over.
        wait_s: shortest wait if nothing was ever sent because every replica has to wait, else None.
    """

    retry_helps: bool = False
    wait_s: float | None = None


class RetryPlan:
    """The retry policy of one request.

    Args:
        until_s: loop time at which the caller's deadline is over; infinite without a deadline.
    """

    __slots__ = (
        "_again",
        "_again_s",
        "_allowance",
        "_facts",
        "_had_round",
        "_index",
        "_mode_retries",
        "_model",
        "_until_s",
        "_used_before",
        "_used_remedies",
        "_waited",
    )

    def __init__(self, model: Model, facts: RequestFacts, until_s: float = math.inf) -> None:
        self._model = model
        self._facts = facts
        self._until_s = until_s
        self._index = 0  # index of the pool in use
        self._again: tuple[SendTo, ...] = ()  # the same replicas again
        self._again_s = 0.0  # the earliest time for it
        self._had_round = False  # True after the second round was planned, which happens once
        self._used_remedies: frozenset[RetryHint] = frozenset()  # remedies already used; each is tried once
        self._used_before = self._used_remedies  # the same before the last attempt
        self._allowance: WaitAllowance | None = None  # for leases; None before the first wait
        self._mode_retries = 0  # attempts repeated because a server rejected the request mode
        self._waited = False  # True after a Retry-After was waited out, which happens once

    def next(
        self, pick: Pick, attempts: Sequence[Attempt], errors: Sequence[UpstreamError], now_s: float, rand: Rand
    ) -> SendTo | WaitUntil | GiveUp:
        """Plan one more attempt; the first one, and one with another request mode, are not charged to the retry budget.

        Args:
            pick: asks a pool for a replica.
            attempts: all attempts so far; attempts with a request that could not be translated are not counted.
            errors: errors of the failed attempts, in order.
            rand: returns random numbers that spread waits.
        """
        if errors and isinstance(errors[-1], Unsupported):
            self._used_remedies = self._used_before  # it was not sent
            errors = [error for error in errors if not isinstance(error, Unsupported)]
        self._used_before = self._used_remedies
        if len(_rejecting(attempts)) >= TRIES_IN_BURST and classify(errors[-1]).hint is RetryHint.SIBLING:
            return GiveUp()  # no rejection is worth the wait for a fourth replica
        limit = attempt_limit(attempts, self._facts, now_s) if attempts else None
        if isinstance(limit, WaitUntil):
            limit = self._limit_of_burst(limit, attempts)
        mode_retries = self._mode_retries
        step = limit or self._choose(pick, attempts, errors, now_s, rand)
        if isinstance(step, GiveUp):
            return step._replace(retry_helps=self._may_be_over(attempts, now_s))
        if isinstance(step, SendTo):
            is_unclear = bool(errors) and classify(errors[-1]).outcome is Outcome.UNCLEAR_4XX
            is_charged = self._mode_retries == mode_retries and attempts and _sent(attempts)
            if is_charged and not self._model.retries.take(now_s, unclear=is_unclear):
                return GiveUp(retry_helps=True)
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
        rejected_modes = [attempt for attempt in attempts if attempt.error == RequestModeRejected.label]
        if len(rejected_modes) > self._mode_retries:
            self._mode_retries = len(rejected_modes)
            return SendTo(rejected_modes[-1].pool, rejected_modes[-1].replica)
        again = self._try_again(now_s)
        if again is not None:
            return again
        if errors:
            hint = classify(errors[-1]).hint
            is_live = any(attempt.live for attempt in attempts)
            if hint is RetryHint.SIBLING and not is_live:
                return self._second_opinion(pick, attempts, tried)
            is_unconfirmed = hint is RetryHint.CONFIRM and not is_live
            if is_unconfirmed or hint is RetryHint.OTHER:
                usable = self._first_usable(pick, pools[self._index :], (), tried) if self._once(hint) else None
                return usable or GiveUp()
            if hint is RetryHint.FALLBACK:  # its siblings would send the same error
                fallbacks = pools[self._index + 1 :] if self._once(RetryHint.FALLBACK) else ()
                return self._first_usable(pick, fallbacks, fallbacks, tried) or GiveUp()
        replica = pick(pools[self._index], tried, ignore_breakers=False)
        if replica is None and any(attempt.outcome is Outcome.LOST for attempt in attempts):
            at_fault = [attempt.replica for attempt in attempts if attempt.outcome is not Outcome.LOST]
            replica = pick(pools[self._index], at_fault, ignore_breakers=False)
        if replica is not None:
            return SendTo(pools[self._index], replica)
        step: WaitUntil | SendTo | None = self._wait_for_lease(tried, now_s)
        step = step or self._wait_for_same(attempts, now_s, rand)
        step = step or self._first_usable(pick, pools[self._index + 1 :], pools, tried)
        step = step or self._second_round(attempts, now_s, rand)
        if step is not None:
            return step
        waits_s = [] if _sent(attempts) else [pool.picker.wait_s(self._facts, tried, now_s) for pool in pools]
        return GiveUp(wait_s=min((wait_s for wait_s in waits_s if wait_s is not None), default=None))

    def _second_opinion(self, pick: Pick, attempts: Sequence[Attempt], tried: Sequence[Replica]) -> SendTo | GiveUp:
        """Put a rejection to other replicas of the pool until it is most likely the caller's own mistake.

        It is if two replicas agree, and at least one of them works, as its other answers show; or if all agree. Only
        where the pool's one replica is not known to work, a fallback is asked.
        """
        pool, rejecting = self._model.pools[self._index], _rejecting(attempts)
        works = any(attempt.pool.rejections(attempt.replica).is_trusted for attempt in rejecting)
        is_agreed = len(rejecting) > 1
        replica = None if works and is_agreed else pick(pool, tried, ignore_breakers=False)
        if replica is not None:
            return SendTo(pool, replica)
        later = () if works or is_agreed else self._model.pools[self._index + 1 :]
        return self._first_usable(pick, later, (), tried) or GiveUp()

    def _wait_for_lease(self, tried: Sequence[Replica], now_s: float) -> WaitUntil | None:
        """Wait while the fleet is asked for more of a quota, at most 200 ms in all; no setting forbids that."""
        pool = self._model.pools[self._index]
        if pool.quotas.is_shared and pool.picker.wait_s(self._facts, tried, now_s) == ASK_WAIT_S:
            self._allowance = self._allowance or WaitAllowance()
            if self._allowance.lasts(now_s):
                return WaitUntil(now_s + ASK_WAIT_S)
        return None

    def _limit_of_burst(self, limit: WaitUntil, attempts: Sequence[Attempt]) -> WaitUntil | GiveUp | None:
        """Return the limit on bursts, which holds for replicas that were not tried; None if all were tried."""
        tried = [attempt.replica for attempt in attempts]
        reachable = (replica for pool in self._model.pools for replica in pool.picker.reachable(tried))
        if self._had_round or all(replica.out for replica in reachable):
            return None
        return self._in_time(limit.until_s) or GiveUp()

    def _try_again(self, now_s: float) -> WaitUntil | SendTo | None:
        """Return the next replica that is to be asked again, or the wait before; None if there is none."""
        while self._again:
            if now_s < self._again_s:
                return WaitUntil(self._again_s)
            step, self._again = self._again[0], self._again[1:]
            if not step.replica.out:
                return step
        return None

    def _second_round(self, attempts: Sequence[Attempt], now_s: float, rand: Rand) -> WaitUntil | None:
        """Plan to ask each replica with a transient failure once more, as at the top of this file; None if not."""
        if self._had_round or not self._may_be_over(attempts, now_s):
            return None
        wait = self._in_time(now_s + _ROUND_S_MIN + _ROUND_S_SPREAD * rand())
        if wait is not None:
            latest = {attempt.replica: attempt for attempt in attempts}
            failed = [attempt for attempt in latest.values() if _may_recover(attempt, now_s)]
            failed.sort(key=lambda attempt: self._model.pools.index(attempt.pool))
            self._again = tuple(SendTo(attempt.pool, attempt.replica) for attempt in failed)
            self._again_s, self._had_round = wait.until_s, True
        return wait

    def _may_be_over(self, attempts: Sequence[Attempt], now_s: float) -> bool:
        """Return True if there were transient failures, and too short a time for them to be an outage."""
        failed = (attempt for attempt in attempts if _may_recover(attempt, now_s))
        failed_s = min((attempt.end_s or 0.0 for attempt in failed), default=-math.inf)
        return not self._had_round and now_s < failed_s + _BLIP_S

    def _in_time(self, until_s: float) -> WaitUntil | None:
        """Return a wait that ends before the caller's deadline, None for a longer one."""
        return WaitUntil(until_s) if until_s < self._until_s else None

    def _wait_for_same(self, attempts: Sequence[Attempt], now_s: float, rand: Rand) -> WaitUntil | None:
        """Wait for a replica of this pool that may soon recover, before a fallback is used; None if there is none."""
        pool = self._model.pools[self._index]
        if not _sent(attempts):  # all replicas for the request are cooling down after responses to other requests
            wait_s = pool.picker.wait_s(self._facts, [attempt.replica for attempt in attempts], now_s)
            return None if wait_s is None else self._wait(wait_s, now_s, rand)
        own = [attempt for attempt in _sent(attempts) if attempt.pool is pool]
        waits_s = [(wait_s, attempt.replica) for attempt in own if (wait_s := _wait_s(attempt)) is not None]
        if waits_s:
            wait_s, replica = min(waits_s, key=lambda wait: wait[0])
            wait = self._wait(wait_s, now_s, rand)
            if wait is not None:
                self._again, self._again_s = (SendTo(pool, replica),), wait.until_s
                return wait
        is_only = len(own) == 1 and own[0].transient
        # One request probes an open breaker: the quick retry would be a second one.
        if is_only and own[0].replica.breaker.state is BreakerState.CLOSED and self._once(RetryHint.SAME):
            wait = self._in_time(now_s + _RETRY_S_MIN + _RETRY_S_SPREAD * rand())
            if wait is not None:
                self._again, self._again_s = (SendTo(pool, own[0].replica),), wait.until_s
            return wait
        return None

    def _wait(self, wait_s: float, now_s: float, rand: Rand) -> WaitUntil | None:
        """Return a wait for a Retry-After, if it is short and the request's first one."""
        if self._waited or wait_s > self._model.timeouts.retry_after_s_max:
            return None
        wait = self._in_time(now_s + wait_s * (1 + _WAIT_SPREAD * rand()))
        self._waited = wait is not None
        return wait

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
    """Return the limit that forbids another attempt or backup now, None if there is none."""
    sent = _sent(attempts)
    if len(attempts) >= _REQUESTS_MAX:
        return GiveUp()
    if len(sent) >= ATTEMPTS_MAX or (facts.attempts_max is not None and len(sent) >= facts.attempts_max):
        return GiveUp()
    if len(sent) >= TRIES_IN_BURST and now_s < (free_at_s := sent[-TRIES_IN_BURST].start_s + BURST_S):
        return WaitUntil(free_at_s)
    return None


def _may_recover(attempt: Attempt, now_s: float) -> bool:
    """Return True if an attempt's failure was transient, and its replica is not known to be down for longer."""
    breaker = attempt.replica.breaker
    is_down = breaker.state is not BreakerState.CLOSED and now_s >= breaker.opened_s + _BLIP_S
    return attempt.transient and not is_down


def _sent(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Return the attempts that count against the limits.

    A replica that rejects the request mode has not begun the request; each attempt that counts has at most two before.
    """
    begun = [attempt for attempt in attempts if attempt.outcome is not Outcome.UNSUPPORTED]
    return [attempt for attempt in begun if attempt.error != RequestModeRejected.label]


def _rejecting(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Return the attempts that ended with a rejection of the request, or of the caller's mistake in it."""
    return [attempt for attempt in attempts if attempt.outcome is Outcome.UNCLEAR_4XX]


def _wait_s(attempt: Attempt) -> float | None:
    """Return the time for which the replica must not be used; None without a Retry-After or rate limit."""
    if attempt.outcome is Outcome.CLIENT_ERROR:  # the request is above the limit, and stays so
        return None
    if attempt.retry_after_s is not None:
        return attempt.retry_after_s
    return COOL_DOWN_S if attempt.outcome is Outcome.RATE_LIMITED else None


def why_started(role: Role, errors: Sequence[UpstreamError]) -> str:
    """Return the reason for a primary or a failover, as text; `errors` are the errors of earlier attempts."""
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
