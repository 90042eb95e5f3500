"""One of several replicas is slow: the gateway's race and pool in virtual time, and the verdict on their events.

Nothing is pretended but the replicas: the verdict gets the events of the races and the state of the pool every five
seconds, as in a gateway process. Units: seconds of the loop's clock, requests.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from gateway.events import Event, RequestEnded
from gateway.health.facts import Collected, ProcessFacts
from gateway.health.finding import Severity
from gateway.health.watch import LOOK_S, Watch
from gateway.health.windows import WindowCounts
from gateway.observe.describe import pool_state
from gateway.observe.state import PoolState
from gateway.workers.merging import merged_pools
from streaming_bench.simulation.comparison import ComparisonPlan, policy_settings
from streaming_bench.simulation.engine_scenario import LogNormal
from streaming_bench.simulation.fleet import FleetPlan
from streaming_bench.simulation.law_replicas import LawDraws
from streaming_bench.simulation.law_scenario import Decoding, TtftLaw
from streaming_bench.simulation.runner import ArrivalPlan, Conditions, run
from streaming_bench.simulation.scenario import Arrivals, ReferenceSettings, Scenario
from streaming_bench.simulation.speed_timeline import Slowdown, SpeedTimeline
from streaming_bench.simulation.toml_section import Duration
from streaming_bench.simulation.world import World, arrivals_s
from ttft_gateway.pool.pool import Pool

SLOW: Final = "replica-0"
_LEVEL: Final = 2.0  # above which the runbook calls a replica slow
_USUAL_REQUESTS, _USUAL_S = 150, 120.0  # before the trouble: the larger
_SLOW_REQUESTS, _SLOW_S = 45, 240.0  # after it: requests of an equal share, or the time
_SHARE_S: Final = 0.1  # between two exchanges, as in a gateway
_DECODE: Final = Decoding(Duration(0.015), LogNormal(100.0, 0.5, 400.0))


class Slowness(NamedTuple):
    """A slow replica, and the traffic that meets it.

    Attributes:
        factor: of its times.
        per_second: requests for the model.
        kind: `openai`, a provider, or `vllm`, an own engine.
        replicas: number of replicas.
        decode: True if its first tokens are as quick as usual and its further tokens are slow.
        always: True if it is slow from its first request on; False if it becomes slow.
        gateways: number of gateways, or of workers of one host, that share what they learn.
    """

    factor: float
    per_second: float
    kind: str = "openai"
    replicas: int = 3
    decode: bool = False
    always: bool = False
    gateways: int = 1


@dataclass
class Seen:
    """Signs of the slow replica, by their names: the first time of each after it became slow; infinite without.

    Attributes:
        times_s: `level` and `suspect` of the metrics of every gateway, `state` on the page, and `alert`. Slow answers
            have no `suspect`: their replica is no worse for the first token.
        own: requests at the replica until all signs were there; infinite if one was not.
        kept: share of the time after the alert in which the alert was there.
        primaries: share of the primaries after the alert that went to the replica.
        others: names of other replicas that were called slow.
    """

    times_s: dict[str, float]
    own: float = math.inf
    kept: float = 0.0
    primaries: float = 0.0
    others: set[str] = field(default_factory=set)

    @property
    def last_s(self) -> float:
        """Time at which all signs were there."""
        return max(self.times_s.values())


class _Draws(LawDraws):
    """Draws of a law with one slow replica.

    Args:
        slow: time in which it is slow.
    """

    def __init__(self, scenario: Scenario, times_s: Sequence[float], seed: int, slow: Slowdown, case: Slowness) -> None:
        super().__init__(scenario, times_s, seed)
        lines = self._spells if case.decode else self._timelines
        lines[0] = SpeedTimeline([slow])
        self._case = case

    def world(self, scenario: Scenario, loop: asyncio.AbstractEventLoop, *, held: bool) -> World:
        return replace(super().world(scenario, loop, held=held), batches=self._case.kind == "vllm")


class _Looks:
    """The verdict of one run, every five seconds, and what it shows."""

    def __init__(
        self,
        case: Slowness,
        loop: asyncio.AbstractEventLoop,
        pools: Sequence[Pool],
        events: list[Event],
        begin_s: float,
    ) -> None:
        self._case, self._loop, self._pools, self._begin_s = case, loop, pools, begin_s
        self._events = events
        self._windows = WindowCounts(lambda: 0.0, loop.time)
        self._watch = Watch(self._collect, lambda _event: None, loop.time, lambda: 0.0)
        self._number = self._sent = self._looks = self._kept = 0
        self._primaries: list[bool] = []
        names = ("level", "state", "alert") if case.decode else ("suspect", "level", "state", "alert")
        self.seen = Seen(dict.fromkeys(names, math.inf))

    async def run(self, end_s: float) -> None:
        """Look until a time."""
        while self._loop.time() < end_s:
            await self._look()
            await asyncio.sleep(LOOK_S)

    async def _collect(self) -> Collected:
        self._windows.on_events(self._events)
        slots = self._windows.closed_after(self._number)
        self._number = slots[-1].number if slots else self._number
        states = self._states()
        return Collected(
            [ProcessFacts(slots, self._windows.last_attempts(), states)],
            list(merged_pools([[each] for each in states])),
        )

    def _states(self) -> list[PoolState]:
        now_s = self._loop.time()
        return [each for pool in self._pools for each in pool_state("m", pool, now_s) if each is not None]

    async def _look(self) -> None:
        verdict = await self._watch.look()
        sent = sum(pool.loads.of[pool.replicas[0]].sent for pool in self._pools)
        ended = [each.attempts[0].replica for each in self._events if isinstance(each, RequestEnded)]
        self._events.clear()
        if self._loop.time() < self._begin_s:
            self._sent = sent
            return
        troubles = (each for each in verdict.findings if each.alert == "TtftReplicaSlow")
        named = {each.labels["replica"] for each in troubles if each.severity is not Severity.NOTE}
        await self._note(SLOW in named)
        seen = self.seen
        seen.others |= named - {SLOW}
        if math.isinf(seen.own) and seen.last_s < math.inf:
            seen.own = sent - self._sent
        if seen.times_s["alert"] < math.inf:
            self._looks, self._kept = self._looks + 1, self._kept + (SLOW in named)
            self._primaries += [name == SLOW for name in ended]
            seen.kept = self._kept / self._looks
            seen.primaries = sum(self._primaries) / max(1, len(self._primaries))

    async def _note(self, alert: bool) -> None:
        """Note the signs that are there for the first time."""
        states = [pool.replicas[0] for pool in self._states()]
        rows = (await self._watch.health())["replicas"]
        assert isinstance(rows, list)
        is_there = {
            "suspect": all(each.suspect for each in states),
            "level": all((each.answer_slowness if self._case.decode else each.level) > _LEVEL for each in states),
            "state": any(row["replica"] == SLOW and row["state"] == "slow" for row in rows),
            "alert": alert,
        }
        times_s = self.seen.times_s
        for name in times_s:
            if is_there[name]:
                times_s[name] = min(times_s[name], self._loop.time() - self._begin_s)


def seen_of(case: Slowness, seed: int) -> Seen:
    """Return what was seen of a slow replica, in traffic that is usual before."""
    usual_s = 0.0 if case.always else max(_USUAL_S, _USUAL_REQUESTS / case.per_second)
    slow_s = max(_SLOW_S, _SLOW_REQUESTS * case.replicas / case.per_second)
    count = math.ceil((usual_s + slow_s) * case.per_second)
    law = TtftLaw(base_s=Duration(0.2), decode=_DECODE if case.decode else None)
    arrivals, delay = Arrivals(per_second=case.per_second), ReferenceSettings(Duration(1.0))
    scenario = Scenario("slow", "", count, case.replicas, arrivals, delay, law=law)
    times_s = arrivals_s(arrivals, count, seed)
    draws = _Draws(scenario, times_s, seed, Slowdown(usual_s, math.inf, 1.0 / case.factor), case)
    events: list[Event] = []
    looks: list[_Looks] = []
    tasks: list[asyncio.Task[None]] = []

    def begun(loop: asyncio.AbstractEventLoop, pools: Sequence[Pool]) -> None:
        looks.append(_Looks(case, loop, pools, events, usual_s))
        tasks.append(loop.create_task(looks[0].run(times_s[-1])))

    fleet = FleetPlan(case.gateways, None if case.gateways == 1 else _SHARE_S)
    conditions = Conditions(timeouts=True, listener=events.append, begun=begun, fleet=fleet)
    settings = policy_settings(scenario, ComparisonPlan(("adaptive",), (seed,)))
    run(
        "adaptive",
        settings,
        ArrivalPlan(times_s, 0),
        lambda loop: draws.world(scenario, loop, held=False),
        seed,
        lambda _count: None,
        conditions,
    )
    return looks[0].seen
