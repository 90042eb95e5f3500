"""Answers that begin with hidden reasoning: detected, and then not hedged unless configured."""

import asyncio
import json
from dataclasses import replace

import pytest

from gateway.hedging.outcomes import Denial
from gateway.pool.pool import Pool
from gateway.race.race import Race
from openai_calls import STREAMED
from providers.base import Frame, FrameKind, Usage
from providers.openai.chat import OpenAIChat
from scripted import DONE, FINISH, HEDGED, Outcome, RecordingClient, Scripted, Step, answer, run_race, text

_CHUNK = {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]}


@pytest.mark.parametrize("shown", [{}, {"reasoning_content": "Hm"}, {"reasoning": "Hm"}])
def test_reasoning_that_no_event_shows_is_hidden(shown: dict[str, str]) -> None:
    """Counted and not streamed is hidden; counted and streamed is not."""
    reader = OpenAIChat().reader(STREAMED)
    usage = {"prompt_tokens": 9, "completion_tokens": 50, "completion_tokens_details": {"reasoning_tokens": 40}}
    for chunk in ({"choices": [{"index": 0, "delta": shown}]}, _CHUNK):
        reader.read(b"data: %b\n\n" % json.dumps(chunk).encode())
    frame = reader.read(b"data: %b\n\n" % json.dumps({"choices": [], "usage": usage}).encode())
    assert frame.usage == Usage(9, 50, None, 40, None if shown else 40)


def _run(*, hidden: bool, answers: int, wanted: bool) -> Outcome:
    """A late request, after some answers of its pool."""
    late: list[Step] = [(1.0, text("a")), (1.0, FINISH), (1.0, DONE), (1.0, None)]

    def before(pools: list[Pool]) -> None:
        for _ in range(answers):
            pools[0].learning.add_hidden(hidden=hidden)

    hedge = replace(HEDGED, hedge_hidden_reasoning=wanted)
    return run_race(Scripted(late), Scripted(late), hedge=hedge, prepare=before)


@pytest.mark.parametrize(
    ("hidden", "answers", "wanted", "attempts"),
    [(True, 3, False, 1), (True, 3, True, 2), (False, 3, False, 2), (True, 0, False, 2)],
)
def test_a_pool_that_thinks_unseen_is_not_hedged(*, hidden: bool, answers: int, wanted: bool, attempts: int) -> None:
    """The usage of its answers decides, and the setting overrides it."""
    report = _run(hidden=hidden, answers=answers, wanted=wanted).report
    assert len(report.attempts) == attempts
    assert report.never_hedged is (Denial.HIDDEN_REASONING if attempts == 1 else None)


def test_reasoning_that_is_found_hidden_meanwhile_denies_the_hedge() -> None:
    """A request that was sent before its pool was known to hide reasoning is denied a hedge for that reason."""

    def learn(_race: Race, _client: RecordingClient, pools: list[Pool]) -> None:
        asyncio.get_running_loop().call_later(0.01, lambda: pools[0].learning.add_hidden(hidden=True))

    told = run_race(Scripted(answer(1.0)), Scripted(answer(1.0)), hedge=HEDGED, during=learn)
    assert (told.report.denials, told.report.never_hedged) == ((Denial.HIDDEN_REASONING,), None)
    assert told.client.headers[b"x-ttft-denied"] == b"hidden_reasoning"


def test_what_answers_report_is_learned_and_forgotten() -> None:
    """A usage with hidden tokens counts once its answer is complete; twenty others make up for it."""
    frame = Frame(FrameKind.USAGE, b"", Usage(9, 50, None, 40, 40))
    told = run_race(Scripted([(0.01, text("a")), (0.01, frame), (0.01, FINISH), (0.01, DONE), (0.01, None)]))
    learning = told.pools[0].learning
    assert learning.hidden_share == 1.0
    for _ in range(40):
        learning.add_hidden(hidden=False)
    assert learning.hidden_share < 0.2
