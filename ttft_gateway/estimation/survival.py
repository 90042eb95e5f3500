"""Kaplan-Meier survival curve of waits, some of them given up, over a histogram; and a backup's gains under it.

A wait x and a backup's wait y are independent draws from the same curve, in units of their own predictions. Independent
of the cost and the timing of hedges. A wait that was given up shows only that it is longer than its observation: the
mass after the largest observation cannot be estimated and is placed at twice that observation. Otherwise a tail that is
always hedged, hence always censored, would disappear from the curve.

Units: ratios (observed / predicted) on the curve; seconds for arguments ending in `_s`.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from operator import neg
from typing import Final

from ttft_gateway.estimation.window import Bins

_UNKNOWN_AT: Final = 2.0  # times the largest observation (docs/design/0003)
_ROUNDING: Final = 1e-9  # rounding error of a product of thousands of factors, when it is compared with a share


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
        at_risk = sum(bins.events) + sum(bins.censored)
        left = 1.0
        self.points = list(bins.values)
        self.survival: list[float] = []
        for events, censored in zip(bins.events, bins.censored, strict=True):
            left *= 1.0 - events / at_risk
            at_risk -= events + censored
            self.survival.append(left)
        self.observed_max = self.points[-1]
        if left > 0.0:
            self.points.append(_UNKNOWN_AT * self.observed_max)
            self.survival.append(0.0)
        self.mass = [before - after for before, after in pairwise((1.0, *self.survival))]
        # E[(t - y)+] = t * P(y <= t) - E[y; y <= t]: both as running sums, with a 0 in front for "no point below t".
        self._below = [0.0, *(1.0 - share for share in self.survival)]
        self._below_sum = [0.0, *accumulate(_products(self.mass, self.points))]
        self.mean = self._below_sum[-1]

    def at(self, delay: float) -> float:
        """Return S(delay), the share of waits that last longer."""
        index = bisect_right(self.points, delay)
        return self.survival[index - 1] if index else 1.0

    def quantile(self, q: float) -> float | None:
        """Return the q-quantile of the waits; None if censored waits hide it."""
        point = self.points[self.first_at_most(1.0 - q + _ROUNDING)]
        return point if point <= self.observed_max else None

    def first_at_most(self, share: float) -> int:
        """Return the index of the first point after which S <= share."""
        return bisect_left(self.survival, -share, key=neg)

    def gain(self, delay: float) -> float:
        """Return E[(x - delay - y)+]: the mean saving, over all requests, by a backup sent after a delay."""
        first_late = bisect_right(self.points, delay)
        return self._saved(first_late, [point - delay for point in self.points[first_late:]])

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
        first_late = bisect_right(self.points, waited)
        remaining = [(point * predicted_s - waited_s) / backup_s for point in self.points[first_late:]]
        return self._saved(first_late, remaining) / sum(self.mass[first_late:]) * backup_s

    def remaining_s(self, *, predicted_s: float, waited_s: float) -> float:
        """Return E[x * predicted - waited | x > waited / predicted]: the time that an attempt still had to wait.

        As in `gain_s`, a wait beyond the largest observation is expected to last as long again.
        """
        waited = waited_s / predicted_s
        if waited >= self.observed_max:
            return waited_s
        first_late = bisect_right(self.points, waited)
        late = self.mass[first_late:]
        return sum(_products(self.points[first_late:], late)) / sum(late) * predicted_s - waited_s

    def _saved(self, first_late: int, remaining: list[float]) -> float:
        """Return the sum of mass * E[(t - y)+] over the late points, of each of which t remains."""
        points, below, below_sum = self.points, self._below, self._below_sum
        saved, index, last = 0.0, 0, len(points)
        for t, mass in zip(remaining, self.mass[first_late:], strict=True):
            while index < last and points[index] <= t:  # t ascends
                index += 1
            saved += mass * (t * below[index] - below_sum[index])
        return saved


def _products(left: Sequence[float], right: Sequence[float]) -> Iterator[float]:
    return (one * other for one, other in zip(left, right, strict=True))
