"""What happens in the core, as frozen values; metrics, log lines and the event feed subscribe to them.

The core knows only `Listener`. The hot path emits one event per request, `RequestEnded`; the others are rare.
No event carries a prompt, an answer, an upstream's error text or a secret.

Units: seconds (`at_s` on the loop's clock), tokens.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from gateway.hedging.charges import Charge
from gateway.hedging.outcomes import Denial, Outcome
from providers.base import Api, Usage


class Role(enum.Enum):
    """Why an attempt was started; the value is the metric label."""

    __hash__ = object.__hash__  # a C function; Enum's own is Python's, and these are looked up for every request

    PRIMARY = "primary"
    BACKUP = "backup"  # a hedge: the primary is late
    FAILOVER = "failover"  # an attempt before it failed
    RECOVERY = "recovery"  # the stream that the client reads broke


class Result(enum.Enum):
    """How the race went, for the header `x-ttft-result` and metrics."""

    __hash__ = object.__hash__  # a C function; Enum's own is Python's, and these are looked up for every request

    PRIMARY = "primary"  # nothing was raced, the answer came from the primary (or a failover)
    BACKUP_WON = "backup_won"
    BACKUP_LOST = "backup_lost"
    DENIED = "denied"  # it was late, and a hedge was denied


class RecoveryKind(enum.Enum):
    """How a broken stream is carried on; the value is the metric label."""

    CONTINUE = "continue"  # from where it broke
    REPLAY = "replay"  # asked again, and what the client has is skipped


class RecoveryResult(enum.Enum):
    """What came of it; the value is the metric label."""

    RECOVERED = "recovered"  # the client reads on
    DIVERGED = "diverged"  # the other replica said something else
    FAILED = "failed"  # it failed, too
    ABANDONED = "abandoned"  # the client left meanwhile, or the gateway stopped


class RecoveryReport(msgspec.Struct, frozen=True):
    """One attempt to carry a broken stream on.

    Attributes:
        kind: how.
        result: what came of it.
        replica: which was asked.
        tokens: how many the client had had, about.
        gap_s: from the last event before the break until the stream went on, or the attempt was over.
        tokens_again: what was asked for a second time, prompt and answer, about: paid twice.
    """

    kind: RecoveryKind
    result: RecoveryResult
    replica: str
    tokens: int
    gap_s: float
    tokens_again: int


class AttemptReport(msgspec.Struct, frozen=True):
    """One upstream attempt, after it ended.

    Attributes:
        replica: its name in the configuration.
        role: why it was started.
        start_s: when it was sent, after the request's start.
        headers_s: response headers after its own start (TTFB), None when none came.
        content_s: first content after its own start (TTFT), None when none came.
        end_s: its end after its own start.
        outcome: how it ended.
        status: the upstream's HTTP status, None when none came.
        error: label of the failure (`UpstreamError.label`), None when there was none.
        upstream_request_id: the upstream's own id, None when it gave none.
        usage: token counts it reported, None when it did not.
        charge: what it is billed for.
        reason: why it was started, with numbers, for people.
        predicted_s: the TTFT that was expected of it, None before anything was learned.
        hedge_after_s: a hedge was to be considered so long after its start, None for never.
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


class RequestEnded(msgspec.Struct, frozen=True):
    """One client request is over; emitted exactly once for each that reached a replica.

    Attributes:
        at_s: loop time of the end.
        request_id: our id.
        key_name: name of the caller's key, "anonymous" without one.
        model: public model name.
        api: which API.
        streaming: whether the client asked for a stream.
        status: final HTTP status as metrics count it: a failure after an early 200 is counted by its own status.
        error: label of the final error, None when the answer was complete, "client_gone" when the client left.
        result: how the race went.
        winner: replica whose answer went out, None when none did.
        attempts: all upstream attempts in the order they were sent.
        denials: distinct reasons for which a hedge was denied, in order.
        denied_why: the last denial with its numbers, for people; None without one.
        never_hedged: why no hedge was to be considered at any time, None where one was.
        queued_s: how long it waited for its turn in the model's queue.
        gateway_s: time from the request's arrival until the first attempt was sent, without that wait.
        ttft_s: arrival to first content at the gateway, None when there was none.
        total_s: arrival to the end.
        usage: the winner's token counts, None when it did not report them.
        events: content events forwarded; of a stream that broke for good, those before it broke.
        malformed: malformed events skipped.
        beyond_boundary: replicas that could not be tried because they are on another side of a boundary.
        recoveries: how its stream was carried on where it broke, each attempt.
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


@dataclass(frozen=True, slots=True)
class RequestRejected:
    """A request was answered with an error by the gateway itself and reached no replica.

    Attributes:
        at_s: when.
        request_id: our id.
        key_name: name of the caller's key, None where it was not known yet.
        status: of the answer; 499 where the client left its place in a queue.
        code: of the error.
        model: public model name, None where it was not known yet.
        queued_s: how long it had waited for its turn.
    """

    at_s: float
    request_id: str
    key_name: str | None
    status: int
    code: str | None
    model: str | None = None
    queued_s: float = 0.0


@dataclass(frozen=True, slots=True)
class HedgeFired:
    """A backup was started."""

    at_s: float
    request_id: str
    model: str
    primary: str
    backup: str
    waited_s: float


@dataclass(frozen=True, slots=True)
class HedgeDenied:
    """A late request was not hedged, this time."""

    at_s: float
    request_id: str
    model: str
    reason: Denial
    waited_s: float


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """An attempt failed before or after first content."""

    at_s: float
    request_id: str
    model: str
    replica: str
    outcome: Outcome
    error: str
    status: int | None


@dataclass(frozen=True, slots=True)
class BreakerChanged:
    """A replica's breaker moved."""

    at_s: float
    model: str
    replica: str
    state: str  # closed | open | half_open


@dataclass(frozen=True, slots=True)
class HedgingSwitched:
    """The on-call switch was used; model None means everywhere."""

    at_s: float
    model: str | None
    on: bool


@dataclass(frozen=True, slots=True)
class ConfigReloaded:
    """The configuration was read again; with an error nothing has changed.

    Attributes:
        models: served now.
        kept: replicas that are as they were, and have kept what is known of them.
        new: the others.
        error: why it was refused, None when it was not; quotes no secret.
    """

    at_s: float
    models: int
    kept: int
    new: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ComponentFailed:
    """A part of the brain or an observer raised; the request went on without it."""

    at_s: float
    component: str
    error: str  # type of the exception only


@dataclass(frozen=True, slots=True)
class ParamsDropped:
    """A request went to a replica without these fields, which its API has no words for (`drop_params`)."""

    at_s: float
    model: str
    replica: str
    params: tuple[str, ...]


Event = (
    RequestEnded
    | RequestRejected
    | HedgeFired
    | HedgeDenied
    | AttemptFailed
    | BreakerChanged
    | HedgingSwitched
    | ConfigReloaded
    | ComponentFailed
    | ParamsDropped
)

Listener = Callable[[Event], None]
