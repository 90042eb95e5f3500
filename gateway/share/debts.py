"""Amounts that were spent while the engine was away, with the times at which they were spent. Pure.

A full bucket wastes its refill. An amount that was spent earlier and is reported later costs nothing if the bucket has
wasted as much since: with the amount in time, the bucket would have been less full, and would have wasted less. So the
bucket keeps what it has wasted, by time, and `absorb` charges reported amounts in the order of their times. The
result does not depend on the order of the reports.

A segment is an amount that is spread evenly over a time. Segments are sorted by time, do not overlap, and are bounded
in number: neighbours become one segment. The functions in `ttft3.lua` do the same in the same order of additions.

Units: seconds of one clock; requests or tokens.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, TypeAlias

Segment: TypeAlias = tuple[float, float, float]
"""Start, end, and the amount in between; an amount of an instant starts at its end."""

SEGMENTS_MAX: Final = 32  # in one report
OWED_MAX: Final = 0.25
"""Part of a limit below 0 to which debts of an outage lower its bucket.

Only a process that was cut off alone, while the others had the whole limit, can owe more. What was admitted then is not
taken from all processes for long.
"""

WASTES_MAX: Final = 64  # of a bucket
WASTE_GRAIN: Final = 1 / 32  # of a window: the shortest segment of what was wasted
_GRAIN: Final = 1 / 256  # of a window: amounts that were spent within this time are one segment


class Spending:
    """The amounts that one process has spent without the engine.

    Args:
        window_s: window of the limit.

    Attributes:
        total: sum of the amounts.
    """

    __slots__ = ("_grain_s", "_segments", "total")

    def __init__(self, window_s: float) -> None:
        self.total = 0.0
        self._grain_s = _GRAIN * window_s
        self._segments: list[Segment] = []

    def add(self, amount: float, now_s: float) -> None:
        """Add an amount; a negative one gives back."""
        self.total += amount
        segments = self._segments
        if segments and now_s <= segments[-1][0] + self._grain_s:
            start_s, _, spent = segments[-1]
            segments[-1] = (start_s, now_s, spent + amount)
            return
        segments.append((now_s, now_s, amount))
        if len(segments) > 2 * SEGMENTS_MAX:
            self._segments = merged(segments, SEGMENTS_MAX)

    def take(self) -> list[Segment]:
        """Return the segments, at most `SEGMENTS_MAX`, and forget them."""
        segments, self._segments, self.total = merged(self._segments, SEGMENTS_MAX), [], 0.0
        return segments


def merged(segments: Sequence[Segment], number: int) -> list[Segment]:
    """Return at most a number of segments: neighbours with the most equal rates become one."""
    kept = list(segments)
    changes = [_change(one, other) for one, other in pairwise(kept)]
    while len(kept) > number:
        place = changes.index(min(changes))
        kept[place : place + 2] = [_joined(kept[place], kept[place + 1])]
        del changes[place]
        for near in (place - 1, place):
            if 0 <= near < len(changes):
                changes[near] = _change(kept[near], kept[near + 1])
    return kept


def _joined(one: Segment, other: Segment) -> Segment:
    return (one[0], other[1], one[2] + other[2])


def _change(one: Segment, other: Segment) -> float:
    """Return the largest change of the amount spent until any time, if two segments become one."""
    start_s, end_s, amount = _joined(one, other)
    if end_s <= start_s:
        return 0.0
    rate = amount / (end_s - start_s)
    return max(abs(one[2] - rate * (one[1] - start_s)), abs(one[2] - rate * (other[0] - start_s)))


def ages_of(segments: Sequence[Segment], now_s: float) -> list[float]:
    """Return the segments of a report as a message has them: ages of start and end, and amounts."""
    return [value for start_s, end_s, amount in segments for value in (now_s - start_s, now_s - end_s, amount)]


def segments_of(spent: Sequence[float], now_s: float) -> list[Segment]:
    """Return the segments of a report."""
    threes = zip(spent[::3], spent[1::3], spent[2::3], strict=False)
    return [(now_s - from_s, now_s - to_s, amount) for from_s, to_s, amount in threes]


def waste(wasted: list[Segment], segment: Segment, window_s: float) -> None:
    """Add what a full bucket of this window has wasted; the oldest segments become longer ones."""
    if wasted and segment[1] - wasted[-1][0] <= WASTE_GRAIN * window_s:
        wasted[-1] = _joined(wasted[-1], segment)
        return
    wasted.append(segment)
    bound(wasted)


def waste_given_back(wasted: list[Segment], amount: float, rate: float, now_s: float) -> None:
    """Add what a full bucket of this rate wastes because it is given back: it would have been full earlier."""
    if not rate:
        return
    start_s, end_s, before = now_s, now_s, 0.0
    if wasted and wasted[-1][1] > now_s - amount / rate:
        start_s, end_s, before = wasted.pop()
    start_s -= amount / rate
    wasted.append((max(start_s, wasted[-1][1]) if wasted else start_s, end_s, before + amount))
    bound(wasted)


def bound(wasted: list[Segment]) -> None:
    """Join neighbours in the older half of too many segments."""
    while len(wasted) > WASTES_MAX:
        half = len(wasted) // 4 * 2
        wasted[:half] = [_joined(wasted[place], wasted[place + 1]) for place in range(0, half, 2)]


def cut(wasted: list[Segment], time_s: float) -> None:
    """Forget what was wasted after a time."""
    while wasted and wasted[-1][1] > time_s:
        start_s, end_s, amount = wasted.pop()
        if start_s < time_s:
            wasted.append((start_s, time_s, amount * (time_s - start_s) / (end_s - start_s)))


def absorb(wasted: list[Segment], spent: Sequence[Segment]) -> float:
    """Charge amounts to what was wasted after them, which becomes less; return what remains for the bucket."""
    owed, rest, reports = 0.0, list[Segment](), _Reports(spent)
    for start_s, end_s, amount in wasted:
        at_s, waste_rate = start_s, amount / (end_s - start_s) if end_s > start_s else 0.0
        while at_s < end_s:
            owed += reports.until(at_s)
            to_s = min(end_s, reports.change_s(at_s))
            rate = waste_rate - reports.rate(at_s)
            if owed > 0 and rate > 0 and at_s < at_s + owed / rate < to_s:
                to_s = at_s + owed / rate  # all is repaid
            if reports.rate(at_s):
                owed += reports.until(to_s)
            room = waste_rate * (to_s - at_s)
            used = min(owed, room)
            owed -= used
            if room > used:
                rest.append((at_s, to_s, room - used))
            at_s = to_s
    wasted[:] = rest
    bound(wasted)
    return owed + reports.until(math.inf)


class _Reports:
    """Reported segments that are read in the order of time."""

    __slots__ = ("_from_s", "_left", "_place", "_segments", "_to_s")

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = segments
        self._place = -1
        self._from_s = self._to_s = self._left = 0.0
        self._advance()

    def until(self, time_s: float) -> float:
        """Return what was spent up to a time, without what was returned before."""
        spent = 0.0
        while self._to_s <= time_s and self._place < len(self._segments):
            spent += self._left
            self._advance()
        if self._from_s < time_s < self._to_s < math.inf:
            part = self._left * (time_s - self._from_s) / (self._to_s - self._from_s)
            spent += part
            self._left -= part
            self._from_s = time_s
        return spent

    def change_s(self, time_s: float) -> float:
        """Return the time until which nothing is spent, or evenly."""
        return self._from_s if self._from_s > time_s else self._to_s

    def rate(self, time_s: float) -> float:
        """Return what is spent per second; called with the last time of `until`."""
        return 0.0 if self._from_s > time_s else self._left / (self._to_s - self._from_s)

    def _advance(self) -> None:
        self._place += 1
        if self._place < len(self._segments):
            self._from_s, self._to_s, self._left = self._segments[self._place]
        else:
            self._from_s = self._to_s = math.inf
