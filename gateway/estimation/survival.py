"""Kaplan-Meier survival curve of waits, some of them given up, over a histogram; and a backup's gains under it.

A wait x and a backup's wait y are independent draws from the same curve, in units of their own predictions. Independent
of the cost and the timing of hedges. A wait that was given up shows only that it is longer than its observation: the
mass after the largest observation cannot be estimated and is placed at twice that observation. Otherwise a tail that is
always hedged, hence always censored, would disappear from the curve.

Units: ratios (observed / predicted) on the curve; seconds for arguments ending in `_s`.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from gateway.estimation.window import Bins

_UNKNOWN_AT: Final = 2.0  # times the largest observation (docs/design/0003)
_ALL: Final = np.ones(1)  # S before the first point
_ROUNDING: Final = 1e-9  # rounding error of a product of thousands of factors, when it is compared with a share

Floats = NDArray[np.float64]


class Survival:
    """S(d) = P(x > d), estimated by the product limit; immutable.

    Args:
        bins: histogram with at least one sample; in a bin, events come before censored waits.

    Attributes:
        points: positions of the mass, ascending; the last one is artificial if the longest waits were given up.
        mass: probability at each point; sums to 1.
        survival: S just after each point; ends with 0.
        observed_max: largest observation, censored or not; the curve is unknown beyond it.
        mean: E[x].
    """

    __slots__ = ("_below", "_below_sum", "mass", "mean", "observed_max", "points", "survival")

    def __init__(self, bins: Bins) -> None:
        # A request waits while a plan is made: methods and slices cost a fraction of numpy's functions.
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
        """Return S(delay), the share of waits that last longer."""
        index = int(self.points.searchsorted(delay, "right"))
        return float(self.survival[index - 1]) if index else 1.0

    def quantile(self, q: float) -> float | None:
        """Return the q-quantile of the waits; None if censored waits hide it."""
        point = float(self.points[self.first_at_most(1.0 - q + _ROUNDING)])
        return point if point <= self.observed_max else None

    def first_at_most(self, share: float) -> int:
        """Return the index of the first point after which S <= share."""
        return int((-self.survival).searchsorted(-share))

    def gains(self, delays: Floats) -> Floats:
        """Return E[(x - delay - y)+] for each delay: the mean saving, over all requests, by a backup sent then."""
        first_late = int(self.points.searchsorted(delays.min(), "right"))
        remaining = self.points[first_late:] - delays[:, np.newaxis]
        return self._saved(remaining) @ self.mass[first_late:]

    def gain_s(self, *, predicted_s: float, waited_s: float, backup_s: float) -> float:
        """Return E[(x * predicted - waited - y * backup)+ | x > waited / predicted]: seconds saved by a backup now.

        Beyond the largest observation, where the curve is unknown, a wait is expected to last as long again.

        Args:
            predicted_s: predicted TTFT of the waiting attempt.
            waited_s: time for which it has waited.
            backup_s: predicted TTFT of the backup.
        """
        waited = waited_s / predicted_s
        if waited >= self.observed_max:
            return waited_s - self.mean * backup_s
        first_late = int(self.points.searchsorted(waited, "right"))
        remaining = (self.points[first_late:] * predicted_s - waited_s) / backup_s
        mass = self.mass[first_late:]
        return float(self._saved(remaining) @ mass / mass.sum()) * backup_s

    def remaining_s(self, *, predicted_s: float, waited_s: float) -> float:
        """Return E[x * predicted - waited | x > waited / predicted]: the time that an attempt still had to wait.

        As in `gain_s`, a wait beyond the largest observation is expected to last as long again.
        """
        waited = waited_s / predicted_s
        if waited >= self.observed_max:
            return waited_s
        first_late = int(self.points.searchsorted(waited, "right"))
        mass = self.mass[first_late:]
        return float(self.points[first_late:] @ mass / mass.sum()) * predicted_s - waited_s

    def _saved(self, remaining: Floats) -> Floats:
        """Return E[(t - y)+] for each t."""
        index = self.points.searchsorted(remaining, "right")
        return remaining * self._below[index] - self._below_sum[index]
