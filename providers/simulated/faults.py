"""Every misbehaviour a simulated replica can show: one table, name -> fault, and the small language that asks for them.

A fault edits the request as understood, the answer, or the script; a few are for the socket server to act out. The
language: `NAME[:ARG[,ARG]]`, several joined by `+`; a rule adds when: `429:azure,2s once`, `cut_fin:40 first 3`,
`crlf+split:7 always`, `500 4%`. ARG is a count, a duration or a word. Counts of events are counts of content events.
"""

import dataclasses
import enum
import re
from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from providers.simulated import edits
from providers.simulated.completion import Completion
from providers.simulated.quantities import UnitError, duration, share
from providers.simulated.rate_limiter import LIMIT_HEADERS, rate_limited
from providers.simulated.request import ParsedRequest
from providers.simulated.script import End, ErrorFields, FaultArgs, Framing, Script, error_script

COUNT_MAX = 16 * 1024 * 1024
SECONDS_MAX = 3600.0


class ConnectionAction(enum.Enum):
    """What the driver of a script must do itself."""

    RESET_ACCEPT = "reset_accept"  # reset each new connection before anything is read
    REFUSE = "refuse"  # reset this connection and do not listen for a while
    SLOW_READ = "slow_read"  # read the request body slowly
    EARLY = "early"  # answer before the request body has been read


class Fault(NamedTuple):
    """One misbehaviour.

    Attributes:
        text: what it is.
        takes: which arguments may be given: some of "count", "seconds", "word".
        default: arguments that were not given.
        ask, answer, script: what it changes; None: nothing.
        act: what the driver must do.
        wire: it is about bytes on a socket and means nothing in process.
    """

    text: str
    takes: str = ""
    default: FaultArgs = FaultArgs()
    edit_request: Callable[[ParsedRequest], ParsedRequest] | None = None
    edit_completion: Callable[[Completion, FaultArgs], Completion] | None = None
    edit_script: Callable[[Script, FaultArgs], Script] | None = None
    action: ConnectionAction | None = None
    wire_only: bool = False


class InjectedFault(NamedTuple):
    """A fault with its arguments."""

    fault: Fault
    args: FaultArgs


class FaultRule(NamedTuple):
    """When which faults happen.

    Attributes:
        text: how it was written.
        wanted: the faults, applied in this order.
        share: the probability for each request.
        first: so often at most, None: always.
    """

    text: str
    faults: tuple[InjectedFault, ...]
    share: float
    first: int | None


def parse_faults(text: str) -> tuple[InjectedFault, ...]:
    """Read `NAME[:ARGS][+NAME[:ARGS]...]`.

    Raises:
        UnitError: There is no such fault, or it does not take these arguments.
    """
    return tuple(_parse_fault(part.strip()) for part in text.split("+"))


def parse_rule(value: object) -> FaultRule:
    """Read `FAULTS [once | always | first N | P%]`.

    Raises:
        UnitError: It cannot be read.
    """
    match = re.fullmatch(r"\s*(\S+)(?:\s+(?:(once)|always|first (\d+)|(\S+%)))?\s*", str(value))
    if match is None:
        raise UnitError(f"found {value!r}; write FAULT, or FAULT once, FAULT first 3, FAULT 5%")
    spec, once, first, percent = match.groups()
    times = 1 if once else int(first) if first else None
    return FaultRule(str(value), parse_faults(spec), share(percent) if percent else 1.0, times)


def _parse_fault(text: str) -> InjectedFault:
    name, _, rest = text.partition(":")
    fault = FAULTS.get(name)
    if fault is None:
        raise UnitError(f"found the fault {name!r}; write one of {', '.join(FAULTS)}")
    given = fault.default
    for word in filter(None, rest.split(",")):
        if word.isdigit() and "count" in fault.takes:
            given = dataclasses.replace(given, count=min(int(word), COUNT_MAX))
        elif word in LIMIT_HEADERS and "word" in fault.takes:
            given = dataclasses.replace(given, word=word)
        elif "seconds" in fault.takes:
            given = dataclasses.replace(given, seconds=min(duration(word), SECONDS_MAX))
        else:
            raise UnitError(f"found {text!r}; {name} takes {fault.takes or 'nothing'}, not {word!r}")
    return InjectedFault(fault, given)


def _error(status: int, kind: str, code: str | None, message: str, param: str | None = None) -> edits.EditScript:
    """An error status at once; `seconds`, if given, becomes its Retry-After."""
    error = ErrorFields(status, kind, code, message, param)

    def edit(_script: Script, args: FaultArgs) -> Script:
        retry = ((b"retry-after", b"%d" % max(1, round(args.seconds))),) if args.seconds else ()
        return error_script(error, retry, args.seconds or None)

    return edit


def _status(_script: Script, args: FaultArgs) -> Script:
    return error_script(ErrorFields(args.count, "server_error", None, f"Simulated status {args.count}"))


def _nothing(end: End) -> edits.EditScript:
    """Not even a response head."""
    return lambda script, _args: replace(script, status=0, head_s=None, prelude=(), steps=(), end=end)


def _framed(framing: Framing) -> edits.EditScript:
    return lambda script, _args: replace(script, framing=framing)


_INVALID = "invalid_request_error"
_OVERLOADED = "The server is overloaded or not ready yet."
_TOO_LONG = "This model's maximum context length is 8192 tokens. Please reduce the length of the messages."
_POLICY = "Your request was rejected as a result of our safety system."
_NO_STREAM = "Streaming is not supported by this server."
_ERROR = "The server had an error while processing your request"
_COUNT_1 = FaultArgs(count=1)
_COUNT_3 = FaultArgs(count=3)

FAULTS: dict[str, Fault] = {
    # an error status, at once
    "429": Fault(
        "rate limited, in the form of a provider; seconds until the limit is lifted",
        "seconds word",
        FaultArgs(seconds=1.0),
        edit_script=lambda _script, args: rate_limited(args.word, args.seconds, args.wall_s),
    ),
    "500": Fault("internal error", edit_script=_error(500, "server_error", None, _ERROR)),
    "503": Fault(
        "overloaded; seconds: with a Retry-After", "seconds", edit_script=_error(503, "server_error", None, _OVERLOADED)
    ),
    "401": Fault("wrong key", edit_script=_error(401, _INVALID, "invalid_api_key", "Incorrect API key provided.")),
    "404": Fault(
        "no such model", edit_script=_error(404, _INVALID, "model_not_found", "The model does not exist.", "model")
    ),
    "status": Fault("any status", "count", FaultArgs(count=418), edit_script=_status),
    "context_length": Fault("400", edit_script=_error(400, _INVALID, "context_length_exceeded", _TOO_LONG, "messages")),
    "content_policy": Fault("400", edit_script=_error(400, _INVALID, "content_policy_violation", _POLICY)),
    "no_stream": Fault(
        "400 where a stream is asked for",
        edit_script=lambda script, _: (
            script if script.json else error_script(ErrorFields(400, _INVALID, None, _NO_STREAM, "stream"))
        ),
    ),
    "early_413": Fault(
        "answered before the request body was read",
        edit_script=_error(413, _INVALID, "request_too_large", "The request is too large."),
        action=ConnectionAction.EARLY,
    ),
    # a 200 that is none
    "error_frame": Fault("an error event after count events", "count", edit_script=edits.error_event(b"", _ERROR)),
    "error_event": Fault("the same, named", "count", edit_script=edits.error_event(b"event: error\n", _ERROR)),
    "finish_error": Fault("finish_reason error after count events", "count", edit_script=edits.finish_error()),
    "empty": Fault("a stream without events", edit_script=edits.short),
    "done": Fault("[DONE] at once", edit_script=edits.done),
    "json_error": Fault("a JSON error where a stream was asked for", edit_script=edits.json_error),
    "json_answer": Fault(
        "a JSON answer where a stream was asked for",
        edit_request=lambda request: replace(request, stream=False),
        wire_only=True,
    ),
    # connections
    "refuse": Fault(
        "this connection is reset, others are refused for seconds",
        "seconds",
        FaultArgs(seconds=1.0),
        action=ConnectionAction.REFUSE,
        edit_script=_nothing(End.RST),
    ),
    "reset_accept": Fault("reset when accepted", action=ConnectionAction.RESET_ACCEPT, edit_script=_nothing(End.RST)),
    "reset": Fault("reset when the request has been read", edit_script=_nothing(End.RST)),
    "silence": Fault("the request is read, nothing follows", edit_script=_nothing(End.SILENCE)),
    "headers_silence": Fault(
        "the head is sent, nothing follows",
        edit_script=lambda script, _: replace(script, head_s=0.0, steps=(), end=End.SILENCE),
    ),
    "slow_read": Fault(
        "the request body is read at count bytes a second",
        "count",
        FaultArgs(count=65536),
        action=ConnectionAction.SLOW_READ,
        wire_only=True,
    ),
    # cut after count events
    "cut_rst": Fault("reset", "count", _COUNT_3, edit_script=edits.cut(End.RST)),
    "cut_fin": Fault(
        "closed, and the body has no other end: it looks complete",
        "count",
        _COUNT_3,
        edit_script=edits.cut(End.FIN, Framing.CLOSE),
    ),
    "cut_chunked": Fault("closed without the last chunk", "count", _COUNT_3, edit_script=edits.cut(End.FIN)),
    "cut_mid": Fault("closed in the middle of the next event", "count", _COUNT_3, edit_script=edits.cut_mid),
    "short": Fault("the body ends properly", "count", _COUNT_3, edit_script=edits.short),
    # odd streams
    "stall": Fault(
        "nothing for seconds after count events", "count seconds", FaultArgs(3, 30.0), edit_script=edits.stall
    ),
    "malformed": Fault("one event after count events is not JSON", "count", _COUNT_1, edit_script=edits.malformed),
    "no_done": Fault("no [DONE]", edit_script=edits.no_done),
    "content_filter": Fault("stopped by a filter after count tokens", "count", edit_completion=edits.content_filter),
    "refusal": Fault("the model refuses", edit_completion=edits.refusal),
    "big": Fault("a first token of count bytes", "count", FaultArgs(count=1024 * 1024), edit_completion=edits.big),
    "pings": Fault("a comment before each event", edit_script=edits.pings),
    "crlf": Fault("CRLF line ends", edit_script=edits.crlf),
    # odd bytes
    "fields": Fault("id and retry fields, events without data", edit_script=edits.fields, wire_only=True),
    "split": Fault(
        "writes of up to count bytes", "count", FaultArgs(count=24), edit_script=edits.split, wire_only=True
    ),
    "utf8": Fault("a character cut in two", edit_completion=edits.accented, edit_script=edits.utf8, wire_only=True),
    "coalesce": Fault(
        "count events in a write", "count", FaultArgs(count=4), edit_script=edits.coalesce, wire_only=True
    ),
    "informational": Fault(
        "a 100 and a 103 before the answer",
        edit_script=lambda script, _: replace(script, informational=True),
        wire_only=True,
    ),
    "length": Fault("a content-length instead of chunks", edit_script=edits.with_length, wire_only=True),
    "close": Fault("the connection's end is the body's end", edit_script=_framed(Framing.CLOSE), wire_only=True),
    "chunk_extensions": Fault("chunk extensions and trailers", edit_script=_framed(Framing.EXTENDED), wire_only=True),
}
