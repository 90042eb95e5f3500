"""A replica that becomes slow while hedges win against it, in virtual time: it is named soon, and avoided."""

import asyncio
import math
import random

import pytest

from defaults import default_hedging, default_timeouts
from gateway.observe.describe import pool_state
from gateway.race.context import Caller, Model, Runtime
from gateway.race.deadlines import TimerQueue
from gateway.race.race import Race
from running import run_virtual
from scripted import RecordingClient, Scripted, ScriptedStream, answer
from ttft_gateway.apis.base import Api, Call, Sink
from ttft_gateway.estimation.predictor import Predictor
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import Replica

SLOW_S, END_S = 60.0, 200.0


class Slowing(Scripted):
    """Answers after about 0.2 s, from `slow_s` to `repaired_s` after `factor` times as long."""

    def __init__(self, factor: float, seed: int, slow_s: float = SLOW_S, repaired_s: float = math.inf) -> None:
        super().__init__(answer(0.2))
        self._factor, self._rand = factor, random.Random(seed)
        self._slow_s, self._repaired_s = slow_s, repaired_s

    def open(self, call: Call, sink: Sink) -> ScriptedStream:
        """Draw the time of one answer."""
        ttft_s = 0.2 * math.exp(0.25 * self._rand.gauss(0.0, 1.0))
        if self._slow_s <= asyncio.get_running_loop().time() < self._repaired_s:
            ttft_s *= self._factor
        self.scripts = (answer(ttft_s),)
        return super().open(call, sink)


@pytest.mark.parametrize(("factor", "batches"), [(3.0, False), (15.0, False), (3.0, True), (15.0, True)])
def test_a_slow_replica_is_named_although_hedges_win(factor: float, batches: bool) -> None:
    """Whatever its kind, it is suspect within 30 of its requests, gets few from then on, and no other replica is."""
    endpoints = [Slowing(factor, 1), Slowing(1.0, 2), Slowing(1.0, 3)]
    found: list[tuple[float, list[bool]]] = []

    async def main() -> None:
        loop, rand = asyncio.get_running_loop(), random.Random(7)
        replicas = [Replica(name, each, batches=batches) for name, each in zip("abc", endpoints, strict=True)]
        pool = Pool("m", replicas, default_hedging())
        model = Model("m", [pool], default_timeouts())
        runtime = Runtime(loop, lambda _event: None, rand.random, TimerQueue(loop))
        while loop.time() < END_S:
            call = Call(Api.CHAT, b"{}", {}, 1, "m", streaming=True)
            facts = RequestFacts(prompt_tokens=20.0, coin=rand.random())
            Race(model, call, facts, RecordingClient(), Caller("r", "k", loop.time()), runtime).start()
            await asyncio.sleep(rand.expovariate(4.0))
            *_, state = pool_state("m", pool, loop.time())
            assert state is not None
            found.append((loop.time(), [replica.suspect for replica in state.replicas]))
        await asyncio.sleep(60)

    run_virtual(main())
    first_s = next(at_s for at_s, suspect in found if suspect[0])
    opened = [[stream.opened_s for stream in endpoint.streams] for endpoint in endpoints]
    assert first_s >= SLOW_S
    assert sum(SLOW_S <= at_s < first_s for at_s in opened[0]) <= 30
    assert not any(suspect[1] or suspect[2] for _, suspect in found)
    late = [sum(at_s >= first_s for at_s in each) for each in opened]
    assert late[0] < 0.15 * sum(late)


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_slow_time_of_all_replicas_is_no_law_of_tokens(replicas: int) -> None:
    """While all are slow, they have many pending tokens; a minute after the repair, law and levels are as before."""
    endpoints = [Slowing(15.0, seed, 20.0, 80.0) for seed in range(replicas)]

    async def main() -> Predictor:
        loop, rand = asyncio.get_running_loop(), random.Random(7)
        pool = Pool("m", [Replica(str(each), endpoint) for each, endpoint in enumerate(endpoints)], default_hedging())
        model = Model("m", [pool], default_timeouts())
        runtime = Runtime(loop, lambda _event: None, rand.random, TimerQueue(loop))
        while loop.time() < 140.0:
            call = Call(Api.CHAT, b"{}", {}, 1, "m", streaming=True)
            facts = RequestFacts(prompt_tokens=20.0, coin=rand.random())
            Race(model, call, facts, RecordingClient(), Caller("r", "k", loop.time()), runtime).start()
            await asyncio.sleep(rand.expovariate(8.0))
        await asyncio.sleep(5)
        return pool.learning.predictor

    predictor = run_virtual(main())
    base_s, _, by_pending_s = predictor.coefficients
    assert 0.1 < base_s < 0.4
    assert 20.0 * by_pending_s < 0.25 * base_s
    assert all(0.6 < level < 1.5 for level in predictor.levels.values())
