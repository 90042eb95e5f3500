"""Measures the saving of hedges: chooses requests and the way, and describes hedges that are not sent. Pure.

The TTFT without hedging is unknown for a request that its backup won, because the primary is cancelled. Two random
samples make it known. `LOSERS`: a primary that has lost is read, and thrown away, until its first token; no client
waits longer. `HOLDOUT`: a backup that was granted is not sent; the client waits as without hedging. Losers are read
where cancelling saves little: at providers, which have billed the prompt already, and at own engines while the pool is
not slow.

The policy `shadow` sends no hedge, so the backup's wait is unknown. It is drawn from the pool's curve of ratios
observed / predicted, as if it were independent of the wait of the late attempt.

Units: seconds, tokens, money in the configuration's currency; shares are fractions of 1; `rand` is uniform in [0, 1).
"""

import msgspec

from ttft_gateway.apis.base import FastEnum
from ttft_gateway.hedging.budget import hedge_money
from ttft_gateway.hedging.calibration import Expectation
from ttft_gateway.hedging.contract import Hedge
from ttft_gateway.hedging.plan import Plan
from ttft_gateway.routing.replicas import Replica


class Instrument(FastEnum):
    """Way to measure; the value is the word in logs, metrics and headers."""

    LOSERS = "losers"
    HOLDOUT = "holdout"


class MeasureShares(msgspec.Struct, frozen=True, gc=False):
    """Shares of the hedges that are measured.

    Attributes:
        losers: share of the beaten primaries that are read to their first token.
        holdout: share of the granted hedges that are not sent.
    """

    losers: float = 0.0
    holdout: float = 0.0


NOT_MEASURED = MeasureShares()


class Measured(msgspec.Struct, frozen=True, gc=False):
    """The measurement of a request for which a hedge was granted.

    Attributes:
        instrument: way to measure.
        share: probability with which the request was drawn.
        drawn: True if the request was drawn: its loser is read, or its hedge was withheld.
        attempt: index of the attempt for which the hedge was granted.
        observed: True if a loser was read until its first token, its failure or its TTFT timeout.
    """

    instrument: Instrument
    share: float
    drawn: bool
    attempt: int
    observed: bool = False

    @property
    def withheld(self) -> bool:
        """True if the hedge was withheld, and no other one may be sent."""
        return self.drawn and self.instrument is Instrument.HOLDOUT


def draw(shares: MeasureShares, attempt: int, *, cheap: bool, rand: float) -> Measured | None:
    """Choose the instrument for a granted hedge and draw; None if the hedge is not measured.

    Args:
        attempt: index of the attempt for which the hedge was granted.
        cheap: True if reading the attempt to its first token costs little.
    """
    if cheap and shares.losers > 0:
        return Measured(Instrument.LOSERS, shares.losers, rand < shares.losers, attempt)
    if shares.holdout > 0:
        return Measured(Instrument.HOLDOUT, shares.holdout, rand < shares.holdout, attempt)
    return None


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
        tokens: tokens of the prompt, uncached prompt tokens at the backup, and tokens of the expected answer.
    """
    backup, expected, (prompt, uncached, answer) = hedge.replica, hedge.tickets.expected, tokens
    billed = prompt + (answer if late.bills_cancelled or backup.bills_cancelled else 0.0)
    cost = None if backup.prices is None else hedge_money(late, backup, prompt, uncached, answer)
    gain_s = expected.gain_s if isinstance(expected, Expectation) else None
    return Shadow(number, backup.name, reason, after_s, round(billed), cost, expected_s, gain_s, drawn_s)


def reason_of(hedge: Hedge, *, suspect: bool) -> ShadowReason:
    """Return the reason of a granted hedge; `suspect`: the late replica has stopped answering."""
    if isinstance(hedge.tickets.expected, Expectation):
        return ShadowReason.LATE
    return ShadowReason.SUSPECT if suspect else ShadowReason.COLD_START


def drawn_ttft_s(plan: Plan | None, expected_s: float | None, rand: float) -> float | None:
    """Draw the TTFT of a backup from the curve of a plan; None if the plan or the prediction is missing."""
    if plan is None or plan.curve is None or expected_s is None:
        return None
    return expected_s * plan.curve.points[plan.curve.first_at_most(1.0 - rand)]
