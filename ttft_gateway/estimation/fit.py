"""Least squares of relative errors with three coefficients and decaying weights.

Minimises the sum of weight * ((x0 * c0 + x1 * c1 + x2 * c2) / y - 1)^2: the error of a sample is relative to its value.
Independent of the meaning of the columns. Stores the normal equations, not the samples.

Columns that hardly vary show nothing about c1 and c2, and noise or a drift would become a large coefficient. With a
reach, both are therefore expected near 0 (a ridge in units of c0) until the samples contradict.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Annotated, Final

import msgspec

_DECAY: Final = 0.998  # of a sample's weight with each later sample: the last 500 count
_WEIGHT_MAX: Final = 1e9  # new weights grow instead of all sums decaying, until all are scaled back
_PIVOT_MIN: Final = 1e-9  # relative; below it, columns are multiples of each other
_LATER_MAX: Final = 5_000  # samples after which an older one has no weight
_NO_SUMS: Final = (0.0,) * 10  # the number of samples, six sums of the matrix and three of the right side
_NOISE: Final = 0.25  # relative error of a sample, the unit in which the expectation of c1 and c2 is weighed
# Of y, explained by one standard deviation of a column: more is no drift of all samples during the fit, so that the
# coefficient may be as large as it seems.
_EXPLAINED_MIN: Final = 0.2
_ACTIVE: Final = ((1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2))  # sets of nonzero coefficients, besides c0 alone
_ACTIVE_01: Final = ((1,), (0, 1))  # the sets used while every sample has x2 = 0

Triple = tuple[float, float, float]
Row = tuple[float, float, float, float]
"""A sample: y and its columns."""
_Sum = Annotated[float, msgspec.Meta(ge=0.0, le=1e30)]


class FitState(msgspec.Struct, frozen=True):
    """The sums of a fit as plain values, in units of the newest sample's weight; states of several fits may be added.

    Attributes:
        matrix: sums of weight * products of two columns / y^2: 00, 01, 02, 11, 12, 22.
        right: sums of weight * column / y.
    """

    matrix: tuple[_Sum, _Sum, _Sum, _Sum, _Sum, _Sum]
    right: tuple[_Sum, _Sum, _Sum]


class RelativeFit:
    """The sums from which three coefficients are solved."""

    def __init__(self) -> None:
        self._weight = 1.0
        self._new: Sequence[float] | None = None  # for other gateways; None if there are none
        self._matrix = [0.0] * 6  # sums of weight * products of x / y: 00, 01, 02, 11, 12, 22
        self._right = [0.0] * 3  # sums of weight * x / y

    @staticmethod
    def restored(state: FitState) -> "RelativeFit":
        """Return a fit with recorded sums."""
        fit = RelativeFit()
        fit._matrix, fit._right = list(state.matrix), list(state.right)
        return fit

    @property
    def state(self) -> FitState:
        """The sums as plain values."""
        m00, m01, m02, m11, m12, m22 = (value / self._weight for value in self._matrix)
        r0, r1, r2 = (value / self._weight for value in self._right)
        return FitState((m00, m01, m02, m11, m12, m22), (r0, r1, r2))

    def add(self, y: float, x0: float, x1: float, x2: float) -> None:
        """Add one sample, y > 0."""
        self.add_all([(y, x0, x1, x2)])

    def add_all(self, samples: Sequence[Row]) -> None:
        """Add samples in their order."""
        if self._new is not None:
            self._new = _with_products(self._new, samples)
        remaining = iter(samples)
        while self._add_until_scaled(remaining):
            self._rescale()

    def _add_until_scaled(self, samples: Iterable[Row]) -> bool:
        """Add samples; return True as soon as the sums must be scaled back, False after the last sample."""
        weight, is_too_large = self._weight, False
        m00, m01, m02, m11, m12, m22 = self._matrix
        r0, r1, r2 = self._right
        for y, column0, column1, column2 in samples:
            weight /= _DECAY
            x0, x1 = column0 / y, column1 / y
            w0, w1 = weight * x0, weight * x1
            m00 += w0 * x0
            m01 += w0 * x1
            m11 += w1 * x1
            r0 += w0
            r1 += w1
            if column2:  # 0 adds nothing
                x2 = column2 / y
                w2 = weight * x2
                m02 += w0 * x2
                m12 += w1 * x2
                m22 += w2 * x2
                r2 += w2
            if weight > _WEIGHT_MAX:
                is_too_large = True
                break
        self._weight = weight
        self._matrix = [m00, m01, m02, m11, m12, m22]
        self._right = [r0, r1, r2]
        return is_too_large

    def scale(self, factor: float) -> None:
        """Multiply y of all samples, and thus the coefficients, by a factor."""
        self._matrix = [value / factor**2 for value in self._matrix]
        self._right = [value / factor for value in self._right]

    def take_new(self) -> Sequence[float]:
        """Return the number of samples since the last call and their sums, matrix first; zeros at the first call."""
        new = self._new or _NO_SUMS
        self._new = _NO_SUMS
        return new

    def put(self, count: int, sums: Sequence[float]) -> None:
        """Add the samples of other gateways: their number and sums, as `take_new` returns them without the number."""
        decay = _DECAY ** min(count, _LATER_MAX)
        weight = self._weight * (1.0 - decay) / (1.0 - _DECAY) / count / decay  # mean weight of the new samples
        self._weight /= decay
        self._matrix = [old + weight * new for old, new in zip(self._matrix, sums[:6], strict=True)]
        self._right = [old + weight * new for old, new in zip(self._right, sums[6:], strict=True)]
        self._rescale()

    def solve_nonnegative(self, reach: float = math.inf) -> Triple:
        """Return the best nonnegative coefficients, trying each set of zeros; needs one sample with x0.

        Args:
            reach: value of x1 and x2 up to which they are expected to add at most c0 to y, unless the samples show
                more; infinite for no expectation. Then the coefficients of constant columns are noise.
        """
        right, rows = self._right, self._rows()
        if reach < math.inf:
            rows = self._expected(reach)
        best: Triple = (right[0] / rows[0][0], 0.0, 0.0)
        best_gain = best[0] * right[0]
        for active in _ACTIVE if self._matrix[5] else _ACTIVE_01:
            solution = _eliminate([[rows[i][j] for j in active] + [right[i]] for i in active])
            if solution is None or min(solution) < 0.0:
                continue
            gain = sum(c * right[i] for c, i in zip(solution, active, strict=True))
            if gain > best_gain * (1.0 + _PIVOT_MIN):  # more than rounding
                coefficients = dict(zip(active, solution, strict=True))
                best_gain, best = gain, (coefficients.get(0, 0.0), coefficients.get(1, 0.0), coefficients.get(2, 0.0))
        return best

    def solve_near_one(self, samples: float) -> Triple:
        """Return the best coefficients under a prior of 1 for each, with the weight of `samples` new samples."""
        prior = samples * self._weight
        rows = [
            [value + prior * (i == j) for j, value in enumerate(row)] + [self._right[i] + prior]
            for i, row in enumerate(self._rows())
        ]
        solution = _eliminate(rows)
        if solution is None:  # the prior makes the sums of samples regular
            raise ValueError("the sums are not sums of samples")
        return solution[0], solution[1], solution[2]

    def _expected(self, reach: float) -> tuple[Triple, Triple, Triple]:
        """Return the rows with the expectation of `solve_nonnegative` added."""
        m00, m01, m02, m11, m12, m22 = self._matrix
        r0, r1, r2 = self._right
        usual, noise = (r0 / m00 / reach) ** 2, _NOISE**2 * self._weight  # squared: expected coefficient, error
        explained_min = _EXPLAINED_MIN**2 * r0 * r0 / m00  # in all samples together
        ridges = []
        for mixed, own, right in ((m01, m11, r1), (m02, m22, r2)):
            expected, varied = usual, own - mixed * mixed / m00
            if varied > _PIVOT_MIN * own:
                seen = ((right - mixed * r0 / m00) / varied) ** 2 - explained_min / varied
                expected = seen if seen > usual else usual
            ridges.append(noise / expected)
        return (m00, m01, m02), (m01, m11 + ridges[0], m12), (m02, m12, m22 + ridges[1])

    def _rescale(self) -> None:
        """Give the newest sample the weight 1."""
        self._matrix = [value / self._weight for value in self._matrix]
        self._right = [value / self._weight for value in self._right]
        self._weight = 1.0

    def _rows(self) -> tuple[Triple, Triple, Triple]:
        m = self._matrix
        return (m[0], m[1], m[2]), (m[1], m[3], m[4]), (m[2], m[4], m[5])


def _with_products(sums: Sequence[float], samples: Iterable[Row]) -> Sequence[float]:
    """Return the number and sums of samples after further samples were added."""
    for y, *columns in samples:
        x0, x1, x2 = (column / y for column in columns)
        products = (1.0, x0 * x0, x0 * x1, x0 * x2, x1 * x1, x1 * x2, x2 * x2, x0, x1, x2)
        sums = [old + new for old, new in zip(sums, products, strict=True)]
    return sums


def _eliminate(rows: list[list[float]]) -> list[float] | None:
    """Solve a small symmetric system of rows with the right side appended; None if it is singular."""
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
