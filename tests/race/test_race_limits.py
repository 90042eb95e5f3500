"""The race and rate limits: limits in responses reach the ledger, and excluded replicas are not used."""

from collections.abc import Sequence

import pytest

from gateway.events import ComponentFailed
from scripted import Scripted, answer, run_race
from ttft_gateway.apis.base import Headers, RateLimit, Resource
from ttft_gateway.limits.ledger import Ledger
from ttft_gateway.pool.pool import Pool


def quota(pool: Pool) -> Ledger:
    """The pool's first replica gets a quota."""
    ledger = Ledger()
    pool.quotas.of[pool.replicas[0]] = ledger
    return ledger


def test_what_the_headers_state_reaches_the_ledger() -> None:
    """The limits of an answer are the ledger's once its headers are there, and the ticket is closed at its end."""
    ledgers: list[Ledger] = []

    def read(headers: Headers) -> Sequence[RateLimit]:
        assert dict(headers)[b"x-request-id"] == b"up-1"
        return [RateLimit(Resource.REQUESTS, 60.0, 100.0, 40.0)]

    def prepare(pools: list[Pool]) -> None:
        pools[0].replicas[0].read_limits = read
        ledgers.append(quota(pools[0]))

    told = run_race(Scripted(answer(0.05)), prepare=prepare)
    assert told.client.finished
    assert ledgers[0].headroom(0.0) == pytest.approx(0.4)
    assert ledgers[0].totals.under_way == 0


def test_a_reader_that_fails_costs_nobody_an_answer() -> None:
    """A bug in reading the limits is emitted as an event, and the answer is sent."""

    def read(headers: Headers) -> Sequence[RateLimit]:
        raise ZeroDivisionError(headers)

    def prepare(pools: list[Pool]) -> None:
        pools[0].replicas[0].read_limits = read

    told = run_race(Scripted(answer(0.05)), prepare=prepare)
    assert told.client.finished
    assert [event.component for event in told.events if isinstance(event, ComponentFailed)] == ["limits"]


def test_a_cooling_quota_is_not_asked_while_another_replica_can_be() -> None:
    """The primary goes to the sibling, and to a fallback where there is none."""
    for siblings, fallbacks in (([Scripted(answer(0.05))], []), ([], [Scripted(answer(0.05))])):
        cooling = Scripted(answer(0.05))
        told = run_race(
            cooling, *siblings, fallbacks=fallbacks, prepare=lambda pools: quota(pools[0]).cool_down(1_000.0)
        )
        assert told.report.winner == "b"
        assert not cooling.streams


def test_where_nobody_may_be_asked_the_answer_says_for_how_long() -> None:
    """Every quota is cooling down: an immediate 429 with the smallest wait, and nothing is sent."""
    replica, fallback = Scripted(answer(0.05)), Scripted(answer(0.05))

    def prepare(pools: list[Pool]) -> None:
        quota(pools[0]).cool_down(1_030.0)
        quota(pools[1]).cool_down(1_020.0)

    told = run_race(replica, fallbacks=[fallback], prepare=prepare)
    error = told.client.error
    assert error is not None
    assert (error.status, error.code, error.should_retry) == (429, "upstream_rate_limited", None)
    assert error.retry_after_s is not None
    assert 0 < error.retry_after_s <= 1_020.0
    assert not replica.streams
    assert not fallback.streams
