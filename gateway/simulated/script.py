"""The script of one simulated response: its writes, their times, and the end of the connection. Pure.

faults.py edits scripts; the socket server plays them. Units: seconds; `at_s` counts from
the request's slot, wall time from 1970.
"""

import enum
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from gateway.simulated.render import error_body
from ttft_gateway.apis.base import Api, Frame, FrameKind, Headers
from ttft_gateway.apis.errors import BadStatus

EVENT_STREAM: Headers = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"))
JSON: Headers = ((b"content-type", b"application/json"),)
"""First headers of every JSON response."""


class Step(NamedTuple):
    """One write and its time."""

    at_s: float
    frame: Frame


class End(enum.Enum):
    """End of a response, after the last step."""

    COMPLETE = "complete"  # the body ends as its framing requires
    FIN = "fin"  # the connection is closed before the end of the body
    RST = "rst"  # the connection is reset
    SILENCE = "silence"  # nothing, until the peer disconnects


class Framing(enum.Enum):
    """Delimiter of the body."""

    CHUNKED = "chunked"
    EXTENDED = "extended"  # chunked, with chunk extensions and trailers
    LENGTH = "length"  # content-length
    CLOSE = "close"  # the end of the connection is the end of the body


@dataclass(frozen=True, slots=True)
class FaultArgs:
    """Arguments of a fault.

    Attributes:
        count: events, bytes, or a status code.
        seconds: a delay or a wait.
        provider: provider of a rate limit; empty: the profile's.
        wall_s: wall time of the request, set when the fault is applied.
        api: API of the request, set when the fault is applied.
    """

    count: int = 0
    seconds: float = 0.0
    provider: str = ""
    wall_s: float = 0.0
    api: Api = Api.CHAT


class Script(msgspec.Struct, frozen=True):
    """One response.

    Attributes:
        status: HTTP status code; 0: no response head.
        headers: response headers, without the headers of the framing.
        head_s: delay from arrival to the head and the prelude; None: with the first step.
        prelude: events written with the head.
        steps: all other writes, in order.
        end: end of the response, after the last step.
        framing: delimiter of the body.
        length: bytes of the whole body, for Framing.LENGTH.
        slot: True if the request takes a slot, so that it may have to wait for one.
        informational: True if a 100 and a 103 precede the head.
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
        """True if the body is one JSON document, not a stream."""
        return self.headers[:1] == JSON


class ErrorFields(NamedTuple):
    """The status code and the error object of an error response."""

    status: int
    kind: str
    code: str | None
    message: str
    param: str | None = None


def error_page(_script: "Script", args: FaultArgs) -> Script:
    """Return an error page with the status `count`, as proxies and firewalls send: no error object blames anything."""
    status, page = args.count, f"<html><title>{args.count}</title></html>".encode()
    bad_status = BadStatus(f"the upstream answered with status {status}", status=status)
    step = Step(0.0, Frame(FrameKind.ERROR, page, error=bad_status))
    html = ((b"content-type", b"text/html"),)
    return Script(status, html, steps=(step,), framing=Framing.LENGTH, length=len(page), slot=False)


def error_script(
    error: ErrorFields, headers: Headers = (), retry_after_s: float | None = None, body: bytes = b""
) -> Script:
    """Return the script of an error response.

    Args:
        error: status code and error object.
        headers: headers after the content type.
        retry_after_s: wait stated in the headers or the body; None: none is stated.
        body: body in place of the OpenAI error object.
    """
    raw = body or error_body(error.message, error.kind, error.code, error.param)
    bad_status = BadStatus(
        error.message,
        status=error.status,
        kind=error.kind,
        param=error.param,
        code=error.code,
        retry_after_s=retry_after_s,
    )
    step = Step(0.0, Frame(FrameKind.ERROR, raw, error=bad_status))
    framing = Framing.LENGTH
    return Script(error.status, (*JSON, *headers), steps=(step,), framing=framing, length=len(raw), slot=False)
