"""Simulated language-model servers: work takes longer in slowdowns, engines batch, quotas reject."""

import asyncio

import hypothesis.strategies as st
import pytest
from hypothesis import given
from msgspec.structs import replace

from running import run_virtual
from streaming_bench.simulation.engine_replicas import ServerDraws
from streaming_bench.simulation.provider_quota import ProviderQuota
from streaming_bench.simulation.runner import SimulatedRequest, SimulatedRun
from streaming_bench.simulation.scenario import Scenario, load, with_load
from streaming_bench.simulation.speed_timeline import Slowdown, SpeedTimeline
from streaming_bench.simulation.summary import Subset, figures
from streaming_bench.simulation.world import arrivals_s, call_of
from ttft_gateway.apis.base import Frame, Headers, Phase, Resource
from ttft_gateway.apis.errors import UpstreamError
from ttft_gateway.limits.bucket import Limit

TIMES = st.floats(0.0, 100.0)


@given(st.lists(st.tuples(TIMES, st.floats(0.1, 20.0), st.floats(0.05, 1.0)), max_size=5), TIMES, TIMES, TIMES)
def test_work_adds_up(
    slowdowns: list[tuple[float, float, float]], start_s: float, first_s: float, then_s: float
) -> None:
    """Two pieces of work in sequence end at the same time as both in one piece, for every timeline."""
    timeline = SpeedTimeline([Slowdown(at_s, at_s + lasts_s, speed) for at_s, lasts_s, speed in slowdowns])
    halfway_s = timeline.finish_s(start_s, first_s)
    assert timeline.finish_s(halfway_s, then_s) == pytest.approx(timeline.finish_s(start_s, first_s + then_s), abs=1e-6)


def test_work_takes_longer_in_a_slowdown() -> None:
    """At half the speed the part of the work within the slowdown takes twice as long."""
    timeline = SpeedTimeline([Slowdown(10.0, 20.0, 0.5)])
    assert timeline.finish_s(0.0, 5.0) == 5.0
    assert timeline.finish_s(8.0, 4.0) == pytest.approx(14.0)
    assert timeline.finish_s(18.0, 4.0) == pytest.approx(23.0)
    assert (timeline.speed(9.9), timeline.speed(10.0), timeline.speed(20.0)) == (1.0, 0.5, 1.0)


def test_an_empty_quota_rejects() -> None:
    """A bucket accepts requests up to its content, then returns a retry time, and accepts one at that time."""
    provider = ProviderQuota([Limit(Resource.REQUESTS, 2, 10.0), Limit(Resource.TOKENS, 1_000, 10.0)])
    assert provider.charge(100, 0.0) is None
    assert provider.charge(100, 0.0) is None
    refused = provider.charge(100, 0.0)
    assert refused is not None
    assert refused.status == 429
    assert refused.retry_after_s == pytest.approx(5.0)
    assert provider.charge(100, 5.0) is None


def test_bursts_keep_the_mean() -> None:
    """Traffic that switches between states has the configured mean rate."""
    for name in ("W5", "W6"):
        arrivals = load(name).arrivals
        times_s = arrivals_s(arrivals, 20_000, 1)
        assert times_s == sorted(times_s)
        assert 20_000 / times_s[-1] == pytest.approx(arrivals.per_second, rel=0.05)


def test_a_faster_workload_is_the_same_otherwise() -> None:
    """--load scales the rate of an open loop, and the clients of a closed one."""
    assert with_load(load("W6"), 2.0).arrivals.per_second == 40
    assert with_load(load("W1"), 0.5).arrivals.concurrency == 10


class RecordingSink:
    """A sink that records the times of events."""

    def __init__(self) -> None:
        self.first_s: float | None = None
        self.end_s: float | None = None

    def on_headers(self, status: int, headers: Headers) -> None:
        """Ignore the headers, which come with the first token."""

    def on_content(self, raw: bytes, events: int, phase: Phase | None) -> None:
        """Record nothing: the simulation pushes frames."""

    def on_frame(self, frame: Frame) -> None:
        self.first_s = asyncio.get_running_loop().time()

    def on_end(self, error: UpstreamError | None) -> None:
        self.end_s = asyncio.get_running_loop().time()


def calm(name: str) -> Scenario:
    """A workload of ten requests without bad times."""
    scenario = load(name)
    assert scenario.serving is not None
    serving = replace(scenario.serving, slow=None, stalls=None)
    return replace(scenario, requests=10, serving=serving)


def test_an_engine_computes_prompts_in_order() -> None:
    """Requests at one engine get their first tokens in order, together at the rate at which it computes prompts."""
    scenario = calm("W5")

    async def main() -> tuple[list[RecordingSink], tuple[float, float]]:
        world = ServerDraws(scenario, 1).world(scenario, asyncio.get_running_loop(), held=True)
        sinks = [RecordingSink() for _ in range(5)]
        for i, sink in enumerate(sinks):
            world.endpoints[0].open(call_of(i), sink)
        await asyncio.sleep(100)
        return sinks, world.prefill()

    sinks, (computed, wasted) = run_virtual(main())
    firsts_s = [sink.first_s for sink in sinks if sink.first_s is not None]
    assert len(firsts_s) == 5
    assert firsts_s == sorted(firsts_s)
    assert computed / 10_000 < firsts_s[-1] < computed / 10_000 + 5 * 2 * 0.020
    assert wasted == 0
    assert all(sink.end_s is not None and sink.end_s > first_s for sink, first_s in zip(sinks, firsts_s, strict=True))


def test_an_aborted_request_frees_the_engine() -> None:
    """Tokens computed for a cancelled request count as wasted, and the next request does not wait for the rest."""
    scenario = calm("W5")

    async def main() -> tuple[RecordingSink, RecordingSink, tuple[float, float]]:
        world = ServerDraws(scenario, 1).world(scenario, asyncio.get_running_loop(), held=True)
        gone, kept = RecordingSink(), RecordingSink()
        stream = world.endpoints[0].open(call_of(0), gone)
        world.endpoints[0].open(call_of(1), kept)
        await asyncio.sleep(0.001)
        stream.abort()
        await asyncio.sleep(100)
        return gone, kept, world.prefill()

    gone, kept, (computed, wasted) = run_virtual(main())
    assert gone.first_s is None
    assert kept.first_s is not None
    assert 0 < wasted < computed


def test_subsets_select_their_requests() -> None:
    """A subset selects requests by arrival and prompt length; a request without an answer counts as failed."""
    records = [
        SimulatedRequest(1.0, 0.1, 10.0, 0, 0, 0, 0.0, 0, 0),
        SimulatedRequest(2.0, 0.3, 10.0, 1, 1, 1, 0.2, 0, 0),
        SimulatedRequest(3.0, 0.5, 900.0, 0, 0, 0, 0.0, 0, 0),
        SimulatedRequest(4.0, float("inf"), 10.0, 0, 0, 1, 0.0, 2, 1),
    ]
    run = SimulatedRun(records, (100.0, 5.0))
    every = figures(run, Subset())
    assert (every["p50"], every["failed"], every["hedges"], every["win_rate"]) == (300.0, 1.0, 0.25, 1.0)
    assert (every["rate_limited"], every["rate_limited_hedges"], every["wasted_prefill"]) == (2.0, 1.0, 0.05)
    assert figures(run, Subset("short", tokens_max=100.0))["requests"] == 3
    assert figures(run, Subset("calm", without=((1.5, 3.5),)))["requests"] == 2
    assert figures(run, Subset("late", late_s=0.2))["late"] == 2
