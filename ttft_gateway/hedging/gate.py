"""Decides, when a hedge timer fires, whether a backup is worth sending and affordable.

Owns the decision and its reasons (docs/design/0004). Does not choose the backup, and takes no credits:
the caller reserves them after an `Allow`.

Units: seconds.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from ttft_gateway.hedging.calibration import NO_CORRECTION, Correction, Expectation
from ttft_gateway.hedging.outcomes import Denial
from ttft_gateway.hedging.plan import Plan

_OVERHEAD_S: Final = 0.05  # a smaller saving is not worth a request,
_OVERHEAD_BACKUPS: Final = 0.25  # but for servers that answer in milliseconds, a quarter of a backup's time is enough
_TRUSTED_GAIN: Final = 0.5  # of the expected saving: while hedges save less, more of the required gain is required
_RETRY_WAITED: Final = 0.12  # of the time waited: six decisions while the wait doubles


class WaitingAttempt(msgspec.Struct, frozen=True):
    """A live attempt without a first content."""

    predicted_s: float
    waited_s: float


class Candidate(msgspec.Struct, frozen=True):
    """A possible target of a backup.

    Attributes:
        predicted_s: predicted TTFT of the target.
        gain_min: gmin, the required gain as a multiple of predicted_s.
        has_room: True if the target's quota has room for a hedge.
        answer_loss_s: weighted time by which the rest of the answer is expected to take longer there.
    """

    predicted_s: float
    gain_min: float
    has_room: bool
    answer_loss_s: float = 0.0


class Allow(msgspec.Struct, frozen=True):
    """Send a backup now.

    Attributes:
        expected: expected outcome, before the correction; None if the policy does not compute a gain.
    """

    expected: Expectation | None

    @property
    def gain_s(self) -> float | None:
        """Expected saving."""
        return None if self.expected is None else self.expected.gain_s


class Deny(msgspec.Struct, frozen=True):
    """Do not send a backup now.

    Attributes:
        reason: reason for the metric and the log.
        again_after_s: delay before the next decision.
        gain_s: expected saving of a backup; None if it was not computed.
        asked_s: required saving of a backup; None if no gain was computed.
    """

    reason: Denial
    again_after_s: float
    gain_s: float | None = None
    asked_s: float | None = None


def decide(
    candidate: Candidate,
    *,
    asking: WaitingAttempt,
    others: Iterable[WaitingAttempt],
    plan: Plan | None,
    has_credit: bool,
    delay_s_min: float,
    correction: Correction = NO_CORRECTION,
    thrift: float = 1.0,
) -> Allow | Deny:
    """Decide on one backup for a request.

    Args:
        asking: attempt of the timer that fired.
        others: other live attempts of the request.
        plan: the policy's plan; None if there is none yet, in which case gains are not computed.
        has_credit: True if the budgets can pay for the hedge.
        delay_s_min: hedge_delay_min, the shortest time between two decisions.
        correction: outcome of recent hedges.
        thrift: share of the required gain that is required as long as hedges save what is expected.
    """
    recheck_s = max(delay_s_min, _RETRY_WAITED * asking.waited_s)
    gain_s = None
    if plan is not None and plan.curve is not None:
        gain_s = min(
            plan.curve.gain_s(predicted_s=each.predicted_s, waited_s=each.waited_s, backup_s=candidate.predicted_s)
            for each in (asking, *others)
        )
        overhead_s = min(_OVERHEAD_S, _OVERHEAD_BACKUPS * candidate.predicted_s)
        asked_s = overhead_s + candidate.gain_min * correction.cost * candidate.predicted_s
        asked_s *= max(thrift, 1.0 - correction.gain / _TRUSTED_GAIN)
        expected_s = correction.gain * gain_s - candidate.answer_loss_s
        if expected_s < asked_s:
            return Deny(Denial.LOW_GAIN, recheck_s, expected_s, asked_s)
    if not candidate.has_room:
        return Deny(Denial.QUOTA, recheck_s, gain_s)
    if not has_credit:
        late_s = plan.late_s(asking.predicted_s) if plan is not None else 0.0
        next_s = late_s - asking.waited_s if asking.waited_s < late_s else asking.waited_s
        return Deny(Denial.BUDGET, max(delay_s_min, next_s), gain_s)
    if gain_s is None:
        return Allow(None)
    return Allow(Expectation(asking.predicted_s, asking.waited_s, candidate.predicted_s, gain_s))
