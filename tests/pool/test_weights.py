"""Weights: every routing strategy keeps to them, and predicted routing still avoids slow replicas."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defaults import default_hedging
from pooled import Seen
from scripted import Scripted
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.hedging.outcomes import Outcome
from ttft_gateway.hedging.plan import Policy
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import Replica
from ttft_gateway.routing.strategies import Routing, turns

FACTS = RequestFacts(prompt_tokens=100.0)
WEIGHTS = st.lists(st.integers(1, 20), min_size=2, max_size=6)
STEPS = 2_000


def fleet(weights: list[int], routing: Routing, *, batches: bool = False) -> Pool:
    """Idle replicas with these weights."""
    replicas = [
        Replica(f"r{number}", Scripted(), weight=weight, batches=batches) for number, weight in enumerate(weights)
    ]
    return Pool("m", replicas, default_hedging(policy=Policy.OFF, routing=routing))


def send(pool: Pool, replica: Replica, now_s: float) -> Seen:
    """An attempt under way."""
    attempt = Seen(replica, now_s)
    pool.on_sent(attempt, FACTS, None, is_first=True)
    return attempt


def end(pool: Pool, attempt: Seen, now_s: float) -> None:
    """First content and the end of an answer at one time."""
    attempt.content_s = now_s
    pool.on_content(attempt, now_s)
    pool.on_end(attempt, Outcome.FINISHED, now_s, None)


def picked(pool: Pool, now_s: float, rand: float) -> Replica:
    """The replica of a primary."""
    replica = pool.picker.pick(FACTS, (), now_s, rand)
    assert replica is not None
    return replica


def warm(pool: Pool, ttft_s: dict[str, float], now_s: float) -> None:
    """Answers with these TTFTs, the last of them just before `now_s`."""
    for _ in range(200):
        for replica in pool.replicas:
            took_s = ttft_s.get(replica.name, 0.2)
            end(pool, send(pool, replica, now_s - 1.0 - took_s), now_s - 1.0)


@given(weights=WEIGHTS, routing=st.sampled_from(list(Routing)))
def test_shares_of_an_idle_pool_are_the_weights(weights: list[int], routing: Routing) -> None:
    """Over all random numbers (round robin: whole cycles) each replica gets its weight's share of the primaries."""
    pool, total = fleet(weights, routing), sum(weights)
    for replica in pool.replicas:
        end(pool, send(pool, replica, 0.0), 0.2)
    count = STEPS if routing is not Routing.ROUND_ROBIN else 3 * total
    got = Counter(picked(pool, 1.0, (step + 0.5) / count).name for step in range(count))
    for replica in pool.replicas:
        assert got[replica.name] / count == pytest.approx(replica.weight / total, abs=2 * len(weights) / STEPS)


@given(
    weights=WEIGHTS.filter(lambda each: len({*each}) > 1),
    routing=st.sampled_from(list(Routing)),
    seed=st.integers(0, 1_000),
)
def test_shares_of_a_busy_pool_are_the_weights(weights: list[int], routing: Routing, seed: int) -> None:
    """While nothing ends, the attempts in flight follow the weights."""
    pool, total, rand = fleet(weights, routing), sum(weights), random.Random(seed)
    for replica in pool.replicas:
        end(pool, send(pool, replica, 0.0), 0.2)
    for _ in range(10 * total):
        send(pool, picked(pool, 0.2, rand.random()), 0.2)
    for replica in pool.replicas:
        assert replica.in_flight == pytest.approx(10 * replica.weight, rel=0.35, abs=6)


@given(weights=WEIGHTS)
def test_turns_are_spread(weights: list[int]) -> None:
    """A cycle has each replica as often as its weight, and never far from its share; equal weights keep the order."""
    replicas = [Replica(f"r{number}", Scripted(), weight=weight) for number, weight in enumerate(weights)]
    order, total = turns(replicas), sum(weights)
    assert Counter(replica.name for replica in order) == {each.name: each.weight for each in replicas}
    for replica in replicas:
        got = 0
        for turn, each in enumerate(order, start=1):
            got += each is replica
            assert abs(got - turn * replica.weight / total) < len(weights)


def test_noisy_predictions_keep_the_shares() -> None:
    """Replicas of equal speed with random TTFTs share sequential requests by weight under predicted routing."""
    pool, rand, now_s = fleet([3, 1], Routing.PREDICTED), random.Random(1), 0.0
    got: Counter[str] = Counter()
    for number in range(4_000):
        replica = picked(pool, now_s, rand.random())
        attempt = send(pool, replica, now_s)
        now_s += 0.2 * rand.lognormvariate(0.0, 0.4)
        end(pool, attempt, now_s)
        got[replica.name] += number >= 500
    assert got["r0"] / got.total() == pytest.approx(0.75, abs=0.05)


@pytest.mark.parametrize("batches", [False, True])
def test_a_slow_replica_gets_no_share(batches: bool) -> None:
    """Whatever its weight, a replica of twice the TTFT gets no primary but a probe."""
    pool = fleet([1, 1, 100], Routing.PREDICTED, batches=batches)
    warm(pool, {"r2": 0.5}, 10.0)
    assert {picked(pool, 10.0, step / 50).name for step in range(50)} == {"r0", "r1"}
    assert picked(pool, 30.0, 0.5).name in {"r0", "r1", "r2"}


def test_an_overdue_replica_gets_no_share() -> None:
    """A replica with an attempt that is long overdue gets no primary while another one answers."""
    pool = fleet([100, 1], Routing.PREDICTED)
    warm(pool, {}, 10.0)
    send(pool, pool.replicas[0], 9.0)
    assert {picked(pool, 11.0, step / 50).name for step in range(50)} == {"r1"}


@pytest.mark.parametrize("routing", list(Routing))
def test_shares_of_a_large_pool(routing: Routing) -> None:
    """One of forty replicas has half of the weight, and gets half of the primaries."""
    pool = fleet([39, *[1] * 39], routing)
    for replica in pool.replicas:
        end(pool, send(pool, replica, 0.0), 0.2)
    got = Counter(picked(pool, 1.0, (step + 0.5) / 780).name for step in range(780))
    assert got["r0"] / 780 == pytest.approx(0.5, abs=0.02)


def test_a_failover_follows_the_weights_of_the_rest() -> None:
    """After a failure the untried replicas share by their own weights."""
    pool = fleet([10, 3, 1], Routing.LEAST_IN_FLIGHT)
    picks = [pool.picker.pick(FACTS, pool.replicas[:1], 1.0, (step + 0.5) / 400) for step in range(400)]
    assert picks.count(pool.replicas[1]) == pytest.approx(300, abs=4)
