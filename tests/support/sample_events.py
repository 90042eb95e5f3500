"""Events and states as tests need them: a good request, and whatever a test changes about it."""

from msgspec.structs import replace

from gateway.events import (
    AttemptReport,
    ComponentFailed,
    Event,
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
from gateway.observe.state import (
    AdmissionState,
    KeyAdmission,
    LimitState,
    ModelAdmission,
    PoolState,
    QuotaState,
    ReplicaState,
)
from gateway.process_events import AcceptingChanged, ConfigReloaded, ShareAway
from ttft_gateway.apis.base import Api, Usage
from ttft_gateway.hedging.charges import Billed, Charge, Disposition
from ttft_gateway.hedging.measure import Shadow, ShadowReason
from ttft_gateway.hedging.outcomes import Denial, GuardCause, Outcome

USAGE = Usage(prompt_tokens=100, completion_tokens=11, cached_tokens=40, reasoning_tokens=5)
PRIMARY = AttemptReport(
    replica="a",
    role=Role.PRIMARY,
    start_s=0.0,
    headers_s=0.010,
    content_s=0.200,
    end_s=1.2,
    outcome=Outcome.FINISHED,
    status=200,
    error=None,
    upstream_request_id="req-1",
    usage=USAGE,
    charge=Charge(Disposition.WINNER, Billed.USED, 100, 40, 11),
    reason="first choice",
    predicted_s=0.18,
    hedge_after_s=0.25,
)
LOSER = replace(
    PRIMARY,
    content_s=None,
    end_s=0.3,
    outcome=Outcome.LOST,
    upstream_request_id=None,
    usage=None,
    charge=Charge(Disposition.LOSER, Billed.USED, 90, estimated=True),
)
BACKUP = replace(
    PRIMARY,
    replica="b",
    role=Role.BACKUP,
    start_s=0.25,
    content_s=0.05,
    reason="a had no token after 250 ms",
    hedge_after_s=None,
)
REQUEST = RequestEnded(
    at_s=50.0,
    request_id="r-1",
    key_name="team-a",
    model="llama",
    api=Api.CHAT,
    streaming=True,
    status=200,
    error=None,
    result=Result.PRIMARY,
    winner="a",
    attempts=(PRIMARY,),
    denials=(),
    denied_why=None,
    gateway_s=0.0002,
    ttft_s=0.2,
    total_s=1.2,
    usage=USAGE,
    events=11,
    malformed=0,
)
HEDGED = replace(REQUEST, result=Result.BACKUP_WON, winner="b", attempts=(LOSER, BACKUP), ttft_s=0.3)

WORKED = replace(REQUEST, attempts=(replace(PRIMARY, work_s=0.05),), work_s=0.05)
SHADOWED = replace(
    REQUEST,
    result=Result.DENIED,
    denials=(Denial.SHADOW,),
    shadow=Shadow(0, "b", ShadowReason.LATE, 0.15, 120, 0.25, expected_s=0.09, gain_s=0.1, drawn_s=0.02),
)
RECOVERED = replace(
    REQUEST,
    attempts=(replace(PRIMARY, charge=replace(PRIMARY.charge, cost=0.02)),),
    denials=(Denial.BUDGET,),
    malformed=2,
    recoveries=(
        RecoveryReport(RecoveryKind.REPLAY, RecoveryResult.RECOVERED, "a", 12, 0.3, 40),
        RecoveryReport(RecoveryKind.REPLAY, RecoveryResult.LOST, "a", 12, 0.3, 40, GuardCause.SILENT),
    ),
    queued_s=0.4,
)
REJECTED = RequestRejected(0.0, "r-2", "team-a", 503, "overloaded", "llama", queued_s=0.7)
PASSED = RequestPassed(0.0, "r-3", "team-a", "llama", "files", "POST", 502, "upstream_cut", "a", 1.5)
EVENTS: tuple[Event, ...] = (  # every counter and histogram changes with at least one of these
    REQUEST,
    WORKED,
    replace(REQUEST, usual_cost=0.03),
    HEDGED,
    replace(HEDGED, attempts=(replace(LOSER, empty=True), BACKUP)),
    SHADOWED,
    RECOVERED,
    REJECTED,
    PASSED,
    HedgeFired(0.0, "r-1", "llama", "a", "b", 0.25),
    PreviousKeyUsed(0.0, "team-a"),
    ComponentFailed(0.0, "plan", "ValueError"),
    ConfigReloaded(0.0, 1, 2, 0, "line 3 is wrong"),
    AcceptingChanged(0.0, "127.0.0.1:8080", accepting=False, error="Too many open files"),
    ShareAway(0.0, 4, "share", 0.225, "Connection refused"),
)

ADMISSION = AdmissionState(
    (ModelAdmission("llama", 8, 8, 3, 100, {"team-a": 2, "team-b": 1}),),
    (KeyAdmission("team-a", 10, 20, 55, None),),
    body_bytes=4096,
    body_bytes_max=512_000_000,
)


def pool(model: str, *, hedging_on: bool = True) -> PoolState:
    """A pool of three replicas."""
    replicas = (
        ReplicaState(
            "a", in_flight=3, breaker="closed", samples=100, hedge_delay_s=0.25, ttft_p50_s=0.1, token_gap_s=0.02
        ),
        ReplicaState("b", in_flight=0, breaker="half_open", suspect=True, never_hedged="billed", level=7.5),
        ReplicaState("c", in_flight=1, breaker="open", out=True),
    )
    limits = (
        LimitState("tokens", 60.0, 1_000.0, 400.0, observed=True, enforced=False, age_s=0.5, others_s=4.5),
        LimitState("tokens", 86_400.0, 9_000.0, 900.0, observed=True, enforced=False, age_s=0.5),
        LimitState("requests", 60.0, 100.0, -20.0, observed=False, enforced=True, age_s=None),
    )
    quotas = (QuotaState("main", 1.5, limits, reserved=900, settled=600, released=200),)
    return PoolState(model, model, "quantile", hedging_on, 2.5, 4.0, replicas, quotas)
