"""Runs one policy over one seed of a workload in virtual time: the gateway's own race and pool, simulated replicas.

Owns the traffic and the records. It must not know how replicas answer (drawn.py and others) nor what is computed from
the records (summary.py). Units: seconds of the loop's clock.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from gateway.config.settings import TimeoutSettings
from gateway.errors import GatewayError
from gateway.events import ComponentFailed, Event, RequestEnded, Result, Role
from gateway.hedging.outcomes import Outcome
from gateway.hedging.plan import Plan
from gateway.pool.pool import Pool
from gateway.race.context import Caller, Model, Runtime
from gateway.race.race import Race
from gateway.race.timers import TimerQueue
from gateway.routing.replicas import Replica
from gateway.topology import timeouts
from streaming_bench.simulation.policies import PolicySettings, make_pool
from streaming_bench.simulation.virtual_loop import VirtualLoop
from streaming_bench.simulation.world import World, call_of

_NO_TIMEOUTS: Final = replace(
    timeouts(TimeoutSettings()),
    ttft_failover_s=3600,
    ttft_max_s=3600,
    stall_s=3600,
    total_s=36_000,
    commit_status_after_s=36_000,
)  # a TTFT time-out would help `off`; what is measured is hedging


class SimulatedRequest(NamedTuple):
    """What became of one request; all but the times are counts.

    Attributes:
        arrived_s: when.
        ttft_s: until its first token; infinite if it got none.
        tokens: of its prompt.
        hedges: backups sent.
        won: a backup won.
        extra: attempts besides the first.
        wasted_s: how long attempts had been upstream that were cancelled.
        limited: its attempts that were answered 429.
        limited_backups: those of them that were backups.
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


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """One policy over one seed.

    Attributes:
        records: of all requests, in the order of their ends.
        prefill: tokens computed by the replicas, and those for attempts that were cancelled; 0 where nobody computes.
        plan: the policy's last one, for the first replica; None where it makes none.
    """

    records: Sequence[SimulatedRequest]
    prefill: tuple[float, float]
    plan: Plan | None = None


@dataclass(frozen=True, slots=True)
class ArrivalPlan:
    """How requests come.

    Attributes:
        arrivals_s: when each arrives; None in a closed loop.
        concurrency: requests at a time in a closed loop.
    """

    arrivals_s: Sequence[float] | None
    concurrency: int


class _NullClient:
    """A client that is always fast enough and never leaves."""

    committed = False

    def begin(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Told by the event."""

    def keep_alive(self) -> None:
        """Told by the event."""

    def write(self, raw: bytes) -> None:
        """Told by the event."""

    def finish(self) -> None:
        """Told by the event."""

    def fail(self, error: GatewayError) -> None:
        """Told by the event."""


def run(
    policy: str,
    terms: PolicySettings,
    traffic: ArrivalPlan,
    make_world: Callable[[asyncio.AbstractEventLoop], World],
    seed: int,
    progress: Callable[[int], None],
) -> SimulatedRun:
    """Send all requests and wait for all answers.

    Args:
        policy: one of `policies.POLICY_NAMES`.
        terms: budget, routing and so on.
        traffic: when requests come.
        make_world: fresh replicas on a loop.
        seed: for what the gateway draws itself.
        progress: hears how many requests are over, now and then.
    """
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        world = make_world(loop)
        read = None if world.limits is None else world.limits.read
        replicas = [
            Replica(
                f"replica-{i}",
                endpoint,
                quota,
                gain_min=world.gain_min,
                read_limits=read,
                counts_max_tokens=True,  # the simulated providers do
                batches=world.batches,
            )
            for i, (endpoint, quota) in enumerate(zip(world.endpoints, world.quotas, strict=True))
        ]
        pool = make_pool(policy, replicas, terms, world.ledgers)
        driver = _Simulation(loop, world, pool, traffic, seed, progress)
        loop.set_exception_handler(driver.failed)
        runner.run(driver.run())
    return SimulatedRun(driver.records, world.prefill(), pool.learning.last_plan(replicas[0].name))


class _Simulation:
    """Starts races and keeps what they report."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        world: World,
        pool: Pool,
        traffic: ArrivalPlan,
        seed: int,
        progress: Callable[[int], None],
    ) -> None:
        self._loop = loop
        self._facts = world.facts
        self._traffic = traffic
        self._progress = progress
        self._model = Model("bench", [pool], _NO_TIMEOUTS)
        self._runtime = Runtime(loop, self._hear, random.Random(f"{seed}/gateway").random, TimerQueue(loop))
        self._client = _NullClient()
        self._next = 0
        self._over = asyncio.Event()
        self._failure: dict[str, object] | None = None
        self.records: list[SimulatedRequest] = []

    async def run(self) -> None:
        """Until the last answer, or the first error."""
        if self._traffic.arrivals_s is None:
            for _ in range(min(self._traffic.concurrency, len(self._facts))):
                self._start()
        else:
            self._loop.call_at(self._traffic.arrivals_s[0], self._arrive, self._traffic.arrivals_s)
        await self._over.wait()
        if self._failure is not None:
            cause = self._failure.get("exception")
            raise RuntimeError(f"the run failed: {self._failure}") from (
                cause if isinstance(cause, BaseException) else None
            )

    def failed(self, _loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """A callback raised: nothing after that can be trusted."""
        self._failure = context
        self._over.set()

    def _arrive(self, arrivals_s: Sequence[float]) -> None:
        self._start()
        if self._next < len(arrivals_s):
            self._loop.call_at(arrivals_s[self._next], self._arrive, arrivals_s)

    def _start(self) -> None:
        request = self._next
        self._next += 1
        caller = Caller(str(request), "", self._loop.time())
        Race(self._model, call_of(request), self._facts[request], self._client, caller, self._runtime).start()

    def _hear(self, event: Event) -> None:
        if isinstance(event, ComponentFailed):
            self.failed(self._loop, {"message": f"{event.component} raised {event.error}"})
        if not isinstance(event, RequestEnded):
            return
        self.records.append(_record(event, self._facts[int(event.request_id)].prompt_tokens))
        done = len(self.records)
        if done % 1000 == 0:
            self._progress(done)
        if done == len(self._facts):
            self._over.set()
        elif self._traffic.arrivals_s is None and self._next < len(self._facts):
            self._loop.call_soon(self._start)


def _record(event: RequestEnded, tokens: float) -> SimulatedRequest:
    hedges = limited = limited_backups = 0
    wasted_s = 0.0
    if len(event.attempts) > 1 or event.status != 200:
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
        ttft_s=event.ttft_s if event.ttft_s is not None else float("inf"),
        tokens=tokens,
        hedges=hedges,
        won=int(event.result is Result.BACKUP_WON),
        extra=len(event.attempts) - 1,
        wasted_s=wasted_s,
        limited=limited,
        limited_backups=limited_backups,
    )
