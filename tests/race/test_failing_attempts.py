"""Attempts that fail before or after their first content, and what the client gets."""

import pytest

from defaults import default_hedging
from gateway.events import AttemptFailed, Role
from scripted import (
    BROKEN,
    DONE,
    FINISH,
    HEDGED,
    ROLE,
    Scripted,
    ScriptedStream,
    Step,
    answer,
    run_race,
    status,
    text,
)
from ttft_gateway.apis.base import Call, Frame, FrameKind, Sink
from ttft_gateway.apis.errors import ConnectError, ConnectionCut, ErrorFrame
from ttft_gateway.hedging.outcomes import Outcome
from ttft_gateway.hedging.plan import Policy

OFF = default_hedging(policy=Policy.OFF)
COMPLETE = b"<role>ab<stop><done>"
REFUSAL = Frame(FrameKind.REFUSAL, b"<refused>")
FAILING: dict[str, list[Step]] = {
    "429": status(0.01, 429),
    "500": status(0.01, 500),
    "refused": [(0.01, ConnectError("refused"))],
    "cut": [(0.001, "headers"), (0.01, ConnectionCut("cut"))],
    "error frame in a 200": [
        (0.001, "headers"),
        (0.01, Frame(FrameKind.ERROR, b"e", error=ErrorFrame("boom", code="x"))),
    ],
    "empty stream": [(0.001, "headers"), (0.01, ROLE), (0.01, None)],
    "[DONE] at once": [(0.001, "headers"), (0.01, DONE), (0.01, None)],
    "broken events": [(0.001, "headers"), (0.01, BROKEN), (0.01, BROKEN)],
    "endless preamble": [(0.001, "headers")] + [(0.01, Frame(FrameKind.PREAMBLE, b"p" * 60_000))] * 5,
    "404": status(0.01, 404),
    "400": status(0.01, 400),
}


@pytest.mark.parametrize("failing", FAILING.values(), ids=FAILING.keys())
def test_a_failing_backup_never_reaches_the_client_while_the_primary_lives(failing: list[Step]) -> None:
    """After any failure of a backup the primary's answer arrives."""
    told = run_race(Scripted(answer(1.0)), Scripted(failing))
    assert told.client.got == COMPLETE
    assert told.client.error is None
    assert told.report.winner == "a"
    assert sum(isinstance(event, AttemptFailed) for event in told.events) == 1


@pytest.mark.parametrize(
    "failing", [v for k, v in FAILING.items() if k != "400"], ids=[k for k in FAILING if k != "400"]
)
def test_a_failing_primary_is_replaced_at_once(failing: list[Step]) -> None:
    """A failure before first content costs the client its own time and nothing else."""
    told = run_race(Scripted(failing), Scripted(answer(0.05)), hedge=OFF)
    assert told.client.got == COMPLETE
    assert [attempt.role for attempt in told.report.attempts] == [Role.PRIMARY, Role.FAILOVER]
    assert told.report.ttft_s is not None
    assert told.report.ttft_s < 0.1
    assert told.report.status == 200


def test_a_failing_primary_leaves_the_race_to_its_backup() -> None:
    """If a backup is under way no third attempt is started."""
    told = run_race(Scripted([(0.2, ConnectionCut("cut"))]), Scripted(answer(0.5)), Scripted(answer(0.01)))
    assert told.report.winner == "b"
    assert len(told.report.attempts) == 2


@pytest.mark.parametrize("refusal", [status(0.3, 400, "content_filter"), [(0.3, REFUSAL), (0.3, FINISH), (0.3, None)]])
def test_a_refusal_of_the_primary_is_never_overridden(refusal: list[Step]) -> None:
    """A content-policy answer ends the race although a backup would have answered."""
    told = run_race(Scripted(refusal), Scripted(answer(0.4)))
    assert b"ab" not in told.client.got
    assert told.replicas[1].streams[0].closed_s == pytest.approx(0.3)
    if told.client.error is not None:
        assert (told.client.error.status, told.client.error.code) == (400, "content_filter")
    assert told.report.attempts[0].outcome is Outcome.MODEL_REFUSAL


def test_a_callers_error_is_an_answer() -> None:
    """A 400 from the primary goes to the client immediately, with no further try."""
    told = run_race(Scripted(status(0.01, 400, "invalid_value")), Scripted(answer(0.01)))
    assert told.client.error is not None
    assert (told.client.error.status, told.client.error.code) == (400, "invalid_value")
    assert len(told.report.attempts) == 1
    assert told.pools[0].replicas[0].breaker.failures == 0


def test_an_upstreams_401_is_the_gateways_own_fault() -> None:
    """A 401 from every upstream becomes 502, never the caller's 401."""
    told = run_race(Scripted(status(0.01, 401)), Scripted(status(0.01, 401, "invalid_api_key")))
    assert told.client.error is not None
    assert (told.client.error.status, told.client.error.code) == (502, "upstream_misconfigured")


def test_all_rate_limited_says_the_smallest_honest_wait() -> None:
    """If every replica answers 429 the client gets 429 with the smallest Retry-After."""
    told = run_race(Scripted(status(0.01, 429, None, 20.0)), Scripted(status(0.01, 429, None, 7.0)))
    error = told.client.error
    assert error is not None
    assert (error.status, error.retry_after_s, error.should_retry) == (429, 7.0, None)


def test_a_valid_empty_answer_wins_only_if_nothing_else_is_left() -> None:
    """finish_reason without content waits for the other attempt, and is the answer when that one fails."""
    empty: list[Step] = [(0.001, "headers"), (0.001, ROLE), (0.2, FINISH), (0.2, DONE), (0.2, None)]
    won = run_race(Scripted(empty), Scripted(answer(0.3)))
    assert won.client.got == COMPLETE
    assert [(each.outcome, each.empty) for each in won.report.attempts] == [
        (Outcome.LOST, True),
        (Outcome.FINISHED, False),
    ]
    told = run_race(Scripted(empty), Scripted([(0.3, ConnectionCut("cut"))]))
    assert told.client.got == b"<role><stop><done>"
    assert told.client.finished
    assert run_race(Scripted(empty)).client.finished


def test_a_cut_winner_never_ends_cleanly() -> None:
    """After first content a cut, an error frame, a stall or broken events end a stream with an error."""
    start: list[Step] = [(0.001, "headers"), (0.01, text("a"))]
    cuts: list[list[Step]] = [
        [*start, (0.02, ConnectionCut("cut"))],
        [*start, (0.02, Frame(FrameKind.ERROR, b"e", error=ErrorFrame("boom")))],
        [*start, (0.02, BROKEN), (0.03, BROKEN)],
        start,
    ]
    for cut in cuts:
        told = run_race(Scripted(cut), Scripted(answer(0.01)))
        assert told.client.got == b"a"
        assert told.client.error is not None
        assert not told.client.finished
        assert told.report.attempts[0].outcome is Outcome.CUT
        assert told.report.status >= 500
        assert (told.report.winner, told.report.events) == (None, 1)
        assert told.report.ttft_s == pytest.approx(0.01)


def test_one_malformed_event_is_skipped_and_counted() -> None:
    """A single broken event in a good stream is dropped, the rest arrives."""
    steps = answer(0.01)
    told = run_race(Scripted([*steps[:3], (0.012, BROKEN), *steps[3:]]))
    assert told.client.got == COMPLETE
    assert told.report.malformed == 1


def test_a_cut_before_anything_was_sent_is_tried_again() -> None:
    """A non-streaming answer that is cut in the middle is asked for elsewhere."""
    cut: list[Step] = [(0.001, "headers"), (0.01, text("x")), (0.02, ConnectionCut("cut"))]
    told = run_race(Scripted(cut), Scripted(answer(0.01)), streaming=False)
    assert told.client.got == COMPLETE
    assert told.client.finished


def test_a_protocol_error_in_the_preamble_is_bounded() -> None:
    """The bytes held back before first content are bounded, so that an endless preamble fails the attempt."""
    told = run_race(Scripted(FAILING["endless preamble"]), hedge=HEDGED)
    assert told.client.error is not None
    assert told.client.error.code == "upstream_protocol_error"


def test_a_preamble_may_repeat_a_large_request() -> None:
    """The bound grows with the request, because Responses repeat instructions and tools before any content."""
    repeated = [(0.005, Frame(FrameKind.PREAMBLE, b"p" * 150_000))] * 2
    told = run_race(Scripted([repeated[0], repeated[1], *answer(0.01)]), body=b"{" + b" " * 140_000 + b"}")
    assert (told.client.finished, len(told.client.got)) == (True, 300_000 + len(COMPLETE))


def test_a_request_that_cannot_be_sent_costs_its_attempt_only() -> None:
    """After an endpoint that raises another replica is tried; the race continues."""

    class Broken(Scripted):
        def open(self, call: Call, sink: Sink) -> ScriptedStream:
            """Raise as a bug would."""
            raise ZeroDivisionError

    told = run_race(Broken([]), Scripted(answer(0.05)), hedge=OFF)
    assert told.client.got == COMPLETE
    assert [attempt.role for attempt in told.report.attempts] == [Role.PRIMARY, Role.FAILOVER]
    assert told.report.attempts[0].outcome is Outcome.UNSUPPORTED  # no fault of the replica: no breaker gets a signal
