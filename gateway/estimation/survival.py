"""How long waits last when many of them were given up: the Kaplan-Meier curve over a histogram, and gains under it.

A wait x and a backup's wait y are independent draws from the same curve, in units of their own predictions. It must not
know what a hedge costs or when one is started. A wait that was given up says only "longer than this": what the largest
observation leaves open cannot be estimated and sits at twice that observation, so that a tail which is always hedged,
hence always censored, does not erase itself.

Units: ratios (observed / predicted) on the curve; seconds where an argument says so.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from gateway.estimation.window import Bins

_UNKNOWN_AT: Final = 2.0  # times the largest observation (hedging.md section 4)
_ALL: Final = np.ones(1)  # of the waits last longer than nothing
_ROUNDING: Final = 1e-9  # of a product of thousands of factors, when it is compared with a share

Floats = NDArray[np.float64]


class Survival:
    """S(d) = P(x > d), estimated by the product limit; immutable.

    Args:
        bins: a histogram with at least one sample; an event comes before a censored wait in the same bin.

    Attributes:
        points: where the mass sits, ascending; the last one is made up if the longest waits were given up.
        mass: probability at each point; sums to 1.
        survival: S just behind each point; ends with 0.
        observed_max: the largest observation, censored or not; nothing is known beyond.
        mean: E[x].
    """

    __slots__ = ("_below", "_below_sum", "mass", "mean", "observed_max", "points", "survival")

    def __init__(self, bins: Bins) -> None:
        # A plan is made in passing, while a request waits: methods and slices, since numpy's functions cost a multiple.
        at_risk = (bins.events + bins.censored)[::-1].cumsum()[::-1]
        survival = (1.0 - bins.events / at_risk).cumprod()
        points = bins.values
        self.observed_max = float(points[-1])
        if survival[-1] > 0.0:
            points = np.concatenate((points, (_UNKNOWN_AT * self.observed_max,)))
            survival = np.concatenate((survival, (0.0,)))
        self.points: Floats = points
        self.survival: Floats = survival
        # E[(t - y)+] = t * P(y <= t) - E[y; y <= t]: both as running sums, with a 0 in front for "no point below t".
        self._below: Floats = np.zeros(len(points) + 1)
        self._below[1:] = 1.0 - survival
        self.mass: Floats = np.concatenate((_ALL, survival[:-1])) - survival
        self._below_sum: Floats = np.zeros(len(points) + 1)
        (self.mass * points).cumsum(out=self._below_sum[1:])
        self.mean = float(self._below_sum[-1])

    def at(self, delay: float) -> float:
        """S(delay), the share of waits that last longer."""
        index = int(self.points.searchsorted(delay, "right"))
        return float(self.survival[index - 1]) if index else 1.0

    def quantile(self, q: float) -> float | None:
        """What a share q of the waits do not exceed; None where too many were given up before that could be seen."""
        point = float(self.points[self.first_at_most(1.0 - q + _ROUNDING)])
        return point if point <= self.observed_max else None

    def first_at_most(self, share: float) -> int:
        """Index of the first point behind which S <= share."""
        return int((-self.survival).searchsorted(-share))

    def gains(self, delays: Floats) -> Floats:
        """E[(x - delay - y)+] for each delay: what a backup sent then saves per request, the ones not late included."""
        late = int(self.points.searchsorted(delays.min(), "right"))
        left = self.points[late:] - delays[:, np.newaxis]
        return self._saved(left) @ self.mass[late:]

    def gain_s(self, *, predicted_s: float, waited_s: float, backup_s: float) -> float:
        """E[(x * predicted - waited - y * backup)+ | x > waited / predicted], seconds saved by a backup sent now.

        Beyond the largest observation, where the curve says nothing, a wait is expected to last as long again.

        Args:
            predicted_s: what was predicted for the attempt that waits.
            waited_s: how long it has waited.
            backup_s: what is predicted for the backup.
        """
        waited = waited_s / predicted_s
        if waited >= self.observed_max:
            return waited_s - self.mean * backup_s
        late = int(self.points.searchsorted(waited, "right"))
        left = (self.points[late:] * predicted_s - waited_s) / backup_s
        mass = self.mass[late:]
        return float(self._saved(left) @ mass / mass.sum()) * backup_s

    def _saved(self, left: Floats) -> Floats:
        """E[(t - y)+] for each t."""
        below = self.points.searchsorted(left, "right")
        return left * self._below[below] - self._below_sum[below]
