"""The recent samples of one population: a ring of time slices with a DDSketch each of events and of censored samples.

Events are waits that ended with a first content; censored samples are waits that were given up (losers, disconnects),
of which only a lower bound is known. The only importer of ddsketch. Independent of the meaning of the samples: ratios
observed / predicted and plain seconds both fit. Samples are buffered until their slice is read or holds 256, because an
append costs a fifth of a sketch add; closed slices keep only counts.

Units: samples in the caller's unit, clamped to 1e-4..1e4 (0.1 ms to 2.8 h as seconds); now_s in seconds.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
import numpy as np
from ddsketch.ddsketch import BaseDDSketch
from ddsketch.mapping import LogarithmicMapping
from ddsketch.store import DenseStore
from numpy.typing import NDArray

RELATIVE_ACCURACY: Final = 0.01
SAMPLE_MIN: Final = 1e-4
SAMPLE_MAX: Final = 1e4

_MAPPING: Final = LogarithmicMapping(RELATIVE_ACCURACY)
_KEY_MIN: Final = _MAPPING.key(SAMPLE_MIN)
_KEY_MAX: Final = _MAPPING.key(SAMPLE_MAX)
_VALUES: Final = np.array([_MAPPING.value(key) for key in range(_KEY_MIN, _KEY_MAX + 1)])
_COUNT_MAX: Final = 2**24  # samples that a float32 counts exactly
_RAW_MAX: Final = 256  # samples buffered before they are added to a sketch: 8 kB at most


class WindowState(msgspec.Struct, frozen=True):
    """The samples of a window as plain values; those of several windows may be added bin by bin.

    Attributes:
        age_s: time since the newest sample.
        bins: indices of the nonempty bins, ascending.
        events: number of waits that ended in each of them.
        censored: number of waits that were given up in each of them.
    """

    age_s: Annotated[float, msgspec.Meta(ge=0.0)]
    bins: Annotated[list[Annotated[int, msgspec.Meta(ge=0, lt=len(_VALUES))]], msgspec.Meta(min_length=1)]
    events: list[Annotated[int, msgspec.Meta(ge=0, le=_COUNT_MAX)]]
    censored: list[Annotated[int, msgspec.Meta(ge=0, le=_COUNT_MAX)]]


@dataclass(frozen=True, slots=True, eq=False)
class Bins:
    """A window's samples as a histogram of nonempty bins, ascending.

    Attributes:
        values: representative of each bin, within RELATIVE_ACCURACY of every sample in it.
        events: number of waits that ended in each bin.
        censored: number of waits that were given up in each bin.
    """

    values: NDArray[np.float64]
    events: NDArray[np.float64]
    censored: NDArray[np.float64]


class Window:
    """The samples of the last `reach_s` seconds or the last `samples_min` samples, whichever reaches further back.

    Args:
        slice_s: age at which a slice is closed, if it holds a tenth of samples_min; so there are at most about a dozen
            slices, however rare samples are.
        reach_s: age at which a closed slice expires, if the others still hold samples_min.
        samples_min: minimum number of samples, events and censored ones together.
    """

    __slots__ = ("_closed", "_due_s", "_open", "_reach_s", "_samples_min", "_slice_s")

    def __init__(self, *, slice_s: float = 10.0, reach_s: float = 60.0, samples_min: int = 100) -> None:
        self._slice_s = slice_s
        self._reach_s = reach_s
        self._samples_min = samples_min
        self._closed: deque[_Slice] = deque()
        self._open = (_Tally(), _Tally())  # events, censored
        self._due_s = -math.inf

    @staticmethod
    def restored(state: WindowState, elapsed_s: float, now_s: float) -> "Window":
        """Return a window with recorded samples.

        Args:
            elapsed_s: time since they were recorded.

        Raises:
            ValueError: the numbers of bins and counts differ.
        """
        window = Window()
        end_s = now_s - elapsed_s - state.age_s
        window._closed.append(_Slice(end_s, _dense(state.bins, state.events), _dense(state.bins, state.censored)))
        return window

    def state(self, now_s: float) -> WindowState | None:
        """Return the window's samples as plain values; None without any."""
        events, censored = self._merged(now_s)
        filled = (events + censored).nonzero()[0]
        if not len(filled):
            return None
        newest_s = min(now_s, self._due_s) if any(tally.count for tally in self._open) else self._closed[-1].end_s
        counts = (np.minimum(row[filled], _COUNT_MAX).astype(int).tolist() for row in (events, censored))
        return WindowState(max(0.0, now_s - newest_s), filled.tolist(), *counts)

    def add_event(self, x: float, now_s: float) -> None:
        """Add a wait that ended after x."""
        if now_s >= self._due_s:
            self._roll(now_s)
        self._open[0].add(x)

    def add_censored(self, x: float, now_s: float) -> None:
        """Add a wait that was given up after x."""
        if now_s >= self._due_s:
            self._roll(now_s)
        self._open[1].add(x)

    def event_count(self, now_s: float) -> int:
        """Return the number of events in the window."""
        self._expire(now_s)
        return self._open[0].count + sum(slice_.event_count for slice_ in self._closed)

    def count(self, now_s: float) -> int:
        """Return the number of samples in the window, events and censored ones together."""
        self._expire(now_s)
        return self._sample_count()

    def quantile(self, q: float, now_s: float) -> float | None:
        """Return the events' q-quantile within RELATIVE_ACCURACY, by DDSketch's rank rule; None without events."""
        cumulated = np.cumsum(self._merged(now_s)[0])
        total = cumulated[-1]
        if not total:
            return None
        return float(_VALUES[np.searchsorted(cumulated, q * (total - 1), side="right")])

    def bins(self, now_s: float) -> Bins:
        """Return the window as one histogram, for survival estimates."""
        events, censored = self._merged(now_s)
        filled = (events + censored).nonzero()[0]
        return Bins(_VALUES[filled], events[filled], censored[filled])

    def _sample_count(self) -> int:
        return self._open[0].count + self._open[1].count + sum(slice_.count for slice_ in self._closed)

    def _roll(self, now_s: float) -> None:
        """Close the open slice when it is due, or extend it while it holds few samples."""
        events, censored = self._open
        if events.count + censored.count >= max(1, self._samples_min // 10):
            self._closed.append(_Slice(self._due_s, events.counts(), censored.counts()))
            self._open = (_Tally(), _Tally())
            self._expire(now_s)
        self._due_s = now_s + self._slice_s

    def _expire(self, now_s: float) -> None:
        closed = self._closed
        spare = self._sample_count() - self._samples_min
        while closed and closed[0].end_s <= now_s - self._reach_s and closed[0].count <= spare:
            spare -= closed.popleft().count

    def _merged(self, now_s: float) -> NDArray[np.float64]:
        """Return two rows, events and censored, over all keys of the mapping's range."""
        self._expire(now_s)
        total = np.zeros((2, len(_VALUES)))
        for slice_ in self._closed:
            slice_.events.add_to(total[0])
            slice_.censored.add_to(total[1])
        for row, tally in zip(total, self._open, strict=True):
            tally.counts().add_to(row)
        return total


class _Tally:
    """Samples of one kind in the open slice; the sketch is created with its first sample."""

    __slots__ = ("_raw", "_sketch", "_store", "count")

    def __init__(self) -> None:
        self.count = 0
        self._raw: list[float] = []
        self._store = DenseStore()
        self._sketch: BaseDDSketch | None = None

    def add(self, x: float) -> None:
        if not SAMPLE_MIN < x < SAMPLE_MAX:
            x = SAMPLE_MAX if x >= SAMPLE_MAX else SAMPLE_MIN  # NaN, too, would raise in the sketch
        self._raw.append(x)
        self.count += 1
        if len(self._raw) >= _RAW_MAX:
            self._fold()

    def counts(self) -> "_Counts":
        self._fold()
        return _counts_of(self._store)

    def _fold(self) -> None:
        if not self._raw:
            return
        if self._sketch is None:
            self._sketch = BaseDDSketch(_MAPPING, self._store, DenseStore(), 0.0)
        add = self._sketch.add
        for x in self._raw:
            add(x)
        self._raw.clear()


@dataclass(frozen=True, slots=True, eq=False)
class _Counts:
    """A dense run of bin counts; `first` indexes _VALUES."""

    first: int
    counts: NDArray[np.float32]  # exact up to 16 million samples in a bin of a slice

    @property
    def total(self) -> int:
        """Number of samples."""
        return int(self.counts.sum(dtype=np.float64))

    def add_to(self, row: NDArray[np.float64]) -> None:
        if len(self.counts):
            row[self.first : self.first + len(self.counts)] += self.counts


class _Slice:
    """A closed slice; all its samples are from before end_s."""

    __slots__ = ("censored", "count", "end_s", "event_count", "events")

    def __init__(self, end_s: float, events: _Counts, censored: _Counts) -> None:
        self.end_s = end_s
        self.events = events
        self.censored = censored
        self.event_count = events.total
        self.count = self.event_count + censored.total


def _dense(bins: list[int], counts: list[int]) -> _Counts:
    row = np.zeros(len(_VALUES), dtype=np.float32)
    for index, count in zip(bins, counts, strict=True):
        row[index] += count
    return _Counts(0, row)


def _counts_of(store: DenseStore) -> _Counts:
    """Return the counts in a sketch's store; the only code that depends on ddsketch's bin layout."""
    if not store.count:
        return _Counts(0, np.zeros(0, dtype=np.float32))
    filled = store.bins[store.min_key - store.offset : store.max_key - store.offset + 1]
    return _Counts(store.min_key - _KEY_MIN, np.fromiter(filled, np.float32, len(filled)))
