"""Keys that allow fewer attempts: late and failed requests of theirs are sent no second time."""

import pytest

from gateway.events import HedgeDenied, Result
from scripted import HEDGED, Scripted, Step, answer, run_race, status
from ttft_gateway.apis.errors import BadStatus, ConnectionCut, RequestModeRejected
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.hedging.outcomes import Denial

_ONCE = RequestFacts(hedge_off=Denial.KEY, attempts_max=1)
_CUT: list[Step] = [(0.01, ConnectionCut("cut"))]


@pytest.mark.parametrize("facts", [RequestFacts(hedge_off=Denial.KEY), _ONCE])
def test_a_late_request_has_the_key_as_reason(facts: RequestFacts) -> None:
    """A late request of a key without hedges is not hedged, and its answer, log and metrics have the reason."""
    late = run_race(Scripted(answer(1.0)), Scripted(answer(0.01)), facts=facts)
    assert (late.report.result, late.report.denials, late.report.never_hedged) == (
        Result.DENIED,
        (Denial.KEY,),
        Denial.KEY,
    )
    assert late.client.headers[b"x-ttft-denied"] == b"key"
    assert [event.reason for event in late.events if isinstance(event, HedgeDenied)] == [Denial.KEY]
    in_time = run_race(Scripted(answer(0.05)), Scripted(answer(0.01)), facts=RequestFacts(hedge_off=Denial.KEY))
    assert b"x-ttft-denied" not in in_time.client.headers


def test_a_key_without_hedges_still_fails_over() -> None:
    """Only the hedge is forbidden: a failed request is tried elsewhere."""
    told = run_race(Scripted(_CUT), Scripted(answer(0.05)), facts=RequestFacts(hedge_off=Denial.KEY))
    assert told.report.winner == "b"


@pytest.mark.parametrize("failure", [_CUT, status(0.01, 500), status(0.01, 429, retry_after_s=0.5), answer(500.0)])
def test_one_attempt_is_the_only_one(failure: list[Step]) -> None:
    """With one attempt allowed, a failed, limited or silent replica has no sibling, retry or fallback after it."""
    told = run_race(
        Scripted(failure, answer(0.01)), Scripted(answer(0.01)), fallbacks=[Scripted(answer(0.01))], facts=_ONCE
    )
    assert (told.client.finished, len(told.report.attempts)) == (False, 1)


def test_a_rejected_form_of_the_request_is_not_counted() -> None:
    """A replica that rejects `stream_options` has begun nothing, so the request is sent once more, in another form."""
    rejected: list[Step] = [(0.01, RequestModeRejected(BadStatus("no stream_options", status=400)))]
    told = run_race(Scripted(rejected, answer(0.05)), Scripted(answer(0.01)), facts=_ONCE)
    assert (told.report.winner, len(told.report.attempts)) == ("a", 2)


def test_hedges_count_as_attempts() -> None:
    """With two attempts allowed, a hedged request is not sent a third time if both its attempts fail."""
    replicas = [Scripted([(0.2, ConnectionCut("cut"))]) for _ in range(3)]
    told = run_race(*replicas, hedge=HEDGED, facts=RequestFacts(attempts_max=2))
    assert (told.client.finished, len(told.report.attempts)) == (False, 2)
