"""Pools of replicas that differ in what they support: the replica used, and the client's answer."""

import pytest

from scripted import Scripted, Step, answer, bare_status, run_race, status
from ttft_gateway.apis.base import Api
from ttft_gateway.apis.errors import ConnectionCut, Unsupported
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.hedging.outcomes import Denial
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import BreakerState

LATE, QUICK = answer(5.0), answer(0.02)
NO_WORDS: list[Step] = [(0.0, Unsupported("`n` cannot be said here", param="n"))]


def test_a_replica_without_the_api_is_never_asked() -> None:
    """Neither primaries nor hedges nor failovers go to a replica that cannot be asked in the client's API."""
    apis = (frozenset({Api.CHAT}), frozenset(Api), frozenset({Api.CHAT}))
    outcome = run_race(
        Scripted(QUICK), Scripted(LATE), Scripted(QUICK), facts=RequestFacts(api=Api.EMBEDDINGS), apis=apis
    )
    assert [len(replica.streams) for replica in outcome.replicas] == [0, 1, 0]
    assert outcome.client.finished


def test_a_pool_without_the_api_is_passed_over() -> None:
    """A request that only a fallback supports goes there first, and the pool before it gets no attempt."""
    apis = (*[frozenset({Api.CHAT, Api.MESSAGES})] * 2, frozenset(Api))
    outcome = run_race(
        Scripted(QUICK),
        Scripted(QUICK),
        fallbacks=[Scripted(QUICK)],
        facts=RequestFacts(api=Api.COMPLETIONS),
        apis=apis,
    )
    assert [len(replica.streams) for replica in outcome.replicas] == [0, 0, 1]
    assert outcome.client.finished


def test_a_request_that_one_replica_cannot_put_into_words_goes_to_the_next() -> None:
    """An unsupported request is no fault of a replica: its breaker gets no signal, the next is tried immediately."""
    outcome = run_race(*(Scripted(NO_WORDS) for _ in range(3)), Scripted(QUICK))
    assert outcome.client.finished
    assert [attempt.outcome.value for attempt in outcome.report.attempts] == [*["unsupported"] * 3, "finished"]
    assert outcome.client.headers[b"x-ttft-attempts"] == b"1"
    assert all(replica.breaker.failures == 0 for replica in outcome.pools[0].replicas)
    assert outcome.pools[0].replicas[0].breaker.state is BreakerState.CLOSED


def test_a_request_that_nobody_can_put_into_words_is_the_callers_to_change() -> None:
    """The client gets a 400 that names the field."""
    error = run_race(Scripted(NO_WORDS), Scripted(NO_WORDS)).client.error
    assert error is not None
    assert (error.status, error.param, error.code) == (400, "n", "unsupported_parameter")


@pytest.mark.parametrize(("cools_s", "status", "attempts"), [(60.0, 429, 1), (1.5, 200, 2)])
def test_a_request_is_not_blamed_while_a_capable_replica_cools_down(cools_s: float, status: int, attempts: int) -> None:
    """Where only a rate-limited replica supports a request, its wait counts: a short one is waited out."""

    def limit(pools: list[Pool]) -> None:
        pools[0].replicas[1].breaker.cool_down(cools_s)

    told = run_race(Scripted(NO_WORDS), Scripted(QUICK), prepare=limit)
    assert (told.report.status, len(told.report.attempts)) == (status, attempts)
    if told.client.error is not None:
        assert told.client.error.retry_after_s == pytest.approx(cools_s, abs=0.1)


@pytest.mark.parametrize("is_capable_first", [True, False])
@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (status(0.01, 503), (503, None, None)),
        (status(0.01, 503, retry_after_s=7.0), (503, None, 7.0)),
        (status(0.01, 429, "rate_limit_exceeded", retry_after_s=7.0), (429, "upstream_rate_limited", 7.0)),
        (status(0.01, 400, "bad"), (400, "bad", None)),
    ],
)
def test_the_replica_that_got_the_request_has_the_last_word(
    failure: list[Step], expected: tuple[int, str | None, float | None], is_capable_first: bool
) -> None:
    """A replica that cannot express the request does not turn the failure of the capable one into a 400."""
    replicas = [Scripted(failure), Scripted(NO_WORDS)]
    outcome = run_race(*(replicas if is_capable_first else replicas[::-1]))
    error = outcome.client.error
    assert error is not None
    assert (error.status, error.code, error.retry_after_s) == expected


@pytest.mark.parametrize("is_dead_first", [True, False])
def test_a_dead_key_hides_no_rate_limit(is_dead_first: bool) -> None:
    """In a pool with a replica that has a dead key, the caller gets the 429 of the other replica, and its wait."""
    dead = Scripted(status(0.01, 401, "account_deactivated"))
    replicas = [dead, Scripted(status(0.01, 429, retry_after_s=7.0))]
    error = run_race(*(replicas if is_dead_first else replicas[::-1])).client.error
    assert error is not None
    assert (error.status, error.retry_after_s) == (429, 7.0)


@pytest.mark.parametrize("is_capable_first", [True, False])
def test_the_only_capable_replica_gets_its_quick_retry(is_capable_first: bool) -> None:
    """A replica that cannot express the request is no sibling: the capable one is the only one, and asked again."""
    replicas = [Scripted(status(0.01, 500), QUICK), Scripted(NO_WORDS)]
    outcome = run_race(*(replicas if is_capable_first else replicas[::-1]))
    assert outcome.client.finished
    assert outcome.report.ttft_s == pytest.approx(0.01 + 0.05 + 0.02, abs=1e-3)


def test_a_replica_that_was_not_asked_confirms_no_rejection() -> None:
    """A 400 of unclear origin is confirmed by a replica that got the request, not by one that cannot express it."""
    outcome = run_race(Scripted(bare_status(0.01, 400)), Scripted(NO_WORDS), Scripted(QUICK))
    assert outcome.client.finished
    assert [attempt.outcome.value for attempt in outcome.report.attempts] == ["wrong_4xx", "unsupported", "finished"]


def test_what_was_kept_by_one_replica_is_asked_there_first() -> None:
    """A pinned request goes to its replica, a fallback's included, and elsewhere only when that has failed."""
    for failing, asked in ((False, "c"), (True, "cca")):
        script: list[Step] = [(0.01, ConnectionCut("cut"))] if failing else QUICK
        outcome = run_race(
            Scripted(QUICK),
            Scripted(QUICK),
            fallbacks=[Scripted(script)],
            pinned=2,
            facts=RequestFacts(hedge_off=Denial.OFF),
        )
        assert [attempt.replica for attempt in outcome.report.attempts] == list(asked)
        assert outcome.client.finished
