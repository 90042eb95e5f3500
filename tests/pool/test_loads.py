"""The times for which a pool's state is remembered: by the traffic, whatever it was before."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defaults import default_hedging
from pooled import pool, send
from scripted import Scripted
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.hedging.outcomes import Outcome
from ttft_gateway.pool.learning import Learning
from ttft_gateway.pool.loads import Loads
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import Replica


@given(st.integers(1, 30), st.lists(st.tuples(st.sampled_from([0.0, 0.005, 0.05, 0.2, 3.0, 60.0]), st.integers(1, 4))))
def test_times_follow_the_mean_gap(replicas: int, requests: list[tuple[float, int]]) -> None:
    """After each request the three times follow from its mean gap, for any traffic and number of gateways."""
    names = [f"r{number}" for number in range(replicas)]
    learning = Learning(names, default_hedging())
    loads = Loads([Replica(name, Scripted()) for name in names], learning)
    now_s, mean_s = 100.0, 0.0
    loads.on_request(now_s)
    for gap_s, processes in requests:
        loads.processes = processes
        before_s, now_s = now_s, now_s + gap_s
        loads.on_request(now_s)
        if now_s > before_s:
            mean_s += 0.02 * (now_s - before_s - mean_s)
            share_s = replicas * (mean_s / processes)
            assert loads.unseen_s == max(5.0, 12.0 * share_s)
            assert loads.probe_every_s == max(5.0, 50.0 * (mean_s / processes))
            assert learning.predictor.memory_s == max(30.0, 75.0 * share_s)


def answer(fleet: Pool, index: int, start_s: float, ttft_s: float) -> None:
    """One whole answer."""
    attempt = send(fleet, index, start_s)
    attempt.content_s = start_s + ttft_s
    fleet.on_content(attempt, attempt.content_s)
    fleet.on_end(attempt, Outcome.FINISHED, attempt.content_s, None)


@pytest.mark.parametrize(
    ("gap_s", "idle_s", "is_cold"),
    [
        (1.0, 59.0, False),
        (1.0, 61.0, True),
        (20.0, 190.0, False),  # not much longer than usual
        (20.0, 300.0, True),
        (600.0, 600.0, False),  # always idle: a cold start is usual
    ],
)
def test_replicas_may_be_cold_after_unusual_idle_time(gap_s: float, idle_s: float, is_cold: bool) -> None:
    """Until its first content, or for 30 s, no attempt at a replica is a sample; at another pause they are."""
    fleet = pool(None, None)
    for number in range(200):
        answer(fleet, number % 2, number * gap_s, 0.2)
    now_s = 199 * gap_s + idle_s
    first, second, third = (send(fleet, index, now_s + later_s) for index, later_s in ((0, 0.0), (0, 2.0), (1, 31.0)))
    forecasts = [each.forecast for each in (first, second, third)]
    assert [each is not None and each.cold for each in forecasts] == [is_cold, is_cold, False]
    fleet.on_content(first, now_s + 40.0)
    last = send(fleet, 0, now_s + 41.0).forecast
    assert last is not None
    assert not last.cold


def test_cold_starts_are_not_learned() -> None:
    """Two replicas that begin with 10 s after each pause: predictions and delays are as without, and none is slow."""
    fleet, now_s, facts = pool(None, None), 0.0, RequestFacts(prompt_tokens=1_000.0)
    for _ in range(20):
        now_s += 600.0
        cold = [send(fleet, number % 2, now_s + number / 2) for number in range(4)]
        for number, attempt in enumerate(cold):
            fleet.delay_s(attempt, facts)
            if number < 2:
                fleet.on_end(attempt, Outcome.LOST, now_s + 9.0, None)  # a hedge won, which was as cold
                continue
            attempt.content_s = now_s + 10.0
            fleet.on_content(attempt, attempt.content_s)
            fleet.on_end(attempt, Outcome.FINISHED, attempt.content_s, None)
        for number in range(10):
            answer(fleet, number % 2, now_s + 11.0 + number, 0.2)
    predictor, plan = fleet.learning.predictor, fleet.learning.plan("a", now_s + 20.0)
    assert plan is not None
    assert plan.delay < 1.5
    assert predictor.predict("a", 1_000.0, 0.0, now_s + 20.0) == pytest.approx(0.2, rel=0.05)
    assert not predictor.is_slow("a")
    assert not predictor.is_slow("b")
