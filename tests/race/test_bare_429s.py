"""Replicas that answer some requests with a 429 without a wait, in virtual time: a few 429s silence no replica."""

import asyncio
import random

import pytest

from defaults import default_hedging, default_timeouts
from gateway.events import Event, RequestEnded
from gateway.hedging.contract import RequestFacts
from gateway.limits.ledger import Ledger
from gateway.pool.pool import Pool
from gateway.race.context import Caller, Model, Runtime
from gateway.race.race import Race
from gateway.race.timers import TimerQueue
from gateway.routing.replicas import Replica
from providers.base import Api, Call, Sink
from running import run_virtual
from scripted import RecordingClient, Scripted, ScriptedStream, answer, status

NAMES = ("a", "b", "c")


class Random(Scripted):
    """A replica that rejects a share of its requests."""

    def __init__(self, rng: random.Random, limited: float) -> None:
        super().__init__()
        self._rng = rng
        self._limited = limited

    def open(self, call: Call, sink: Sink) -> ScriptedStream:
        is_limited = self._rng.random() < self._limited
        self.scripts = (status(0.02, 429) if is_limited else answer(0.2 * self._rng.lognormvariate(0.0, 0.3)),)
        return super().open(call, sink)


def shares(per_s: float, requests: int, limited: float, seed: int = 1) -> tuple[float, float]:
    """Return the share of callers that get an error, and the calls per request, at Poisson traffic."""

    async def main() -> tuple[float, float]:
        loop, rng, ended = asyncio.get_running_loop(), random.Random(seed), list[RequestEnded]()
        endpoints = [Random(rng, limited) for _ in NAMES]
        replicas = [Replica(name, each, quota=name) for name, each in zip(NAMES, endpoints, strict=True)]
        pool = Pool("p", replicas, default_hedging(), ledgers={name: Ledger() for name in NAMES})
        model = Model("m", [pool], default_timeouts())

        def emit(event: Event) -> None:
            if isinstance(event, RequestEnded):
                ended.append(event)

        runtime = Runtime(loop, emit, rng.random, TimerQueue(loop))
        call = Call(Api.CHAT, b"{}", {}, 1, "m", streaming=True)

        def ask(at_s: float) -> None:
            facts = RequestFacts(prompt_tokens=100.0, coin=rng.random())
            Race(model, call, facts, RecordingClient(), Caller("r", "k", at_s), runtime).start()

        at_s = 0.0
        for _ in range(requests):
            at_s += rng.expovariate(per_s)
            loop.call_at(at_s, ask, at_s)
        await asyncio.sleep(at_s + 60)
        calls = sum(len(endpoint.streams) for endpoint in endpoints)
        return sum(event.status != 200 for event in ended) / len(ended), calls / len(ended)

    return run_virtual(main())


@pytest.mark.parametrize("per_s", [60.0, 300.0])
def test_a_few_429s_cost_one_other_try_each(per_s: float) -> None:
    """With 2 % of upstream answers a bare 429, at most 0.2 % of callers see one."""
    failed, calls = shares(per_s, 6_000, limited=0.02)
    assert failed <= 0.002
    assert calls <= 1.05
