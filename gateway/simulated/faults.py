"""Defines the faults of a simulated replica and parses their text.

A fault edits the parsed request, the completion or the script; some require an action on the connection. Text of
faults: `NAME[:ARG[,ARG]]`, several joined by `+`, where ARG is a count, a duration or a provider. A rule adds a
frequency: `429:azure,2s once`, `cut_fin:40 first 3`, `crlf+split:7 always`, `500 4%`. Counts of events count content
events only.
"""

import dataclasses
import enum
import re
from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from gateway.simulated import edits
from gateway.simulated.completion import Completion
from gateway.simulated.quantities import UnitError, duration, share
from gateway.simulated.rate_limiter import LIMIT_HEADERS, rate_limited
from gateway.simulated.request import ParsedRequest, without_prefix
from gateway.simulated.script import End, ErrorFields, FaultArgs, Framing, Script, error_page, error_script

COUNT_MAX = 16 * 1024 * 1024
SECONDS_MAX = 3600.0
_ARGUMENTS = {
    "count": "a whole number",
    "seconds": "a duration such as 2s",
    "provider": f"one of {', '.join(LIMIT_HEADERS)}",
}


class ConnectionAction(enum.Enum):
    """Action of a fault on the connection, outside the script."""

    RESET_ACCEPT = "reset_accept"  # reset a new connection before the first read
    REFUSE = "refuse"  # reset this connection and refuse new ones for a while
    SLOW_READ = "slow_read"  # read the request body slowly
    EARLY = "early"  # respond before the request body has been read


class Fault(NamedTuple):
    """One kind of fault.

    Attributes:
        text: description for the help.
        takes: accepted arguments: some of the keys of _ARGUMENTS.
        default: arguments used where none are given.
        on_request, on_completion, on_script: edits; None: no edit.
        action: action on the connection; None: none.
        wire_only: True if it changes only bytes on a socket, so that it has no effect in process.
    """

    text: str
    takes: str = ""
    default: FaultArgs = FaultArgs()
    on_request: Callable[[ParsedRequest], ParsedRequest] | None = None
    on_completion: Callable[[Completion, FaultArgs], Completion] | None = None
    on_script: Callable[[Script, FaultArgs], Script] | None = None
    action: ConnectionAction | None = None
    wire_only: bool = False


class InjectedFault(NamedTuple):
    """A fault with its arguments."""

    fault: Fault
    args: FaultArgs


class FaultRule(NamedTuple):
    """Faults and their frequency.

    Attributes:
        text: the text it was parsed from.
        faults: the faults in the order of their edits.
        share: probability for each request.
        first: maximum of affected requests; None: no maximum.
    """

    text: str
    faults: tuple[InjectedFault, ...]
    share: float
    first: int | None


def parse_faults(text: str) -> tuple[InjectedFault, ...]:
    """Parse `NAME[:ARGS][+NAME[:ARGS]...]`.

    Raises:
        UnitError: A fault is unknown or does not take an argument.
    """
    return tuple(_parse_fault(part.strip()) for part in text.split("+"))


def parse_rule(value: object) -> FaultRule:
    """Parse `FAULTS [once | always | first N | P%]`.

    Raises:
        UnitError: The text is not a rule.
    """
    match = re.fullmatch(r"\s*(\S+)(?:\s+(?:(once)|always|first (\d+)|(\S+%)))?\s*", str(value))
    if match is None:
        raise UnitError(f"{value!r} is not a fault rule; write FAULT, FAULT once, FAULT first 3 or FAULT 5%")
    spec, once, first, percent = match.groups()
    count = 1 if once else int(first) if first else None
    return FaultRule(str(value), parse_faults(spec), share(percent) if percent else 1.0, count)


def _parse_fault(text: str) -> InjectedFault:
    name, _, rest = text.partition(":")
    fault = FAULTS.get(name)
    if fault is None:
        raise UnitError(f"the fault {name!r} is unknown; write one of {', '.join(FAULTS)}")
    args = fault.default
    for word in filter(None, rest.split(",")):
        if word.isdigit() and "count" in fault.takes:
            args = dataclasses.replace(args, count=min(int(word), COUNT_MAX))
        elif word in LIMIT_HEADERS and "provider" in fault.takes:
            args = dataclasses.replace(args, provider=word)
        elif word[0].isdigit() and "seconds" in fault.takes:
            args = dataclasses.replace(args, seconds=min(duration(word), SECONDS_MAX))
        else:
            accepted = " or ".join(_ARGUMENTS[kind] for kind in fault.takes.split()) or "no argument"
            raise UnitError(f"{word!r} is not an argument of {name}; give {accepted}")
    return InjectedFault(fault, args)


def _error(status: int, code: str | None, message: str, param: str | None = None) -> edits.EditScript:
    """Return an edit: an error response, with `seconds`, if above 0, as its Retry-After."""
    error = ErrorFields(status, "server_error" if status >= 500 else _INVALID, code, message, param)

    def edit(_script: Script, args: FaultArgs) -> Script:
        retry = ((b"retry-after", b"%d" % max(1, round(args.seconds))),) if args.seconds else ()
        return error_script(error, retry, args.seconds or None)

    return edit


def _status(_script: Script, args: FaultArgs) -> Script:
    return error_script(ErrorFields(args.count, "server_error", None, f"Simulated status {args.count}"))


def _no_stream(script: Script, _args: FaultArgs) -> Script:
    return script if script.json else error_script(ErrorFields(400, _INVALID, None, _NO_STREAM, "stream"))


def _nothing(end: End) -> edits.EditScript:
    """Return an edit: no response head, then `end`."""
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
    # an error status
    "429": Fault(
        "429 in the form of a provider; seconds: until the limit ends",
        "seconds provider",
        FaultArgs(seconds=1.0),
        on_script=lambda _script, args: rate_limited(args.provider, args.seconds, args.wall_s),
    ),
    "500": Fault("500, internal error", on_script=_error(500, None, _ERROR)),
    "503": Fault("503, overloaded; seconds: with a Retry-After", "seconds", on_script=_error(503, None, _OVERLOADED)),
    "401": Fault("401, invalid API key", on_script=_error(401, "invalid_api_key", "Incorrect API key provided.")),
    "404": Fault("404, unknown model", on_script=_error(404, "model_not_found", "The model does not exist.", "model")),
    "status": Fault("the status count", "count", FaultArgs(count=418), on_script=_status),
    "html": Fault("the status count with an HTML page", "count", FaultArgs(count=403), on_script=error_page),
    "context_length": Fault(
        "400, context too long", on_script=_error(400, "context_length_exceeded", _TOO_LONG, "messages")
    ),
    "content_policy": Fault("400, content policy", on_script=_error(400, "content_policy_violation", _POLICY)),
    "no_stream": Fault("400 if a stream is requested", on_script=_no_stream),
    "early_413": Fault(
        "413 before the body has been read",
        on_script=_error(413, "request_too_large", "The request is too large."),
        action=ConnectionAction.EARLY,
    ),
    # a 200 with an error
    "error_frame": Fault("an error event after count events", "count", on_script=edits.error_frame(_ERROR)),
    "error_event": Fault("an error event named error after count events", "count", on_script=edits.named_error(_ERROR)),
    "finish_error": Fault("finish_reason error after count events", "count", on_script=edits.finish_error()),
    "empty": Fault("a stream without events", on_script=edits.short),
    "done": Fault("[DONE] without a finish reason after count events", "count", on_script=edits.done),
    "failed_event": Fault("response.failed after count events", "count", on_script=edits.ended("failed")),
    "cancelled_event": Fault("response.cancelled after count events", "count", on_script=edits.ended("cancelled")),
    "json_error": Fault("a JSON error instead of a stream", on_script=edits.json_error),
    "ignores_prefix": Fault("an answer from its beginning, where one is to be continued", on_request=without_prefix),
    "json_answer": Fault(
        "a JSON response instead of a stream", on_request=lambda request: replace(request, stream=False), wire_only=True
    ),
    # connections
    "refuse": Fault(
        "this connection reset, new ones refused for seconds",
        "seconds",
        FaultArgs(seconds=1.0),
        action=ConnectionAction.REFUSE,
        on_script=_nothing(End.RST),
    ),
    "reset_accept": Fault(
        "connection reset before the first read", action=ConnectionAction.RESET_ACCEPT, on_script=_nothing(End.RST)
    ),
    "reset": Fault("connection reset after the request has been read", on_script=_nothing(End.RST)),
    "silence": Fault("no response at all", on_script=_nothing(End.SILENCE)),
    "headers_silence": Fault(
        "response head and nothing after it",
        on_script=lambda script, _: replace(script, head_s=0.0, steps=(), end=End.SILENCE),
    ),
    "slow_read": Fault(
        "request body read at count bytes per second",
        "count",
        FaultArgs(count=65536),
        action=ConnectionAction.SLOW_READ,
        wire_only=True,
    ),
    # cut after count events
    "cut_rst": Fault("connection reset after count events", "count", _COUNT_3, on_script=edits.cut(End.RST)),
    "cut_fin": Fault(
        "connection closed after count events; looks complete",
        "count",
        _COUNT_3,
        on_script=edits.cut(End.FIN, Framing.CLOSE),
    ),
    "cut_chunked": Fault(
        "connection closed after count events, no last chunk",
        "count",
        _COUNT_3,
        on_script=edits.cut(End.FIN, Framing.CHUNKED),
    ),
    "cut_mid": Fault(
        "connection closed within the event after count events", "count", _COUNT_3, on_script=edits.cut_mid
    ),
    "short": Fault("body ended properly after count events", "count", _COUNT_3, on_script=edits.short),
    # odd streams
    "stall": Fault(
        "nothing for seconds after count events", "count seconds", FaultArgs(3, 30.0), on_script=edits.stall
    ),
    "malformed": Fault("an event with invalid JSON after count events", "count", _COUNT_1, on_script=edits.malformed),
    "no_done": Fault("no [DONE]", on_script=edits.no_done),
    "content_filter": Fault("content filter after count tokens", "count", on_completion=edits.content_filter),
    "refusal": Fault("refusal by the model", on_completion=edits.refusal),
    "big": Fault("a first token of count bytes", "count", FaultArgs(count=1024 * 1024), on_completion=edits.big),
    "pings": Fault("a comment before each event", on_script=edits.pings),
    "crlf": Fault("CRLF line ends", on_script=edits.crlf),
    # odd bytes
    "fields": Fault("id and retry fields, and events without data", on_script=edits.fields, wire_only=True),
    "split": Fault("writes of up to count bytes", "count", FaultArgs(count=24), on_script=edits.split, wire_only=True),
    "utf8": Fault(
        "multi-byte characters cut in two writes", on_completion=edits.accented, on_script=edits.utf8, wire_only=True
    ),
    "coalesce": Fault(
        "count events in each write", "count", FaultArgs(count=4), on_script=edits.coalesce, wire_only=True
    ),
    "informational": Fault(
        "a 100 and a 103 before the response",
        on_script=lambda script, _: replace(script, informational=True),
        wire_only=True,
    ),
    "length": Fault("a content-length instead of chunks", on_script=edits.with_length, wire_only=True),
    "close": Fault("body ended by the end of the connection", on_script=_framed(Framing.CLOSE), wire_only=True),
    "chunk_extensions": Fault("chunk extensions and trailers", on_script=_framed(Framing.EXTENDED), wire_only=True),
}
