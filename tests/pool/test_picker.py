"""Predicted routing picks the quickest replica, unless it is over its share."""

import math

import pytest

from pooled import fail, pool, send
from ttft_gateway.hedging.contract import Denied, Hedge, RequestFacts
from ttft_gateway.hedging.outcomes import Denial, Outcome
from ttft_gateway.pool.pool import Pool

FACTS = RequestFacts(prompt_tokens=1_000.0)
NOW_S = 10.0


def answering(*streams: int, ttft_s: tuple[float, float, float] = (0.2, 0.2, 0.2), batches: bool = True) -> Pool:
    """Three replicas with these TTFTs and these numbers of streams in flight."""
    fleet = pool(None, None, None, batches=batches)
    for _ in range(200):
        for index, each_s in enumerate(ttft_s):
            brought(fleet, index, NOW_S - 1 - each_s, each_s)
    for index, count in enumerate(streams):
        for _ in range(count):
            attempt = send(fleet, index, NOW_S - 0.6)
            attempt.content_s = NOW_S - 0.6 + ttft_s[index]
            fleet.on_content(attempt, attempt.content_s)
    return fleet


def brought(fleet: Pool, index: int, start_s: float, ttft_s: float) -> None:
    """One whole answer."""
    attempt = send(fleet, index, start_s)
    attempt.content_s = start_s + ttft_s
    fleet.on_content(attempt, attempt.content_s)
    fleet.on_end(attempt, Outcome.FINISHED, attempt.content_s, None)


def chosen(fleet: Pool) -> set[str]:
    """Names of the replicas that may get the next primary."""
    picks = (fleet.picker.pick(FACTS, (), NOW_S, rand / 20) for rand in range(20))
    return {replica.name for replica in picks if replica is not None}


@pytest.mark.parametrize(
    ("streams", "ttft_s", "where"),
    [
        ((0, 0, 0), (0.2, 0.2, 0.2), {"a", "b", "c"}),
        ((3, 0, 0), (0.198, 0.2, 0.2), {"a"}),  # a few streams are no load
        ((9, 2, 1), (0.198, 0.2, 0.2), {"c"}),  # nearly as quick, and the least busy
        ((9, 8, 9), (0.198, 0.2, 0.2), {"a"}),  # its share
        ((9, 0, 0), (0.2, 0.3, 0.3), {"a"}),  # the others are slower
        ((9, 2, 0), (0.198, 0.2, 0.3), {"b"}),  # the idle one is
        ((9, 2, 2), (0.198, 0.2, 0.2), {"b", "c"}),  # in turn
    ],
)
def test_streams_under_way_are_shared_among_equals(
    streams: tuple[int, int, int], ttft_s: tuple[float, float, float], where: set[str]
) -> None:
    """A primary goes to the lowest prediction; if that replica is over its share, to the least busy equal."""
    assert chosen(answering(*streams, ttft_s=ttft_s)) == where


def test_streams_of_a_provider_are_not_counted() -> None:
    """A provider's replica is not slowed down by the gateway's streams: the lowest prediction gets the primary."""
    assert chosen(answering(9, 0, 0, ttft_s=(0.198, 0.2, 0.2), batches=False)) == {"a"}


@pytest.mark.parametrize(("others", "where"), [(9, {"b", "c"}), (0, {"a"})])
def test_streams_of_a_provider_are_shared_among_equals_after_a_refusal_for_load(others: int, where: set[str]) -> None:
    """It may have a limit on streams, unless it was idle: the quickest one met it first, while the others had few."""
    fleet = answering(9, 2, 2, ttft_s=(0.198, 0.2, 0.2), batches=False)
    fleet.replicas[0].breaker.on_refusal(NOW_S - 60.0, NOW_S - 61.0, others)
    assert chosen(fleet) == where


def test_the_number_in_flight_counts_where_it_matters() -> None:
    """With slots, a replica that is twice as quick gets 1.4 times as many requests at a time, not all of them."""
    for streams, where in (((5, 5, 4), {"a"}), ((8, 5, 4), {"c"})):
        fleet = answering(*streams, ttft_s=(0.1, 0.2, 0.2), batches=False)
        assert chosen(fleet) == {"a"}
        fleet.learning.crowding.matters = True
        assert chosen(fleet) == where


def test_an_overdue_attempt_counts_once_where_the_number_in_flight_does() -> None:
    """It is one of those in flight; elsewhere its replica is avoided, and where answers break it is here, too."""
    fleet = answering(0, 2, 2, batches=False)
    send(fleet, 0, NOW_S - 5.0)
    assert chosen(fleet) == {"b", "c"}
    fleet.learning.crowding.matters = True
    assert chosen(fleet) == {"a"}
    for _ in range(20):
        fleet.loads.of[fleet.replicas[0]].breaks.add(NOW_S - 1.0, broken=True)
        fleet.loads.of[fleet.replicas[0]].breaks.add(NOW_S, broken=True)
    fleet.loads.breaking_until_s = NOW_S + 60.0
    assert chosen(fleet) == {"b", "c"}


def test_an_attempt_knows_the_crowd_at_its_replica() -> None:
    """It is the logarithm of the attempts in flight over the mean of all replicas, before it and each plus one."""
    fleet = answering(9, 1, 2)
    forecasts = [send(fleet, index, NOW_S).forecast for index in (0, 1)]
    assert [None if each is None else each.crowd for each in forecasts] == [
        math.log(10 / 5),
        math.log(2 / (1 + 13 / 3)),
    ]


def test_a_burst_is_shared() -> None:
    """Requests that come at the same time, before any has first content, do not all go to the least busy replica."""
    fleet = answering(9, 2, 2, ttft_s=(0.198, 0.2, 0.2))
    for number in range(12):
        replica = fleet.picker.pick(FACTS, (), NOW_S, number / 12)
        assert replica is not None
        send(fleet, fleet.replicas.index(replica), NOW_S)
    assert max(replica.in_flight for replica in fleet.replicas) <= 11


def traffic(gap_s: float, requests: int = 400, slow_s: float = 0.6) -> tuple[Pool, float]:
    """Three replicas that answered requests this far apart, in turn, and the time after them; the first one is slow."""
    fleet = pool(None, None, None)
    for n in range(requests):
        brought(fleet, n % 3, n * gap_s, slow_s if n % 3 == 0 else 0.2)
    return fleet, requests * gap_s


@pytest.mark.parametrize(("gap_s", "remembered_s"), [(0.01, 30.0), (10.0, 2_250.0)])
def test_with_little_traffic_a_slow_replica_is_remembered_for_longer(gap_s: float, remembered_s: float) -> None:
    """A level fades within 30 s, or within the time of 75 requests at each replica."""
    fleet, now_s = traffic(gap_s, slow_s=0.3)
    fleet.learning.predictor.fold(now_s)
    before = fleet.learning.predictor.levels["a"]
    fleet.learning.predictor.fold(now_s + remembered_s)
    assert before > 1.2
    assert fleet.learning.predictor.levels["a"] == pytest.approx(before ** (1 / math.e), rel=0.02)


@pytest.mark.parametrize(("slow_s", "primaries"), [((), 8), ((0.5,), 50), ((0.5, 0.2, 0.2), 8)])
def test_a_replica_that_may_be_slow_is_looked_at_again(slow_s: tuple[float, ...], primaries: int) -> None:
    """After a slow attempt the replica gets half of an equal share, until it was quick again; another one far less."""
    fleet, now_s = traffic(1.0, slow_s=0.21)
    for each_s in slow_s:
        brought(fleet, 0, now_s, each_s)
        fleet.learning.predictor.fold(now_s + each_s)
    count = 0
    for n in range(300):
        at_s = now_s + 1.0 + n
        replica = fleet.picker.pick(RequestFacts(prompt_tokens=1.0), (), at_s, 0.5)
        assert replica is not None
        fleet.loads.of[replica].used_s = at_s
        count += replica is fleet.replicas[0]
    assert count == primaries


def test_replicas_that_may_be_slow_share_one_share() -> None:
    """In a fleet of different speeds many may be slow; together they get no more requests than one."""
    fleet, now_s = traffic(1.0, slow_s=0.21)
    for index in (0, 1):
        brought(fleet, index, now_s, 0.5)
        fleet.learning.predictor.fold(now_s + 0.5)
    assert len(fleet.learning.predictor.doubted) == 2
    counts = [0, 0, 0]
    for n in range(300):
        at_s = now_s + 1.0 + n
        replica = fleet.picker.pick(RequestFacts(prompt_tokens=1.0), (), at_s, 0.5)
        assert replica is not None
        fleet.loads.of[replica].used_s = at_s
        counts[fleet.replicas.index(replica)] += 1
    assert counts[:2] == [25, 25]


@pytest.mark.parametrize(("gap_s", "probes"), [(0.05, 10), (1.0, 1)])
def test_a_suspect_gets_a_share_of_the_requests(gap_s: float, probes: int) -> None:
    """A replica that does not answer gets one primary in 5 s, or one in 50 requests if that is longer."""
    fleet, now_s = traffic(gap_s)
    for _ in range(3):
        attempt = send(fleet, 0, now_s)
        fleet.on_end(attempt, Outcome.LOST, now_s + 10.0, None)
    start_s, count = now_s + 11.0, 0
    for n in range(int(50 / gap_s)):
        replica = fleet.picker.pick(RequestFacts(prompt_tokens=1.0), (), start_s + n * gap_s, 0.5)
        count += replica is fleet.replicas[0]
    assert fleet.loads.is_suspect(fleet.replicas[0], start_s)
    assert count == probes


def test_a_probe_can_be_hedged() -> None:
    """While the budget has no credit for a hedge, a suspect waits three times as long for its next primary."""
    fleet, now_s = traffic(0.05)
    for _ in range(3):
        fleet.on_end(send(fleet, 0, now_s), Outcome.LOST, now_s + 10.0, None)
    fleet.budget.requests.reserve(now_s + 10.0, 1e-6)
    start_s, dear = now_s + 11.0, RequestFacts(prompt_tokens=1e9)
    first = fleet.picker.pick(dear, (), start_s, 0.5)
    assert first is fleet.replicas[0]
    assert [
        fleet.picker.pick(facts, (), start_s + after_s, 0.5) is first
        for facts, after_s in ((dear, 5.1), (FACTS, 5.1), (dear, 10.2), (dear, 20.2))
    ] == [False, True, False, True]


def test_a_probe_of_a_suspect_is_hedged_without_a_gain() -> None:
    """A request at a replica that does not answer is hedged immediately, although it has hardly waited."""
    fleet, now_s = traffic(0.05)
    for _ in range(3):
        fleet.on_end(send(fleet, 0, now_s), Outcome.LOST, now_s + 10.0, None)
    probe, other = (send(fleet, index, now_s + 11.0) for index in (0, 1))
    assert fleet.delay_s(probe, FACTS) == fleet.settings.hedge_delay_min_s
    decided = [
        fleet.decide(FACTS, attempt, (attempt,), (attempt.replica,), now_s + 11.02, 0.5) for attempt in (probe, other)
    ]
    assert isinstance(decided[0], Hedge)
    assert isinstance(decided[1], Denied)
    assert decided[1].reason is Denial.LOW_GAIN


def test_the_last_resort_is_shared() -> None:
    """If all breakers are open, those with the fewest failures are asked: the quickest may be one that only refuses."""
    fleet = answering(ttft_s=(0.1, 0.2, 0.3))
    for replica in fleet.replicas:
        replica.breaker.trip(NOW_S)
    asked = []
    for _ in range(6):
        picked = fleet.picker.pick_ignoring_breakers(FACTS, (), NOW_S, 0.5)
        assert picked is not None
        asked.append(picked.name)
        fail(fleet, fleet.replicas.index(picked), NOW_S)
    assert asked == ["a", "b", "c", "a", "b", "c"]
