"""Compares what hedges saved and cost with what the gate expected, so that hedges that save little end. Pure.

The gate's expectation assumes that the backup's wait is independent of the primary's. If both wait for the same cause,
backups lose, or win by little. Counting wins would not notice the second case, so seconds are compared: a lost hedge
saved 0, a won hedge the remaining wait of the primary by the survival curve (docs/design/0004).

Units: seconds; `coin` is a request's uniform random number in [0, 1).
"""

from typing import Final

import msgspec

from ttft_gateway.estimation.stall_detector import LATE_PREDICTIONS
from ttft_gateway.hedging.plan import Survival

_DECAY: Final = 0.998  # with each hedge: the last 500 count
_PRIOR: Final = 10.0  # hedges that saved what was expected: a few losses prove nothing,
_PRIOR_SAVED: Final = 4.0  # and at least this saving: where hedges rarely win, more losses prove nothing
_RECENT: Final = 100  # hedges that the guard looks at
_GUARD_GAIN: Final = 0.5  # rare wins may be worth a lot: then nothing is wrong
_RECENT_MIN: Final = 30  # hedges without a win, or ...
_RECENT_MASK: Final = (1 << _RECENT_MIN) - 1
_RECENT_PER_WIN: Final = 15  # ... more with each win: at a win rate of 15%, either has a chance below 1%
_GUARDED_SHARE: Final = (
    0.05  # of the requests may be hedged while nearly all hedges lose, to notice when hedges win again
)
_TRIAL_SHARE: Final = 0.03  # of the requests ignore the factor, for the same reason
_USUAL_RUN: Final = 2.0  # times its prediction that a backup runs at most if it is not slow itself
_TRIALS_MIN: Final = 0.25  # of these shares are left after many losses, because they fill queues (U15)
_MIN_S: Final = 1e-4  # so that a division is finite
_DIGITS: Final = 1024.0  # the coin's later digits are independent of the plan's use of the coin


class Expectation(msgspec.Struct, frozen=True):
    """Expected outcome of a hedge.

    Attributes:
        predicted_s: predicted TTFT of the attempt that was late.
        waited_s: time for which that attempt had waited.
        backup_s: predicted TTFT of the backup.
        gain_s: expected saving.
    """

    predicted_s: float
    waited_s: float
    backup_s: float
    gain_s: float


class Rescue(msgspec.Struct, frozen=True):
    """A hedge of a request at a suspect replica, for which no saving is computed; the attributes are as above."""

    predicted_s: float
    waited_s: float
    backup_s: float

    def confirms(self, ran_s: float) -> bool:
        """Return True if a backup that won after `ran_s` shows that the suspicion was right.

        The backup took its usual time while the suspect replica did not answer. An early win shows nothing, and
        neither does a slow one: both requests may be slow for the same reason.
        """
        is_late = self.waited_s + ran_s >= LATE_PREDICTIONS * self.predicted_s
        return is_late and ran_s <= _USUAL_RUN * self.backup_s


class Correction(msgspec.Struct, frozen=True, gc=False):
    """Corrections of the gate's arithmetic.

    Attributes:
        gain: time that hedges saved, as a share of what was expected; 0 for a request that is not hedged.
        cost: time for which backups ran, as a multiple of their predicted TTFT, at least 1.
    """

    gain: float = 1.0
    cost: float = 1.0


NO_CORRECTION: Final = Correction()
NOT_NOW: Final = Correction(gain=0.0)


class Guard:
    """The wins of the last hundred hedges of one kind."""

    def __init__(self) -> None:
        self._outcomes = 0  # bits of the recent hedges; 1 for a win
        self._recent = 0

    @property
    def is_losing(self) -> bool:
        """True while nearly all recent hedges have lost."""
        return self._recent >= _RECENT_MIN + _RECENT_PER_WIN * self._outcomes.bit_count()

    @property
    def has_recent_wins(self) -> bool:
        """True if two of the last 30 hedges have won: one alone may be chance."""
        return (self._outcomes & _RECENT_MASK).bit_count() > 1

    def add(self, *, won: bool) -> None:
        """Add a hedge."""
        self._outcomes = (self._outcomes << 1 | won) & ((1 << _RECENT) - 1)
        self._recent = min(self._recent + 1, _RECENT)

    def allows(self, coin: float) -> bool:
        """Return True if a request may be hedged: each, but one in 20 while nearly all hedges lose."""
        return coin * _DIGITS % 1.0 < _GUARDED_SHARE or not self.is_losing


class Calibration:
    """The outcome of a pool's recent hedges."""

    def __init__(self) -> None:
        self._hedges = self._expected = self._saved = self._ran = 0.0  # decayed sums, in multiples of backup_s
        self._guard = Guard()
        self._correction = NO_CORRECTION

    @property
    def is_guarded(self) -> bool:
        """True while nearly all recent hedges have lost, and hedges save less than half of what is expected."""
        return self._guard.is_losing and self._correction.gain < _GUARD_GAIN

    def of(self, coin: float) -> Correction:
        """Return the correction for a request; the guard bars 19 requests in 20 or more from being hedged."""
        digits = coin * _DIGITS % 1.0
        if not self.is_guarded:
            return NO_CORRECTION if digits < _TRIAL_SHARE else self._correction
        if not self._guard.has_recent_wins:
            digits /= max(_TRIALS_MIN, self._correction.gain / _GUARD_GAIN)
        if digits < _TRIAL_SHARE:
            return NO_CORRECTION
        return self._correction if digits < _GUARDED_SHARE else NOT_NOW

    def add_won(self, expected: Expectation, curve: Survival, ran_s: float) -> None:
        """Add a hedge that brought the first content, after it had run for `ran_s`."""
        waited_s = expected.waited_s + ran_s
        self._add(expected, curve.remaining_s(predicted_s=expected.predicted_s, waited_s=waited_s), ran_s, won=True)

    def add_measured(self, expected: Expectation, saved_s: float, ran_s: float) -> None:
        """Add a hedge that brought the first content after `ran_s`, with the measured saving."""
        self._add(expected, saved_s, ran_s, won=True)

    def add_lost(self, expected: Expectation, ran_s: float) -> None:
        """Add a hedge that ran for `ran_s`, until another attempt brought the first content."""
        self._add(expected, 0.0, ran_s, won=False)

    def _add(self, expected: Expectation, saved_s: float, ran_s: float, *, won: bool) -> None:
        backup_s = max(_MIN_S, expected.backup_s)  # in multiples of it, a long prompt counts like a short one
        self._hedges = self._hedges * _DECAY + 1.0
        self._expected = self._expected * _DECAY + expected.gain_s / backup_s
        self._saved = self._saved * _DECAY + saved_s / backup_s
        self._ran = self._ran * _DECAY + ran_s / backup_s
        prior = max(_PRIOR * self._expected / self._hedges, _PRIOR_SAVED)
        gain = (self._saved + prior) / (self._expected + prior)
        cost = (self._ran + _PRIOR) / (self._hedges + _PRIOR)
        self._correction = Correction(min(1.0, gain), max(1.0, cost))
        self._guard.add(won=won)
