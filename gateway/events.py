"""The events of the core as frozen values, for metrics, log lines and the event feed.

This file has the events of requests and replicas, process_events.py the events of the process. The core depends on
`Listener` only. The hot path emits one event per request, `RequestEnded`; other events are rare. No event contains a
prompt, an answer, an upstream's error text or a secret.

Units: seconds (`at_s` on the loop's clock), tokens.
"""

import enum
import re
from collections.abc import Callable, Mapping
from typing import Final, get_args

import msgspec

from gateway.errors import Limit
from gateway.process_events import (
    AcceptingChanged,
    ConfigReloaded,
    CredentialChanged,
    DiscoveryChanged,
    HealthChanged,
    HedgingMeasured,
    HedgingSwitched,
    KeysChanged,
    LearnedFileFailed,
    LearnedRestored,
    ReplicasFound,
    ReplicaSwitched,
    ShareAway,
    ShareBack,
    StateDropped,
    WorkerChanged,
)
from gateway.traces import Trace
from ttft_gateway.apis.base import Api, FastEnum, Usage
from ttft_gateway.hedging.charges import Charge
from ttft_gateway.hedging.measure import Measured, Shadow
from ttft_gateway.hedging.outcomes import Denial, GuardCause, Outcome


class Role(FastEnum):
    """Reason for which an attempt was started; the value is the metric label."""

    PRIMARY = "primary"
    BACKUP = "backup"  # a hedge: the primary is late
    FAILOVER = "failover"  # an earlier attempt failed
    RECOVERY = "recovery"  # the stream to the client broke
    GUARD = "guard"  # the stream to the client was silent or slow


class Result(FastEnum):
    """Result of a race, for the header `x-ttft-result` and metrics."""

    PRIMARY = "primary"  # no race: the answer came from the primary (or a failover)
    BACKUP_WON = "backup_won"
    BACKUP_LOST = "backup_lost"
    DENIED = "denied"  # the request was late, and a hedge was denied


class RecoveryKind(enum.Enum):
    """Method of continuing a broken stream; the value is the metric label."""

    CONTINUE = "continue"  # from the point where it broke
    REPLAY = "replay"  # requested again; the tokens that the client has are skipped
    RESTART = "restart"  # requested again and sent whole, because the client had nothing but thinking


class RecoveryResult(enum.Enum):
    """Result of a recovery; the value is the metric label."""

    RECOVERED = "recovered"  # the stream to the client continued
    DIVERGED = "diverged"  # the other replica's answer differed
    FAILED = "failed"  # the other replica failed too
    LOST = "lost"  # the stream that was silent or slow went on first
    ABANDONED = "abandoned"  # the client disconnected before it continued, or the gateway stopped


class RecoveryReport(msgspec.Struct, frozen=True, gc=False):
    """One attempt to continue a stream that is broken, silent or slow.

    Attributes:
        tokens: approximate number of tokens that the client had received.
        gap_s: time from the last event before the break until the stream continued, or the attempt ended.
        tokens_again: approximate number of prompt and answer tokens requested, and paid, a second time.
        guard: reason for which it was sent beside an open stream; None: the stream was broken.
    """

    kind: RecoveryKind
    result: RecoveryResult
    replica: str
    tokens: int
    gap_s: float
    tokens_again: int
    guard: GuardCause | None = None


class AttemptReport(msgspec.Struct, frozen=True, gc=False):
    """One upstream attempt, after its end.

    Attributes:
        replica: name in the configuration.
        role: reason for which it was started.
        start_s: start after the request's arrival.
        headers_s: response headers after the attempt's start (TTFB); None if none arrived.
        work_s: sign of work that was timed as the first token, after the attempt's start; None if content was.
        content_s: first content after the attempt's start; None if none arrived.
        end_s: end after the attempt's start.
        status: HTTP status of the upstream; None if none arrived.
        error: label of the failure (`UpstreamError.label`); None without a failure.
        upstream_request_id: the upstream's request id; None if it sent none.
        usage: reported token counts; None if it reported none.
        charge: billed usage.
        reason: reason for its start, with numbers, for the log.
        predicted_s: expected TTFT; None before the first sample.
        hedge_after_s: time from the attempt's start until a hedge was to be considered; None for never.
        empty: True for a complete answer without content.
    """

    replica: str
    role: Role
    start_s: float
    headers_s: float | None
    content_s: float | None
    end_s: float
    outcome: Outcome
    status: int | None
    error: str | None
    upstream_request_id: str | None
    usage: Usage | None
    charge: Charge
    reason: str
    predicted_s: float | None = None
    hedge_after_s: float | None = None
    work_s: float | None = None
    empty: bool = False


class RequestEnded(msgspec.Struct, frozen=True, gc=False):
    """The end of one client request; emitted exactly once for each request that reached a replica.

    Attributes:
        key_name: name of the caller's key; "anonymous" without a key.
        model: public model name.
        streaming: True if the client requested a stream.
        status: final HTTP status as metrics count it: a failure after an early 200 counts by the status of the failure.
        error: label of the final error; None for a complete answer, "client_gone" after a disconnect.
        winner: replica that produced the answer; None without an answer.
        attempts: all upstream attempts in the order of their start.
        denials: distinct reasons for which a hedge was denied, in order.
        denied_why: explanation of the last denial with numbers, for the log; None without a denial.
        never_hedged: reason for which no hedge could be considered at any time; None if one could.
        queued_s: time in the model's queue.
        gateway_s: time from the request's arrival until the start of the first attempt, without queued_s.
        ttft_s: time from the request's arrival to first content at the gateway; None without content.
        work_s: time from the request's arrival to the sign of work that was timed; None if content was.
        total_s: time from the request's arrival to its end.
        usage: the winner's token counts; None if it reported none.
        events: content events forwarded; if the stream broke and was not recovered, content events before the break.
        malformed: malformed events skipped.
        beyond_boundary: replicas that could not be tried because they are on another side of a boundary.
        recoveries: every attempt to continue its broken stream.
        trace_id: id of the request's trace; None without a trace.
        measured: measurement of what its hedge saved; None if nothing was measured.
        ttft_target_s: TTFT target of its hedging; None without a target.
        shadow: hedge that the policy `shadow` would have sent; None if it would have sent none.
        trace: place in its trace; None without tracing.
        limit: limit that the request has met; None if it met none.
        usual_cost: cost of its answer on the usual tier of its provider; None without an answer, prices or tiers.
    """

    at_s: float
    request_id: str
    key_name: str
    model: str
    api: Api
    streaming: bool
    status: int
    error: str | None
    result: Result
    winner: str | None
    attempts: tuple[AttemptReport, ...]
    denials: tuple[Denial, ...]
    denied_why: str | None
    gateway_s: float
    ttft_s: float | None
    total_s: float
    usage: Usage | None
    events: int
    malformed: int
    beyond_boundary: tuple[str, ...] = ()
    never_hedged: Denial | None = None
    recoveries: tuple[RecoveryReport, ...] = ()
    queued_s: float = 0.0
    work_s: float | None = None
    trace_id: str | None = None
    measured: Measured | None = None
    ttft_target_s: float | None = None
    shadow: Shadow | None = None
    trace: Trace | None = None
    limit: Limit | None = None
    usual_cost: float | None = None

    @property
    def shadow_s(self) -> float | None:
        """Time from the request's arrival to the hedge of the policy `shadow`; None if it would have sent none."""
        if self.shadow is None:
            return None
        return self.queued_s + self.gateway_s + self.attempts[self.shadow.attempt].start_s + self.shadow.after_s


class RequestRejected(msgspec.Struct, frozen=True):
    """The gateway answered a request with an error itself; the request reached no replica.

    Attributes:
        key_name: name of the caller's key; None if it was not identified yet.
        status: status of the response; 499 if the client disconnected while queued.
        model: public model name; None if it was not identified yet.
        queued_s: time in the model's queue.
        trace_id: id of the request's trace; None without a trace.
        trace: place in its trace; None without tracing.
        limit: limit that the request has met; None if it met none.
        usual_cost: cost of its answer on the usual tier of its provider; None without an answer, prices or tiers.
    """

    at_s: float
    request_id: str
    key_name: str | None
    status: int
    code: str | None
    model: str | None = None
    queued_s: float = 0.0
    trace_id: str | None = None
    trace: Trace | None = None
    limit: Limit | None = None


class RequestPassed(msgspec.Struct, frozen=True):
    """The end of a request that was passed on to one replica as bytes.

    Attributes:
        key_name: name of the caller's key; "anonymous" without a key.
        model: public name of the model that passes its route on.
        route: family of its route, such as `files`.
        status: status of the response; 499 if the client disconnected.
        error: label of the error; None without an error.
        replica: replica that was asked last.
        total_s: time from the request's arrival to its end.
        trace_id: id of the request's trace; None without a trace.
    """

    at_s: float
    request_id: str
    key_name: str
    model: str
    route: str
    method: str
    status: int
    error: str | None
    replica: str
    total_s: float
    trace_id: str | None = None


class HedgeFired(msgspec.Struct, frozen=True):
    """The start of a backup."""

    at_s: float
    request_id: str
    model: str
    primary: str
    backup: str
    waited_s: float


class PreviousKeyUsed(msgspec.Struct, frozen=True):
    """A caller sent the previous secret of a key; `key` is the name of the key."""

    at_s: float
    key: str


class HedgeDenied(msgspec.Struct, frozen=True):
    """A decision against hedging a late request; a later decision may allow it."""

    at_s: float
    request_id: str
    model: str
    reason: Denial
    waited_s: float


class AttemptFailed(msgspec.Struct, frozen=True):
    """The failure of an attempt, before or after first content."""

    at_s: float
    request_id: str
    model: str
    replica: str
    outcome: Outcome
    error: str
    status: int | None


class BreakerChanged(msgspec.Struct, frozen=True):
    """A change of state of a replica's breaker."""

    at_s: float
    model: str
    replica: str
    state: str  # closed | open | half_open


class ComponentFailed(msgspec.Struct, frozen=True):
    """An exception in a policy or an observer; the request continued without it."""

    at_s: float
    component: str
    error: str  # the exception's type only


class ParamsDropped(msgspec.Struct, frozen=True):
    """A request was sent without these fields, which the replica's API does not support (`drop_params`)."""

    at_s: float
    model: str
    replica: str
    params: tuple[str, ...]


Event = (
    RequestEnded
    | RequestRejected
    | RequestPassed
    | HedgeFired
    | HedgeDenied
    | AttemptFailed
    | BreakerChanged
    | HedgingSwitched
    | ReplicaSwitched
    | ReplicasFound
    | DiscoveryChanged
    | KeysChanged
    | ConfigReloaded
    | CredentialChanged
    | LearnedRestored
    | LearnedFileFailed
    | ComponentFailed
    | AcceptingChanged
    | ShareAway
    | ShareBack
    | StateDropped
    | ParamsDropped
    | PreviousKeyUsed
    | WorkerChanged
    | HealthChanged
    | HedgingMeasured
)

NAMES: Final[Mapping[type[Event], str]] = {
    kind: re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower() for kind in get_args(Event)
}
"""Names of the events in the log and in the live feed."""

Listener = Callable[[Event], None]
