"""Pools whose replicas differ in what they support: the replica used, and the client's answer."""

from gateway.hedging.contract import RequestFacts
from gateway.hedging.outcomes import Denial
from gateway.routing.replicas import BreakerState
from providers.base import Api
from providers.errors import ConnectionCut, Unsupported
from scripted import Scripted, Step, answer, run_race

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
    """An unsupported request is no fault of a replica: its breaker gets no signal, the next one is tried at once."""
    outcome = run_race(*(Scripted(NO_WORDS) for _ in range(3)), Scripted(QUICK))
    assert outcome.client.finished
    assert [attempt.outcome.value for attempt in outcome.report.attempts] == [*["unsupported"] * 3, "finished"]
    assert all(replica.breaker.failures == 0 for replica in outcome.pools[0].replicas)
    assert outcome.pools[0].replicas[0].breaker.state is BreakerState.CLOSED


def test_a_request_that_nobody_can_put_into_words_is_the_callers_to_change() -> None:
    """The client gets a 400 that names the field."""
    error = run_race(Scripted(NO_WORDS), Scripted(NO_WORDS)).client.error
    assert error is not None
    assert (error.status, error.param, error.code) == (400, "n", "unsupported_parameter")


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
