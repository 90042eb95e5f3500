"""Who may be chosen at all, and choices without prediction: its turn, the less busy one, who holds the prompt."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gateway.routing.choose import Crossing, backups, in_turn, least_in_flight, most_cached, usable
from gateway.routing.replicas import Replica
from scripted import Scripted

RANDS = st.floats(0.0, 1.0, exclude_max=True)


def fleet(*in_flight: int) -> list[Replica]:
    """Replicas with so many requests under way."""
    return [Replica(f"replica-{i}", Scripted(), in_flight=busy) for i, busy in enumerate(in_flight)]


def test_each_has_its_turn() -> None:
    """In n choices of n candidates every one is chosen once, in the pool's order."""
    replicas, turn, chosen = fleet(0, 0, 0), 0, []
    for _ in range(6):
        replica, turn = in_turn(replicas, replicas, turn)
        chosen.append(replica)
    assert chosen == replicas * 2


def test_who_may_not_be_used_is_passed_over() -> None:
    """A turn goes to the next candidate, and the one after it is next."""
    a, b, c = replicas = fleet(0, 0, 0)
    assert in_turn(replicas, [a, c], 1) == (c, 0)
    assert in_turn(replicas, [b], 2) == (b, 2)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=6), RANDS)
def test_the_busiest_is_never_the_better_of_two(in_flight: list[int], rand: float) -> None:
    """The power of two choices never takes the one that is busier than all others."""
    candidates = fleet(*in_flight)
    chosen = least_in_flight(candidates, rand)
    others = [replica.in_flight for replica in candidates if replica is not chosen]
    assert not others or chosen.in_flight <= max(others)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 3)), min_size=1, max_size=6), RANDS)
def test_affinity_is_bounded(state: list[tuple[int, int]], rand: float) -> None:
    """Whoever holds most is chosen, unless it is busier than 1.25 times the mean; then the best of the others."""
    candidates = fleet(*(busy for busy, _ in state))
    cached = {replica: held for replica, (_, held) in zip(candidates, state, strict=True)}
    chosen = most_cached(candidates, cached, rand)
    bound = 1.25 * (sum(busy for busy, _ in state) + 1) / len(state) + 1
    assert chosen.in_flight + 1 <= bound
    for replica in candidates:
        assert cached[replica] <= cached[chosen] or replica.in_flight + 1 > bound - 1


NEVER, FAILOVER, ALWAYS = Crossing.NEVER, Crossing.FAILOVER, Crossing.ALWAYS
BEEN_TO_EU = [Replica("tried", Scripted(), boundary="eu")]
BEEN_TO_BOTH = [*BEEN_TO_EU, Replica("tried, too", Scripted(), boundary="us")]


@pytest.mark.parametrize(
    ("tried", "crossing", "failovers", "hedges"),
    [
        pytest.param([], NEVER, "eu us none", "eu us none", id="the first may go anywhere"),
        pytest.param(BEEN_TO_EU, NEVER, "eu", "eu", id="never"),
        pytest.param(BEEN_TO_EU, FAILOVER, "eu us none", "eu", id="failover"),
        pytest.param(BEEN_TO_EU, ALWAYS, "eu us none", "eu us none", id="always"),
        pytest.param(BEEN_TO_BOTH, FAILOVER, "eu us none", "eu us", id="a hedge goes where a failover has been"),
        pytest.param([Replica("t", Scripted())], NEVER, "none", "none", id="without a boundary is a side of its own"),
    ],
)
def test_boundaries(tried: list[Replica], crossing: Crossing, failovers: str, hedges: str) -> None:
    """A request stays on the sides it has been to, but for what its model allows."""
    replicas = [
        Replica("eu", Scripted(), boundary="eu"),
        Replica("us", Scripted(), boundary="us"),
        Replica("none", Scripted()),
    ]
    assert [replica.name for replica in usable(replicas, tried, 0.0, crossing)] == failovers.split()
    assert [replica.name for replica in backups(replicas, tried, 0.0, crossing)] == hedges.split()


def test_breakers_are_ignored_where_all_in_reach_are_open() -> None:
    """A healthy replica beyond the boundary does not keep a request from the only one it may go to."""
    shut, beyond = Replica("shut", Scripted(), boundary="eu"), Replica("beyond", Scripted(), boundary="us")
    shut.breaker.cool_down(10.0)
    assert usable([shut, beyond], BEEN_TO_EU, 0.0) == [shut]
    assert usable([shut, beyond], [], 0.0) == [beyond]
