"""A logged request as a replay uses it, and the reasons for which a line is not used. Pure data.

Independent of the format of the log. Units: seconds; arrivals in seconds since any fixed time; tokens.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class LoggedAttempt(NamedTuple):
    """An attempt after the first one of its request.

    Attributes:
        arrived_s: time at which it was sent.
        replica: its replica.
        wait_s: time to its first token; of a cancelled attempt, the time until it was cancelled.
        cancelled: True if it had no first token when it was cancelled.
        refused: True if it ended at once, without a token.
    """

    arrived_s: float
    replica: str
    wait_s: float
    cancelled: bool
    refused: bool


class LoggedRequest(NamedTuple):
    """A request with the time of its first token.

    Attributes:
        arrived_s: time at which it was sent to the replica.
        model: name of the model.
        replica: replica that received it first.
        tokens: tokens of the prompt; 0 if unknown.
        ttft_s: time to the first token; of a cancelled request, the time until it was cancelled.
        rest_s: time from the first token to the end of the answer; 0 if unknown.
        cancelled: True if it had no first token when it was cancelled.
        hedgeable: False if it may not be hedged, for a reason that the log has.
        answer_tokens: tokens of the answer; 0 if unknown.
        refused: True if its replica refused it at once; it then has a wait that is cancelled after no time.
        later: further attempts.
    """

    arrived_s: float
    model: str
    replica: str
    tokens: float
    ttft_s: float
    rest_s: float = 0.0
    cancelled: bool = False
    hedgeable: bool = True
    answer_tokens: float = 0.0
    refused: bool = False
    later: tuple[LoggedAttempt, ...] = ()


class Unused(NamedTuple):
    """A line that a replay does not use, with the reason in a few words."""

    reason: str


class LineError(ValueError):
    """A line is not one of its format; the message has the value found and the action."""


@dataclass(slots=True)
class Contents:
    """Contents of a log.

    Attributes:
        kind: format of the log, for people.
        lines: lines read, without empty ones.
        unused: number of lines that are no usable request, by reason.
        unreadable: number of lines that are not in the format.
        first_unreadable: message for the first of them, with its line number; empty if there is none.
        models: number of usable requests of each model; models beyond the bound are counted under OTHERS.
        requests: usable requests of each model, by arrival; of a long log, stretches that are spread over it.
        fields: names of the fields of the first lines.
    """

    kind: str
    lines: int = 0
    unused: Counter[str] = field(default_factory=Counter)
    unreadable: int = 0
    first_unreadable: str = ""
    models: Counter[str] = field(default_factory=Counter)
    requests: Mapping[str, Sequence[LoggedRequest]] = field(default_factory=dict)
    fields: set[str] = field(default_factory=set)
