"""The script of one simulated response: what is sent, when, and how the connection ends. Pure data and error answers.

Misbehaviour (faults.py) edits scripts; the socket server and the in-process endpoint play them. Units:
seconds, `at_s` after the work on the request began; the wall time of an answer is seconds since 1970.
"""

import enum
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from providers.base import Frame, FrameKind, Headers
from providers.errors import BadStatus
from providers.simulated.render import error_body

EVENT_STREAM: Headers = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"))
JSON: Headers = ((b"content-type", b"application/json"),)
"""What every JSON answer's headers begin with."""


class Step(NamedTuple):
    """One write: when, and what."""

    at_s: float
    frame: Frame


class End(enum.Enum):
    """What follows the last step."""

    COMPLETE = "complete"  # the body is ended as its framing demands
    FIN = "fin"  # the connection is closed and the body is not ended
    RST = "rst"  # the connection is reset
    SILENCE = "silence"  # nothing, until the peer leaves


class Framing(enum.Enum):
    """How the body is delimited."""

    CHUNKED = "chunked"
    EXTENDED = "extended"  # chunked, with chunk extensions and trailers
    LENGTH = "length"  # content-length
    CLOSE = "close"  # the end of the connection is the end of the body


@dataclass(frozen=True, slots=True)
class FaultArgs:
    """Arguments of a misbehaviour.

    Attributes:
        count: events, bytes, or a status.
        seconds: a delay or a wait.
        word: a provider's name; empty: that of the profile.
        wall_s: wall time at which the fault happens, filled in when it does.
    """

    count: int = 0
    seconds: float = 0.0
    word: str = ""
    wall_s: float = 0.0


class Script(msgspec.Struct, frozen=True):
    """One response.

    Attributes:
        status: HTTP status, 0: no response head at all.
        headers: besides those that the framing needs.
        head_s: the head and the prelude are sent so long after arrival; None: with the first step.
        prelude: events that go out with the head.
        steps: everything else, in order, from the beginning of the work on.
        end: what follows the last step.
        framing: of the body.
        length: bytes of the whole body, for Framing.LENGTH.
        slot: the request takes a slot, so that it may have to wait for one.
        informational: a 100 and a 103 are sent before the head.
    """

    status: int = 200
    headers: Headers = EVENT_STREAM
    head_s: float | None = None
    prelude: tuple[Frame, ...] = ()
    steps: tuple[Step, ...] = ()
    end: End = End.COMPLETE
    framing: Framing = Framing.CHUNKED
    length: int = 0
    slot: bool = True
    informational: bool = False

    @property
    def json(self) -> bool:
        """The body is one JSON document, not a stream."""
        return self.headers[:1] == JSON


class ErrorFields(NamedTuple):
    """An error answer: the status, and the fields of the error object."""

    status: int
    kind: str
    code: str | None
    message: str
    param: str | None = None


def error_script(
    error: ErrorFields, headers: Headers = (), retry_after_s: float | None = None, body: bytes = b""
) -> Script:
    """An answer that is nothing but an error.

    Args:
        problem: what is wrong.
        headers: besides the content type.
        retry_after_s: the wait that the headers or the body ask for.
        body: instead of the error object that says `problem`.
    """
    said = body or error_body(error.message, error.kind, error.code, error.param)
    bad_status = BadStatus(
        error.message,
        status=error.status,
        kind=error.kind,
        param=error.param,
        code=error.code,
        retry_after_s=retry_after_s,
    )
    step = Step(0.0, Frame(FrameKind.ERROR, said, error=bad_status))
    framing = Framing.LENGTH
    return Script(error.status, (*JSON, *headers), steps=(step,), framing=framing, length=len(said), slot=False)
