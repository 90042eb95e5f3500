"""Figures of TTFTs with and without hedging, with intervals of a bootstrap over blocks of neighbours. Pure.

Whole blocks of the log are drawn again, so that a slow minute counts as one observation. The same blocks are drawn for
both sides of a saving. Units: seconds; shares are fractions of 1.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streaming_bench.replay.donors import Values
from streaming_bench.report.stats import Estimate

FIGURES: Final = ("p95", "p99", "misses", "mean")
"""Names of the figures: two quantiles, the share of requests beyond the objective, and the restricted mean."""
QUANTILES: Final = {"p95": 0.95, "p99": 0.99}
BEYOND_MIN: Final = 10  # requests beyond a quantile: with fewer it is not shown
HALF_WIDTH: Final = 0.25  # of a useful interval, as a share of the value

_LEVEL: Final = (0.025, 0.975)
_RESAMPLES: Final = 600
_BLOCKS: Final = 40
_BLOCK_MIN: Final = 25  # requests
_BLOCKS_MIN: Final = 8  # fewer hardly differ when drawn again
_FRESH: Final = math.sqrt(2.0)  # noise of replayed and further requests together
_DIGITS: Final = 9  # a nanosecond
_SLOWEST: Final = 0.4  # of the requests: contains the p95 also where slow blocks are drawn several times


class WaitBounds(NamedTuple):
    """Limits that turn times into figures.

    Attributes:
        slo_s: objective; a request that takes longer misses it.
        restricted_s: time at which a wait is cut for the mean; the mean of uncut times has no valid interval.
    """

    slo_s: float
    restricted_s: float


class Compared(NamedTuple):
    """A figure with hedging, and the saving: without hedging minus with hedging."""

    value: Estimate
    saved: Estimate


def shown_figures(count: int) -> list[str]:
    """Return the figures that a number of requests is enough for."""
    return [name for name in FIGURES if count * (1.0 - QUANTILES.get(name, 0.0)) >= BEYOND_MIN * (1 - 1e-9)]


def needed(estimate: Estimate, count: int) -> int:
    """Return the number of requests for an interval of +-25 %, from the interval of `count`; 0 if unknown."""
    width = half_width(estimate)
    return math.ceil(count * (width / HALF_WIDTH) ** 2) if math.isfinite(width) else 0


def half_width(estimate: Estimate) -> float:
    """Return half of the interval's width as a share of the value; infinite without an interval."""
    return (estimate.high - estimate.low) / 2 / estimate.value if estimate.known and estimate.value > 0 else math.inf


def compared(off_s: Sequence[Values], on_s: Sequence[Values], bounds: WaitBounds, seed: int) -> dict[str, Compared]:
    """Compare times without and with hedging.

    Args:
        off_s, on_s: times of the same requests by arrival; one array for each draw of what the log does not contain.
            A value is the mean over the draws, an interval includes their differences.
    """
    off, on = ([_Sample.of(times, bounds) for times in side] for side in (off_s, on_s))
    without, with_hedges = (np.mean([each.figures(None)[0] for each in side], axis=0) for side in (off, on))
    difference = np.round(without - with_hedges, _DIGITS) + 0.0  # no -0
    blocks = len(off[0].sums)
    if blocks < _BLOCKS_MIN:
        values = savings = np.array([[-math.inf] * len(FIGURES), [math.inf] * len(FIGURES)])
    else:
        rng = np.random.default_rng(seed)
        after, saved = [], []
        for before_draw, after_draw in zip(off, on, strict=True):
            drawn = rng.multinomial(blocks, np.full(blocks, 1 / blocks), size=_RESAMPLES // len(on)).astype(np.float32)
            after.append(after_draw.figures(drawn))
            saved.append(before_draw.figures(drawn) - after[-1])
        values = np.maximum(0.0, _predicted(with_hedges, np.concatenate(after)))
        savings = _predicted(difference, np.concatenate(saved))
    return {
        name: Compared(
            Estimate(float(with_hedges[i]), float(values[0, i]), float(values[1, i])),
            Estimate(float(difference[i]), float(savings[0, i]), float(savings[1, i])),
        )
        for i, name in enumerate(FIGURES)
    }


def _predicted(values: Values, resampled: Values) -> Values:
    """Return the intervals of figures for as many further requests: those have the same noise as the replayed ones."""
    ends = np.quantile(resampled, _LEVEL, axis=0)
    found: Values = np.round(values + _FRESH * (ends - values), _DIGITS) + 0.0
    return found


class _Sample(NamedTuple):
    """Times in a form of which figures are quickly computed for other weights of the blocks.

    Attributes:
        slowest_s: the slowest times, descending, which contain every quantile.
        block_of: block of each of them.
        sums: number, misses and restricted times of each block.
    """

    slowest_s: Values
    block_of: NDArray[np.int64]
    sums: Values

    @staticmethod
    def of(times_s: Values, bounds: WaitBounds) -> "_Sample":
        """Return the sample of times by arrival."""
        count = len(times_s)
        blocks = max(1, min(_BLOCKS, count // _BLOCK_MIN))
        block_of = np.arange(count) * blocks // count
        order = np.argsort(times_s)[::-1][: math.ceil(_SLOWEST * count)]
        columns = (np.ones(count), 1.0 * (times_s > bounds.slo_s), np.minimum(times_s, bounds.restricted_s))
        sums: Values = np.stack([np.bincount(block_of, weights=each, minlength=blocks) for each in columns], axis=1)
        return _Sample(times_s[order], block_of[order], sums)

    def figures(self, weights: NDArray[np.float32] | None) -> Values:
        """Return the figures under weights of the blocks, one row for each row of weights; None for equal weights."""
        if weights is None:
            weights = np.ones((1, len(self.sums)), dtype=np.float32)
        sums = weights @ self.sums
        columns = []
        for share in QUANTILES.values():
            ranks = []
            for row, total in zip(weights, sums[:, 0], strict=True):
                ranks.append(int(np.searchsorted(np.cumsum(row[self.block_of]), (1.0 - share) * total, side="right")))
            columns.append(self.slowest_s[np.minimum(ranks, len(self.slowest_s) - 1)])
        columns += [sums[:, 1] / sums[:, 0], sums[:, 2] / sums[:, 0]]
        return np.stack(columns, axis=1)
