"""The log: one line for each request, and one for each rare event, as JSON or as text for a terminal.

Owns the fields of the lines (docs/logs.md). Independent of the output: a function takes the lines of a batch or rejects
them. Values from outside cannot break a line or control a terminal; ids and codes from outside are truncated. Never
logged: prompts, answers, texts of upstream errors, keys (events do not contain them).

A line of text is words, `name=value` and remarks in parentheses, between single spaces. A value that could be read
otherwise is a JSON string, so that no value, such as an error code of a replica, adds a word or a field.

Units: milliseconds in lines, from the events' seconds.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec

from gateway.errors import Limit
from gateway.events import (
    NAMES,
    AttemptFailed,
    AttemptReport,
    ComponentFailed,
    Event,
    HedgeDenied,
    HedgeFired,
    PreviousKeyUsed,
    RecoveryKind,
    RecoveryReport,
    RecoveryResult,
    RequestEnded,
    RequestPassed,
    RequestRejected,
    Result,
    Role,
)
from gateway.process_events import HedgingMeasured, LearnedRestored, ReplicasFound
from ttft_gateway.apis.base import Api, Usage
from ttft_gateway.hedging.charges import Charge, Disposition, costs
from ttft_gateway.hedging.measure import Measured, Shadow, ShadowReason
from ttft_gateway.hedging.outcomes import Denial, GuardCause, Outcome

Level = Literal["info", "warning", "error"]

_COMPONENT_SILENCE_S = 60.0  # a component that fails again and again is logged once in this time
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")  # controls, line ends, bidi

_LEVELS: dict[type[Event], Level] = {
    RequestRejected: "info",
    RequestPassed: "info",
    ReplicasFound: "info",
    LearnedRestored: "info",
    HedgingMeasured: "info",
    ComponentFailed: "error",
}
"""Levels of the rare events that are no warnings."""
_ONLY_LIVE: tuple[type[Event], ...] = (HedgeFired, HedgeDenied, AttemptFailed, PreviousKeyUsed)  # no line of their own

_ENCODER = msgspec.json.Encoder()
_encode = _ENCODER.encode
_has_marks = re.compile(r'[\s"=\\|()]').search
_has_remark_marks = re.compile(r'["=\\()]').search

_LABEL_CHARS_MAX = 200  # length of ids and error codes, which may come from an upstream
_WHOLE: Final = 1.5 * 2.0**52  # a number to which this is added and from which it is taken is rounded to a whole one

_RareLine = dict[str, object]


class RequestLog:
    """Writes the events of a batch as lines.

    Args:
        write: takes the lines of a batch, each with its newline.
        epoch_s: returns the Unix time at which the clock of the events was 0; read for each batch.
        text: True for text lines instead of JSON.
        worker: number of the worker, for its lines; None for none.
    """

    def __init__(
        self,
        write: Callable[[bytes], object],
        epoch_s: Callable[[], float],
        *,
        text: bool = False,
        worker: int | None = None,
    ) -> None:
        self._worker = worker
        self._write = write
        self._read_epoch_s = epoch_s
        self._text = text
        self._lines: list[RequestLine | _RareLine] = []
        # component -> time of its last line, failures since then
        self._failed_components: dict[str, tuple[float, int]] = {}

    def on_events(self, events: Iterable[Event]) -> None:
        """Write the lines of a batch (a `gateway.observe.hub.Collector`)."""
        epoch_s, worker = self._read_epoch_s(), self._worker
        for event in events:
            time = datetime.fromtimestamp(epoch_s + event.at_s, UTC)
            if type(event) is RequestEnded:
                self._lines.append(_request_line(event, time, worker))
            elif not isinstance(event, _ONLY_LIVE):
                self._add_rare(event, time)
        lines, self._lines = self._lines, []
        if lines:
            self._write(_text(lines) if self._text else _json(lines))

    def _add_rare(self, event: Event, time: datetime) -> None:
        name, level = NAMES[type(event)], _LEVELS.get(type(event), "warning")
        fields = _fields(event) if self._worker is None else {"worker": self._worker, **_fields(event)}
        if isinstance(event, ComponentFailed):
            logged_at_s, repeats = self._failed_components.get(event.component, (-math.inf, 0))
            if event.at_s < logged_at_s + _COMPONENT_SILENCE_S:
                self._failed_components[event.component] = (logged_at_s, repeats + 1)
                return
            self._failed_components[event.component] = (event.at_s, 0)
            fields["more"] = repeats
        self._lines.append({"time": time, "level": level, "event": name, **fields})


def epoch_of(now_s: Callable[[], float]) -> Callable[[], float]:
    """Return a function that reads the Unix time at which a clock was 0; it changes when the wall clock is set."""
    return lambda: datetime.now(UTC).timestamp() - now_s()


def loss_line(lines: int, now: datetime, *, text: bool) -> bytes:
    """Return the line, with its newline, that reports a number of lost lines."""
    line: _RareLine = {"time": now, "level": "warning", "event": "lines_lost", "lines": lines}
    return _text([line]) if text else _json([line])


class AttemptLine(msgspec.Struct, omit_defaults=True, gc=False):
    """One attempt in a request's line; None and empty fields are omitted."""

    replica: str
    role: Role
    reason: str
    outcome: Outcome
    start_ms: float | None
    end_ms: float | None
    ttfb_ms: float | None = None
    work_ms: float | None = None
    ttft_ms: float | None = None
    status: int | None = None
    error: str | None = None
    upstream_request_id: str | None = None
    usage: Usage | None = None
    expected_ms: float | None = None
    hedge_after_ms: float | None = None
    charge: Charge | None = None


class RecoveryLine(msgspec.Struct, omit_defaults=True, gc=False):
    """One attempt to continue a stream that is broken, silent or slow, in a request's line."""

    kind: RecoveryKind
    result: RecoveryResult
    replica: str
    after_tokens: int
    gap_ms: float | None
    tokens_again: int
    guard: GuardCause | None = None


class ShadowLine(msgspec.Struct, omit_defaults=True, gc=False):
    """A hedge that the policy `shadow` would have sent, in a request's line; None is omitted.

    Attributes:
        after_ms: time from the start of the late attempt to the hedge.
        wait_ms: time from the hedge to the first token.
        expected_ms, saving_ms: predicted TTFT of the backup, and expected saving.
    """

    replica: str
    reason: ShadowReason
    attempt: int
    after_ms: float | None
    tokens: int
    cost: float | None = None
    wait_ms: float | None = None
    expected_ms: float | None = None
    saving_ms: float | None = None


class RequestLine(msgspec.Struct, omit_defaults=True, gc=False):
    """A request's line; fields that are None, empty, or zero by default are omitted."""

    time: datetime
    level: Level
    event: str
    request_id: str
    key: str
    model: str
    api: Api
    stream: bool
    status: int
    result: Result
    total_ms: float | None
    gateway_ms: float | None
    events: int
    attempts: list[AttemptLine]
    work_ms: float | None = None
    ttft_ms: float | None = None
    winner: str | None = None
    error: str | None = None
    denials: tuple[Denial, ...] = ()
    denied_why: str | None = None
    malformed: int = 0
    usage: Usage | None = None
    beyond_boundary: tuple[str, ...] = ()
    never_hedged: Denial | None = None
    cost: dict[Disposition, float] = {}
    recoveries: list[RecoveryLine] = []
    queued_ms: float | None = None
    trace_id: str | None = None
    span_id: str | None = None
    worker: int | None = None
    measured: Measured | None = None
    ttft_target_ms: float | None = None
    shadow: ShadowLine | None = None
    limit: Limit | None = None
    usual_cost: float | None = None


def _request_line(event: RequestEnded, time: datetime, worker: int | None) -> RequestLine:
    """Return the line of a request.

    Args:
        time: the wall clock at its end.
        worker: number of the worker; None for none.
    """
    status, error, recoveries = event.status, event.error, event.recoveries
    attempts: list[AttemptLine] = []
    priced: list[Charge] = []
    for attempt in event.attempts:
        attempts.append(_attempt_line(attempt))
        if attempt.charge.cost is not None:
            priced.append(attempt.charge)
    return RequestLine(
        time,
        "error" if status >= 500 else "warning" if status == 429 else "info",
        "request",
        event.request_id,
        event.key_name,
        event.model,
        event.api,
        event.streaming,
        status,
        event.result,
        _in_ms(event.total_s),
        _in_ms(event.gateway_s),
        event.events,
        attempts,
        None if event.work_s is None else _in_ms(event.work_s),
        _in_ms(event.ttft_s),
        event.winner,
        None if error is None else error[:_LABEL_CHARS_MAX],
        event.denials,
        event.denied_why,
        event.malformed,
        event.usage,
        event.beyond_boundary,
        event.never_hedged,
        costs(priced) if priced else {},
        [_recovery_line(recovery) for recovery in recoveries] if recoveries else [],
        _in_ms(event.queued_s) if event.queued_s else None,
        event.trace_id,
        event.trace.span_id if event.trace is not None and event.trace.sampled else None,
        worker,
        event.measured,
        None if event.ttft_target_s is None else _in_ms(event.ttft_target_s),
        None if event.shadow is None else _shadow_line(event, event.shadow),
        event.limit,
        event.usual_cost,
    )


def _shadow_line(event: RequestEnded, shadow: Shadow) -> ShadowLine:
    first_s = event.ttft_s if event.work_s is None else event.work_s
    return ShadowLine(
        shadow.replica,
        shadow.reason,
        shadow.attempt,
        _in_ms(shadow.after_s),
        shadow.tokens,
        shadow.cost,
        None if first_s is None else _in_ms(max(0.0, first_s - (event.shadow_s or 0.0))),
        _in_ms(shadow.expected_s),
        _in_ms(shadow.gain_s),
    )


def _attempt_line(attempt: AttemptReport) -> AttemptLine:
    upstream_id, charge = attempt.upstream_request_id, attempt.charge
    is_usage_only = not charge.estimated and charge.cost is None and charge.disposition is Disposition.WINNER
    return AttemptLine(
        attempt.replica,
        attempt.role,
        attempt.reason,
        attempt.outcome,
        _in_ms(attempt.start_s),
        _in_ms(attempt.end_s),
        _in_ms(attempt.headers_s),
        None if attempt.work_s is None else _in_ms(attempt.work_s),
        _in_ms(attempt.content_s),
        attempt.status,
        attempt.error,
        None if upstream_id is None else upstream_id[:_LABEL_CHARS_MAX],
        attempt.usage,
        _in_ms(attempt.predicted_s),
        _in_ms(attempt.hedge_after_s),
        None if is_usage_only else charge,
    )


def _recovery_line(recovery: RecoveryReport) -> RecoveryLine:
    return RecoveryLine(
        recovery.kind,
        recovery.result,
        recovery.replica,
        recovery.tokens,
        _in_ms(recovery.gap_s),
        recovery.tokens_again,
        recovery.guard,
    )


def _in_ms(time_s: float | None) -> float | None:
    """Convert to milliseconds, rounded to the microsecond; at a fifth of the cost of round()."""
    return None if time_s is None else (time_s * 1e6 + _WHOLE - _WHOLE) / 1e3


def _fields(event: Event) -> dict[str, object]:
    """Return a rare event's fields under their names in the log."""
    fields: dict[str, object] = msgspec.to_builtins(event)
    del fields["at_s"]
    if isinstance(event, RequestPassed):
        del fields["total_s"]
        fields["key"], fields["total_ms"] = fields.pop("key_name"), _in_ms(event.total_s)
        fields = {name: value for name, value in fields.items() if value is not None}
    if isinstance(event, RequestRejected):
        fields["key"] = fields.pop("key_name")
        del fields["queued_s"]
        del fields["trace"]
        if event.trace is not None and event.trace.sampled:
            fields["span_id"] = event.trace.span_id
        if event.queued_s:
            fields["queued_ms"] = _in_ms(event.queued_s)
        for name in ("model", "trace_id", "limit"):
            if fields[name] is None:
                del fields[name]
    return fields


def _json(lines: list[RequestLine | _RareLine]) -> bytes:
    """Return lines as JSON, each with its newline."""
    batch = _ENCODER.encode_lines(lines)
    if 0x7F in batch or not batch.isascii():  # JSON escapes all other control characters
        batch = b"\n".join(map(_escaped, batch.split(b"\n")))
    return batch


def _text(lines: list[RequestLine | _RareLine]) -> bytes:
    """Return lines as text for a terminal, each with its newline."""
    texts = (_request_text(line) if isinstance(line, RequestLine) else _rare_text(line) for line in lines)
    return b"".join(_escaped(text.encode()) + b"\n" for text in texts)


def _escaped(line: bytes) -> bytes:
    """Escape the characters that break a line or control a terminal."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", line.decode()).encode()


def _request_text(line: RequestLine) -> str:
    """Format a request's line as text: the result first, then each attempt."""
    parts = [
        _clock(line.time),
        line.level,
        str(line.status),
        _quoted(line.model),
        line.result.value,
        f"{line.total_ms:g}ms",
    ]
    parts += _times(work=line.work_ms, ttft=line.ttft_ms, ttft_target=line.ttft_target_ms, queued=line.queued_ms)
    parts += [f"key={_quoted(line.key)}", f"id={_quoted(line.request_id)}"]
    named = {"trace": line.trace_id, "span": line.span_id, "worker": line.worker, "error": line.error}
    parts += [f"{name}={_quoted(str(value))}" for name, value in named.items() if value is not None]
    if line.denials:
        parts.append("denied=" + ",".join(denial.value for denial in line.denials))
    if line.denied_why is not None:
        parts.append(_remark(line.denied_why))
    if line.beyond_boundary:
        parts.append("beyond_boundary=" + _quoted(",".join(line.beyond_boundary)))
    if line.never_hedged is not None:
        parts.append(f"never_hedged={line.never_hedged.value}")
    parts += _withheld_parts(line)
    parts += [f"{disposition.value}={cost:.6g}" for disposition, cost in line.cost.items()]
    parts += [_recovery_text(recovery) for recovery in line.recoveries]
    parts += [_attempt_text(attempt) for attempt in line.attempts]
    return " ".join(parts)


def _withheld_parts(line: RequestLine) -> Iterator[str]:
    if line.measured is not None and line.measured.drawn:
        yield f"measured={line.measured.instrument.value}"
    if line.shadow is not None:
        yield f"shadow={_quoted(line.shadow.replica)} (after {line.shadow.after_ms:g}ms, {line.shadow.reason.value})"


def _recovery_text(recovery: RecoveryLine) -> str:
    recovered = f"{recovery.kind.value}:{recovery.result.value}"
    name = "recovery" if recovery.guard is None else f"{recovery.guard.value}_guard"
    return f"{name}={recovered} (after {recovery.after_tokens} tokens, gap {recovery.gap_ms:g}ms)"


def _attempt_text(attempt: AttemptLine) -> str:
    parts = [f"| {_quoted(attempt.replica)} {attempt.role.value} {attempt.outcome.value}"]
    parts += _times(
        work=attempt.work_ms,
        ttft=attempt.ttft_ms,
        expected=attempt.expected_ms,
        hedge_after=attempt.hedge_after_ms,
    )
    if attempt.error is not None:
        parts.append(f"error={_quoted(attempt.error)}")
    return " ".join((*parts, f"{attempt.end_ms:g}ms", _remark(attempt.reason)))


def _times(**times_ms: float | None) -> Iterator[str]:
    return (f"{name}={time_ms:g}ms" for name, time_ms in times_ms.items() if time_ms is not None)


def _rare_text(line: Mapping[str, object]) -> str:
    """Format the line of a rare event as text: time, level and name, then the fields that are not None."""
    time, level, name, *fields = line.items()
    assert isinstance(time[1], datetime)
    pairs = (f"{key}={_quoted(str(value))}" for key, value in fields if value is not None)
    return " ".join((_clock(time[1]), f"{level[1]}", f"{name[1]}", *pairs))


def _quoted(value: str) -> str:
    """Return a value unchanged, or as a JSON string if it is empty or has spaces, marks of the line or controls."""
    return value if value and value.isprintable() and not _has_marks(value) else _encode(value).decode()


def _remark(text: str) -> str:
    """Return a text in parentheses, as a JSON string if it has marks of the line, except spaces, or controls."""
    return f"({text if text and text.isprintable() and not _has_remark_marks(text) else _encode(text).decode()})"


def _clock(now: datetime) -> str:
    """Return date and time, to the millisecond."""
    return now.isoformat(sep=" ", timespec="milliseconds")[:23]
