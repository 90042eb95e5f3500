"""Simulates one policy on one seed of a workload, in virtual time: the gateway's race and pool, simulated replicas.

Owns arrivals and the record of each request. It must not depend on how replicas answer (sampled_replicas.py,
engine_replicas.py) nor what is computed from the records (summary.py). Units: seconds of the loop's clock.
"""

import asyncio
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from http import HTTPStatus
from typing import Final, NamedTuple

import numpy as np
from msgspec import structs
from msgspec.structs import replace
from numpy.typing import NDArray

from gateway.config.settings import TimeoutSettings
from gateway.errors import GatewayError
from gateway.events import AttemptReport, ComponentFailed, Event, Listener, RequestEnded, Result, Role
from gateway.race.context import Caller, Runtime
from gateway.race.deadlines import TimerQueue
from gateway.race.race import Race
from gateway.server.model_parts import timeouts
from streaming_bench.simulation.fleet import FleetPlan, Gateways
from streaming_bench.simulation.law_scenario import Clients
from streaming_bench.simulation.policies import PolicySettings, make_pool
from streaming_bench.simulation.virtual_loop import VirtualLoop
from streaming_bench.simulation.world import World, call_of
from ttft_gateway.hedging.outcomes import Outcome
from ttft_gateway.hedging.parameters import Prefer
from ttft_gateway.hedging.plan import Plan
from ttft_gateway.limits.ledger import Ledger
from ttft_gateway.limits.prices import TierPrices
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import Replica

_PROGRESS_EVERY: Final = 1000  # requests
_ALONE: Final = FleetPlan()
_FIRST: Final = "replica-0"
_NO_TIMEOUTS: Final = replace(
    timeouts(TimeoutSettings()),
    ttft_failover_s=3600,
    ttft_max_s=3600,
    stall_s=3600,
    total_s=36_000,
    commit_status_after_s=36_000,
)  # a TTFT timeout would help `off`, and hedging is what is measured


class SimulatedRequest(NamedTuple):
    """Outcome of one request.

    Attributes:
        arrived_s: time of arrival.
        ttft_s: time to the first token of a complete answer; infinite if there was none.
        tokens: length of the prompt.
        hedges: number of backups.
        won: 1 if a backup won, else 0.
        extra: attempts besides the first.
        wasted_s: total time upstream of the cancelled attempts.
        limited: attempts that got a 429.
        limited_backups: backups that got a 429.
        while_working: attempts that were started after a sign of work that was timed as a first token.
        at_first: attempts at the first replica.
        total_s: time to the end of a complete answer; infinite if there was none.
        cost: bill of all attempts; 0 without prices.
        usual_cost: bill of the answer on the usual tier; 0 without tiers.
        cheap: 1 if its primary went to a tier cheaper than the usual one, else 0.
        dear: 1 if its primary went to a dearer tier, else 0.
    """

    arrived_s: float
    ttft_s: float
    tokens: float
    hedges: int
    won: int
    extra: int
    wasted_s: float
    limited: int
    limited_backups: int
    while_working: int = 0
    at_first: int = 0
    total_s: float = math.inf
    cost: float = 0.0
    usual_cost: float = 0.0
    cheap: int = 0
    dear: int = 0


@dataclass(frozen=True)
class SimulatedRun:
    """Result of one policy on one seed.

    Attributes:
        records: all requests, in the order of their ends.
        prefill: tokens computed by the replicas, and tokens computed for cancelled attempts; 0 without engines.
        plan: the policy's last plan for the first replica; None if the policy makes no plans.
    """

    records: Sequence[SimulatedRequest]
    prefill: tuple[float, float]
    plan: Plan | None = None

    @cached_property
    def columns(self) -> dict[str, NDArray[np.float64]]:
        """The records as one array per attribute."""
        return dict(zip(SimulatedRequest._fields, np.array(self.records, dtype=float).T, strict=True))


@dataclass(frozen=True, slots=True)
class ArrivalPlan:
    """Arrivals of requests.

    Attributes:
        arrivals_s: time of each arrival; None in a closed loop.
        concurrency: number of clients of a closed loop.
    """

    arrivals_s: Sequence[float] | None
    concurrency: int


Begun = Callable[[asyncio.AbstractEventLoop, Sequence[Pool]], None]
"""Called with the loop and the pools of a run before its first arrival."""


def ignore(_event: Event) -> None:
    """Ignore the event."""


def no_start(_loop: asyncio.AbstractEventLoop, _pools: Sequence[Pool]) -> None:
    """Do nothing at the start."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions of a run.

    Attributes:
        clients: impatient clients; None for clients that wait.
        restart_every_s: time after which the gateway restarts.
        restart_keeps: True if what was learned survives a restart.
        timeouts: True for the gateway's default timeouts.
        fleet: the gateways.
        listener: called with each event of the gateway.
        begun: called with the loop and the pools of the gateways before the first arrival.
    """

    clients: Clients | None = None
    restart_every_s: float = math.inf
    restart_keeps: bool = False
    timeouts: bool = False
    fleet: FleetPlan = _ALONE
    listener: Listener = ignore
    begun: Begun = no_start


class _NullClient:
    """A client that accepts everything immediately; reports the end once, with or without an error."""

    committed = False

    def __init__(self, on_end: Callable[[], None]) -> None:
        self.is_answered = False
        self._on_end = on_end

    def begin(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Ignore the headers, which come with the first token."""
        self.is_answered = True

    def keep_alive(self) -> None:
        """Ignore the comment."""

    def write(self, raw: bytes) -> None:
        """Ignore the data."""

    def finish(self) -> None:
        self._on_end()

    def fail(self, error: GatewayError) -> None:
        self._on_end()


def run(
    policy: str,
    settings: PolicySettings,
    arrivals: ArrivalPlan,
    make_world: Callable[[asyncio.AbstractEventLoop], World],
    seed: int,
    progress: Callable[[int], None],
    conditions: Conditions = Conditions(),
) -> SimulatedRun:
    """Send all requests and wait for all answers.

    Args:
        policy: one of `policies.POLICY_NAMES`.
        arrivals: times or number of clients.
        make_world: makes fresh replicas on a loop.
        seed: seed of the gateway's own random numbers.
        progress: called now and then with the number of finished requests.
        conditions: behaviour of clients and gateway.
    """
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        world = make_world(loop)
        new_pool = partial(_new_pool, policy, settings, world)
        simulation = _Simulation(loop, world, new_pool, arrivals, seed, progress, conditions)
        loop.set_exception_handler(simulation.failed)
        runner.run(simulation.run())
    pool = simulation.gateways.each[0].pool
    return SimulatedRun(simulation.records, world.prefill(), pool.learning.last_plan(pool.replicas[0].name))


def _new_pool(policy: str, settings: PolicySettings, world: World, ledgers: Mapping[str, Ledger]) -> Pool:
    """Return a pool that has learned nothing, over the replicas of a world."""
    is_by_bill = settings.hedging.prefer is Prefer.COST
    ways: Sequence[TierPrices | None] = world.ways or [None] * len(world.endpoints)
    replicas = [
        Replica(
            f"replica-{i}" if way is None else way.asked,
            endpoint,
            quota,
            prices=None if way is None else way.billed(None),
            tiers=way,
            backup_only=way is not None and not is_by_bill and way.billed(None).prompt > way.usual.prompt,
            read_limits=None if world.limits is None else world.limits.read,
            counts_max_tokens=True,  # the simulated providers do
            batches=world.batches,
        )
        for i, (endpoint, quota, way) in enumerate(zip(world.endpoints, world.quotas, ways, strict=True))
    ]
    return make_pool(policy, replicas, settings, ledgers)


class _Simulation:
    """Starts races and records their events."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        world: World,
        new_pool: Callable[[Mapping[str, Ledger]], Pool],
        arrivals: ArrivalPlan,
        seed: int,
        progress: Callable[[int], None],
        conditions: Conditions,
    ) -> None:
        self._loop = loop
        self._conditions = conditions
        self._clients = conditions.clients
        self._restart_s = conditions.restart_every_s
        self._facts = world.facts
        self._pinned = world.pinned
        self._prices = {way.asked: (way.billed(None).prompt, way.usual.prompt) for way in world.ways or ()}
        self._reasoning_s = world.reasoning_s
        self._arrivals = arrivals
        self._progress = progress
        limits = timeouts(TimeoutSettings()) if conditions.timeouts else _NO_TIMEOUTS
        self.gateways = Gateways(loop, conditions.fleet, world, new_pool, limits, seed)
        self._runtime = Runtime(loop, self._on_event, random.Random(f"{seed}/gateway").random, TimerQueue(loop))
        self._next = 0
        self._tries: dict[int, list[SimulatedRequest]] = {}  # of clients that have disconnected and will retry
        self._finished = asyncio.Event()
        self._failure: dict[str, object] | None = None
        self.records: list[SimulatedRequest] = []

    async def run(self) -> None:
        """Run until the last answer or the first failure.

        Raises:
            RuntimeError: A callback raised.
        """
        self.gateways.start()
        self._conditions.begun(self._loop, [gateway.pool for gateway in self.gateways.each])
        if self._arrivals.arrivals_s is None:
            for _ in range(min(self._arrivals.concurrency, len(self._facts))):
                self._start()
        else:
            self._loop.call_at(self._arrivals.arrivals_s[0], self._arrive, self._arrivals.arrivals_s)
        await self._finished.wait()
        if self._failure is not None:
            cause = self._failure.get("exception")
            raise RuntimeError(f"the run failed: {self._failure}") from (
                cause if isinstance(cause, BaseException) else None
            )

    def failed(self, _loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """Stop: no result is valid after an exception in a callback."""
        self._failure = context
        self._finished.set()

    def _arrive(self, arrivals_s: Sequence[float]) -> None:
        self._start()
        if self._next < len(arrivals_s):
            self._loop.call_at(arrivals_s[self._next], self._arrive, arrivals_s)

    def _start(self) -> None:
        self._next += 1
        self._ask(self._next - 1)

    def _ask(self, request: int) -> None:
        now_s, client = self._loop.time(), _NullClient(self._on_answered)
        if now_s >= self._restart_s:
            self._restart_s += self._conditions.restart_every_s
            self.gateways.restart(now_s, keeps=self._conditions.restart_keeps)
        caller = Caller(str(request), "", now_s)
        gateway, facts = self.gateways.pick(), self._facts[request]
        if self._pinned is not None:
            facts = structs.replace(facts, pinned=gateway.pool.replicas[self._pinned[request]])
        race = Race(gateway.model, call_of(request), facts, client, caller, self._runtime)
        if self._clients is not None:
            self._loop.call_at(now_s + self._clients.timeout_s, _leave, race, client)
        race.start()

    def _on_answered(self) -> None:
        """Send the next request of a closed loop."""
        if self._arrivals.arrivals_s is None and self._next < len(self._facts):
            self._loop.call_soon(self._start)

    def _on_event(self, event: Event) -> None:
        self._conditions.listener(event)
        if isinstance(event, ComponentFailed):
            self.failed(self._loop, {"message": f"{event.component} raised {event.error}"})
        if not isinstance(event, RequestEnded):
            return
        request = int(event.request_id)
        record = _record(event, self._facts[request].prompt_tokens)
        if self._prices:
            record = _billed(record, event, *self._prices[event.attempts[0].replica])
        record = record._replace(ttft_s=record.ttft_s - self._reasoning_s, total_s=record.total_s - self._reasoning_s)
        if self._clients is not None:
            tries = self._tries.setdefault(request, [])
            tries.append(record)
            if not math.isfinite(record.ttft_s) and len(tries) <= self._clients.retries:
                self._loop.call_at(event.at_s + self._clients.pause_s, self._ask, request)
                return
            record = _together(self._tries.pop(request))
        self.records.append(record)
        done = len(self.records)
        if done % _PROGRESS_EVERY == 0:
            self._progress(done)
        if done == len(self._facts):
            self._finished.set()


def _billed(record: SimulatedRequest, event: RequestEnded, price: float, usual: float) -> SimulatedRequest:
    """Return a record with its bill; `price` is the price of its primary's tier, `usual` of the usual one."""
    cost = sum(attempt.charge.cost or 0.0 for attempt in event.attempts)
    return record._replace(
        cost=cost, usual_cost=event.usual_cost or 0.0, cheap=int(price < usual), dear=int(price > usual)
    )


def _leave(race: Race, client: _NullClient) -> None:
    """Disconnect a client that has no first token."""
    if not client.is_answered:
        race.client_gone()


def _together(tries: Sequence[SimulatedRequest]) -> SimulatedRequest:
    """Return one record of a request and its retries; its TTFT counts from the first arrival."""
    first, last = tries[0], tries[-1]
    sums = {
        name: sum(getattr(each, name) for each in tries)
        for name in ("hedges", "won", "extra", "wasted_s", "limited", "limited_backups", "at_first")
    }
    earlier_s = last.arrived_s - first.arrived_s
    return first._replace(ttft_s=earlier_s + last.ttft_s, total_s=earlier_s + last.total_s, **sums)


def _record(event: RequestEnded, tokens: float) -> SimulatedRequest:
    hedges = limited = limited_backups = 0
    wasted_s = 0.0
    is_answered = event.ttft_s is not None and event.status == HTTPStatus.OK
    if len(event.attempts) > 1 or event.status != HTTPStatus.OK:
        for attempt in event.attempts:
            is_backup = attempt.role is Role.BACKUP
            hedges += is_backup
            if attempt.outcome is Outcome.LOST:
                wasted_s += attempt.end_s
            elif attempt.outcome is Outcome.RATE_LIMITED:
                limited += 1
                limited_backups += is_backup
    return SimulatedRequest(
        arrived_s=event.at_s - event.total_s,
        ttft_s=event.ttft_s if event.ttft_s is not None and is_answered else math.inf,
        tokens=tokens,
        hedges=hedges,
        won=int(event.result is Result.BACKUP_WON),
        extra=len(event.attempts) - 1,
        wasted_s=wasted_s,
        limited=limited,
        limited_backups=limited_backups,
        while_working=_started_while_working(event.attempts) if len(event.attempts) > 1 else 0,
        at_first=sum(attempt.replica == _FIRST for attempt in event.attempts),
        total_s=event.total_s if is_answered else math.inf,
    )


def _started_while_working(attempts: Sequence[AttemptReport]) -> int:
    """Count the attempts that were started after a sign of work that was timed."""
    work_s = min((each.start_s + each.work_s for each in attempts if each.work_s is not None), default=math.inf)
    return sum(each.start_s > work_s for each in attempts)
