"""The policy of a hedging client: the gateway's pools, shared by threads, and the bookkeeping of one race.

The seam for a client library. A transport asks for a `ClientRace`, sends the attempts that it returns on sockets of its
own, and reports what happened; the race never waits, reads or sends. Each method may be called from any thread.

    race = hedger.race(asked)                     asked: ttft_gateway.client.asked.ask(...)
    attempt = race.begin()                        send it to attempt.target, None for the request's own address
    race.due_s                                    time on hedger.clock at which late() is to be called; inf for never
    backup = race.late()                          send it too, unless it is None; due_s has changed
    race.on_headers(attempt, status, headers)     headers of any response
    race.on_first(attempt)                        first event; True: it has won, close all others
    race.on_failed(attempt, failure)              error status, exception, empty or invalid stream
    race.is_over                                  an attempt has won, or all have failed
    race.on_end(attempt, complete=...)            end of the winner's answer
    race.close()                                  ends all attempts that still run; always call it last

After a fork the child starts with nothing learned: the parent's attempts are not its own. Times are seconds.
"""

import logging
import math
import os
import random
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final, ParamSpec, TypeVar

import msgspec

from ttft_gateway.apis.base import Headers, Phase, RateLimit, Usage
from ttft_gateway.client.asked import NAMES_MAX, Asked, name_of
from ttft_gateway.client.budget import Budget, ClientCredits
from ttft_gateway.client.config import HedgeConfig, parameters
from ttft_gateway.client.report import announce
from ttft_gateway.client.rules import PopulationName, Rules
from ttft_gateway.client.stats import Stats
from ttft_gateway.client.targets import Population, Target, YoungEndpoint, check, populate, stores_answers, teach
from ttft_gateway.hedging.contract import Denied, Forecast, Hedge, RequestFacts, StreamWatch
from ttft_gateway.hedging.outcomes import Denial, Outcome
from ttft_gateway.limits.bucket import Spend
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import Replica

_P = ParamSpec("_P")
_T = TypeVar("_T")
_log: Final = logging.getLogger("ttft_gateway")
_POPULATIONS_MAX: Final = 256  # the least recently used one is forgotten
_KEYS_MAX: Final = 256  # idempotency keys of hedged requests that are remembered
_LIMIT: Final = b"limit"  # in the name of each header with a rate limit; most servers send none
_COLD_FACTOR: Final = 3.0  # of the predicted time: a backup before there is a plan
_COLD_SAMPLES: Final = 3  # first events before that; the first one includes the handshake
_USUAL_FACTOR: Final = 1.5  # of the predicted time: a backup before it is mostly for a usual answer
_ALL_PERCENT: Final = 100.0  # a budget that pays for a backup of each request
_AGAIN_S_MIN: Final = 0.001  # shortest time between two decisions
_NO_CONNECTION: Final = "the client's connection pool is full"


def safely(function: Callable[_P, _T], *args: _P.args, **named: _P.kwargs) -> _T | None:
    """Call the policy; a bug in it is logged, costs no answer, and returns None."""
    try:
        return function(*args, **named)
    except Exception:
        log_failure()
        return None


def log_failure() -> None:
    """Log the exception of the policy that is being handled.

    For a `try` in the path of each request: `safely` takes 2,500 to 4,200 instructions more (Python 3.13).
    """
    _log.exception("the hedging policy failed; the request goes on without it")


def check_arguments(config: object, stats: object, budget: object) -> None:
    """Reject arguments of a client that have the wrong type.

    Raises:
        TypeError: one has it.
    """
    if not isinstance(config, HedgeConfig):
        raise TypeError(f"config is {type(config).__name__}; use HedgeConfig(...)")
    for name, value, kind in (("stats", stats, Stats), ("budget", budget, Budget)):
        if value is not None and not isinstance(value, kind):
            raise TypeError(f"{name} is {type(value).__name__}; use {kind.__name__}()")


class Failure(msgspec.Struct, frozen=True):
    """The end of an attempt without an answer.

    Attributes:
        outcome: its class; see `failure_of`.
        retry_after_s: the server's Retry-After, None if absent.
        error: "connect" if no connection was made, else any name or None.
        is_final: True if the server forbids further attempts.
    """

    outcome: Outcome
    retry_after_s: float | None = None
    error: str | None = None
    is_final: bool = False


class Hedger:
    """The policy of one transport.

    Attributes:
        lock: lock of the budget, held while a pool is used.
        rules: rules for requests that are no calls of an LLM API.
        cold_s: delay of a backup before there is a plan, unless the first times of the server show a better one.
        credits: credits of the budget; set with the first population.
        use_tokens: locks the replicas without a token (`tokens.py`); None if no target has a credential.
        sender: the transport or session that sends; None if its connections are not counted.

    Args:
        config: settings.
        targets: replicas; none: each request goes to its own address, and so do its backups.
        stats: counts; shared between transports.
        clock: returns seconds, never decreasing.
        rand: returns random numbers in [0, 1).
        budget: limit on backups, shared between transports; None: its own, of the settings.
    """

    def __init__(
        self,
        config: HedgeConfig,
        targets: Sequence[Target] = (),
        stats: Stats | None = None,
        clock: Callable[[], float] = time.monotonic,
        rand: Callable[[], float] = random.random,
        budget: Budget | None = None,
    ) -> None:
        check_arguments(config, stats, budget)
        self.config = config
        self.budget = budget or Budget(config.budget_percent)
        self.targets = tuple(targets)
        self.stats = stats or Stats()
        self.clock = clock
        self.rand = rand
        self.rules = Rules(config)
        self._parameters = parameters(config, self.budget.percent)
        self.cold_s = max(self._parameters.cold_start_delay_s, config.min_delay)
        check(self.targets)
        self.use_tokens: Callable[[Pool, Mapping[str, tuple[Target | None, str]], float], None] | None = None
        self.sender: object = None
        if any(target.token is not None for target in self.targets):
            from ttft_gateway.client.tokens import use_tokens

            self.use_tokens = use_tokens
        self.forget()
        _ALL.add(self)

    credits: ClientCredits

    def forget(self) -> None:
        """Drop everything learned."""
        self.lock = self.budget.lock
        self._populations: OrderedDict[PopulationName, Population] = OrderedDict()
        self._keys: OrderedDict[bytes, None] = OrderedDict()
        self._latest: tuple[PopulationName, Population] | None = None  # of the last request

    def race(self, asked: Asked) -> "ClientRace":
        """Return the race of a request, without an attempt."""
        facts, latest = asked.facts, self._latest
        if latest is None or latest[0] != asked.population:  # most programs ask one model
            latest = self._find(asked)
        population = latest[1]
        if facts.hedge_off is None and (asked.stored or asked.key is not None):
            stores = asked.stored and stores_answers(asked, self.targets)
            with self.lock:
                if stores or asked.key in self._keys:
                    facts = msgspec.structs.replace(facts, hedge_off=Denial.OFF)
        if population.young is not None and _has_plan(population.pool):  # its times are no times of the parent's
            facts = msgspec.structs.replace(facts, timed=False)
        return ClientRace(self, population, facts, asked.key)

    def _find(self, asked: Asked) -> tuple[PopulationName, Population]:
        """Return the name and the population of a request, which is the latest one from now on."""
        name = asked.population
        with self.lock:
            population = self._populations.get(name)
            if population is None:
                population = self._populations[name] = self._populate(asked)
                while len(self._populations) > _POPULATIONS_MAX:
                    self._populations.popitem(last=False)
            self._populations.move_to_end(name)
            self._latest = latest = name, population
            return latest

    def _populate(self, asked: Asked) -> Population:
        """Return a new population; the first endpoint of its parent has the parent's pool for its own."""
        parent = asked.parent
        if parent is not None and parent in self._populations:
            self._populations.move_to_end(parent)
            return msgspec.structs.replace(self._populations[parent], young=YoungEndpoint(asked))
        population = populate(asked, self.config, self._parameters, self.targets)
        population.pool.budget = self.credits = self.budget.credits(self.rand)
        if parent is not None:
            self._populations[parent] = population
        return population

    def grow(self, young: YoungEndpoint) -> None:
        """Give an endpoint a pool of its own as soon as it has enough times; the lock is held."""
        name = young.asked.population
        if len(young.times) >= self.config.warmup_requests and name in self._populations:
            population = populate(young.asked, self.config, self._parameters, self.targets)
            population.pool.budget = self.credits
            teach(population.pool, young.times)
            self._populations[name], self._latest = population, None

    def has_room(self) -> bool:
        """Return True if there is a connection for a backup."""
        from ttft_gateway.client.room import has_room  # only a late request needs it

        return self.sender is None or has_room(self.sender)

    def remember(self, key: bytes) -> None:
        """Remember the idempotency key of a hedged request: its retry is not hedged again."""
        self._keys[key] = None
        if len(self._keys) > _KEYS_MAX:
            self._keys.popitem(last=False)


class ClientAttempt:
    """One attempt, with the fields that the policy reads (`hedging.contract.AttemptView`); times of the hedger's clock.

    Attributes:
        replica: the target in the policy.
        target: the target; None: the request's own address.
        label: name in the statistics.
        number: number of the attempt in its request; 0 is the primary.
        hedge_s: time of the next decision on a backup; infinite for none.
        outcome: its end, None while it runs.
        why: reason of a backup; empty for the primary.
        is_repeated: True after it was sent again, with a renewed token.
        headers_s: None: no policy of a client reads the times of headers.

    The other attributes are described in `AttemptView`.
    """

    hedge_s = math.inf
    headers_s: float | None = None
    content_s: float | None = None
    first_token_s: float | None = None
    forecast: Forecast | None = None
    outcome: Outcome | None = None
    status: int | None = None
    error: str | None = None
    usage: Usage | None = None
    events = 0
    generated_s = 0.0
    is_paced = True  # the events after the first one are not read
    output_s = 0.0
    phase: Phase | None = None
    watch: StreamWatch | None = None
    empty = False
    why = ""
    is_repeated = False

    def __init__(self, replica: Replica, target: Target | None, label: str, number: int, start_s: float) -> None:
        self.replica = replica
        self.target = target
        self.label = label
        self.number = number
        self.start_s = self.last_s = start_s


class ClientRace:
    """The bookkeeping of one request; see the top of this file.

    Attributes:
        hedger: the policy.
        due_s: time of the next call of `late`; infinite for none.
        deadline_s: time at which the request's own time is used up, so that no backup is sent or waited for.
        winner: attempt that brought the first event; None before.
        attempts: its attempts, the primary first; set by `begin`.
        delay_s: time after which the request is late; infinite if it cannot get a backup.
        denials: the first denial for each reason: reason, time, explanation.
        saved_s: time that a backup saved, as estimated.
    """

    due_s = delay_s = math.inf
    deadline_s = math.inf
    winner: ClientAttempt | None = None
    attempts: list[ClientAttempt]
    denials: tuple[tuple[Denial, float, str], ...] = ()
    saved_s = 0.0
    _is_announced = False

    def __init__(
        self,
        hedger: Hedger,
        population: Population,
        facts: RequestFacts,
        key: bytes | None,
    ) -> None:
        self.hedger = hedger
        self._pool, self._targets, self._young = population.pool, population.targets, population.young
        self._facts = facts
        self._key = key

    def begin(self, limit_s: float = math.inf) -> ClientAttempt:
        """Choose the target of the primary and count it as sent.

        Args:
            limit_s: time for the whole race by the client's timeouts.
        """
        hedger, pool, facts = self.hedger, self._pool, self._facts
        with hedger.lock:
            now_s, rand = hedger.clock(), hedger.rand()
            if hedger.use_tokens is not None:
                hedger.use_tokens(pool, self._targets, now_s)
            primary = pool.begin(facts, now_s, rand)
            if primary is not None:
                replica = primary.replica
                target, label = self._targets[replica.name]
                attempt = ClientAttempt(replica, target, label, 0, now_s)
                self.attempts, attempt.forecast, delay_s = [attempt], primary.forecast, primary.delay_s
            else:
                picker = pool.picker
                found = picker.pick(facts, (), now_s, rand) or picker.pick_ignoring_breakers(facts, (), now_s, rand)
                # a client library rejects no request: if all replicas wait, the one with the shortest wait gets it
                found = found or min(pool.replicas, key=lambda each: each.breaker.cooling_until_s)
                attempt = self._attempt(found, 0, now_s)
                self.attempts = [attempt]
                pool.on_sent(attempt, facts, None, is_first=True)
                delay_s = None
            self.deadline_s = now_s + limit_s
            if hedger.credits.is_lending and facts.hedge_off is None:
                hedger.credits.begun += 1
            if facts.hedge_off is None and pool.max_hedges > 0 and not pool.is_single:
                delay_s = pool.delay_s(attempt, facts) if delay_s is None else delay_s
                if delay_s == hedger.cold_s:
                    delay_s = self._cold_s(attempt)
                self.delay_s, late_s = delay_s, now_s + delay_s
                self.due_s = attempt.hedge_s = late_s if late_s < self.deadline_s else math.inf
        if facts.hedge_off is None:
            hedger.stats.sent(attempt.label, 0)
        return attempt

    def late(self) -> ClientAttempt | None:
        """Decide on a backup for an attempt that is late; a returned backup counts as sent."""
        hedger, pool, facts = self.hedger, self._pool, self._facts
        with hedger.lock:
            now_s = hedger.clock()
            if hedger.use_tokens is not None:
                hedger.use_tokens(pool, self._targets, now_s)
            live = [each for each in self.attempts if each.outcome is None and each.content_s is None]
            backup = None
            for late in live:
                if self.winner is not None or late.hedge_s > now_s or len(self.attempts) > pool.max_hedges:
                    continue
                tried = [each.replica for each in self.attempts]
                decision: Hedge | Denied = Denied(Denial.NO_REPLICA, now_s - late.start_s, _NO_CONNECTION)
                if hedger.has_room():
                    decision = pool.decide(facts, late, live, tried, now_s, hedger.rand())
                if isinstance(decision, Denied):
                    late.hedge_s = now_s + max(_AGAIN_S_MIN, decision.again_after_s)
                    if all(decision.reason is not reason for reason, _, _ in self.denials):
                        self.denials += ((decision.reason, now_s, decision.why),)
                        hedger.stats.deny(decision.reason.value)
                    continue
                late.hedge_s = math.inf
                backup = self._attempt(decision.replica, len(tried), now_s)
                pool.on_sent(backup, facts, decision.tickets, is_first=False)
                backup.hedge_s, backup.why = now_s + pool.delay_s(backup, facts), decision.why
                self.attempts.append(backup)  # last: a race waits for each attempt, and a bug above sends none
                if self._key is not None:
                    hedger.remember(self._key)
                hedger.stats.sent(backup.label, backup.number)
                break
            self._plan_next()
            return backup

    def on_headers(self, attempt: ClientAttempt, status: int, headers: Headers) -> None:
        """Report a response's headers, names in any case: its quota."""
        attempt.status = status
        read = attempt.replica.read_limits
        if read is None or not _has_limit(tuple(map(name_of, headers))):
            return
        limits = read([(name.lower(), value) for name, value in headers])
        if limits:
            with self.hedger.lock:
                self._learn_limits(attempt, limits, self.hedger.clock())

    def on_first(self, attempt: ClientAttempt) -> bool:
        """Report the first event of an attempt; return True if it has won."""
        hedger = self.hedger
        with hedger.lock:
            if self.winner is not None or attempt.outcome is not None:
                return False
            now_s = attempt.last_s = hedger.clock()
            attempt.events = 1
            self.winner, self.due_s = attempt, math.inf
            is_race = self.attempts[-1].number > 0
            try:
                if is_race:
                    self.saved_s = self._learn_race(attempt, now_s)
                else:
                    self._pool.on_content(attempt, now_s)
                    if self._young is not None:
                        self._young.times.append((attempt.replica.name, now_s - attempt.start_s, now_s))
                        hedger.grow(self._young)
                    if hedger.credits.is_lending and not self.denials and self._facts.hedge_off is None:
                        hedger.credits.lend(self._facts.prompt_tokens)
            except Exception:
                log_failure()
            attempt.content_s = attempt.first_token_s = now_s
        if self._facts.hedge_off is None:
            hedger.stats.first(attempt.label, now_s - attempt.start_s)
        if is_race:
            hedger.stats.won(attempt.label, backup=attempt.number > 0, saved_s=self.saved_s)
        announce(self)
        return True

    def on_failed(self, attempt: ClientAttempt, failure: Failure) -> None:
        """Report an attempt that ended without an answer, before its first event."""
        with self.hedger.lock:
            if attempt.outcome is None:
                attempt.error = failure.error
                now_s = self.hedger.clock()
                self._end(attempt, failure.outcome, now_s, failure.retry_after_s)
                if failure.is_final:
                    for each in self.attempts:
                        each.hedge_s = math.inf
                self._plan_next()
        if self.winner is None and self.is_over:
            self._announce_end()

    @property
    def population(self) -> str:
        """The name of the population of its times."""
        return self._pool.name

    @property
    def is_over(self) -> bool:
        """True if an attempt has won, or all have failed."""
        return self.winner is not None or all(each.outcome is not None for each in self.attempts)

    def is_alone(self, attempt: ClientAttempt) -> bool:
        """Return True if no other attempt may answer."""
        return all(each is attempt or each.outcome is not None for each in self.attempts)

    def left_s(self) -> float | None:
        """Return the seconds until the deadline; None for no deadline."""
        return None if self.deadline_s == math.inf else max(0.0, self.deadline_s - self.hedger.clock())

    def on_end(self, attempt: ClientAttempt, *, outcome: Outcome, events: int = 1) -> None:
        """Report the end of the winner's answer: `FINISHED`, `CUT` or `CLIENT_GONE`."""
        with self.hedger.lock:
            attempt.events = events
            attempt.last_s = self.hedger.clock()
            self._end(attempt, outcome, attempt.last_s, None)

    def close(self) -> None:
        """End the attempts that still run: the caller has gone."""
        if any(attempt.outcome is None for attempt in self.attempts):
            with self.hedger.lock:
                self.due_s = math.inf
                for attempt in self.attempts:
                    self._end(attempt, Outcome.CLIENT_GONE, self.hedger.clock(), None)
        if self.winner is None:
            self._announce_end()

    def _announce_end(self) -> None:
        """Announce, once, that no attempt has answered."""
        if not self._is_announced:
            self._is_announced = True
            announce(self)

    # inside; the lock is held

    def _cold_s(self, attempt: ClientAttempt) -> float:
        """Return the delay of a backup before there is a plan: by the first times of the server, if there are some.

        A delay among its usual times would spend the budget on usual answers, and the next straggler would get none.
        """
        hedger, pool, forecast = self.hedger, self._pool, attempt.forecast
        config, delay_s = hedger.config, hedger.cold_s
        if forecast is None or forecast.ttft_s is None or pool.learning.last_plan(attempt.replica.name) is not None:
            return delay_s
        if sum(load.contents for load in pool.loads.of.values()) < _COLD_SAMPLES:
            return delay_s
        if config.warmup_delay is None:
            delay_s = max(config.min_delay, min(delay_s, _COLD_FACTOR * forecast.ttft_s))
        if hedger.budget.percent < _ALL_PERCENT:
            delay_s = max(delay_s, _USUAL_FACTOR * forecast.ttft_s)
        return delay_s

    def _learn_limits(self, attempt: ClientAttempt, limits: Sequence[RateLimit], now_s: float) -> None:
        """Learn the rate limits of a response; the first ones make the ledger of the replica's quota."""
        if attempt.replica in self._pool.quotas.of:
            self._pool.on_limits(attempt, limits, now_s)
            return
        ledger = self._pool.quotas.ledger_of(attempt.replica)
        ticket = ledger.reserve(Spend(math.ceil(self._facts.prompt_tokens), 0), now_s)
        ledger.observe(ticket, limits, now_s)
        ledger.settle(ticket, ticket.spend, now_s)

    def _learn_race(self, attempt: ClientAttempt, now_s: float) -> float:
        """Learn from the first event of the winner and end the other attempts; return the time that a backup saved."""
        saved_s = self._saved_s(now_s) if attempt.number else 0.0
        self._pool.on_content(attempt, now_s)
        for other in self.attempts:
            if other is not attempt:
                self._end(other, Outcome.LOST, now_s, None)
        return saved_s

    def _attempt(self, replica: Replica, number: int, now_s: float) -> ClientAttempt:
        target, label = self._targets[replica.name]
        return ClientAttempt(replica, target, label, number, now_s)

    def _plan_next(self) -> None:
        running = [each.hedge_s for each in self.attempts if each.outcome is None and self.winner is None]
        is_full = len(self.attempts) > self._pool.max_hedges
        due_s = min(running, default=math.inf)
        self.due_s = math.inf if is_full or due_s >= self.deadline_s else due_s

    def _saved_s(self, now_s: float) -> float:
        """Return the time for which the primary would have waited still, by the learned distribution."""
        primary = self.attempts[0]
        plan = self._pool.learning.last_plan(primary.replica.name)
        if plan is None or plan.curve is None or primary.forecast is None or primary.forecast.ttft_s is None:
            return 0.0
        return plan.curve.remaining_s(predicted_s=primary.forecast.ttft_s, waited_s=now_s - primary.start_s)

    def _end(self, attempt: ClientAttempt, outcome: Outcome, now_s: float, retry_after_s: float | None) -> None:
        if attempt.outcome is not None:
            return
        attempt.outcome = outcome
        self._pool.on_end(attempt, outcome, now_s, retry_after_s)
        if self._facts.hedge_off is None:
            if outcome is Outcome.LOST:
                self.hedger.stats.lost(attempt.label)
            elif outcome in _FAILED:
                self.hedger.stats.failed(attempt.label, rate_limited=outcome is Outcome.RATE_LIMITED)


@lru_cache(NAMES_MAX)
def _has_limit(names: tuple[bytes, ...]) -> bool:
    """Return True if a header may have a rate limit, by its name; a server sends few sets of names."""
    return any(_LIMIT in name.lower() for name in names)


def _has_plan(pool: Pool) -> bool:
    return pool.learning.last_plan(pool.replicas[0].name) is not None


_FAILED: Final = frozenset(Outcome) - {Outcome.FINISHED, Outcome.LOST, Outcome.CLIENT_GONE, Outcome.DRAINED}
_ALL: "weakref.WeakSet[Hedger]" = weakref.WeakSet()


def _after_fork() -> None:
    for hedger in _ALL:
        hedger.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
