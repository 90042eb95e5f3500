"""The line of a request in the log: its fields (docs/logs.md), and their values from the event.

Never logged: prompts, answers, texts of upstream errors, keys (events do not contain them). Ids and codes from outside
are truncated.

Units: milliseconds in lines, from the events' seconds.
"""

from datetime import datetime
from typing import Final, Literal

import msgspec

from gateway.errors import Limit
from gateway.events import AttemptReport, RecoveryKind, RecoveryReport, RecoveryResult, RequestEnded, Result, Role
from gateway.hedging.charges import Charge, Disposition, costs
from gateway.hedging.measure import Measured, Shadow, ShadowReason
from gateway.hedging.outcomes import Denial, Outcome
from providers.base import Api, Usage

Level = Literal["info", "warning", "error"]

_LABEL_CHARS_MAX = 200  # length of ids and error codes, which may come from an upstream
_WHOLE: Final = 1.5 * 2.0**52  # a number to which this is added and from which it is taken is rounded to a whole one
_WINNER: Final = Disposition.WINNER  # looked up once: in its class, a member is slow on Python 3.11


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
    limit: Limit | None = None


def request_line(event: RequestEnded, time: datetime, worker: int | None) -> RequestLine:
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
        in_ms(event.total_s),
        in_ms(event.gateway_s),
        event.events,
        attempts,
        None if event.work_s is None else in_ms(event.work_s),
        in_ms(event.ttft_s),
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
        in_ms(event.queued_s) if event.queued_s else None,
        event.trace_id,
        event.trace.span_id if event.trace is not None and event.trace.sampled else None,
        worker,
        event.measured,
        None if event.ttft_target_s is None else in_ms(event.ttft_target_s),
        None if event.shadow is None else _shadow_line(event, event.shadow),
        event.limit,
    )


def _shadow_line(event: RequestEnded, shadow: Shadow) -> ShadowLine:
    first_s = event.ttft_s if event.work_s is None else event.work_s
    return ShadowLine(
        shadow.replica,
        shadow.reason,
        shadow.attempt,
        in_ms(shadow.after_s),
        shadow.tokens,
        shadow.cost,
        None if first_s is None else in_ms(max(0.0, first_s - (event.shadow_s or 0.0))),
        in_ms(shadow.expected_s),
        in_ms(shadow.gain_s),
    )


def _attempt_line(attempt: AttemptReport) -> AttemptLine:
    upstream_id, charge = attempt.upstream_request_id, attempt.charge
    is_usage_only = not charge.estimated and charge.cost is None and charge.disposition is _WINNER
    return AttemptLine(
        attempt.replica,
        attempt.role,
        attempt.reason,
        attempt.outcome,
        in_ms(attempt.start_s),
        in_ms(attempt.end_s),
        in_ms(attempt.headers_s),
        None if attempt.work_s is None else in_ms(attempt.work_s),
        in_ms(attempt.content_s),
        attempt.status,
        attempt.error,
        None if upstream_id is None else upstream_id[:_LABEL_CHARS_MAX],
        attempt.usage,
        in_ms(attempt.predicted_s),
        in_ms(attempt.hedge_after_s),
        None if is_usage_only else charge,
    )


def _recovery_line(recovery: RecoveryReport) -> RecoveryLine:
    return RecoveryLine(
        recovery.kind,
        recovery.result,
        recovery.replica,
        recovery.tokens,
        in_ms(recovery.gap_s),
        recovery.tokens_again,
    )


def in_ms(time_s: float | None) -> float | None:
    """Convert to milliseconds, rounded to the microsecond; at a fifth of the cost of round()."""
    return None if time_s is None else (time_s * 1e6 + _WHOLE - _WHOLE) / 1e3
