"""Replicas that answer some requests with a 429 without a wait, in virtual time: a few 429s silence no replica."""

import random

import pytest

from defaults import default_hedging
from running import run_virtual
from scripted import Scripted, ScriptedStream, answer, status
from traffic import poisson
from ttft_gateway.apis.base import Call, Sink
from ttft_gateway.limits.ledger import Ledger
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import Replica

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
        rng = random.Random(seed)
        endpoints = [Random(rng, limited) for _ in NAMES]
        replicas = [Replica(name, each, quota=name) for name, each in zip(NAMES, endpoints, strict=True)]
        pool = Pool("p", replicas, default_hedging(), ledgers={name: Ledger() for name in NAMES})
        ended = await poisson(pool, requests, per_s, rng, settle_s=60.0)
        calls = sum(len(endpoint.streams) for endpoint in endpoints)
        return sum(event.status != 200 for event in ended) / len(ended), calls / len(ended)

    return run_virtual(main())


@pytest.mark.parametrize("per_s", [60.0, 300.0])
def test_a_few_429s_cost_one_other_try_each(per_s: float) -> None:
    """With 2 % of upstream answers a bare 429, at most 0.2 % of callers see one."""
    failed, calls = shares(per_s, 6_000, limited=0.02)
    assert failed <= 0.002
    assert calls <= 1.05
