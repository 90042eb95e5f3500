"""The log: one line for each request, and one for each rare event, as JSON or as text for a terminal.

Owns the fields of a line (docs/logs.md). Independent of the output: a function takes the lines of a batch or rejects
them. Never logged: prompts, answers, texts of upstream errors, keys (events do not contain them). Values from
outside are truncated, and cannot break a line or control a terminal.

Units: milliseconds in lines, from the events' seconds.
"""

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec

from gateway.events import (
    AttemptFailed,
    AttemptReport,
    BreakerChanged,
    ComponentFailed,
    Event,
    HedgeDenied,
    HedgeFired,
    ParamsDropped,
    PreviousKeyUsed,
    RecoveryKind,
    RecoveryReport,
    RecoveryResult,
    RequestEnded,
    RequestRejected,
    Result,
    Role,
)
from gateway.hedging.charges import Charge, Disposition, costs
from gateway.hedging.measure import Measured
from gateway.hedging.outcomes import Denial, Outcome
from gateway.hedging.shadow import Shadow, ShadowReason
from gateway.process_events import (
    AcceptingChanged,
    ConfigReloaded,
    DiscoveryChanged,
    HedgingMeasured,
    HedgingSwitched,
    LearnedFileFailed,
    LearnedRestored,
    ReplicasFound,
    ReplicaSwitched,
    ShareAway,
    ShareBack,
    WorkerChanged,
)
from providers.base import Api, Usage

LogFormat = Literal["json", "text", "auto"]
Level = Literal["info", "warning", "error"]

_LABEL_CHARS_MAX = 200  # length of ids and error codes, which may come from an upstream
_COMPONENT_SILENCE_S = 60.0  # a component that keeps failing is logged once in this time
_WHOLE: Final = 1.5 * 2.0**52  # a number to which this is added and from which it is taken is rounded to a whole one
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")  # controls, line ends, bidi

_RARE_EVENTS: dict[type[Event], tuple[str, Level]] = {
    RequestRejected: ("request_rejected", "info"),
    BreakerChanged: ("breaker_changed", "warning"),
    HedgingSwitched: ("hedging_switched", "warning"),
    ReplicaSwitched: ("replica_switched", "warning"),
    ReplicasFound: ("replicas_found", "info"),
    DiscoveryChanged: ("discovery_changed", "warning"),
    ParamsDropped: ("params_dropped", "warning"),
    ConfigReloaded: ("config_reloaded", "warning"),
    LearnedRestored: ("learned_restored", "info"),
    LearnedFileFailed: ("learned_file_failed", "warning"),
    ComponentFailed: ("component_failed", "error"),
    AcceptingChanged: ("accepting_changed", "warning"),
    WorkerChanged: ("worker_changed", "warning"),
    ShareAway: ("share_away", "warning"),
    ShareBack: ("share_back", "warning"),
    HedgingMeasured: ("hedging_measured", "info"),
}
_ONLY_LIVE: tuple[type[Event], ...] = (HedgeFired, HedgeDenied, AttemptFailed, PreviousKeyUsed)  # no line of their own


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


class RecoveryLine(msgspec.Struct, gc=False):
    """One attempt to continue a broken stream, in a request's line."""

    kind: RecoveryKind
    result: RecoveryResult
    replica: str
    after_tokens: int
    gap_ms: float | None
    tokens_again: int


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


_encode = msgspec.json.Encoder().encode


class RequestLog:
    """Turns events into lines, which are written in batches.

    Args:
        write: takes the lines of a batch, each with its newline.
        epoch_s: returns the Unix time at which the clock of the events was 0; read once for each batch.
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
        self._lines: list[bytes] = []
        self._epoch_s = 0.0
        # component -> time of its last line, failures since then
        self._failed_components: dict[str, tuple[float, int]] = {}

    def on_event(self, event: Event) -> None:
        """Add the event's line, if there is one, to the batch (a `gateway.events.Listener`)."""
        if not self._lines:
            self._epoch_s = self._read_epoch_s()
        time = datetime.fromtimestamp(self._epoch_s + event.at_s, UTC)
        if type(event) is RequestEnded:
            line = _request_line(event, time, self._worker)
            self._lines.append(_request_text(line).encode() if self._text else _encode(line))
        elif not isinstance(event, _ONLY_LIVE):
            self._add_rare(event, time)

    def write_batch(self) -> None:
        """Write the lines of the batch."""
        lines, self._lines = self._lines, []
        if lines:
            batch = b"\n".join(lines)
            if self._text or b"\x7f" in batch or not batch.isascii():  # JSON escapes all other control characters
                batch = b"\n".join(map(_escaped, lines))
            self._write(batch + b"\n")

    def _add_rare(self, event: Event, time: datetime) -> None:
        name, level = _RARE_EVENTS[type(event)]
        fields = _fields(event) if self._worker is None else {"worker": self._worker, **_fields(event)}
        if isinstance(event, ComponentFailed):
            logged_at_s, repeats = self._failed_components.get(event.component, (-math.inf, 0))
            if event.at_s < logged_at_s + _COMPONENT_SILENCE_S:
                self._failed_components[event.component] = (logged_at_s, repeats + 1)
                return
            self._failed_components[event.component] = (event.at_s, 0)
            fields["more"] = repeats
        self._lines.append(_rare_line(name, level, fields, time, text=self._text))


def _escaped(line: bytes) -> bytes:
    """Escape the characters that break a line or control a terminal."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", line.decode()).encode()


def loss_line(lines: int, now: datetime, *, text: bool) -> bytes:
    """Return the line, with its newline, that reports a number of lost lines."""
    return _rare_line("lines_lost", "warning", {"lines": lines}, now, text=text) + b"\n"


def _rare_line(name: str, level: Level, fields: dict[str, object], now: datetime, *, text: bool) -> bytes:
    if text:
        pairs = (f"{key}={value}" for key, value in fields.items() if value is not None)
        return " ".join((_clock(now), level, name, *pairs)).encode()
    return _encode({"time": now, "level": level, "event": name, **fields})


def wants_text(log_format: LogFormat, fd: int) -> bool:
    """Return True if lines are text; `auto` chooses text on a terminal."""
    return log_format == "text" or (log_format == "auto" and os.isatty(fd))


def _request_line(event: RequestEnded, time: datetime, worker: int | None) -> RequestLine:
    status, error, recoveries = event.status, event.error, event.recoveries
    times_s = (event.total_s, event.gateway_s, event.work_s, event.ttft_s, event.queued_s or None, event.ttft_target_s)
    total_ms, gateway_ms, work_ms, ttft_ms, queued_ms, target_ms = _ms(times_s)
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
        total_ms,
        gateway_ms,
        event.events,
        attempts,
        work_ms,
        ttft_ms,
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
        queued_ms,
        event.trace_id,
        event.trace.span_id if event.trace is not None and event.trace.sampled else None,
        worker,
        event.measured,
        target_ms,
        None if event.shadow is None else _shadow_line(event, event.shadow),
    )


def _shadow_line(event: RequestEnded, shadow: Shadow) -> ShadowLine:
    first_s = event.ttft_s if event.work_s is None else event.work_s
    wait_s = None if first_s is None else max(0.0, first_s - (event.shadow_s or 0.0))
    after_ms, *others = _ms((shadow.after_s, wait_s, shadow.expected_s, shadow.gain_s))
    return ShadowLine(shadow.replica, shadow.reason, shadow.attempt, after_ms, shadow.tokens, shadow.cost, *others)


def _attempt_line(attempt: AttemptReport) -> AttemptLine:
    upstream_id, charge = attempt.upstream_request_id, attempt.charge
    times_s = (attempt.start_s, attempt.end_s, attempt.headers_s, attempt.work_s, attempt.content_s)
    start_ms, end_ms, ttfb_ms, work_ms, ttft_ms, expected_ms, hedge_after_ms = _ms(
        (*times_s, attempt.predicted_s, attempt.hedge_after_s)
    )
    is_usage_only = charge.disposition is Disposition.WINNER and charge.cost is None and not charge.estimated
    return AttemptLine(
        attempt.replica,
        attempt.role,
        attempt.reason,
        attempt.outcome,
        start_ms,
        end_ms,
        ttfb_ms,
        work_ms,
        ttft_ms,
        attempt.status,
        attempt.error,
        None if upstream_id is None else upstream_id[:_LABEL_CHARS_MAX],
        attempt.usage,
        expected_ms,
        hedge_after_ms,
        None if is_usage_only else charge,
    )


def _request_text(line: RequestLine) -> str:
    """Format a request's line as text: the result first, then each attempt."""
    parts = [_clock(line.time), line.level, str(line.status), line.model, line.result.value, f"{line.total_ms:g}ms"]
    times_ms = {
        "work": line.work_ms,
        "ttft": line.ttft_ms,
        "ttft_target": line.ttft_target_ms,
        "queued": line.queued_ms,
    }
    parts += [f"{name}={time_ms:g}ms" for name, time_ms in times_ms.items() if time_ms is not None]
    parts += [f"key={line.key}", f"id={line.request_id}"]
    if line.trace_id is not None:
        parts.append(f"trace={line.trace_id}")
    if line.span_id is not None:
        parts.append(f"span={line.span_id}")
    if line.worker is not None:
        parts.append(f"worker={line.worker}")
    if line.error is not None:
        parts.append(f"error={line.error}")
    if line.denials:
        parts.append("denied=" + ",".join(denial.value for denial in line.denials))
    if line.denied_why is not None:
        parts.append(f"({line.denied_why})")
    if line.beyond_boundary:
        parts.append("beyond_boundary=" + ",".join(line.beyond_boundary))
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
        yield f"shadow={line.shadow.replica} (after {line.shadow.after_ms:g}ms, {line.shadow.reason.value})"


def _recovery_line(recovery: RecoveryReport) -> RecoveryLine:
    return RecoveryLine(
        recovery.kind,
        recovery.result,
        recovery.replica,
        recovery.tokens,
        _ms((recovery.gap_s,))[0],
        recovery.tokens_again,
    )


def _recovery_text(recovery: RecoveryLine) -> str:
    recovered = f"{recovery.kind.value}:{recovery.result.value}"
    return f"recovery={recovered} (after {recovery.after_tokens} tokens, gap {recovery.gap_ms:g}ms)"


def _attempt_text(attempt: AttemptLine) -> str:
    parts = [f"| {attempt.replica} {attempt.role.value} {attempt.outcome.value}"]
    if attempt.work_ms is not None:
        parts.append(f"work={attempt.work_ms:g}ms")
    if attempt.ttft_ms is not None:
        parts.append(f"ttft={attempt.ttft_ms:g}ms")
    if attempt.expected_ms is not None:
        parts.append(f"expected={attempt.expected_ms:g}ms")
    if attempt.hedge_after_ms is not None:
        parts.append(f"hedge_after={attempt.hedge_after_ms:g}ms")
    if attempt.error is not None:
        parts.append(f"error={attempt.error}")
    return " ".join((*parts, f"{attempt.end_ms:g}ms ({attempt.reason})"))


def _fields(event: Event) -> dict[str, object]:
    """Return a rare event's fields under their names in the log."""
    fields: dict[str, object] = msgspec.to_builtins(event)
    del fields["at_s"]
    if isinstance(event, RequestRejected):
        fields["key"] = fields.pop("key_name")
        del fields["queued_s"]
        del fields["trace"]
        if event.trace is not None and event.trace.sampled:
            fields["span_id"] = event.trace.span_id
        if event.queued_s:
            fields["queued_ms"] = _ms((event.queued_s,))[0]
        for name in ("model", "trace_id"):
            if fields[name] is None:
                del fields[name]
    return fields


def _clock(now: datetime) -> str:
    return now.isoformat(sep=" ", timespec="milliseconds")[:23]


def _ms(times_s: Iterable[float | None]) -> list[float | None]:
    """Convert to milliseconds, rounded to the microsecond; at a fifth of the cost of round()."""
    return [None if time_s is None else (time_s * 1e6 + _WHOLE - _WHOLE) / 1e3 for time_s in times_s]
