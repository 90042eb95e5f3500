"""Estimates what hedging saved on the counted requests: SLO misses, quantiles and the restricted mean. Pure.

The effect is the direct one: the same requests, each without the hedge. What hedging changes for other requests (caches
that backups warm, load) is not in it. The intervals are for the requests that were counted: the random choice of
measured requests is the only source of error. Withheld and granted hedges are one random split, and a request that is
slow without the hedge may be slow with it: the difference has the largest variance that such a split can have. A
quantile's interval is the inverted interval of the share of requests above each time (Woodruff 1952). A p99.9 would
need over a million requests, and a plain mean follows its largest value, so neither is estimated.

Units: seconds, shares as fractions of 1.
"""

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final

import msgspec

from gateway.proof.intervals import Interval, correlation_max, exactly, mean, share, split_difference, total
from gateway.proof.tally import Group, GroupTimes, Tally, upper_s

OBSERVED_MIN: Final = 20  # below it, no interval is finite in practice
_PRECISION: Final = 0.25  # of an estimate, that `requests_needed` aims at
_SMALL: Final = 0.01  # of a quantile: the width of four bins


class Effect(msgspec.Struct, frozen=True):
    """One figure without hedging, with it, and the difference.

    Attributes:
        without, with_: the figure.
        saved: the difference; None while there is too little data, or if it is too small to be measured.
    """

    without: Interval | None
    with_: Interval
    saved: Interval | None


class DirectEffect(msgspec.Struct, frozen=True):
    """The direct effect of hedging on the counted requests.

    Attributes:
        misses: requests above the SLO's TTFT.
        p95, p99: quantiles of the TTFT.
        mean: mean of the restricted TTFT.
        observed: requests for which the TTFT without the hedge was measured.
        observed_needed: the same for intervals of +-25 % of the saved misses; None while it is unknown.
    """

    misses: Effect
    p95: Effect
    p99: Effect
    mean: Effect
    observed: int
    observed_needed: int | None


def direct_effect(tally: Tally) -> DirectEffect:
    """Estimate the direct effect of hedging."""
    curves = _Curves(tally)
    observed = tally.times(Group.READ_WITHOUT).count + tally.times(Group.WITHHELD).count
    is_shown = observed >= OBSERVED_MIN or not curves.is_sampled
    misses = curves.misses()
    return DirectEffect(
        misses if is_shown else _hidden(misses),
        _shown(curves.quantile(0.95), is_shown=is_shown),
        _shown(curves.quantile(0.99), is_shown=is_shown),
        _mean(tally) if is_shown else _hidden(_mean(tally)),
        observed,
        _needed(misses, observed),
    )


def _hidden(effect: Effect) -> Effect:
    return Effect(None, effect.with_, None)


def _shown(effect: Effect, *, is_shown: bool) -> Effect:
    """Hide a quantile that is not known."""
    saved, without = effect.saved, effect.without
    if not is_shown or saved is None or without is None or not all(map(math.isfinite, saved)):
        return _hidden(effect)
    if max(abs(saved.low), abs(saved.high)) < _SMALL * without.value:
        return Effect(without, effect.with_, None)
    return effect


def _needed(misses: Effect, observed: int) -> int | None:
    saved = misses.saved
    if observed < OBSERVED_MIN:
        return OBSERVED_MIN
    if saved is None or saved.value <= 0:
        return None
    width = (saved.high - saved.low) / 2 / saved.value / _PRECISION
    return max(OBSERVED_MIN, math.ceil(observed * width * width))


def _above(times: GroupTimes, edges: Sequence[int]) -> list[int]:
    """Return the number of a group's TTFTs above the upper end of each bin."""
    return [times.count - below for below in accumulate(times.bins.get(edge, 0) for edge in edges)]


class _Curves:
    """Numbers of requests above each time, without and with hedging, as functions of the bin."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._edges = sorted({index for times in tally.groups.values() for index in times.bins})
        self._above = {group: _above(tally.times(group), self._edges) for group in Group}
        self._beaten, self._read = tally.times(Group.BEATEN).count, tally.times(Group.READ_WITH).count
        self._granted, self._withheld = tally.times(Group.GRANTED).count, tally.times(Group.WITHHELD).count
        unmeasured = tally.times(Group.UNMEASURED).count
        self._is_with_known = not self._granted + self._withheld
        self.is_sampled = self._read < self._beaten or bool(self._granted + self._withheld + unmeasured)

    def misses(self) -> Effect:
        """Return the effect on the requests above the SLO."""
        above = {group: self._tally.times(group).misses for group in Group}.__getitem__
        return Effect(self._without(above), self._with(above), self._saved(above))

    def quantile(self, q: float) -> Effect:
        """Return the effect on a quantile."""
        allowed = (1 - q) * self._tally.requests
        rows = range(len(self._edges))
        without = self._inverted([self._without(self._at(row)) for row in rows], allowed)
        with_ = self._inverted([self._with(self._at(row)) for row in rows], allowed)
        # Quantiles jump where few requests are, and together: the ends are not combined like normal errors. If no
        # hedge was withheld, the quantile with hedging is observed, and only the quantile without it has whole bins.
        known = exactly(with_.value) if self._is_with_known else with_
        ends = without.low - known.high, without.high - known.low
        return Effect(without, with_, Interval(without.value - with_.value, *ends))

    def _at(self, row: int) -> Callable[[Group], float]:
        return lambda group: self._above[group][row]

    def _inverted(self, curve: Sequence[Interval], allowed: float) -> Interval:
        """Return the time above which `allowed` requests are; infinite if more are at the limit.

        The interval has whole bins, because TTFTs can be equal.
        """
        value, low, high = (self._crossing([each[part] for each in curve], allowed) for part in range(3))
        return Interval(value[1], low[0], high[2])

    def _crossing(self, above: Sequence[float], allowed: float) -> tuple[float, float, float]:
        """Return the first time from which on at most `allowed` requests are above it, between the ends of its bin."""
        for row, count in enumerate(above):
            if count <= allowed:
                edge = self._edges[row]
                high_s, low_s = upper_s(edge), upper_s(edge - 1)
                if high_s >= self._tally.limit_s:
                    break
                before = above[row - 1] if row else float(self._tally.requests)
                part = (before - allowed) / (before - count) if before > count else 1.0
                return low_s, low_s + part * (high_s - low_s), high_s
        return math.inf, math.inf, math.inf

    def _known(self, above: Callable[[Group], float]) -> float:
        """Return the requests that are above with and without hedging."""
        return above(Group.SAME) + above(Group.UNMEASURED) + above(Group.BEATEN)

    def _saved(self, above: Callable[[Group], float]) -> Interval:
        """Return the number that is above only without hedging."""
        held, sent, both = self._held(above), self._sent(above), max(1, self._granted + self._withheld)
        correlation = correlation_max(held.value / both, sent.value / both)
        return total([self._beaten_saved(above), split_difference(held, sent, correlation)])

    def _without(self, above: Callable[[Group], float]) -> Interval:
        return total([exactly(self._known(above)), self._beaten_saved(above), self._held(above)])

    def _with(self, above: Callable[[Group], float]) -> Interval:
        return total([exactly(self._known(above)), self._sent(above)])

    def _beaten_saved(self, above: Callable[[Group], float]) -> Interval:
        """Return the beaten requests that were in time, and would not have been without the hedge.

        A beaten attempt is later than its backup: if the backup is above, so is the attempt.
        """
        in_time = self._beaten - above(Group.BEATEN)
        sample = self._read - above(Group.READ_WITH)
        hits = above(Group.READ_WITHOUT) - above(Group.READ_WITH)
        return share(hits, round(sample), round(in_time)).scaled(in_time)

    def _held(self, above: Callable[[Group], float]) -> Interval:
        both = self._granted + self._withheld
        return share(above(Group.WITHHELD), self._withheld, both).scaled(both)

    def _sent(self, above: Callable[[Group], float]) -> Interval:
        both = self._granted + self._withheld
        return share(above(Group.GRANTED), self._granted, both).scaled(both)


def _mean(tally: Tally) -> Effect:
    """Return the effect on the restricted mean."""
    requests = max(1, tally.requests)
    beaten, read = tally.times(Group.BEATEN), tally.times(Group.READ_WITH)
    granted, withheld = tally.times(Group.GRANTED), tally.times(Group.WITHHELD)
    both = granted.count + withheld.count
    known_s = sum(tally.times(group).sum_s for group in (Group.SAME, Group.UNMEASURED)) + beaten.sum_s
    saved = mean(tally.saved_s, tally.saved_squares, read.count, beaten.count).scaled(beaten.count)
    held = mean(withheld.sum_s, withheld.squares, withheld.count, both).scaled(both)
    sent = mean(granted.sum_s, granted.squares, granted.count, both).scaled(both)
    return Effect(
        total([exactly(known_s), saved, held]).scaled(1 / requests),
        total([exactly(known_s), sent]).scaled(1 / requests),
        total([saved, split_difference(held, sent, 1.0)]).scaled(1 / requests),
    )
