"""What a server refuses of how it is asked: learned per shape of a call, bounded, and forgotten."""

import pytest

from openai_calls import call_of
from providers.base import Call
from providers.errors import BadStatus
from providers.stream_support import USUAL, WHOLE, Manner, Manners

NO_OPTIONS = Manner(options=False)
ASKED = {"model": "m", "messages": [], "stream": True}


def refusal(message: str, status: int = 400, param: str | None = None) -> BadStatus:
    """What a server says."""
    return BadStatus(message, status=status, param=param)


@pytest.mark.parametrize(
    ("options", "error", "now"),
    [
        (None, refusal("Unrecognized request argument supplied: stream_options"), NO_OPTIONS),
        (None, refusal("Extra inputs are not permitted", 422, "body.stream_options"), NO_OPTIONS),
        (None, refusal("Unknown parameter", param="stream_options.include_usage"), NO_OPTIONS),
        (None, refusal("Streaming is not supported", param="stream"), WHOLE),
        (None, refusal("Unsupported value: 'stream' does not support true"), WHOLE),
        ({"include_usage": True}, refusal("stream_options: unknown field"), NO_OPTIONS),
        ({"include_usage": True}, refusal("no streaming here", 422), WHOLE),
        ({"include_usage": True, "x": 1}, refusal("Unknown parameter: 'stream_options.x'"), USUAL),
        ("yes", refusal("stream_options: expected an object"), USUAL),
        (None, refusal("stream broke", 500), USUAL),
        (None, refusal("temperature is too high"), USUAL),
    ],
)
def test_what_is_refused_is_not_asked_again(options: object, error: BadStatus, now: Manner) -> None:
    """A refusal changes how calls of this shape are sent, unless the caller's own options are to blame."""
    call = call_of(ASKED if options is None else {**ASKED, "stream_options": options})
    manners = Manners()
    assert manners.refused(call, USUAL, error, 0.0) == (now != USUAL)
    assert manners.of(call, 1.0) == now
    assert manners.of(call_of({**ASKED, "best_of": 2}), 1.0) == USUAL
    assert manners.of(call, 601.0) == USUAL


def test_one_thing_after_the_other_is_left_out() -> None:
    """A server that takes neither options nor streams is found out in two steps, and then there is no third."""
    call, manners = call_of(ASKED), Manners()
    assert manners.refused(call, USUAL, refusal("stream_options is unknown"), 0.0)
    assert manners.refused(call, NO_OPTIONS, refusal("stream is unknown"), 0.0)
    assert manners.of(call, 0.0) == WHOLE
    assert not manners.refused(call, WHOLE, refusal("cannot stream"), 0.0)
    assert manners.of(call, 0.0) == USUAL


def test_what_did_not_help_is_forgotten() -> None:
    """Where the other way is refused, too, the reason was another one, and the server is asked as usual again."""
    call, manners = call_of(ASKED), Manners()
    manners.refused(call, USUAL, refusal("messages: 'stream' is no role"), 0.0)
    assert not manners.refused(call, WHOLE, refusal("messages: 'stream' is no role"), 0.0)
    assert not manners


def test_memory_is_bounded() -> None:
    """However many shapes are refused, a few dozen are remembered, the latest ones."""
    manners, calls = Manners(), list[Call]()
    for number in range(200):
        calls.append(call_of({**ASKED, f"x{number}": 1}))
        manners.refused(calls[-1], USUAL, refusal("no stream"), 0.0)
    known = [manners.of(call, 1.0) == WHOLE for call in calls]
    assert (sum(known), known[-64:]) == (64, [True] * 64)
    huge = call_of({**ASKED, **{f"y{number}": 1 for number in range(100)}})
    assert not manners.refused(huge, USUAL, refusal("no stream"), 0.0)
