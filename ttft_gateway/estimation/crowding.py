"""Learns whether the TTFT at a pool's replicas grows with their attempts in flight, as where answers hold slots. Pure.

A level shows a queue only after it has formed, and still shows it after it has ended, until further requests are sent
there: all requests would go to one replica after the other. Where the number in flight matters, routing counts it.

The evidence is the slope of log(observed / predicted TTFT) over the crowd of the replica, which is the logarithm of its
attempts in flight over the mean of all replicas, before this one and each plus one. A replica that is slow for another
reason is crowded only after its prediction has grown, and is still crowded when it is quick again: that slope is
negative, if anything.
"""

import math
from collections.abc import Sequence
from operator import add
from typing import Annotated, Final

import msgspec

_KEPT: Final = 0.998  # of the sums with each sample: about 500 count
_SAMPLES_MIN: Final = 50
_BATCH: Final = 16  # samples between two tests
_RATIO_MIN: Final = 0.37  # observed / predicted TTFT;
_RATIO_MAX: Final = 1.0 / _RATIO_MIN  # a stall is no queue
_X0: Final = 4.0  # added to a crowd, and
_Y0: Final = 1.0  # to the logarithm of a ratio, so that no sum is negative; a slope does not depend on it
_ERRORS_SHOWN: Final = 4.0  # standard errors of a slope that is shown,
_ERRORS_KEPT: Final = 1.0  # and of one that no longer is
_SPREAD_MIN: Final = 1e-6  # variance

CROWD_SUMS: Final = 6
_NO_SUMS: Final = [0.0] * CROWD_SUMS
_Sum = Annotated[float, msgspec.Meta(ge=0.0, le=1e12)]
CrowdSums = Annotated[list[_Sum], msgspec.Meta(min_length=CROWD_SUMS, max_length=CROWD_SUMS)]
"""Number of samples, and sums of x, y, x * x, x * y, y * y: x is the crowd, y the logarithm of the ratio, of each."""


class Crowding:
    """The evidence of one pool.

    Attributes:
        matters: True while the number in flight is known to matter.
        sums: sums of about the last 500 samples.
    """

    def __init__(self) -> None:
        self.matters = False
        self.sums: Sequence[float] = _NO_SUMS
        self._samples: list[tuple[float, float]] = []
        self._new: Sequence[float] | None = None  # sums of samples for other gateways; None if there are none

    def add(self, crowd: float, ttft_s: float, predicted_s: float) -> None:
        """Add a first token, with the crowd of its replica when it was sent."""
        ratio = ttft_s / predicted_s
        y = math.log(_RATIO_MIN if ratio < _RATIO_MIN else _RATIO_MAX if ratio > _RATIO_MAX else ratio)
        self._samples.append((_X0 + (-_X0 if crowd < -_X0 else _X0 if crowd > _X0 else crowd), _Y0 + y))
        if len(self._samples) >= _BATCH:
            rows = [(1.0, x, y, x * x, x * y, y * y) for x, y in self._samples]
            sums = list(map(math.fsum, zip(*rows, strict=True)))
            self._samples.clear()
            if self._new is not None:
                self._new = list(map(add, self._new, sums))
            self._put(sums)

    def take_new(self) -> Sequence[float]:
        """Return the sums of the samples since the last call; zeros at the first call."""
        new, self._new = self._new or _NO_SUMS, _NO_SUMS
        return new

    def put(self, sums: Sequence[float]) -> None:
        """Add the sums of samples of other gateways, or recorded ones.

        Raises:
            ValueError: they are no such sums; nothing was added.
        """
        n, _, _, xx, _, yy = sums
        if xx > n * (2.0 * _X0) ** 2 or yy > n * (2.0 * _Y0) ** 2:
            raise ValueError("the sums are not sums of crowds")
        self._put(sums)

    def _put(self, sums: Sequence[float]) -> None:
        kept = _KEPT ** sums[0]
        self.sums = [kept * old + new for old, new in zip(self.sums, sums, strict=True)]
        if self.sums[0] >= _SAMPLES_MIN:
            self.matters = self._errors() > (_ERRORS_KEPT if self.matters else _ERRORS_SHOWN)

    def _errors(self) -> float:
        """Return the slope as a multiple of its standard error."""
        n = self.sums[0]
        x, y, xx, xy, yy = (each / n for each in self.sums[1:])
        xx, yy = xx - x * x, yy - y * y
        if xx < _SPREAD_MIN or yy < _SPREAD_MIN:
            return 0.0
        return math.sqrt(n) * (xy - x * y) / math.sqrt(xx * yy)
