"""Usable replicas, and choices without prediction: in turn, least in flight, most of the prompt cached."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from scripted import Scripted
from ttft_gateway.routing.replicas import Replica
from ttft_gateway.routing.strategies import (
    Crossing,
    backups,
    in_turn,
    least_in_flight,
    most_cached,
    ramped,
    reachable,
    uncooled,
    usable,
)

RANDS = st.floats(0.0, 1.0, exclude_max=True)


def fleet(*in_flight: int) -> list[Replica]:
    """Replicas with this many requests under way each."""
    return [Replica(f"replica-{i}", Scripted(), in_flight=busy) for i, busy in enumerate(in_flight)]


def test_each_has_its_turn() -> None:
    """In n choices of n candidates every one is chosen once, in the pool's order."""
    replicas, turn, chosen = fleet(0, 0, 0), 0, []
    for _ in range(6):
        replica, turn = in_turn(replicas, replicas, turn)
        chosen.append(replica)
    assert chosen == replicas * 2


def test_unusable_replicas_are_skipped() -> None:
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
    """The replica with most of the prompt is chosen, unless its load is over 1.25 times the mean."""
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
    assert [replica.name for replica in usable(reachable(replicas, tried, crossing), 0.0)] == failovers.split()
    assert [replica.name for replica in backups(replicas, tried, 0.0, crossing)] == hedges.split()


def test_open_breakers_are_a_last_resort_and_cool_downs_are_kept() -> None:
    """An open breaker excludes a replica until no other is usable; a cool-down excludes it always."""
    healthy, opened, cooling = (Replica(name, Scripted()) for name in ("healthy", "opened", "cooling"))
    opened.breaker.trip(0.0)
    cooling.breaker.cool_down(10.0)
    assert usable([healthy, opened, cooling], 1.0) == [healthy]
    assert uncooled([healthy, opened, cooling], 1.0) == [healthy, opened]
    assert usable([healthy, opened, cooling], 11.0) == [healthy, opened, cooling]
    assert backups([healthy, opened, cooling], [], 11.0) == [healthy, cooling]  # a hedge is no probe


@given(st.integers(0, 12), st.integers(1, 3))
def test_a_replica_that_is_back_gets_more_and_more(since_s: int, healthy: int) -> None:
    """Its share of the choices grows from a tenth to all of it within ten seconds, and the number stays uniform."""
    replicas = fleet(*[0] * (healthy + 1))
    replicas[0].breaker.trip(0.0)
    replicas[0].breaker.on_success(100.0, 100.0)
    drawn = [ramped(replicas, 100.0 + since_s, n / 1000) for n in range(1000)]
    there = sum(replicas[0] in candidates for candidates, _ in drawn) / 1000
    assert there == pytest.approx(min(1.0, max(0.1, since_s / 10)), abs=0.002)
    for present in (True, False):
        rands = [rand for candidates, rand in drawn if (replicas[0] in candidates) is present]
        assert all(0 <= rand < 1 for rand in rands)
        assert not rands or sum(rands) / len(rands) == pytest.approx(0.5, abs=0.01)
    assert ramped(replicas[:1], 100.0, 0.9)[0] == replicas[:1]
