"""Learns whether the TTFT at a pool's replicas grows with their attempts in flight, as where answers hold slots. Pure.

A level shows a queue only after it has formed, and still shows it after it has ended, until further requests are sent
there: all requests would go to one replica after the other. Where the number in flight matters, routing counts it.

The evidence is the slope of log(observed / predicted TTFT) over the crowd of the replica, which is the logarithm of its
attempts in flight over the mean of all replicas, before this one and each plus one. A replica that is slow for another
reason is crowded only after its prediction has grown, and is still crowded when it is quick again: that slope is
negative, if anything.
"""

import math
from typing import Final

_KEPT: Final = 0.998  # of the sums with each sample: about 500 count
_SAMPLES_MIN: Final = 50
_RENEW: Final = 16  # samples between two tests
_RATIO_MIN: Final = 0.37  # observed / predicted TTFT;
_RATIO_MAX: Final = 1.0 / _RATIO_MIN  # a stall is no queue
_ERRORS_SHOWN: Final = 4.0  # standard errors of a slope that is shown,
_ERRORS_KEPT: Final = 1.0  # and of one that no longer is
_SPREAD_MIN: Final = 1e-6  # variance


class Crowding:
    """The evidence of one pool.

    Attributes:
        matters: True while the number in flight is known to matter.
    """

    def __init__(self) -> None:
        self.matters = False
        self._samples = 0
        self._n = self._x = self._y = self._xx = self._xy = self._yy = 0.0

    def add(self, crowd: float, ttft_s: float, predicted_s: float) -> None:
        """Add a first token, with the crowd of its replica when it was sent."""
        ratio = ttft_s / predicted_s
        y = math.log(_RATIO_MIN if ratio < _RATIO_MIN else _RATIO_MAX if ratio > _RATIO_MAX else ratio)
        self._n = _KEPT * self._n + 1.0
        self._x = _KEPT * self._x + crowd
        self._y = _KEPT * self._y + y
        self._xx = _KEPT * self._xx + crowd * crowd
        self._xy = _KEPT * self._xy + crowd * y
        self._yy = _KEPT * self._yy + y * y
        self._samples += 1
        if self._samples >= _SAMPLES_MIN and self._samples % _RENEW == 0:
            self.matters = self._errors() > (_ERRORS_KEPT if self.matters else _ERRORS_SHOWN)

    def _errors(self) -> float:
        """Return the slope as a multiple of its standard error."""
        n, x, y = self._n, self._x / self._n, self._y / self._n
        xx, yy = self._xx / n - x * x, self._yy / n - y * y
        if xx < _SPREAD_MIN or yy < _SPREAD_MIN:
            return 0.0
        return math.sqrt(n) * (self._xy / n - x * y) / math.sqrt(xx * yy)
