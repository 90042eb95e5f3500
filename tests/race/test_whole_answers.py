"""Deadlines that expire after an answer's finish: the answer is whole, whatever its server does next."""

import asyncio

import pytest

from defaults import default_timeouts
from gateway.race.race import Race
from scripted import BROKEN, FINISH, RecordingClient, Scripted, Step, run_race, text
from ttft_gateway.apis.base import Frame, FrameKind
from ttft_gateway.apis.errors import ErrorFrame
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.pool.pool import Pool

SAID: list[Step] = [(0.001, "headers"), (0.01, text("a")), (0.02, FINISH)]
WHOLE: list[Step] = [*SAID, (0.02, "whole")]
SHORT = default_timeouts(stall_s=1.0, total_s=30.0)


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize(
    ("after", "end_s"),
    [
        ([], 1.02),  # `stall`, which is shorter than the stream's own wait
        ([(0.03, BROKEN), (0.04, BROKEN)], 0.04),
        ([(0.03, Frame(FrameKind.ERROR, b"e", error=ErrorFrame("boom")))], 0.03),
    ],
)
def test_a_failure_after_the_finish_costs_nothing(after: list[Step], end_s: float, *, streaming: bool) -> None:
    """Silence, malformed events or an error after the finish end a whole answer, and only a whole one."""
    told = run_race(Scripted([*WHOLE, *after]), timeouts=SHORT, streaming=streaming)
    assert (told.client.got, told.client.finished, told.client.error) == (b"a<stop>", True, None)
    assert told.end_s == pytest.approx(end_s, abs=0.001)
    assert [attempt.outcome.value for attempt in told.report.attempts] == ["finished"]
    told = run_race(Scripted([*SAID, *after]), timeouts=SHORT, streaming=streaming)
    assert not told.client.finished


def test_the_total_time_costs_a_whole_answer_nothing() -> None:
    """An answer is whole at its request's deadline if its finish came in time."""
    late: list[Step] = [(0.001, "headers"), (29.5, text("a")), (29.5, FINISH), (29.5, "whole")]
    told = run_race(Scripted(late), timeouts=default_timeouts(ttft_failover_s=60.0, ttft_max_s=60.0, total_s=30.0))
    assert (told.client.got, told.client.finished) == (b"a<stop>", True)
    assert told.end_s == pytest.approx(30.0, abs=0.01)


def test_the_callers_deadline_costs_a_whole_answer_nothing() -> None:
    """An answer is whole if its finish came in time, although its server is silent until the deadline."""
    outcome = run_race(Scripted([*WHOLE, (9.0, BROKEN)]), facts=RequestFacts(deadline_s=0.8, read_timeout_s=0.8))
    assert outcome.client.finished


def test_a_gateway_that_stops_finishes_a_whole_answer() -> None:
    """At the end of the drain period an answer that has its finish is complete."""

    def stop(race: Race, _client: RecordingClient, _pools: list[Pool]) -> None:
        asyncio.get_running_loop().call_later(0.5, race.shut_down)

    told = run_race(Scripted(WHOLE), during=stop)
    assert (told.client.got, told.client.finished, told.report.status) == (b"a<stop>", True, 200)
    assert run_race(Scripted(SAID), during=stop).client.error is not None
