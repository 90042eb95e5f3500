"""Quantiles with their confidence intervals, and ratios of two runs. Pure.

The interval of a quantile comes from order statistics: it is valid for every distribution, and open if the sample is
too small. The interval of a ratio is a bootstrap over whole blocks of requests, so that a slow minute, in which
neighbours are alike, counts as one observation. The interval over seeds is Student's. No units: results have the unit
of the input.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gateway.proof.intervals import student_t

QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
_LEVEL: Final = 0.95
_RESAMPLES: Final = 1_000
_BLOCKS_MIN: Final = 5  # resamples of fewer blocks hardly differ; of one block they do not differ at all


class Estimate(NamedTuple):
    """A value and its 95 % confidence interval; an end is infinite if the sample is too small."""

    value: float
    low: float
    high: float

    @property
    def known(self) -> bool:
        """True if the sample was large enough for both ends."""
        return math.isfinite(self.low) and math.isfinite(self.high)


def quantile(values: Sequence[float], share: float) -> Estimate:
    """Return a quantile with its interval of order statistics.

    Args:
        values: a sample; infinite for requests without an answer.
        share: the quantile, from 0 to 1.
    """
    ordered = np.sort(np.asarray(values, dtype=float))
    count = len(ordered)
    if not count:
        return Estimate(math.nan, -math.inf, math.inf)
    low, high = _ranks(count, share)
    return Estimate(
        float(ordered[max(1, math.ceil(share * count)) - 1]),
        float(ordered[low - 1]) if low >= 1 else -math.inf,
        float(ordered[high - 1]) if high <= count else math.inf,
    )


def _ranks(count: int, share: float) -> tuple[int, int]:
    """Return the ranks, from 1 on, of the two values that contain the quantile with 95 % confidence.

    The number of values below the quantile is binomial; each tail gets half of the remaining probability. A rank of 0
    or count + 1 means that no value of the sample is far enough out.
    """
    ranks = np.arange(count + 1)
    logs = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, count + 1)))))
    odds = ranks * math.log(share) + (count - ranks) * math.log1p(-share)
    below = np.cumsum(np.exp(logs[count] - logs - logs[::-1] + odds))  # P(at most this many values below)
    tail = (1 - _LEVEL) / 2
    return int(np.searchsorted(below, tail)), int(np.searchsorted(below, 1 - tail)) + 1


def mean(values: Sequence[float]) -> Estimate:
    """Return the mean of independent values with Student's interval, which is open for fewer than two."""
    count = len(values)
    value = sum(values) / count if count else math.nan
    if count < 2:
        return Estimate(value, -math.inf, math.inf)
    half = student_t(count - 1) * float(np.std(values, ddof=1)) / math.sqrt(count)
    return Estimate(value, value - half, value + half)


def geometric_mean(values: Sequence[float]) -> Estimate:
    """Return the geometric mean of independent positive values with Student's interval of their logarithms."""
    found = mean([math.log(value) for value in values])
    return Estimate(*(math.exp(each) if each < math.inf else math.inf for each in found))


def ratio_of_sums(counts: Sequence[float], bases: Sequence[float]) -> Estimate:
    """Return the ratio of the sums of paired counts, with the interval of its linear approximation.

    If all bases are 0, the result is 1 more than the mean count: a ratio would be infinite after a single event.
    """
    if not any(bases):
        return Estimate(*(1.0 + each for each in mean(counts)))
    value, base = sum(counts) / sum(bases), sum(bases) / len(bases)
    error = mean([count - value * each for count, each in zip(counts, bases, strict=True)])
    return Estimate(value, value + error.low / base, value + error.high / base)


class Blocks(NamedTuple):
    """A sample in blocks that were measured one after the other, and a quantile; None for the mean."""

    blocks: Sequence[Sequence[float]]
    share: float | None


def ratio(above: Blocks, below: Blocks, seed: int, *, paired: bool) -> Estimate:
    """Return the ratio of a statistic of two samples, with a bootstrap interval, which is open under five blocks.

    Args:
        paired: True if block i of both samples was measured under the same conditions; both have equally many blocks.
    """
    rng = np.random.default_rng(seed)
    one, other = ([np.asarray(block, dtype=float) for block in sample.blocks] for sample in (above, below))
    everything, rest = np.arange(len(one)), np.arange(len(other))
    value = _statistic(one, everything, above.share) / _statistic(other, rest, below.share)
    if min(len(one), len(other)) < _BLOCKS_MIN:
        return Estimate(value, -math.inf, math.inf)
    found = np.empty(_RESAMPLES)
    for i in range(_RESAMPLES):
        chosen = rng.integers(len(one), size=len(one))
        others = chosen if paired else rng.integers(len(other), size=len(other))
        found[i] = _statistic(one, chosen, above.share) / _statistic(other, others, below.share)
    low, high = np.nanquantile(found, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return Estimate(value, float(low), float(high))


def _statistic(blocks: Sequence[NDArray[np.float64]], chosen: NDArray[np.int64], share: float | None) -> float:
    values = np.concatenate([blocks[i] for i in chosen])
    if not len(values):
        return math.nan
    if share is None:
        return float(values.mean())
    rank = max(1, math.ceil(share * len(values))) - 1
    return float(np.partition(values, rank)[rank])


def in_blocks(values: Sequence[float], size: int) -> list[Sequence[float]]:
    """Cut a sample, in the order of its requests, into blocks; a short rest joins the last block."""
    starts = list(range(0, max(1, len(values) - size + 1), size))
    return [values[start : start + size] for start in starts[:-1]] + [values[starts[-1] :]]
