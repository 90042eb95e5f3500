"""Predicted routing picks the quickest replica, unless it is over its share."""

import pytest

from gateway.hedging.contract import RequestFacts
from gateway.hedging.outcomes import Outcome
from gateway.pool.pool import Pool
from pooled import pool, send

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


def test_a_burst_is_shared() -> None:
    """Requests that come at once, before any has first content, do not all go to the least busy replica."""
    fleet = answering(9, 2, 2, ttft_s=(0.198, 0.2, 0.2))
    for number in range(12):
        replica = fleet.picker.pick(FACTS, (), NOW_S, number / 12)
        assert replica is not None
        send(fleet, fleet.replicas.index(replica), NOW_S)
    assert max(replica.in_flight for replica in fleet.replicas) <= 11
