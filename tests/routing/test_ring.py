"""Groups of a large pool: all of it in the end, evenly, and nothing else for a small one."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defaults import default_hedging
from scripted import Scripted
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.hedging.plan import Policy
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import Replica
from ttft_gateway.routing.ring import WHOLE_MAX, Ring
from ttft_gateway.routing.strategies import Routing


def fleet(size: int) -> list[Replica]:
    """This many replicas."""
    return [Replica(f"r{number}", Scripted()) for number in range(size)]


@given(size=st.integers(1, 60), rand=st.floats(0, 1, exclude_max=True))
def test_groups_are_the_pool(size: int, rand: float) -> None:
    """For any random number, each replica is in one group; a small pool is one group in its own order."""
    replicas = fleet(size)
    groups, left = Ring(replicas).random(rand)
    seen = [replica for group in groups for replica in group]
    assert Counter(map(id, seen)) == Counter(map(id, replicas))
    assert 0 <= left < 1
    assert size > WHOLE_MAX or (seen == replicas and left == rand)


def test_the_first_group_is_anybody() -> None:
    """Over all random numbers each replica is in the first group as often as any other."""
    ring = Ring(fleet(50))
    seen = Counter(replica.name for step in range(500) for replica in next(ring.random((step + 0.5) / 500)[0]))
    assert len(seen) == 50
    assert set(seen.values()) == {80}


def test_a_cached_prompt_is_found_again() -> None:
    """The last replica of the longest known prefix is in the first group, wherever it is in the ring."""
    replicas = fleet(100)
    ring = Ring(replicas)
    ring.sent(replicas[3], (1, 2))
    ring.sent(replicas[70], (1, 2, 3))
    for step in range(20):
        assert replicas[70] in next(ring.random(step / 20, (1, 2, 3, 4))[0])
        assert replicas[70] in next(ring.random(step / 20, (1, 2, 9))[0])


@pytest.mark.parametrize("routing", list(Routing))
def test_the_only_one_left_is_found(routing: Routing) -> None:
    """If all but one of many replicas are unusable, that one is found, at the first and at every later attempt."""
    replicas = fleet(100)
    pool = Pool("m", replicas, default_hedging(policy=Policy.OFF, routing=routing))
    for replica in replicas:
        if replica is not replicas[42]:
            replica.breaker.cool_down(1e9)
    for step in range(50):
        assert pool.picker.pick(RequestFacts(), (), 1.0, step / 50) is replicas[42]
    assert pool.picker.pick(RequestFacts(), (replicas[42],), 1.0, 0.5) is None


def test_round_robin_visits_many_in_order() -> None:
    """Each of many gets its turn, in the configured order."""
    replicas = fleet(40)
    pool = Pool("m", replicas, default_hedging(policy=Policy.OFF, routing=Routing.ROUND_ROBIN))
    assert [pool.picker.pick(RequestFacts(), (), 1.0, 0.3) for _ in range(80)] == replicas * 2
