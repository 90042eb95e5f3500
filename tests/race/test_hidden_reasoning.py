"""Answers that begin with hidden reasoning: detected, and then not hedged unless configured."""

import asyncio
import json
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from gateway.race.race import Race
from openai_calls import STREAMED
from providers.openai.chat import OpenAIChat
from scripted import DONE, FINISH, HEDGED, Outcome, RecordingClient, Scripted, Step, answer, run_race, text
from ttft_gateway.apis.anthropic.events import MessageReader
from ttft_gateway.apis.base import EventReader, Frame, FrameKind, Usage
from ttft_gateway.apis.errors import ConnectionCut
from ttft_gateway.apis.responses.events import ResponsesReader
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.hedging.outcomes import Denial
from ttft_gateway.pool.pool import Pool

_CHUNK = {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]}


@pytest.mark.parametrize("shown", [{}, {"reasoning_content": "Hm"}, {"reasoning": "Hm"}])
def test_reasoning_that_no_event_shows_is_hidden(shown: dict[str, str]) -> None:
    """Counted and not streamed is hidden; counted and streamed is not."""
    reader = OpenAIChat().reader(STREAMED)
    usage = {"prompt_tokens": 9, "completion_tokens": 50, "completion_tokens_details": {"reasoning_tokens": 40}}
    for chunk in ({"choices": [{"index": 0, "delta": shown}]}, _CHUNK):
        reader.read(b"data: %b\n\n" % json.dumps(chunk).encode())
    frame = reader.read(b"data: %b\n\n" % json.dumps({"choices": [], "usage": usage}).encode())
    assert frame.usage == Usage(9, 50, None, 40, hidden_reasoning=not shown)


_ITEM = b'data: {"type":"response.output_item.added","item":{"type":"reasoning"}}\n\n'
_SUMMARY = b'data: {"type":"response.reasoning_summary_text.delta","delta":"Hm"}\n\n'
_COMPLETED = (
    b'data: {"type":"response.completed","response":{"usage":{"output_tokens_details":{"reasoning_tokens":40}}}}\n\n'
)
_THINKING = b'data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":""}}\n\n'
_THOUGHT = b'data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"Hm"}}\n\n'
_SIGNED = b'data: {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"xx"}}\n\n'
_STOPPED = b'data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":50}}\n\n'


@pytest.mark.parametrize(
    ("reader", "events", "hidden"),
    [
        (ResponsesReader(), (_ITEM, _COMPLETED), True),
        (ResponsesReader(), (_ITEM, _SUMMARY, _COMPLETED), False),
        (MessageReader("any"), (_THINKING, _SIGNED, _STOPPED), True),
        (MessageReader("any"), (_THINKING, _THOUGHT, _SIGNED, _STOPPED), False),
        (MessageReader("answer"), (_THINKING, _THOUGHT, _SIGNED, _STOPPED), False),
        (MessageReader("any"), (_STOPPED,), False),
    ],
)
def test_hidden_reasoning_of_other_apis(reader: EventReader, events: Sequence[bytes], *, hidden: bool) -> None:
    """Responses count its tokens and show no text; Messages sign a block of thinking without text."""
    frames = [reader.read(event) for event in events]
    assert frames[-1].usage is not None
    assert frames[-1].usage.hidden_reasoning is hidden


def _run(*, hidden: bool, answers: int, wanted: bool) -> Outcome:
    """A late request, after some answers of its pool."""
    late: list[Step] = [(1.0, text("a")), (1.0, FINISH), (1.0, DONE), (1.0, None)]

    def before(pools: list[Pool]) -> None:
        for _ in range(answers):
            pools[0].first_token.add_answer(hidden=hidden)

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
        asyncio.get_running_loop().call_later(0.01, lambda: pools[0].first_token.add_answer(hidden=True))

    told = run_race(Scripted(answer(1.0)), Scripted(answer(1.0)), hedge=HEDGED, during=learn)
    assert (told.report.denials, told.report.never_hedged) == ((Denial.HIDDEN_REASONING,), None)
    assert told.client.headers[b"x-ttft-denied"] == b"hidden_reasoning"


def test_what_answers_report_is_learned_and_forgotten() -> None:
    """A usage with hidden reasoning counts once its answer is complete; twenty others make up for it."""
    frame = Frame(FrameKind.USAGE, b"", Usage(9, 50, None, 40, hidden_reasoning=True))
    told = run_race(Scripted([(0.01, text("a")), (0.01, frame), (0.01, FINISH), (0.01, DONE), (0.01, None)]))
    choice = told.pools[0].first_token
    assert choice.hidden_share == 1.0
    for _ in range(40):
        choice.add_answer(hidden=False)
    assert choice.hidden_share < 0.2


@pytest.mark.parametrize("timed", [True, False])
def test_only_complete_streams_are_evidence_of_reasoning_that_is_shown(*, timed: bool) -> None:
    """An answer in one piece, or one that is cut, may hide reasoning although its usage does not report it."""
    usage = Frame(FrameKind.USAGE, b"", Usage(9, 1))
    ending: Sequence[Step] = [(0.02, ConnectionCut("cut"))] if timed else [(0.02, FINISH), (0.02, DONE), (0.02, None)]
    steps: list[Step] = [(0.01, usage), (0.01, text("a")), *ending]

    def before(pools: list[Pool]) -> None:
        pools[0].first_token.add_answer(hidden=True)

    told = run_race(Scripted(steps), prepare=before, facts=RequestFacts(timed=timed))
    assert told.pools[0].first_token.hidden_share == 1.0
