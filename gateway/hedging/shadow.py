"""A hedge that the policy `shadow` would have sent: its cost, and the backup's TTFT by the learned curve. Pure.

The backup's wait is unknown, because nothing is sent. It is drawn from the pool's curve of ratios observed / predicted,
as if it were independent of the wait of the late attempt.

Units: seconds, tokens, money in the configuration's currency.
"""

import msgspec

from gateway.hedging.budget import hedge_money
from gateway.hedging.contract import Hedge
from gateway.hedging.plan import Plan
from gateway.routing.replicas import Replica
from providers.base import FastEnum


class ShadowReason(FastEnum):
    """Reason of a hedge; the value is the word in logs and metrics."""

    LATE = "late"  # the gain by the learned curve is worth the cost
    COLD_START = "cold_start"  # too few first tokens for a curve
    SUSPECT = "suspect"  # the replica has stopped answering


class Shadow(msgspec.Struct, frozen=True, gc=False):
    """A hedge that was decided, paid for and not sent.

    Attributes:
        attempt: index of the attempt that was late.
        replica: replica that would have received the hedge.
        after_s: time from that attempt's start to the hedge.
        tokens: tokens that would have been billed: the prompt, and an answer if a cancelled one is billed.
        cost: money for them; None without prices.
        expected_s: predicted TTFT of the backup; None before the first sample.
        gain_s: expected saving; None if it was not computed.
        drawn_s: TTFT of the backup, drawn from the curve; None without a curve.
    """

    attempt: int
    replica: str
    reason: ShadowReason
    after_s: float
    tokens: int
    cost: float | None
    expected_s: float | None
    gain_s: float | None
    drawn_s: float | None


def shadow_of(
    hedge: Hedge,
    late: Replica,
    number: int,
    *,
    after_s: float,
    reason: ShadowReason,
    tokens: tuple[float, float, float],
    expected_s: float | None,
    drawn_s: float | None,
) -> Shadow:
    """Describe a granted hedge that is not sent.

    Args:
        late: replica of the late attempt.
        number: index of the late attempt.
        tokens: tokens of the prompt, those of it that the backup has not cached, and tokens of the expected answer.
    """
    backup, expected, (prompt, uncached, answer) = hedge.replica, hedge.tickets.expected, tokens
    billed = prompt + (answer if late.bills_cancelled or backup.bills_cancelled else 0.0)
    cost = None if backup.prices is None else hedge_money(late, backup, prompt, uncached, answer)
    gain_s = None if expected is None else expected.gain_s
    return Shadow(number, backup.name, reason, after_s, round(billed), cost, expected_s, gain_s, drawn_s)


def reason_of(hedge: Hedge, *, suspect: bool) -> ShadowReason:
    """Return the reason of a granted hedge; `suspect`: the late replica has stopped answering."""
    if hedge.tickets.expected is not None:
        return ShadowReason.LATE
    return ShadowReason.SUSPECT if suspect else ShadowReason.COLD_START


def drawn_ttft_s(plan: Plan | None, expected_s: float | None, rand: float) -> float | None:
    """Draw the TTFT of a backup from the curve of a plan; None if the plan or the prediction is missing."""
    if plan is None or plan.curve is None or expected_s is None:
        return None
    return expected_s * plan.curve.points[plan.curve.first_at_most(1.0 - rand)]
