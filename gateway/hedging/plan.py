"""When a backup is started: a policy's plan, read by every request and made again now and then.

Owns the choice of the delay (hedging.md section 4). It must not know whether a hedge is allowed when its time has come
(gate.py), nor how the curve was learned. All policies give the same kind of plan, so the race knows none of them.

Units: the adaptive plan's delays are multiples of the prediction; all others are seconds. Shares are fractions of 1.
"""

import enum
import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gateway.estimation.survival import Survival
from gateway.estimation.window import RELATIVE_ACCURACY

_DELAY_MIN: Final = 1.0  # a request that is not late is not hedged
_CANDIDATES_MAX: Final = 32  # delays tried; the gain is flat around its maximum
_STEPS: Final = np.arange(_CANDIDATES_MAX)
_LATE_MIN: Final = 1.5
_LATE_MAX: Final = 8.0  # nobody waits for ever because of a coin, and a curve without a tail does not run away
_LATE_SHARE: Final = 0.25  # of the budget: so few are this late that all of them can be afforded
_SECOND_RESERVE: Final = 0.97  # with second hedges the budget is shared; a little stays for their variance
_DECAY: Final = 0.999  # a first hedge
_SHARE_MIN: Final = 1e-9  # below any survival that samples can show; keeps 0 out of a division
_BIN_EDGE: Final = 1.0 + RELATIVE_ACCURACY  # a delay lies at the upper edge of a bin: all of the bin has had its chance


class Policy(enum.Enum):
    """How the delay of a backup is found; the value is the name in the settings and the metric label."""

    ADAPTIVE = "adaptive"  # from what has been learned and the budget, checked again by the gate
    QUANTILE = "quantile"  # a quantile of the replica's recent TTFT
    STATIC = "static"  # the configured delay
    OFF = "off"


class FirstEvent(enum.Enum):
    """The event that counts as an answer's first.

    A gateway always uses `CONTENT`. `HEADERS` exists to measure what goes wrong with it, and for HTTP that is no stream
    of tokens.
    """

    CONTENT = "content"
    HEADERS = "headers"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a request needs to know to arm its timer.

    Attributes:
        policy: who made it.
        delay: when most late requests ask for a backup; infinite for never.
        share: how many of them, decided by a coin; the others ask at `late`.
        late: when whoever has no backup yet asks (again).
        curve: what the gate weighs gains with; the delays are ratios to the prediction if and only if there is one.
    """

    policy: Policy
    delay: float
    share: float = 1.0
    late: float = math.inf
    curve: Survival | None = None

    def delay_s(self, *, predicted_s: float, coin: float, delay_s_min: float) -> float:
        """Seconds after its start at which an attempt's timer fires.

        Args:
            predicted_s: predicted time to first content of the attempt.
            coin: the request's random number in [0, 1).
            delay_s_min: never earlier than this.
        """
        delay = self.delay if coin < self.share else self.late
        return max(delay_s_min, delay if self.curve is None else delay * predicted_s)

    def late_s(self, predicted_s: float) -> float:
        """Seconds after its start at which an attempt is so late that a coin no longer matters."""
        return self.late if self.curve is None else self.late * predicted_s


def plan_fixed(policy: Policy, delay_s: float) -> Plan:
    """A plan with one delay for all: quantile, static; `math.inf` for a policy that never hedges."""
    return Plan(policy, delay_s, late=delay_s)


def plan_adaptive(curve: Survival, *, budget: float, first_share: float) -> Plan:
    """Choose the delay that saves most under the budget: maximise min(1, B'/S(d)) * E[(x - d - y)+] over d >= 1.

    Args:
        curve: of the ratios observed / predicted.
        budget: B, hedges per request; above 0.
        first_share: B', what of it first hedges may use (`SecondHedges.first_share`); above 0.
    """
    first = int(curve.points.searchsorted(_DELAY_MIN, "right"))
    # Once everyone who is left can be hedged, waiting longer only loses: the maximum is not behind that delay.
    picked = _spread(first, curve.first_at_most(first_share))
    delays = np.full(len(picked) + 1, _DELAY_MIN)
    delays[1:] = curve.points[picked] * _BIN_EDGE
    late_shares = np.full(len(delays), curve.at(_DELAY_MIN))
    late_shares[1:] = curve.survival[picked]
    shares = np.minimum(1.0, first_share / np.maximum(late_shares, _SHARE_MIN))
    best = int((shares * curve.gains(delays)).argmax())
    delay = float(delays[best])
    rare = float(curve.points[curve.first_at_most(_LATE_SHARE * budget)]) * _BIN_EDGE
    late = max(_LATE_MIN * delay, min(_LATE_MAX * delay, rare))
    return Plan(Policy.ADAPTIVE, delay, float(shares[best]), late, curve)


def _spread(first: int, last: int) -> NDArray[np.int_]:
    """Places from first to last, both included, evenly and not too many; none when last is before first."""
    if last - first < _CANDIDATES_MAX:
        return np.arange(first, last + 1)
    steps: NDArray[np.int_] = first + _STEPS * (last - first) // (_CANDIDATES_MAX - 1)
    return steps


class SecondHedges:
    """How often a first hedge is followed by a second one, learned from the last thousand."""

    __slots__ = ("_first", "_second")

    def __init__(self) -> None:
        self._first = 0.0
        self._second = 0.0

    def count(self, *, second: bool) -> None:
        """A hedge was sent: the first of its request, or a later one."""
        if second:
            self._second += 1.0
        else:
            self._first = self._first * _DECAY + 1.0
            self._second *= _DECAY

    def first_share(self, budget: float, hedges_max: int) -> float:
        """B': what first hedges may use of the budget, so that second ones are left their part."""
        if hedges_max <= 1:
            return budget
        return _SECOND_RESERVE * budget / (1.0 + (self._second + 1.0) / (self._first + 10.0))
