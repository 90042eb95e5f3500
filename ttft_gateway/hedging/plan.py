"""Computes when to start a backup: the survival curve of waits, and a policy's plan from it.

Owns the curve with a backup's gains under it (docs/design/0003), and the choice of the delay (docs/design/0004). A plan
is read by every request and renewed from time to time; all policies produce the same kind of plan, so the race depends
on none. Does not decide whether a hedge is allowed once its time has come (gate.py), and does not collect the waits.

A wait x and a backup's wait y are independent draws from the same curve, in units of their own predictions. A wait that
was given up shows only that it is longer than its observation: the mass after the largest observation cannot be
estimated and is placed at twice that observation. Otherwise a tail that is always hedged, hence always censored, would
disappear from the curve.

Units: the curve's waits and the adaptive plan's delays are ratios (observed / predicted); all other delays, and
arguments ending in `_s`, are seconds. Shares are fractions of 1.
"""

import enum
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from operator import neg
from typing import Final

import msgspec

from ttft_gateway.estimation.window import RELATIVE_ACCURACY, Bins

_DELAY_MIN: Final = 1.0  # a request within its prediction is hedged only if a large budget pays for all later ones
_CANDIDATES_MAX: Final = 32  # delays tried; the gain is flat around its maximum
_COARSE: Final = 4  # every fourth delay is tried first
_LATE_MIN: Final = 1.5
_LATE_MAX: Final = 8.0  # bounds the wait of requests that lose the coin toss, and of curves without a tail
_LATE_SHARE: Final = 0.25  # of the budget: so few requests are later than this that all can be afforded
_ROUNDING: Final = 1.0 + 1e-12
_TARGET_SHARE: Final = (
    0.98  # of the backups that would be in time for a TTFT target if they were sent at the usual delay
)
_SHARE_MIN: Final = 1e-9  # below any survival that samples can show; avoids a division by 0
_BIN_EDGE: Final = 1.0 + RELATIVE_ACCURACY  # a delay is the upper edge of a bin, after all waits in the bin

_UNKNOWN_AT: Final = 2.0  # times the largest observation (docs/design/0003)
_SHARE_ROUNDING: Final = 1e-9  # rounding error of a product of thousands of factors, when it is compared with a share


class Policy(enum.Enum):
    """Method that sets the delay of a backup; the value is the name in the settings and the metric label."""

    ADAPTIVE = "adaptive"  # from the learned curve and the budget, checked again by the gate
    QUANTILE = "quantile"  # a quantile of the replica's recent TTFT
    STATIC = "static"  # the configured delay
    SHADOW = "shadow"  # as ADAPTIVE, and no backup is sent
    OFF = "off"


class FirstEvent(enum.Enum):
    """The event that counts as an answer's first.

    A gateway always uses `CONTENT`. `HEADERS` serves to measure the harm of hedging on headers, and HTTP responses that
    are no token streams.
    """

    CONTENT = "content"
    HEADERS = "headers"


class Survival:
    """S(d) = P(x > d), estimated by the product limit (Kaplan and Meier); immutable.

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
        point = self.points[self.first_at_most(1.0 - q + _SHARE_ROUNDING)]
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


class Plan(msgspec.Struct, frozen=True):
    """The parameters from which a request sets its hedge timer.

    Attributes:
        delay: time of the first decision for the fraction `share` of late requests; infinite for never.
        share: fraction of late requests, drawn with a coin; the first decision for all other requests is at `late`.
        late: time of the (next) decision for requests without a backup.
        curve: survival curve from which the gate computes gains. With a curve, delays are multiples of the prediction;
            with None, delays are seconds.
    """

    policy: Policy
    delay: float
    share: float = 1.0
    late: float = math.inf
    curve: Survival | None = None

    def delay_s(self, *, predicted_s: float, coin: float, delay_s_min: float) -> float:
        """Return the time from an attempt's start until its timer fires, in seconds.

        Args:
            predicted_s: predicted TTFT of the attempt.
            coin: the request's random number in [0, 1).
            delay_s_min: minimum of the result.
        """
        delay = self.delay if coin < self.share else self.late
        delay_s = delay if self.curve is None else delay * predicted_s
        return delay_s if delay_s > delay_s_min else delay_s_min

    def target_delay_s(self, target_s: float, predicted_s: float, *, coin: float, delay_s_min: float) -> float:
        """Return the time from an attempt's start until its timer fires, if only a TTFT target matters, in seconds.

        Before the target, a later hedge loses nothing as long as the backup is still in time, and many requests are
        answered before it. So the delay is the latest at which nearly as many backups are in time as at the usual
        delay. The usual delay holds if it is later, and for a plan without a curve.

        Args:
            target_s: TTFT target, from the attempt's start.
            predicted_s, coin, delay_s_min: as in `delay_s`.
        """
        usual_s = self.delay_s(predicted_s=predicted_s, coin=coin, delay_s_min=delay_s_min)
        curve = self.curve
        if curve is None or target_s <= self.delay * predicted_s:
            return usual_s
        in_time = _TARGET_SHARE * (1.0 - curve.at(target_s / predicted_s - self.delay))
        latest = target_s / predicted_s - curve.points[curve.first_at_most(1.0 - in_time)]
        if latest <= self.delay:
            return usual_s
        left = self.share * curve.at(self.delay)  # the share of the requests that may be hedged
        is_chosen = self.share >= 1.0 or coin * curve.at(latest) < left
        return max(delay_s_min, (latest if is_chosen else max(latest, self.late)) * predicted_s)

    def late_s(self, predicted_s: float) -> float:
        """Return the time from an attempt's start after which its coin no longer matters, in seconds."""
        return self.late if self.curve is None else self.late * predicted_s


def plan_fixed(policy: Policy, delay_s: float) -> Plan:
    """Make a plan with one delay for all requests (quantile, static); `math.inf` disables hedging."""
    return Plan(policy, delay_s, late=delay_s)


def plan_adaptive(curve: Survival, *, budget: float, first_share: float, thrift: float = 1.0) -> Plan:
    """Choose the delay that saves most under the budget: maximise min(1, B'/S(d)) * E[(x - d - y)+] over d >= 1.

    If a budget that is not saved pays for all requests that take longer than a shorter delay, d is at least that delay.

    Args:
        curve: survival of the ratios observed / predicted.
        budget: B, hedges per request; above 0.
        first_share: B', the part of it for first hedges (`pool.learning.SecondHedges`); above 0.
        thrift: shortest delay; at 1, no request is hedged within its prediction (`parameters.thrift_of`).
    """
    paid_for = curve.first_at_most(first_share)
    delay_min = max(thrift, min(_DELAY_MIN, curve.points[paid_for] * _BIN_EDGE))
    # Once all remaining requests can be hedged, a longer delay only loses: the maximum is not after that delay.
    indices = _spread(bisect_right(curve.points, delay_min), paid_for)
    delays = [delay_min, *(curve.points[index] * _BIN_EDGE for index in indices)]
    late_shares = [curve.at(delay_min), *(curve.survival[index] for index in indices)]
    shares = [min(1.0, first_share / max(late_share, _SHARE_MIN)) for late_share in late_shares]
    best = _best(curve, delays, shares)
    late_delay = curve.points[curve.first_at_most(_LATE_SHARE * budget)] * _BIN_EDGE
    late = max(_LATE_MIN * delays[best], min(_LATE_MAX * delays[best], late_delay))
    return Plan(Policy.ADAPTIVE, delays[best], shares[best], late, curve)


def _spread(first: int, last: int) -> Sequence[int]:
    """Return evenly spaced indices from first to last, both included, at most 32; none if last < first."""
    if last - first < _CANDIDATES_MAX:
        return range(first, last + 1)
    return [first + step * (last - first) // (_CANDIDATES_MAX - 1) for step in range(_CANDIDATES_MAX)]


def _best(curve: Survival, delays: Sequence[float], shares: Sequence[float]) -> int:
    """Return the index of the delay with the largest share * gain; the first of equal ones.

    A gain takes up to 100 us. The gain is convex in the delay, so between two delays it is at most the straight line
    between their gains: a delay that could not win with a gain on that line is not computed.
    """
    tried = [*range(0, len(delays) - 1, _COARSE), len(delays) - 1]
    gains = [curve.gain(delays[index]) for index in tried]
    best: tuple[float, int] = max((shares[index] * gain, -index) for index, gain in zip(tried, gains, strict=True))
    for (low, gain_low), (high, gain_high) in pairwise(zip(tried, gains, strict=True)):
        for index in range(low + 1, high):
            part = (delays[index] - delays[low]) / (delays[high] - delays[low])
            if shares[index] * (gain_low + part * (gain_high - gain_low)) * _ROUNDING >= best[0]:
                best = max(best, (shares[index] * curve.gain(delays[index]), -index))
    return -best[1]


def _products(left: Sequence[float], right: Sequence[float]) -> Iterator[float]:
    return (one * other for one, other in zip(left, right, strict=True))
