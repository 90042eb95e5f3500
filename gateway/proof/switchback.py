"""The total effect of hedging, from blocks of time in which a random switch turned it on and off. Pure.

The blocks are balanced in pairs: of two neighbours one has hedging, chosen at random. All requests of a block are
affected together, so the pair is the unit of the estimate: the interval comes from a bootstrap over pairs, with the
quantile of Student's t for their number; the chance of so large a difference without any effect comes from random
exchanges of on and off within pairs, as the design made them.

Units: milliseconds, shares as fractions of 1, tokens, money in the configuration's currency.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from gateway.proof.blocks import ModelCounts, added
from gateway.proof.intervals import student_t
from gateway.proof.report import Range
from gateway.proof.tally import upper_s

PAIRS_MIN: Final = 3
_DRAWS: Final = 999
_QUANTILES: Final = (0.5, 0.95, 0.99)
_QUANTILE_REQUESTS: Final = (20, 200, 1000)  # of each arm, below which the quantile is not shown


class Contrast(msgspec.Struct, frozen=True):
    """One figure without and with hedging.

    Attributes:
        off, on: the figure; None while there is too little data.
        saved: the difference, with its 95 % interval.
        chance: chance of a difference at least as large if hedging changes nothing.
    """

    off: float | None
    on: float | None
    saved: Range | None
    chance: float | None


class TotalEffect(msgspec.Struct, frozen=True):
    """The total effect of hedging on one model.

    Attributes:
        model: public model name.
        pairs: pairs of blocks with requests in both.
        requests_off, requests_on: requests that arrived in blocks without and with hedging.
        slo_ms: TTFT above which a request is a miss.
        limit_ms: TTFT timeout; a longer TTFT, or none, counts as this.
        misses: share of the requests above the SLO.
        p50_ms, p95_ms, p99_ms: quantiles of the TTFT.
        mean_ms: mean of the TTFTs, restricted at `limit_ms`.
        hedges: backups in blocks with hedging.
        tokens, cost: tokens and money billed there for attempts that lost; the money is None without prices.
    """

    model: str
    pairs: int
    requests_off: int
    requests_on: int
    slo_ms: float
    limit_ms: float
    misses: Contrast
    p50_ms: Contrast
    p95_ms: Contrast
    p99_ms: Contrast
    mean_ms: Contrast
    hedges: int
    tokens: int
    cost: float | None
    effect: str = "total"


class Pair(NamedTuple):
    """The counts of two neighbouring blocks."""

    off: ModelCounts
    on: ModelCounts


def random_order(pairs: int, rand: Callable[[], float]) -> list[bool]:
    """Return the state of the switch in each block: of every two, one has hedging."""
    order: list[bool] = []
    for _ in range(pairs):
        first = rand() < 0.5
        order += [first, not first]
    return order


def total_effect(model: str, pairs: Sequence[Pair], rand: Callable[[], float]) -> TotalEffect | None:
    """Estimate the total effect; None without requests in both blocks of a pair.

    Args:
        rand: returns uniform random numbers in [0, 1).
    """
    pairs = [pair for pair in pairs if pair.off.requests and pair.on.requests]
    off, on = added(pair.off for pair in pairs), added(pair.on for pair in pairs)
    if off is None or on is None:
        return None
    curves = _Curves(pairs, off.limit_s)
    count = len(pairs)
    once = [1] * count
    parts = (curves.figures(curves.off, once), curves.figures(curves.on, once))
    found = _differences(*parts)
    again = [curves.resampled(_picked(count, rand)) for _ in range(_DRAWS)] if count >= PAIRS_MIN else []
    swapped = [curves.swapped([rand() < 0.5 for _ in pairs]) for _ in range(_DRAWS)] if count >= PAIRS_MIN else []
    contrasts = [
        _contrast(
            parts[0][row], parts[1][row], found[row], [each[row] for each in again], [x[row] for x in swapped], count
        )
        for row in range(len(found))
    ]
    few = min(off.requests, on.requests)
    shown = [
        each if few >= least else Contrast(None, None, None, None)
        for each, least in zip(contrasts, (0, *_QUANTILE_REQUESTS, 0), strict=True)
    ]
    return TotalEffect(
        model,
        count,
        off.requests,
        on.requests,
        round(1000 * off.slo_s, 3),
        round(1000 * off.limit_s, 3),
        shown[0],
        shown[1],
        shown[2],
        shown[3],
        shown[4],
        on.hedges,
        on.tokens,
        None if on.cost is None else round(on.cost, 6),
    )


def _picked(count: int, rand: Callable[[], float]) -> list[int]:
    """Return the number of times that each pair is in a sample of all pairs, with replacement."""
    times = [0] * count
    for _ in range(count):
        times[int(rand() * count)] += 1
    return times


def _differences(off: Sequence[float], on: Sequence[float]) -> list[float]:
    return [without - with_ for without, with_ in zip(off, on, strict=True)]


def _contrast(
    off: float, on: float, saved: float, again: Sequence[float], swapped: Sequence[float], count: int
) -> Contrast:
    """Return a figure with the interval from the resampled differences, and the chance from the exchanged ones."""
    if not again:
        return Contrast(_rounded(off), _rounded(on), None, None)
    middle = sum(again) / len(again)
    error = math.sqrt(sum((each - middle) ** 2 for each in again) / (len(again) - 1))
    half = student_t(count - 1) * error * math.sqrt(count / (count - 1))
    ends = Range(_rounded(saved), _rounded(saved - half), _rounded(saved + half))
    larger = sum(abs(each) >= abs(saved) * (1 - 1e-9) for each in swapped)
    return Contrast(_rounded(off), _rounded(on), ends, _rounded((larger + 1) / (len(swapped) + 1)))


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


class _Arm(NamedTuple):
    """One arm of every pair: counts, misses, sums of TTFTs, and numbers above the upper end of each bin."""

    requests: list[int]
    misses: list[int]
    sums_s: list[float]
    above: list[list[int]]


def _mixed(own: _Arm, other: _Arm, swaps: Sequence[bool]) -> _Arm:
    """Return an arm with the blocks of another one where pairs are exchanged."""
    arms = [other if swap else own for swap in swaps]
    return _Arm(
        [arm.requests[row] for row, arm in enumerate(arms)],
        [arm.misses[row] for row, arm in enumerate(arms)],
        [arm.sums_s[row] for row, arm in enumerate(arms)],
        [arm.above[row] for row, arm in enumerate(arms)],
    )


class _Curves:
    """The figures of weighted pairs."""

    def __init__(self, pairs: Sequence[Pair], limit_s: float) -> None:
        self._limit_s = limit_s
        self._edges = sorted({index for pair in pairs for counts in pair for index in counts.bins})
        self.off, self.on = (self._arm([pair[side] for pair in pairs]) for side in range(2))

    def _arm(self, blocks: Sequence[ModelCounts]) -> _Arm:
        above = []
        for counts in blocks:
            left, row = counts.requests, []
            for edge in self._edges:
                left -= counts.bins.get(edge, 0)
                row.append(left)
            above.append(row)
        return _Arm(
            [each.requests for each in blocks], [each.misses for each in blocks], [each.sum_s for each in blocks], above
        )

    def resampled(self, times: Sequence[int]) -> list[float]:
        """Return the differences with each pair as often as given."""
        return _differences(self.figures(self.off, times), self.figures(self.on, times))

    def swapped(self, swaps: Sequence[bool]) -> list[float]:
        """Return the differences with the arms of some pairs exchanged."""
        once = [1] * len(swaps)
        off, on = _mixed(self.off, self.on, swaps), _mixed(self.on, self.off, swaps)
        return _differences(self.figures(off, once), self.figures(on, once))

    def figures(self, arm: _Arm, times: Sequence[int]) -> list[float]:
        """Return the share of misses, the quantiles and the mean of one arm; times in milliseconds."""
        used = [(each, row) for row, each in enumerate(times) if each]
        total = sum(each * arm.requests[row] for each, row in used)
        misses = sum(each * arm.misses[row] for each, row in used) / total
        mean_s = sum(each * arm.sums_s[row] for each, row in used) / total
        return [misses, *(1000 * self._quantile_s(arm, used, total, q) for q in _QUANTILES), 1000 * mean_s]

    def _quantile_s(self, arm: _Arm, used: Sequence[tuple[int, int]], total: int, q: float) -> float:
        """Return the time above which a share 1 - q of the requests is, between the ends of its bin."""
        allowed = (1 - q) * total

        def above(row: int) -> int:
            return total if row < 0 else sum(each * arm.above[pair][row] for each, pair in used)

        low, high = 0, len(self._edges) - 1  # above(high) is 0
        while low < high:
            middle = (low + high) // 2
            if above(middle) <= allowed:
                high = middle
            else:
                low = middle + 1
        before, after, edge = above(low - 1), above(low), self._edges[low]
        low_s, high_s = upper_s(edge - 1), upper_s(edge)
        part = (before - allowed) / (before - after) if before > after else 1.0
        return min(self._limit_s, low_s + part * (high_s - low_s))
