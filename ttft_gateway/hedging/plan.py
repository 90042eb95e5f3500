"""Computes when to start a backup: a policy's plan, read by every request and renewed from time to time.

Owns the choice of the delay (docs/design/0004). Does not decide whether a hedge is allowed once its time has come
(gate.py), and does not learn the curve. All policies produce the same kind of plan, so the race depends on none.

Units: the adaptive plan's delays are multiples of the prediction; all other delays are seconds. Shares are fractions of
1.
"""

import enum
import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import msgspec

from ttft_gateway.estimation.survival import Survival
from ttft_gateway.estimation.window import RELATIVE_ACCURACY

_DELAY_MIN: Final = 1.0  # a request within its prediction is not hedged
_CANDIDATES_MAX: Final = 32  # delays tried; the gain is flat around its maximum
_COARSE: Final = 4  # every fourth delay is tried first
_LATE_MIN: Final = 1.5
_LATE_MAX: Final = 8.0  # bounds the wait of requests that lose the coin toss, and of curves without a tail
_LATE_SHARE: Final = 0.25  # of the budget: so few requests are later than this that all can be afforded
_SECOND_RESERVE: Final = 0.97  # with second hedges the budget is shared; 3 % is reserved for their variance
_DECAY: Final = 0.999  # of the counts with each first hedge
_ROUNDING: Final = 1.0 + 1e-12
_TARGET_SHARE: Final = (
    0.98  # of the backups that would be in time for a TTFT target if they were sent at the usual delay
)
_SHARE_MIN: Final = 1e-9  # below any survival that samples can show; avoids a division by 0
_BIN_EDGE: Final = 1.0 + RELATIVE_ACCURACY  # a delay is the upper edge of a bin, after all waits in the bin


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


def plan_adaptive(curve: Survival, *, budget: float, first_share: float) -> Plan:
    """Choose the delay that saves most under the budget: maximise min(1, B'/S(d)) * E[(x - d - y)+] over d >= 1.

    Args:
        curve: survival of the ratios observed / predicted.
        budget: B, hedges per request; above 0.
        first_share: B', the part of it for first hedges (`SecondHedges.first_share`); above 0.
    """
    # Once all remaining requests can be hedged, a longer delay only loses: the maximum is not after that delay.
    indices = _spread(bisect_right(curve.points, _DELAY_MIN), curve.first_at_most(first_share))
    delays = [_DELAY_MIN, *(curve.points[index] * _BIN_EDGE for index in indices)]
    late_shares = [curve.at(_DELAY_MIN), *(curve.survival[index] for index in indices)]
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


class SecondHedges:
    """Learns from the last thousand first hedges how often a second hedge follows."""

    def __init__(self) -> None:
        self._first = 0.0
        self._second = 0.0

    def count(self, *, second: bool) -> None:
        """Count a sent hedge: the first of its request, or a later one."""
        if second:
            self._second += 1.0
        else:
            self._first = self._first * _DECAY + 1.0
            self._second *= _DECAY

    def first_share(self, budget: float, hedges_max: int) -> float:
        """Return B', the share of the budget for first hedges; the remaining share is for second hedges."""
        if hedges_max <= 1:
            return budget
        return _SECOND_RESERVE * budget / (1.0 + (self._second + 1.0) / (self._first + 10.0))
