"""Where a request goes next: which pool and replica an attempt may be sent to, when, or that nothing is left.

Owns the order (siblings, the same replica once more, fallbacks, replicas whose breaker is open) and the bounds: tries a
request, tries in a burst, retries a model. It starts nothing and knows no timer: the race does what it says.

    untried sibling  ->  the same replica again  ->  untried replica of a fallback  ->  any untried replica
    (before all: the same replica, where it will be asked in another way)
                         (no sibling there is: one quick retry; a short Retry-After is waited out)

Units: seconds of the loop's clock.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from gateway.hedging.contract import RequestFacts
from gateway.hedging.outcomes import Outcome
from gateway.pool.pool import Pool
from gateway.pool.quotas import COOL_DOWN_S
from gateway.race.attempt import Attempt
from gateway.race.context import Model
from gateway.race.failures import Remedy, judge
from gateway.routing.replicas import Replica
from providers.errors import RequestModeRejected, UpstreamError

TRIES_MAX: Final = 4  # upstream attempts a request; an SDK's own retries multiply whatever we do
TRIES_IN_BURST: Final = 3
BURST_S: Final = 3.0
_RETRY_S_MIN: Final = 0.05  # a transient failure of the only replica is tried again so soon,
_RETRY_S_SPREAD: Final = 0.2  # and at random up to this much later: a thousand streams may have been cut at once
_WAIT_SPREAD: Final = 0.1  # of a Retry-After: those who were told the same must not come back together


Rand = Callable[[], float]
"""Uniform in [0, 1); asked only where waits are spread."""


class Pick(Protocol):
    """Asks a pool for a replica."""

    def __call__(self, pool: Pool, tried: Sequence[Replica], *, desperate: bool) -> Replica | None:
        """One that was not tried; desperate: also where a breaker is open."""


class Go(NamedTuple):
    """Send an attempt there now."""

    pool: Pool
    replica: Replica


class Wait(NamedTuple):
    """Ask again then."""

    until_s: float


class Nothing(NamedTuple):
    """There is nothing left to try.

    Attributes:
        spent: something was, but the retry budget had nothing left for it.
        wait_s: nothing was ever sent, because all have to wait, and for so long.
    """

    spent: bool = False
    wait_s: float | None = None


class Tries:
    """What one request has tried and may still try.

    Args:
        model: what it asked for.
        facts: about the request.
    """

    __slots__ = ("_again", "_asked_anew", "_facts", "_index", "_model", "_remedied", "_waited")

    def __init__(self, model: Model, facts: RequestFacts) -> None:
        self._model = model
        self._facts = facts
        self._index = 0  # of the pool in use
        self._again: tuple[Replica, float] | None = None  # the same replica, not before then
        self._remedied: frozenset[Remedy] = frozenset()  # each is tried once
        self._asked_anew = 0  # how many attempts were repeated because a server minded how it was asked
        self._waited = False  # for a Retry-After, once

    def next(
        self, pick: Pick, attempts: Sequence[Attempt], errors: Sequence[UpstreamError], now_s: float, rand: Rand
    ) -> Go | Wait | Nothing:
        """What to do for one more attempt; the first one is not charged to the retry budget.

        Args:
            pick: how a pool is asked.
            attempts: all so far; those that could not be put into words for their replica cost nothing.
            errors: of those that failed, in order.
            now_s: the time.
            rand: gives random numbers that spread waits.
        """
        bound = bounded(attempts, now_s) if attempts else None
        step = bound or self._where(pick, attempts, errors, now_s, rand)
        if isinstance(step, Go):
            if attempts and _sent(attempts) and not self._model.retries.take(now_s):
                return Nothing(spent=True)
            self._again = None
            self._index = self._model.pools.index(step.pool)
        return step

    def carry_on(
        self, attempts: Sequence[Attempt], where: Callable[[], Go | None], now_s: float
    ) -> Go | Wait | Nothing:
        """The same for an attempt that carries a broken stream on, within the same bounds on tries.

        The retry budget is not asked: what broke is load that is gone, so carrying it on adds none.

        Args:
            attempts: all so far.
            where: tells where to, None for nowhere.
            now_s: the time.
        """
        return bounded(attempts, now_s) or where() or Nothing()

    def _where(
        self, pick: Pick, attempts: Sequence[Attempt], errors: Sequence[UpstreamError], now_s: float, rand: Rand
    ) -> Go | Wait | Nothing:
        """The order at the top of this file."""
        pools, tried = self._model.pools, [attempt.replica for attempt in attempts] if attempts else ()
        if self._again is not None:
            same, at_s = self._again
            return Wait(at_s) if now_s < at_s else Go(pools[self._index], same)
        if errors:
            anew = [attempt for attempt in attempts if attempt.error == RequestModeRejected.label]
            if len(anew) > self._asked_anew:
                self._asked_anew = len(anew)
                return Go(anew[-1].pool, anew[-1].replica)
            if judge(errors[-1]).remedy is Remedy.FALLBACK:  # its siblings would say the same
                behind = pools[self._index + 1 :] if self._once(Remedy.FALLBACK) else ()
                return self._first(pick, behind, behind, tried) or Nothing()
        replica = pick(pools[self._index], tried, desperate=False)
        if replica is not None:
            return Go(pools[self._index], replica)
        found = self._same(attempts, errors, now_s, rand) or self._first(pick, pools[self._index + 1 :], pools, tried)
        if found is not None:
            return found
        waits_s = [pool.picker.wait_s(self._facts, tried, now_s) for pool in pools] if not attempts else []
        return Nothing(wait_s=min((wait_s for wait_s in waits_s if wait_s is not None), default=None))

    def _same(
        self, attempts: Sequence[Attempt], errors: Sequence[UpstreamError], now_s: float, rand: Rand
    ) -> Wait | None:
        """No sibling is left: what may soon be better is waited for, before a fallback answers."""
        pool = self._model.pools[self._index]
        if not attempts:  # all of them were told to wait by answers to others
            wait_s = pool.picker.wait_s(self._facts, (), now_s)
            return None if wait_s is None else self._wait(wait_s, now_s, rand)
        here = [attempt for attempt in attempts if attempt.pool is pool]
        waits_s = [(wait_s, attempt.replica) for attempt in here if (wait_s := _wait_s(attempt)) is not None]
        if waits_s:
            wait_s, replica = min(waits_s, key=lambda wait: wait[0])
            wait = self._wait(wait_s, now_s, rand)
            if wait is not None:
                self._again = (replica, wait.until_s)
                return wait
        alone = len(here) == 1 and errors and judge(errors[-1]).remedy is Remedy.SAME
        if alone and self._once(Remedy.SAME):
            wait = Wait(now_s + _RETRY_S_MIN + _RETRY_S_SPREAD * rand())
            self._again = (here[0].replica, wait.until_s)
            return wait
        return None

    def _wait(self, wait_s: float, now_s: float, rand: Rand) -> Wait | None:
        """Wait out a Retry-After, if it is short and the first one."""
        if self._waited or wait_s > self._model.timeouts.retry_after_s_max:
            return None
        self._waited = True
        return Wait(now_s + wait_s * (1 + _WAIT_SPREAD * rand()))

    def _once(self, remedy: Remedy) -> bool:
        """Whether this remedy is tried for the first time."""
        first = remedy not in self._remedied
        self._remedied |= {remedy}
        return first

    def _first(
        self, pick: Pick, pools: Sequence[Pool], desperate: Sequence[Pool], tried: Sequence[Replica]
    ) -> Go | None:
        """The first replica in these pools that may be used, else the first one at all in those for the desperate."""
        for candidates, ignored in ((pools, False), (desperate, True)):
            for pool in candidates:
                replica = pick(pool, tried, desperate=ignored)
                if replica is not None:
                    return Go(pool, replica)
        return None


def bounded(attempts: Sequence[Attempt], now_s: float) -> Wait | Nothing | None:
    """What keeps another attempt, a backup too, from being sent now, None when nothing does."""
    sent = _sent(attempts)
    if len(sent) >= TRIES_MAX:
        return Nothing()
    if len(sent) >= TRIES_IN_BURST and now_s < (free_at_s := sent[-TRIES_IN_BURST].start_s + BURST_S):
        return Wait(free_at_s)
    return None


def _sent(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Those that count."""
    return [attempt for attempt in attempts if attempt.outcome is not Outcome.UNSUPPORTED]


def _wait_s(attempt: Attempt) -> float | None:
    """How long its replica has to be left alone; None: nobody said that it has to."""
    if attempt.retry_after_s is not None:
        return attempt.retry_after_s
    return COOL_DOWN_S if attempt.outcome is Outcome.RATE_LIMITED else None
