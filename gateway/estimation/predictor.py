"""What TTFT to expect from each replica of a pool: TTFT = level_r * (b + s * uncached + c * pending tokens).

Owns the coefficients, fitted in relative terms and never negative, and the levels of the replicas, which follow each
one through slow times (hedging.md section 3). It must not know which replica is chosen or when a hedge is sent; the
ages of waiting attempts do not enter. Samples are appended on the hot path and folded in a batch at a time.

Units: seconds; tokens; a level is a factor, kept as its logarithm.
"""

import math
import statistics
from typing import Final

_ALONE: Final = 20  # samples that fit b only, with all levels 1
_RESIDUAL_MAX: Final = 1.4  # logarithm: four times off is a straggler or a stall and says nothing about the law
_LEVEL_STEP: Final = 0.1
_LEVEL_CLIP: Final = 0.3  # logarithm: a straggler moves a level by 3 %, as any late answer does
_LEVEL_FADE_S: Final = 30.0  # a level that nothing confirms drifts to 1
_FOLD_S: Final = 0.5  # predictions lag behind the samples by this much at most
_BUFFER_MAX: Final = 256
_REFIT: Final = 8  # new samples worth a new fit; 500 count in it
_DECAY: Final = 0.998  # of a sample's weight with each later one
_PIVOT_MIN: Final = 1e-9  # relative; below it columns are multiples of each other
_ACTIVE: Final = ((1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2))  # which of b, s, c are not 0, besides b alone
_WEIGHT_MAX: Final = 1e9  # weights grow instead of all sums decaying, until they are scaled back
_TTFT_MIN_S: Final = 1e-4  # keeps logarithms and quotients finite


class Predictor:
    """Predicts the TTFT of one pool's replicas, which it knows by name from their first sample on."""

    __slots__ = ("_coefficients", "_fit", "_folded_s", "_levels", "_raw", "_samples", "_scales", "_unfitted")

    def __init__(self) -> None:
        self._raw: list[tuple[str, float, float, float, bool]] = []
        self._samples = 0
        self._unfitted = 0
        self._fit = _RelativeFit()
        self._coefficients = (0.0, 0.0, 0.0)
        self._levels: dict[str, float] = {}  # logarithms
        self._scales: dict[str, float] = {}  # the same as factors
        self._folded_s = -math.inf

    @property
    def coefficients(self) -> tuple[float, float, float]:
        """The last fitted b in seconds, s and c in seconds per token; all 0 before the first sample."""
        return self._coefficients

    @property
    def levels(self) -> dict[str, float]:
        """Each replica's level as a factor; missing ones are 1."""
        return dict(self._scales)

    @property
    def level_median(self) -> float:
        """The middle level, 1 before there is one: how slow the fleet is against its own law."""
        return statistics.median(self._scales.values()) if self._scales else 1.0

    def predict(self, replica: str, uncached: float, pending: float, now_s: float) -> float | None:
        """Expected TTFT in seconds, or None before the pool's first sample.

        Args:
            replica: its name.
            uncached: prompt tokens it has to compute.
            pending: prompt tokens it has been sent and not yet answered, this request's not included.
            now_s: the time.
        """
        if now_s >= self._folded_s + _FOLD_S or self._samples < _ALONE:
            self.fold(now_s)
        if not self._samples:
            return None
        b, s, c = self._coefficients
        return max(_TTFT_MIN_S, self._scales.get(replica, 1.0) * (b + s * uncached + c * pending))

    def add(self, replica: str, ttft_s: float, uncached: float, pending: float, now_s: float) -> None:
        """Take a first content, with the tokens as they were when the attempt was sent."""
        self._raw.append((replica, ttft_s, uncached, pending, True))
        if len(self._raw) >= _BUFFER_MAX:
            self.fold(now_s)

    def add_late(self, replica: str, waited_s: float, uncached: float, pending: float, now_s: float) -> None:
        """Take an attempt that ended without a first content; if it was late by then, it moves the level."""
        self._raw.append((replica, waited_s, uncached, pending, False))
        if len(self._raw) >= _BUFFER_MAX:
            self.fold(now_s)

    def forget(self, replica: str) -> None:
        """Drop what is known of a replica that is gone."""
        self._levels.pop(replica, None)
        self._scales.pop(replica, None)

    def fold(self, now_s: float) -> None:
        """Let levels drift until now_s and take in what was appended; `predict` does it when it is due."""
        if now_s > self._folded_s:
            fade = math.exp((self._folded_s - now_s) / _LEVEL_FADE_S)
            for replica in self._levels:
                self._levels[replica] *= fade
            self._folded_s = now_s
        if self._raw:
            self._take()
            if self._unfitted >= _REFIT or 0 < self._samples <= _ALONE:
                self._coefficients = self._fit.solve(b_only=self._samples <= _ALONE)
                self._unfitted = 0
        self._scales = {replica: math.exp(level) for replica, level in self._levels.items()}

    def _take(self) -> None:
        """Move levels and add to the fit, by the law and the mean level as they were before the batch."""
        b, s, c = self._coefficients
        levels = self._levels
        level_mean = statistics.fmean(levels.values()) if levels else 0.0
        is_alone = self._samples < _ALONE
        for replica, ttft_s, uncached, pending, is_event in self._raw:
            y = max(_TTFT_MIN_S, ttft_s)
            if not is_alone:
                level = levels.setdefault(replica, 0.0)
                residual = math.log(y / max(_TTFT_MIN_S, b + s * uncached + c * pending)) - level
                if is_event or residual > 0.0:
                    levels[replica] = level + _LEVEL_STEP * min(_LEVEL_CLIP, max(-_LEVEL_CLIP, residual))
                if abs(residual) > _RESIDUAL_MAX:
                    continue
                y *= math.exp(level_mean - level)
            if is_event:
                self._fit.add(y, uncached, pending)
                self._samples += 1
                self._unfitted += 1
        self._raw.clear()


class _RelativeFit:
    """Least squares of (b + s * u + c * p) / y against 1; older samples weigh less, no coefficient is below 0."""

    __slots__ = ("_matrix", "_right", "_weight")

    def __init__(self) -> None:
        self._weight = 1.0
        self._matrix = [0.0] * 6  # sums of weight * products of (1, u, p) / y: 11, 1u, 1p, uu, up, pp
        self._right = [0.0] * 3  # sums of weight * (1, u, p) / y

    def add(self, y: float, u: float, p: float) -> None:
        """Take one sample, y > 0."""
        matrix, right = self._matrix, self._right
        self._weight /= _DECAY
        x = 1.0 / y
        wx = self._weight * x
        wxu, wxp = wx * u, wx * p
        matrix[0] += wx * x
        matrix[1] += wxu * x
        matrix[2] += wxp * x
        matrix[3] += wxu * u * x
        matrix[4] += wxu * p * x
        matrix[5] += wxp * p * x
        right[0] += wx
        right[1] += wxu
        right[2] += wxp
        if self._weight > _WEIGHT_MAX:
            self._matrix = [value / self._weight for value in matrix]
            self._right = [value / self._weight for value in right]
            self._weight = 1.0

    def solve(self, *, b_only: bool) -> tuple[float, float, float]:
        """The best (b, s, c) >= 0, by trying which of them are 0: seven small systems. Needs a sample."""
        right, m = self._right, self._matrix
        best = [right[0] / m[0], 0.0, 0.0]
        if b_only:
            return best[0], 0.0, 0.0
        matrix = ((m[0], m[1], m[2]), (m[1], m[3], m[4]), (m[2], m[4], m[5]))
        best_gain = best[0] * right[0]
        for active in _ACTIVE:
            solution = _eliminate([[matrix[i][j] for j in active] + [right[i]] for i in active])
            if solution is None or min(solution) < 0.0:
                continue
            gain = sum(x * right[i] for x, i in zip(solution, active, strict=True))
            if gain > best_gain * (1.0 + _PIVOT_MIN):  # more than rounding
                best_gain = gain
                best = [0.0, 0.0, 0.0]
                for x, i in zip(solution, active, strict=True):
                    best[i] = x
        return best[0], best[1], best[2]


def _eliminate(rows: list[list[float]]) -> list[float] | None:
    """Solve a small symmetric system, given as rows with the right side appended; None if it is singular."""
    pivots_min = [_PIVOT_MIN * row[i] for i, row in enumerate(rows)]
    for i, pivot_min in enumerate(pivots_min):
        row = rows[i]
        if row[i] <= pivot_min:
            return None
        for j, other in enumerate(rows):
            if j != i:
                factor = other[i] / row[i]
                rows[j] = [x - factor * y for x, y in zip(other, row, strict=True)]
    return [row[-1] / row[i] for i, row in enumerate(rows)]
