"""The closed windows of the last day in a few bytes each: counts and quantiles of models, requests of keys, states.

A window of a model has 29 bytes instead of 1 kB: quantiles are the numbers of their bins. Models and keys are bounded,
so a day takes at most 17 MB for models and 3 MB for keys; further ones are counted as `_OTHER`. Pure.

Units: windows of five minutes, numbered by the Unix clock.
"""

from array import array
from collections.abc import Iterator, Mapping
from typing import Final

from gateway.observe.instruments import OTHER

WINDOWS: Final = 288  # 24 hours
MODELS_MAX: Final = 2_000
KEYS_MAX: Final = 2_000
COUNTS: Final = 5  # of a window
BINS: Final = 5
NO_BIN: Final = -128
_COUNT_MAX: Final = 2**32 - 1
_UNKNOWN: Final = " "
_NO_COUNTS: Final = (0,) * COUNTS
_NO_BINS: Final = (NO_BIN,) * BINS

Row = tuple[tuple[int, ...], tuple[int, ...]]
"""Counts, and bins of quantiles, of a window."""


class _ModelDay:
    __slots__ = ("bins", "counts", "newest", "numbers")

    def __init__(self) -> None:
        self.numbers = array("I", [_COUNT_MAX] * WINDOWS)  # of the window in each place; the largest one for none
        self.counts = array("I", bytes(4 * WINDOWS * COUNTS))
        self.bins = array("b", bytes(WINDOWS * BINS))
        self.newest = 0

    def put(self, number: int, counts: tuple[int, ...], bins: tuple[int, ...]) -> None:
        place = number % WINDOWS
        self.numbers[place], self.newest = number, max(self.newest, number)
        self.counts[place * COUNTS : (place + 1) * COUNTS] = array("I", [min(each, _COUNT_MAX) for each in counts])
        self.bins[place * BINS : (place + 1) * BINS] = array("b", bins)

    def at(self, number: int) -> Row:
        place = number % WINDOWS
        if self.numbers[place] != number:
            return _NO_COUNTS, _NO_BINS
        return (
            tuple(self.counts[place * COUNTS : (place + 1) * COUNTS]),
            tuple(self.bins[place * BINS : (place + 1) * BINS]),
        )


class ModelDays:
    """The closed windows of all models."""

    def __init__(self) -> None:
        self._models: dict[str, _ModelDay] = {}

    def put(self, model: str, number: int, counts: tuple[int, ...], bins: tuple[int, ...]) -> None:
        """Record a closed window of a model; above the bound, the counts of further models are added up."""
        day = self._models.get(model)
        if day is None and len(self._models) < MODELS_MAX:
            day = self._models[model] = _ModelDay()
        if day is None:
            day = self._models.setdefault(OTHER, _ModelDay())
            counts = tuple(map(sum, zip(counts, day.at(number)[0], strict=True)))
            bins = _NO_BINS  # of the mixed times of different models
        day.put(number, counts, bins)

    def at(self, model: str, number: int) -> Row:
        """Return a window of a model; zeros and no bins if nothing is recorded."""
        day = self._models.get(model)
        return (_NO_COUNTS, _NO_BINS) if day is None else day.at(number)

    def expire(self, newest: int) -> None:
        """Forget models without a request in the last day."""
        for gone in [name for name, day in self._models.items() if day.newest <= newest - WINDOWS]:
            del self._models[gone]


class KeyDays:
    """The number of requests of each key in the last day.

    Attributes:
        totals: the numbers.
    """

    def __init__(self) -> None:
        self.totals: dict[str, int] = {}
        self._rings: dict[str, array[int]] = {}
        self._newest = 0

    def add(self, number: int, keys: Mapping[str, int]) -> None:
        """Count requests in a window that is not older than a day."""
        for key, count in keys.items():
            ring = self._rings.get(key)
            if ring is None:
                name = key if len(self._rings) < KEYS_MAX else OTHER
                ring = self._rings.setdefault(name, array("I", bytes(4 * WINDOWS)))
            else:
                name = key
            place = number % WINDOWS
            before = ring[place]
            ring[place] = min(_COUNT_MAX, before + count)
            self.totals[name] = self.totals.get(name, 0) + ring[place] - before

    def advance(self, number: int) -> Iterator[None]:
        """Forget what is older than a day before a window; yields after each window."""
        first, self._newest = max(self._newest + 1, number - WINDOWS + 1), max(number, self._newest)
        for each in range(first, number + 1):
            place = each % WINDOWS
            for key, ring in list(self._rings.items()):
                if count := ring[place]:
                    ring[place] = 0
                    self.totals[key] -= count
                    if not self.totals[key]:
                        del self.totals[key], self._rings[key]
            yield


class StateDay:
    """The states of one replica: one letter for each window."""

    __slots__ = ("_letters", "_newest")

    def __init__(self) -> None:
        self._letters = bytearray(_UNKNOWN.encode() * WINDOWS)
        self._newest = 0

    def put(self, number: int, letter: str, order: str) -> None:
        """Record a state; the worst one of a window counts, which is the last one in the order."""
        for each in range(max(self._newest + 1, number - WINDOWS + 1), number + 1):
            self._letters[each % WINDOWS] = ord(_UNKNOWN)
        self._newest = max(self._newest, number)
        if number > self._newest - WINDOWS:
            place = number % WINDOWS
            self._letters[place] = ord(max(chr(self._letters[place]), letter, key=order.index))

    def of(self, numbers: range) -> str:
        """Return the letters of windows, unknown ones where nothing is recorded."""
        known = range(self._newest - WINDOWS + 1, self._newest + 1)
        return "".join(chr(self._letters[each % WINDOWS]) if each in known else _UNKNOWN for each in numbers)
