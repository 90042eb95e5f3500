"""The states of one request, the triggers that change them, and the table of all changes; `race.py` follows the table.

RACING      attempts compete for the first token, or a retry waits for its time
WORKING     one attempt has shown a sign of work; its content is awaited, and no other attempt is started
STREAMING   one attempt has won; its events go to the client
RECOVERING  the winner's stream broke; another attempt is to continue the answer
MEASURING   the client has its answer; an attempt that lost is read until its first token, which is dropped
OVER        the request has ended, with an answer or with an error
"""

import enum
from collections.abc import Mapping
from typing import Final


class State(enum.Enum):
    """State of one request; the value is the name in drawings."""

    __hash__ = object.__hash__  # a C function, unlike Enum's own; states are looked up for every request

    RACING = "racing"
    WORKING = "working"
    STREAMING = "streaming"
    RECOVERING = "recovering"
    MEASURING = "measuring"
    OVER = "over"


class Trigger(enum.Enum):
    """Cause of a transition; the value is the label in drawings."""

    __hash__ = object.__hash__  # as above

    FIRST_WORK = "sign of work, timed as the first token"
    FIRST_CONTENT = "first content"
    EMPTY = "complete without content, and no other attempt is left"
    COMPLETE = "complete answer"
    FAILED = "attempt failed"
    DIVERGED = "answer differs from what the client has"
    OVERTAKEN = "a guard has brought new output first"
    NOTHING_LEFT = "nothing left to try"
    UNUSABLE = "answer cannot be sent"
    TIMED_OUT = "total timeout"
    CLIENT_GONE = "client disconnected"
    MEASURED = "loser has ended"
    DRAINED = "gateway stops"


ENDS: Final = (Trigger.UNUSABLE, Trigger.TIMED_OUT, Trigger.CLIENT_GONE, Trigger.DRAINED)
_UNANSWERED: Final = (State.RACING, State.WORKING, State.STREAMING, State.RECOVERING)

TRANSITIONS: Final[Mapping[tuple[State, Trigger], tuple[State, ...]]] = {
    (State.RACING, Trigger.FIRST_WORK): (State.WORKING,),
    (State.RACING, Trigger.FIRST_CONTENT): (State.STREAMING,),
    (State.RACING, Trigger.EMPTY): (State.STREAMING,),
    (State.RACING, Trigger.FAILED): (State.OVER,),  # the failure is the answer
    (State.RACING, Trigger.NOTHING_LEFT): (State.OVER,),
    (State.WORKING, Trigger.FIRST_CONTENT): (State.STREAMING,),
    (State.WORKING, Trigger.EMPTY): (State.STREAMING,),
    (State.WORKING, Trigger.FAILED): (State.RACING,),  # nothing had been sent to the client
    (State.STREAMING, Trigger.COMPLETE): (State.OVER, State.MEASURING),
    (State.STREAMING, Trigger.FAILED): (
        State.RACING,  # nothing had been sent to the client
        State.RECOVERING,
        State.OVER,  # part of the answer was sent, and it cannot be continued
    ),
    (State.STREAMING, Trigger.DIVERGED): (State.RECOVERING,),
    (State.STREAMING, Trigger.OVERTAKEN): (State.RECOVERING,),  # and in the same instant first content
    (State.RECOVERING, Trigger.FIRST_CONTENT): (State.STREAMING,),
    (State.RECOVERING, Trigger.EMPTY): (State.STREAMING,),
    (State.RECOVERING, Trigger.NOTHING_LEFT): (State.OVER,),
    **{(state, end): (State.OVER,) for state in _UNANSWERED for end in ENDS},
    (State.STREAMING, Trigger.CLIENT_GONE): (State.OVER, State.MEASURING),
    (State.MEASURING, Trigger.MEASURED): (State.OVER,),
}
"""State and trigger -> the states that may follow. A failed attempt that changes no state has no row."""
