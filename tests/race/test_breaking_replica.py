"""A replica that answers first and then breaks, in virtual time: it is left alone, and does not attract traffic."""

import gc
import random
from dataclasses import dataclass

import pytest

from defaults import default_hedging
from gateway.race.race import Race
from pooled import Seen
from running import run_virtual
from scripted import DONE, FINISH, Scripted, ScriptedStream, Step, answer, run_race, text
from traffic import poisson
from ttft_gateway.apis.base import Call, Sink
from ttft_gateway.hedging.outcomes import Outcome
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import BreakerState, Replica

PER_S = 5.0
REPLICAS = 4


class Random(Scripted):
    """A replica with a lognormal TTFT; a share of its answers stops after the first token."""

    def __init__(self, rng: random.Random, ttft_s: float, breaking: float) -> None:
        super().__init__()
        self._rng = rng
        self._ttft_s = ttft_s
        self._breaking = breaking

    def open(self, call: Call, sink: Sink) -> ScriptedStream:
        ttft_s = self._ttft_s * self._rng.lognormvariate(0.0, 0.3)
        steps: list[Step] = [(ttft_s, text("a"))]
        if self._rng.random() >= self._breaking:
            steps += [(ttft_s + 0.5, text("b")), (ttft_s + 1.0, FINISH), (ttft_s + 1.0, DONE), (ttft_s + 1.0, None)]
        self.scripts = (steps,)
        return super().open(call, sink)


@dataclass
class Traffic:
    """Outcome of all requests."""

    requests: int
    failed: int
    breaking_calls: int
    last_state: BreakerState


def traffic(requests: int, breaking: float, seed: int = 1) -> Traffic:
    """Send Poisson traffic with default settings; the first replica is twice as quick, and breaks."""

    async def main() -> Traffic:
        rng = random.Random(seed)
        endpoints = [Random(rng, 0.25, breaking), *(Random(rng, 0.5, 0.0) for _ in range(REPLICAS - 1))]
        pool = Pool("p", [Replica(f"r{n}", each) for n, each in enumerate(endpoints)], default_hedging())
        ended = await poisson(pool, requests, PER_S, rng, settle_s=700.0)
        failed = sum(event.status != 200 for event in ended)
        return Traffic(len(ended), failed, len(endpoints[0].streams), pool.replicas[0].breaker.state)

    return run_virtual(main())


@pytest.mark.parametrize("breaking", [1.0, 0.3])
def test_a_replica_that_breaks_costs_few_answers(breaking: float) -> None:
    """Of the requests of 27 minutes at most 2 % fail, most of them before the first stall is over."""
    result = traffic(8_000, breaking)
    assert result.failed <= 0.02 * result.requests


def test_a_quick_replica_that_does_not_break_keeps_its_traffic() -> None:
    """Without breaks the quickest replica gets most requests."""
    result = traffic(1_000, 0.0)
    assert result.failed == 0
    assert result.breaking_calls > 0.7 * result.requests


def test_first_tokens_close_no_breaker() -> None:
    """A replica with answers that all stop after the first token ends with its breaker open."""
    assert traffic(500, 1.0).last_state is BreakerState.OPEN


@pytest.mark.parametrize(("events", "last_s", "broken"), [(8, 9.5, 0), (7, 9.5, 2), (8, 5.0, 2)])
def test_a_client_that_leaves_an_intact_answer_is_evidence(events: int, last_s: float, broken: int) -> None:
    """Clients that disconnect end the trial of a replica, unless its answers had stalled."""
    replica = Replica("a", Scripted())
    replica.breaker.broken = 2
    pool = Pool("p", [replica], default_hedging())
    left = Seen(replica, 0.0, content_s=1.0, last_s=last_s, events=events)
    pool.on_end(left, Outcome.CLIENT_GONE, 10.0, None)
    assert replica.breaker.broken == broken


def test_races_that_are_over_are_no_cycles() -> None:
    """A race is freed at its end without the garbage collector, which the server rarely runs."""
    gc.collect()
    gc.disable()
    try:
        endpoint = Scripted(answer(0.1))
        assert run_race(endpoint).client.finished
        endpoint.streams.clear()  # they hold their attempts
        assert not [each for each in gc.get_objects() if isinstance(each, Race)]
    finally:
        gc.enable()
