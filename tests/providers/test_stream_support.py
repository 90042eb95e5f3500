"""Rejected request modes: learned for each shape of a call, bounded, and forgotten."""

import pytest

from openai_calls import call_of
from providers.stream_support import DEFAULT, UNSTREAMED, RequestMode, StreamSupport
from ttft_gateway.apis.base import Call
from ttft_gateway.apis.errors import BadStatus

NO_OPTIONS = RequestMode(options=False)
ASKED = {"model": "m", "messages": [], "stream": True}


def rejection(message: str, status: int = 400, param: str | None = None) -> BadStatus:
    """A server's error."""
    return BadStatus(message, status=status, param=param)


@pytest.mark.parametrize(
    ("options", "error", "now"),
    [
        (None, rejection("Unrecognized request argument supplied: stream_options"), NO_OPTIONS),
        (None, rejection("Extra inputs are not permitted", 422, "body.stream_options"), NO_OPTIONS),
        (None, rejection("Unknown parameter", param="stream_options.include_usage"), NO_OPTIONS),
        (None, rejection("Streaming is not supported", param="stream"), UNSTREAMED),
        (None, rejection("Unsupported value: 'stream' does not support true"), UNSTREAMED),
        ({"include_usage": True}, rejection("stream_options: unknown field"), NO_OPTIONS),
        ({"include_usage": True}, rejection("no streaming here", 422), UNSTREAMED),
        ({"include_usage": True, "x": 1}, rejection("Unknown parameter: 'stream_options.x'"), DEFAULT),
        ("yes", rejection("stream_options: expected an object"), DEFAULT),
        (None, rejection("stream broke", 500), DEFAULT),
        (None, rejection("temperature is too high"), DEFAULT),
    ],
)
def test_rejected_modes_are_not_used_again(options: object, error: BadStatus, now: RequestMode) -> None:
    """A refusal changes how calls of this shape are sent, unless the caller's own options are to blame."""
    call = call_of(ASKED if options is None else {**ASKED, "stream_options": options})
    support = StreamSupport()
    assert support.rejected(call, DEFAULT, error, 0.0) == (now != DEFAULT)
    assert support.mode_for(call, 1.0) == now
    assert support.mode_for(call_of({**ASKED, "best_of": 2}), 1.0) == DEFAULT
    assert support.mode_for(call, 601.0) == DEFAULT


def test_one_thing_after_the_other_is_left_out() -> None:
    """A server that takes neither options nor streams is found out in two steps, and then there is no third."""
    call, support = call_of(ASKED), StreamSupport()
    assert support.rejected(call, DEFAULT, rejection("stream_options is unknown"), 0.0)
    assert support.rejected(call, NO_OPTIONS, rejection("stream is unknown"), 0.0)
    assert support.mode_for(call, 0.0) == UNSTREAMED
    assert not support.rejected(call, UNSTREAMED, rejection("cannot stream"), 0.0)
    assert support.mode_for(call, 0.0) == DEFAULT


def test_a_mode_that_does_not_help_is_forgotten() -> None:
    """If the other mode is rejected too, the reason was another one, and the default mode is used again."""
    call, support = call_of(ASKED), StreamSupport()
    support.rejected(call, DEFAULT, rejection("messages: 'stream' is no role"), 0.0)
    assert not support.rejected(call, UNSTREAMED, rejection("messages: 'stream' is no role"), 0.0)
    assert not support.learned


def test_memory_is_bounded() -> None:
    """However many shapes are refused, a few dozen are remembered, the latest ones."""
    support, calls = StreamSupport(), list[Call]()
    for number in range(200):
        calls.append(call_of({**ASKED, f"x{number}": 1}))
        support.rejected(calls[-1], DEFAULT, rejection("no stream"), 0.0)
    known = [support.mode_for(call, 1.0) == UNSTREAMED for call in calls]
    assert (sum(known), known[-64:]) == (64, [True] * 64)
    huge = call_of({**ASKED, **{f"y{number}": 1 for number in range(100)}})
    assert not support.rejected(huge, DEFAULT, rejection("no stream"), 0.0)
