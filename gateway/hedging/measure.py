"""Chooses the requests on which the saving of hedges is measured, and the way to measure it. Pure.

The TTFT without hedging is unknown for a request whose backup won, because the primary is cancelled. Two random
samples make it known. `LOSERS`: a primary that has lost is read, and thrown away, until its first token; no client
waits longer. `HOLDOUT`: a backup that was granted is not sent; the client waits as without hedging. Losers are read
where cancelling saves little: at providers, which have billed the prompt already, and at own engines while the pool is
not slow.

Units: shares are fractions of 1; `rand` is uniform in [0, 1).
"""

import msgspec

from providers.base import FastEnum


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
