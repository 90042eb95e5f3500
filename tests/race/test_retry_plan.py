"""The order and the bounds of tries: siblings, the same replica again, fallbacks; in virtual time, through the race."""

from collections.abc import Sequence

import pytest

from defaults import default_hedging, default_timeouts
from gateway.events import Role
from scripted import Scripted, Step, answer, run_race, status
from ttft_gateway.apis.errors import BadStatus, ConnectionCut, RequestModeRejected
from ttft_gateway.hedging.plan import Policy
from ttft_gateway.limits.budget import RetryBudget
from ttft_gateway.pool.pool import Pool

OFF = default_hedging(policy=Policy.OFF)
GOOD = answer(0.05)
COMPLETE = b"<role>ab<stop><done>"
CUT: list[Step] = [(0.01, ConnectionCut("cut"))]
TOO_LONG = status(0.01, 400, "context_length_exceeded")


@pytest.mark.parametrize("failure", [CUT, status(0.01, 503), status(0.01, 500)], ids=["cut", "503", "500"])
def test_the_only_replica_is_tried_again_before_a_fallback(failure: list[Step]) -> None:
    """A transient failure of a pool's only replica gets one quick retry there; the fallback is for a second one."""
    once = run_race(Scripted(failure, GOOD), fallbacks=[Scripted(GOOD)], hedge=OFF)
    assert (once.report.winner, len(once.report.attempts)) == ("a", 2)
    assert once.report.ttft_s == pytest.approx(0.01 + 0.05 + 0.05, abs=0.001)
    twice = run_race(Scripted(failure), fallbacks=[Scripted(GOOD)], hedge=OFF)
    assert [attempt.replica for attempt in twice.report.attempts] == ["a", "a", "b"]
    assert twice.client.got == COMPLETE


def test_no_retry_where_it_cannot_help() -> None:
    """A replica is not retried after a 501, a redirection, a rejected key or `x-should-retry: false`."""
    said: list[Step] = [(0.01, BadStatus("no", status=500, should_retry=False))]
    for failure in (status(0.01, 501), status(0.01, 307), status(0.01, 401), said):
        told = run_race(Scripted(failure, GOOD), hedge=OFF)
        assert (told.client.finished, len(told.report.attempts)) == (False, 1)


def test_a_sibling_comes_before_a_retry_and_before_any_wait() -> None:
    """While another replica is untried there is no wait for the one that failed."""
    for failure in (CUT, status(0.01, 429, retry_after_s=1.0)):
        told = run_race(Scripted(failure), Scripted(GOOD), fallbacks=[Scripted(GOOD)], hedge=OFF)
        assert told.report.winner == "b"
        assert told.report.ttft_s == pytest.approx(0.06, abs=0.001)


@pytest.mark.parametrize(("others", "attempts"), [((), "aba"), ((GOOD,), "abc")], ids=["two replicas", "three"])
def test_a_replica_that_lost_the_race_is_asked_again(others: Sequence[list[Step]], attempts: str) -> None:
    """If the winner breaks, the loser's replica is not at fault: hedging takes no replica from the retries."""
    late, broken = answer(20.0), [*answer(0.01)[:3], (0.02, ConnectionCut("cut"))]
    told = run_race(Scripted(late, GOOD), Scripted(broken), *map(Scripted, others), streaming=False)
    assert "".join(attempt.replica for attempt in told.report.attempts) == attempts
    assert told.client.finished


def test_a_short_retry_after_is_waited_out_before_a_fallback() -> None:
    """Up to 3 s, once: a second 429, or a longer wait, sends the request on."""
    wait = status(0.01, 429, retry_after_s=2.0)
    told = run_race(Scripted(wait, GOOD), fallbacks=[Scripted(GOOD)], hedge=OFF)
    assert told.report.winner == "a"
    assert told.report.ttft_s == pytest.approx(2.06, abs=0.001)
    again = run_race(Scripted(wait), fallbacks=[Scripted(GOOD)], hedge=OFF)
    assert [attempt.replica for attempt in again.report.attempts] == ["a", "a", "b"]
    longer = run_race(Scripted(status(0.01, 429, retry_after_s=4.0)), fallbacks=[Scripted(GOOD)], hedge=OFF)
    assert longer.report.ttft_s == pytest.approx(0.06, abs=0.001)
    never = run_race(
        Scripted(wait), fallbacks=[Scripted(GOOD)], hedge=OFF, timeouts=default_timeouts(retry_after_s_max=0.0)
    )
    assert never.report.winner == "b"


def test_the_shortest_wait_is_the_one_waited_for() -> None:
    """Of several replicas with a Retry-After, the first one to be free is retried."""
    told = run_race(
        Scripted(status(0.01, 429, retry_after_s=2.5)), Scripted(status(0.01, 429, retry_after_s=1.0), GOOD), hedge=OFF
    )
    assert told.report.winner == "b"
    assert told.report.ttft_s == pytest.approx(1.07, abs=0.001)


def test_a_prompt_that_is_too_long_goes_to_a_fallback_once() -> None:
    """Its siblings are spared, and if the fallback cannot take it either the caller learns why."""
    told = run_race(Scripted(TOO_LONG), Scripted(GOOD), fallbacks=[Scripted(GOOD), Scripted(GOOD)], hedge=OFF)
    assert [attempt.replica for attempt in told.report.attempts] == ["a", "c"]
    assert told.client.got == COMPLETE
    nowhere = run_race(Scripted(TOO_LONG), fallbacks=[Scripted(TOO_LONG), Scripted(GOOD)], hedge=OFF)
    assert [attempt.replica for attempt in nowhere.report.attempts] == ["a", "b"]
    alone = run_race(Scripted(TOO_LONG), Scripted(GOOD), hedge=OFF)
    for refused in (nowhere, alone):
        assert refused.client.error is not None
        assert (refused.client.error.status, refused.client.error.code) == (400, "context_length_exceeded")


def test_a_replica_that_minds_how_it_is_asked_is_asked_in_another_way() -> None:
    """The same replica comes before its siblings, once a refusal; where that does not help, the caller learns why."""
    refused: list[Step] = [(0.01, RequestModeRejected(BadStatus("no streams here", status=400, param="stream")))]
    told = run_race(Scripted(refused, refused, GOOD), Scripted(GOOD), hedge=OFF)
    assert [attempt.replica for attempt in told.report.attempts] == ["a", "a", "a"]
    assert (told.client.got, told.pools[0].replicas[0].breaker.failures) == (COMPLETE, 0)
    never = run_race(Scripted(refused, status(0.01, 400)), Scripted(GOOD), hedge=OFF)
    assert [attempt.replica for attempt in never.report.attempts] == ["a", "a"]
    assert never.client.error is not None
    assert never.client.error.status == 400
    slow = run_race(Scripted(refused, answer(20.0)), Scripted(GOOD), hedge=OFF)
    assert [attempt.replica for attempt in slow.report.attempts] == ["a", "a", "b"]


def test_another_request_mode_is_not_charged_to_the_retry_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that has rejected the mode is asked again even if the retry before has spent the budget."""
    left = [True]
    monkeypatch.setattr(RetryBudget, "take", lambda _self, _now_s, **_: bool(left) and left.pop())
    refused: list[Step] = [(0.01, RequestModeRejected(BadStatus("no streams here", status=400, param="stream")))]
    told = run_race(Scripted(status(0.01, 503)), Scripted(refused, refused, GOOD), hedge=OFF)
    assert [attempt.replica for attempt in told.report.attempts] == ["a", "b", "b", "b"]
    assert (told.client.got, left) == (COMPLETE, [])


def test_a_pool_with_open_breakers_is_passed_over() -> None:
    """While a fallback works no attempt goes to a pool that is down, and later the pool is used again."""

    def shut(pools: list[Pool]) -> None:
        for replica in pools[0].replicas:
            replica.breaker.trip(0.0)

    told = run_race(Scripted(GOOD), Scripted(GOOD), fallbacks=[Scripted(GOOD)], hedge=OFF, prepare=shut)
    assert [attempt.replica for attempt in told.report.attempts] == ["c"]
    assert told.report.attempts[0].role is Role.PRIMARY


def test_open_breakers_are_ignored_when_nothing_else_is_left() -> None:
    """A shut pool without a fallback is tried all the same."""

    def shut(pools: list[Pool]) -> None:
        for pool in pools:
            for replica in pool.replicas:
                replica.breaker.trip(0.0)

    told = run_race(Scripted(GOOD), fallbacks=[Scripted(GOOD)], hedge=OFF, prepare=shut)
    assert told.report.winner == "a"


def test_when_all_were_told_to_wait_the_caller_is_told_how_long() -> None:
    """Nothing is sent while every replica cools down: a short wait is waited out, a longer one is an honest 429."""

    def cooling(until_s: float) -> list[str]:
        def prepare(pools: list[Pool]) -> None:
            for pool in pools:
                for extra, replica in enumerate(pool.replicas):
                    replica.breaker.cool_down(until_s + extra)

        told = run_race(Scripted(GOOD), Scripted(GOOD), hedge=OFF, prepare=prepare)
        if told.client.error is not None:
            assert (told.client.error.status, told.client.error.retry_after_s) == (429, until_s)
            assert told.report.error == "upstream_rate_limited"
            assert told.report.attempts == ()
            return []
        assert told.report.ttft_s == pytest.approx(until_s + 0.05, abs=0.001)
        return [attempt.replica for attempt in told.report.attempts]

    assert cooling(2.0) == ["a"]
    assert cooling(20.0) == []


def test_without_retry_budget_the_first_failure_is_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the retry budget is spent the gateway adds no retries, and the caller may retry."""
    monkeypatch.setattr(RetryBudget, "take", lambda _self, _now_s, **_: False)
    told = run_race(Scripted(status(0.01, 503)), Scripted(GOOD), hedge=OFF)
    assert told.client.error is not None
    assert (told.client.error.status, told.client.error.should_retry) == (503, None)
    assert len(told.report.attempts) == 1
