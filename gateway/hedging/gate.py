"""Whether the backup that a timer asks for is worth sending and affordable, now.

Owns the decision and its reasons (hedging.md section 4, "on timer"). It must not know how the backup was chosen, and it
takes no tickets: whoever acts on a `Allow` reserves them.

Units: seconds.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from gateway.estimation.survival import Survival
from gateway.hedging.outcomes import Denial
from gateway.hedging.plan import Plan

_OVERHEAD_S: Final = 0.05  # saving less than this is not worth a request,
_OVERHEAD_BACKUPS: Final = 0.25  # but where servers answer in milliseconds, a quarter of a backup's time is enough
_RETRY_WAITED: Final = 0.12  # of the time waited: six looks while the wait doubles

Replica = TypeVar("Replica")


@dataclass(frozen=True, slots=True)
class WaitingAttempt:
    """A live attempt that has no first content yet."""

    predicted_s: float
    waited_s: float


@dataclass(frozen=True, slots=True)
class Candidate(Generic[Replica]):
    """Where a backup would go.

    Attributes:
        replica: whatever stands for it; handed back.
        predicted_s: predicted time to first content there.
        gain_min: gmin, the gain asked for as a multiple of predicted_s.
        has_room: its quota has room for a hedge.
    """

    replica: Replica
    predicted_s: float
    gain_min: float
    has_room: bool


@dataclass(frozen=True, slots=True)
class Allow(Generic[Replica]):
    """Send a backup now.

    Attributes:
        replica: where to.
        gain_s: what it is expected to save; None if the policy does not weigh that.
    """

    replica: Replica
    gain_s: float | None


@dataclass(frozen=True, slots=True)
class Deny:
    """Send nothing now.

    Attributes:
        reason: why.
        again_after_s: how long to wait before asking again.
        gain_s: what a backup was expected to save; None if that was not weighed.
        asked_s: what it would have had to save; None if that was not weighed.
    """

    reason: Denial
    again_after_s: float
    gain_s: float | None = None
    asked_s: float | None = None


def decide(
    candidate: Candidate[Replica],
    *,
    asking: WaitingAttempt,
    others: Iterable[WaitingAttempt],
    plan: Plan | None,
    has_credit: bool,
    delay_s_min: float,
) -> Allow[Replica] | Deny:
    """Decide on one backup for a request.

    Args:
        candidate: where it would go.
        asking: the attempt whose timer fired.
        others: the other live attempts.
        plan: the policy's; None while there is none, then nothing is weighed.
        has_credit: the budgets can pay for it.
        delay_s_min: hedge_delay_min, the least time between two looks.
    """
    soon_s = max(delay_s_min, _RETRY_WAITED * asking.waited_s)
    gain_s = None
    if plan is not None and plan.curve is not None:
        gain_s = min(_gain_s(plan.curve, attempt, candidate) for attempt in (asking, *others))
        overhead_s = min(_OVERHEAD_S, _OVERHEAD_BACKUPS * candidate.predicted_s)
        asked_s = overhead_s + candidate.gain_min * candidate.predicted_s
        if gain_s < asked_s:
            return Deny(Denial.LOW_GAIN, soon_s, gain_s, asked_s)
    if not candidate.has_room:
        return Deny(Denial.QUOTA, soon_s, gain_s)
    if not has_credit:
        late_s = plan.late_s(asking.predicted_s) if plan is not None else 0.0
        again_s = late_s - asking.waited_s if asking.waited_s < late_s else asking.waited_s
        return Deny(Denial.BUDGET, max(delay_s_min, again_s), gain_s)
    return Allow(candidate.replica, gain_s)


def _gain_s(curve: Survival, attempt: WaitingAttempt, candidate: Candidate[Replica]) -> float:
    return curve.gain_s(predicted_s=attempt.predicted_s, waited_s=attempt.waited_s, backup_s=candidate.predicted_s)
