"""The recent samples of one population: the bins of a DDSketch for events and for censored samples, in time slices.

Events are waits that ended with a first content; censored samples are waits that were given up (losers, disconnects),
of which only a lower bound is known. The only importer of ddsketch: the bins are from its mapping; its stores would
cost a call for each bin and slice. Independent of the meaning of the samples: ratios observed / predicted and plain
seconds both fit. Samples are buffered until they are read or a kind has 256, because an append costs less than a
logarithm. The bins of the whole window are sums over the slices; a slice that expires is subtracted.

Units: samples in the caller's unit, clamped to 1e-4..1e4 (0.1 ms to 2.8 h as seconds); now_s in seconds.
"""

import math
from array import array
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import accumulate
from math import ceil, log
from typing import Annotated, Final

import msgspec

RELATIVE_ACCURACY: Final = 0.01
SAMPLE_MIN: Final = 1e-4
SAMPLE_MAX: Final = 1e4
REACH_S: Final = 60.0  # age at which samples expire

_LN2: Final = math.log(2)
_PER_DOUBLING: Final = _LN2 / math.log1p(2 * RELATIVE_ACCURACY / (1 - RELATIVE_ACCURACY))  # bins, in ddsketch's mapping


def _key(x: float) -> int:
    """Return the number of a sample's bin, as `LogarithmicMapping.key`."""
    return ceil(log(x) / _LN2 * _PER_DOUBLING)


_KEY_MIN: Final = _key(SAMPLE_MIN)
_BINS: Final = _key(SAMPLE_MAX) - _KEY_MIN + 1
_COUNT_MAX: Final = 2**24  # in a recorded or received bin
_RAW_MAX: Final = 256  # samples of a kind buffered before they are added to bins: 8 kB at most

BinIndex = Annotated[int, msgspec.Meta(ge=0, lt=_BINS)]
BinCount = Annotated[int, msgspec.Meta(ge=0, le=_COUNT_MAX)]


class WindowState(msgspec.Struct, frozen=True):
    """The samples of a window as plain values.

    Attributes:
        age_s: time since the newest sample.
        bins: indices of the nonempty bins, ascending.
        events: number of waits that ended in each of them.
        censored: number of waits that were given up in each of them.
    """

    age_s: Annotated[float, msgspec.Meta(ge=0.0)]
    bins: Annotated[list[BinIndex], msgspec.Meta(min_length=1)]
    events: list[BinCount]
    censored: list[BinCount]


@cache
def bin_values() -> "array[float]":
    """Return the representative of each bin; the first call imports ddsketch, which a new client does not need."""
    from ddsketch.mapping import LogarithmicMapping

    mapping = LogarithmicMapping(RELATIVE_ACCURACY)
    return array("d", map(mapping.value, range(_KEY_MIN, _KEY_MIN + _BINS)))


class Bins(msgspec.Struct, frozen=True, eq=False):
    """A window's samples as a histogram of nonempty bins, ascending.

    Attributes:
        values: representative of each bin, within RELATIVE_ACCURACY of every sample in it.
        events: number of waits that ended in each bin.
        censored: number of waits that were given up in each bin.
    """

    values: Sequence[float]
    events: Sequence[int]
    censored: Sequence[int]


class Window:
    """The samples of the last `reach_s` seconds or the last `samples_min` samples, whichever reaches further back.

    Args:
        slice_s: age at which a slice is closed, if it holds a tenth of samples_min; so there are at most about a dozen
            slices, however rare samples are.
        reach_s: age at which a closed slice expires, if the other slices still hold samples_min.
        samples_min: minimum number of samples, events and censored ones together.
    """

    def __init__(self, *, slice_s: float = 10.0, reach_s: float = REACH_S, samples_min: int = 100) -> None:
        self._slice_s = slice_s
        self._reach_s = reach_s
        self._samples_min = samples_min
        self._closed: deque[_Slice] = deque()
        self._events = _Tally()
        self._censored = _Tally()
        self._due_s = -math.inf  # time at which the open slice is closed

    @staticmethod
    def restored(state: WindowState, elapsed_s: float, now_s: float) -> "Window":
        """Return a window with recorded samples.

        Args:
            elapsed_s: time since they were recorded.

        Raises:
            ValueError: the numbers of bins and counts differ.
        """
        window = Window()
        for tally, counts in ((window._events, state.events), (window._censored, state.censored)):
            for index, count in zip(state.bins, counts, strict=True):
                tally.add_to_bin(index, count)
        window._close_slice(now_s - elapsed_s - state.age_s)
        return window

    def state(self, now_s: float) -> WindowState | None:
        """Return the window's samples as plain values; None without any."""
        is_open = self._events.open_count or self._censored.open_count
        filled = self._filled(now_s)
        if not filled:
            return None
        newest_s = min(now_s, self._due_s) if is_open else self._closed[-1].end_s
        events, censored = (
            [min(tally.bins.get(index, 0), _COUNT_MAX) for index in filled] for tally in (self._events, self._censored)
        )
        return WindowState(max(0.0, now_s - newest_s), filled, events, censored)

    def add_event(self, x: float, now_s: float) -> None:
        """Add a wait that ended after x."""
        if now_s >= self._due_s:
            self._roll(now_s)
        self._events.add(x)

    def add_censored(self, x: float, now_s: float) -> None:
        """Add a wait that was given up after x."""
        if now_s >= self._due_s:
            self._roll(now_s)
        self._censored.add(x)

    def take_new(self) -> tuple[dict[int, int], dict[int, int]]:
        """Return the samples added since the last call, by bin: events and censored ones; none at the first call."""
        return self._events.take_new(), self._censored.take_new()

    def put(self, events: Mapping[int, int], censored: Mapping[int, int], now_s: float) -> None:
        """Add the samples of other gateways, by bin (`BinIndex`, `BinCount`)."""
        if now_s >= self._due_s:
            self._roll(now_s)
        for tally, counts in ((self._events, events), (self._censored, censored)):
            for index, count in counts.items():
                tally.add_to_bin(index, count)

    def event_count(self, now_s: float) -> int:
        """Return the number of events in the window."""
        self._expire(now_s)
        return self._events.count

    def count(self, now_s: float) -> int:
        """Return the number of samples in the window, events and censored ones together."""
        self._expire(now_s)
        return self._events.count + self._censored.count

    def quantile(self, q: float, now_s: float) -> float | None:
        """Return the events' q-quantile within RELATIVE_ACCURACY, by DDSketch's rank rule; None without events."""
        self._expire(now_s)
        events = self._events
        events.fold()
        if not events.bins:
            return None
        filled = sorted(events.bins)
        cumulated = list(accumulate(events.bins[index] for index in filled))
        return bin_values()[filled[bisect_right(cumulated, q * (cumulated[-1] - 1))]]

    def bins(self, now_s: float) -> Bins:
        """Return the window as one histogram, for survival estimates."""
        filled = self._filled(now_s)
        events, censored = self._events.bins, self._censored.bins
        return Bins(
            list(map(bin_values().__getitem__, filled)),
            [events.get(index, 0) for index in filled],
            [censored.get(index, 0) for index in filled],
        )

    def _filled(self, now_s: float) -> list[int]:
        """Return the indices of the nonempty bins, ascending, after all samples were put into bins."""
        self._expire(now_s)
        self._events.fold()
        self._censored.fold()
        return sorted(self._events.bins.keys() | self._censored.bins.keys())

    def _roll(self, now_s: float) -> None:
        """Close the open slice when it is due, or extend it while it holds few samples."""
        if self._events.open_count + self._censored.open_count >= max(1, self._samples_min // 10):
            self._close_slice(self._due_s)
            self._expire(now_s)
        self._due_s = now_s + self._slice_s

    def _close_slice(self, end_s: float) -> None:
        self._closed.append(_Slice(end_s, self._events.close(), self._censored.close()))

    def _expire(self, now_s: float) -> None:
        closed = self._closed
        while closed and closed[0].end_s <= now_s - self._reach_s:
            if self._events.count + self._censored.count - closed[0].count < self._samples_min:
                return
            oldest = closed.popleft()
            self._events.remove(oldest.events)
            self._censored.remove(oldest.censored)


class _Counts(msgspec.Struct, frozen=True, eq=False):
    """The bins of one kind in a closed slice."""

    indices: "array[int]"
    counts: "array[int]"


class _Slice:
    """A closed slice; all its samples are from before end_s."""

    __slots__ = ("censored", "count", "end_s", "events")

    def __init__(self, end_s: float, events: _Counts, censored: _Counts) -> None:
        self.end_s = end_s
        self.events = events
        self.censored = censored
        self.count = sum(events.counts) + sum(censored.counts)


def _edge(x: float) -> int:
    """Return the index of the bin of a sample beyond the outermost bins; NaN is in the first one."""
    return _BINS - 1 if x >= SAMPLE_MAX else 0


def median_of(counts: Mapping[int, int]) -> float:
    """Return the median of samples by bin, of which there is at least one."""
    filled = sorted(counts)
    cumulated = list(accumulate(counts[index] for index in filled))
    return bin_values()[filled[bisect_right(cumulated, (cumulated[-1] - 1) / 2)]]


class _Tally:
    """The samples of one kind.

    Attributes:
        bins: number of samples in each nonempty bin, by its index in `bin_values`; without buffered samples.
        raw: samples that are still buffered.
    """

    __slots__ = ("_binned", "_new", "_open", "_opened", "bins", "raw")

    def __init__(self) -> None:
        self.bins: Counter[int] = Counter()  # a call of Counter[int] takes twice as long; there are 32 for a model
        self._binned = 0  # sum of the bins
        self._open: Counter[int] = Counter()  # the part of the bins that belongs to the open slice
        self._opened = 0  # sum of the open bins
        self.raw: list[float] = []
        self._new: Counter[int] | None = None  # for other gateways; None if there are none

    @property
    def count(self) -> int:
        """Number of all samples."""
        return self._binned + len(self.raw)

    @property
    def open_count(self) -> int:
        """Number of samples in the open slice."""
        return self._opened + len(self.raw)

    def add(self, x: float) -> None:
        self.raw.append(x)
        if len(self.raw) >= _RAW_MAX:
            self.fold()

    def fold(self) -> None:
        """Put the buffered samples into bins."""
        raw = self.raw
        if not raw:
            return
        indices = [
            ceil(log(x) / _LN2 * _PER_DOUBLING) - _KEY_MIN  # as _key, without its calls
            if SAMPLE_MIN < x < SAMPLE_MAX
            else _edge(x)
            for x in raw
        ]
        self.bins.update(indices)
        self._open.update(indices)
        if self._new is not None:
            self._new.update(indices)
        self._binned += len(raw)
        self._opened += len(raw)
        raw.clear()

    def take_new(self) -> dict[int, int]:
        """Return the samples added since the last call, by bin.

        Without any, nothing is replaced: of many pools, that would be many new objects each second.
        """
        self.fold()
        new = self._new
        if new is None or new:
            self._new = Counter()
        return new or {}

    def add_to_bin(self, index: int, count: int) -> None:
        """Add samples to a bin of the open slice."""
        if count:
            self._open[index] += count
            self.bins[index] += count
            self._binned += count
            self._opened += count

    def close(self) -> _Counts:
        """Begin a new slice; return the bins of the old one."""
        self.fold()
        closed = _Counts(array("H", self._open), array("Q", self._open.values()))
        self._open.clear()
        self._opened = 0
        return closed

    def remove(self, expired: _Counts) -> None:
        """Remove a slice's samples."""
        for index, count in zip(expired.indices, expired.counts, strict=True):
            self._binned -= count
            self.bins[index] -= count
            if not self.bins[index]:
                del self.bins[index]
