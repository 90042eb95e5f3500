"""The log as text for a terminal: the line of a request, and that of a rare event. Pure.

A line is words, `name=value` and remarks in parentheses, between single spaces. A value that could be read otherwise is
a JSON string, so that no value, such as an error code of a replica, adds a word or a field. Units: milliseconds.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime

import msgspec

from gateway.observe.request_line import AttemptLine, RecoveryLine, RequestLine

_has_marks = re.compile(r'[\s"=\\|()]').search
_has_remark_marks = re.compile(r'["=\\()]').search

_encode = msgspec.json.Encoder().encode


def request_text(line: RequestLine) -> str:
    """Format a request's line as text: the result first, then each attempt."""
    parts = [
        _clock(line.time),
        line.level,
        str(line.status),
        _quoted(line.model),
        line.result.value,
        f"{line.total_ms:g}ms",
    ]
    times_ms = {
        "work": line.work_ms,
        "ttft": line.ttft_ms,
        "ttft_target": line.ttft_target_ms,
        "queued": line.queued_ms,
    }
    parts += [f"{name}={time_ms:g}ms" for name, time_ms in times_ms.items() if time_ms is not None]
    parts += [f"key={_quoted(line.key)}", f"id={_quoted(line.request_id)}"]
    if line.trace_id is not None:
        parts.append(f"trace={_quoted(line.trace_id)}")
    if line.span_id is not None:
        parts.append(f"span={line.span_id}")
    if line.worker is not None:
        parts.append(f"worker={line.worker}")
    if line.error is not None:
        parts.append(f"error={_quoted(line.error)}")
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
    return f"recovery={recovered} (after {recovery.after_tokens} tokens, gap {recovery.gap_ms:g}ms)"


def _attempt_text(attempt: AttemptLine) -> str:
    parts = [f"| {_quoted(attempt.replica)} {attempt.role.value} {attempt.outcome.value}"]
    if attempt.work_ms is not None:
        parts.append(f"work={attempt.work_ms:g}ms")
    if attempt.ttft_ms is not None:
        parts.append(f"ttft={attempt.ttft_ms:g}ms")
    if attempt.expected_ms is not None:
        parts.append(f"expected={attempt.expected_ms:g}ms")
    if attempt.hedge_after_ms is not None:
        parts.append(f"hedge_after={attempt.hedge_after_ms:g}ms")
    if attempt.error is not None:
        parts.append(f"error={_quoted(attempt.error)}")
    return " ".join((*parts, f"{attempt.end_ms:g}ms", _remark(attempt.reason)))


def rare_text(line: Mapping[str, object]) -> str:
    """Format the line of a rare event as text: time, level and name, then the fields that are not None."""
    time, level, name, *fields = line.items()
    assert isinstance(time[1], datetime)
    pairs = (f"{key}={_quoted(str(value))}" for key, value in fields if value is not None)
    return " ".join((_clock(time[1]), f"{level[1]}", f"{name[1]}", *pairs))


def _quoted(value: str) -> str:
    """Return a value as it is, or as a JSON string if it is empty or has spaces, marks of the line or controls."""
    return value if value and value.isprintable() and not _has_marks(value) else _encode(value).decode()


def _remark(text: str) -> str:
    """Return a text in parentheses, as a JSON string if it has marks of the line, except spaces, or controls."""
    return f"({text if text and text.isprintable() and not _has_remark_marks(text) else _encode(text).decode()})"


def _clock(now: datetime) -> str:
    """Return date and time, to the millisecond."""
    return now.isoformat(sep=" ", timespec="milliseconds")[:23]
