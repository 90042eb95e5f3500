"""The states of a request, and every transition between them, as one table. Pure.

    RACING      attempts compete for the first token, or a retry waits for its time
    WORKING     one attempt has shown a sign of work; its content is awaited, and no other attempt is started
    STREAMING   one attempt has won; its events go to the client
    RECOVERING  the winner's stream broke; another attempt is to carry the answer on
    MEASURING   the client has its answer; an attempt that lost is read until its first token, and thrown away
    OVER        the request has ended, with an answer or with an error

The effect of a trigger is decided elsewhere: `failures.next_step` for failed attempts, `RetryPlan` for the next
replica. The race enters a state only through this table, so a transition that is missing here cannot happen.
"""

import enum
from collections.abc import Mapping
from typing import Final


class State(enum.Enum):
    """State of one request; the value is the name in drawings."""

    __hash__ = object.__hash__  # a C function; Enum's own is Python's, and these are looked up for every request

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
    NOTHING_LEFT = "nothing left to try"
    UNUSABLE = "answer cannot be sent"
    TIMED_OUT = "total timeout"
    CLIENT_GONE = "client disconnected"
    MEASURED = "loser has ended"
    DRAINED = "gateway stops"


_ENDS: Final = (Trigger.UNUSABLE, Trigger.TIMED_OUT, Trigger.CLIENT_GONE, Trigger.DRAINED)
ENDED: Final = (State.MEASURING, State.OVER)  # for the client
OUTLIVED: Final = (Trigger.COMPLETE, Trigger.CLIENT_GONE)  # ends after which an attempt is read on
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
        State.OVER,  # part of the answer was sent, and it cannot be carried on
    ),
    (State.STREAMING, Trigger.DIVERGED): (State.RECOVERING,),
    (State.RECOVERING, Trigger.FIRST_CONTENT): (State.STREAMING,),
    (State.RECOVERING, Trigger.EMPTY): (State.STREAMING,),
    (State.RECOVERING, Trigger.NOTHING_LEFT): (State.OVER,),
    **{(state, end): (State.OVER,) for state in _UNANSWERED for end in _ENDS},
    (State.STREAMING, Trigger.CLIENT_GONE): (State.OVER, State.MEASURING),
    (State.MEASURING, Trigger.MEASURED): (State.OVER,),
}
"""State and trigger -> the states that may follow. A failed attempt that changes no state has no row."""


def mermaid() -> str:
    """Return the table as a Mermaid state diagram; triggers that end every state are drawn once."""
    lines = ["stateDiagram-v2", f"    [*] --> {State.RACING.value}"]
    for (state, trigger), following in TRANSITIONS.items():
        drawn = [after for after in following if trigger not in _ENDS or after is not State.OVER]
        lines += [f"    {state.value} --> {after.value}: {trigger.value}" for after in drawn]
    ends = ", ".join(end.value for end in _ENDS)
    lines += [f"    note right of {State.OVER.value}: from every state before an answer's end by {ends}"]
    return "\n".join([*lines, f"    {State.OVER.value} --> [*]"])
