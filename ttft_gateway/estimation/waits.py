"""The last waits for a first token at one replica, and the probability that one is longer than a time. Pure.

Waits that were given up are part of it (Kaplan and Meier 1958). Unlike `Window`, which has ratios of many minutes in
bins, this has the times of the last requests as they are: a decision on money follows a change within one hundred
requests. Attempts that were refused at once are counted apart: they cost nothing, and their request goes on.

Units: seconds.
"""

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Annotated, Final

import msgspec

_LAST: Final = 480  # waits that are remembered: a tail of 2 % has a standard error of 0.6 points
IN_USE: Final = 160  # the last of them, by which a way in use is judged: it is left after about half of them
RECENT: Final = 40  # the same for a way that is not in use: the first to show that it has become better
_CHANGE: Final = 12  # waits in a row, ...
_OUTSIDE: Final = 8  # ... of which this number beyond the same end of the earlier waits is a change: by chance, of a
_END: Final = 0.1  # tenth at each end, that happens in one of 300,000 dozens
_ENDS_EVERY: Final = 20  # waits after which the ends are computed again
_DOUBT: Final = 0.5  # of one wait without an end is assumed: after 160 short waits, 0.3 % of the next ones are longer
_DIGITS: Final = 4  # of recorded waits: a tenth of a millisecond
_PARTS: Final = tuple((index + 0.5) / 8 for index in range(8))


class WaitCurve:
    """The probability that a wait is longer than a time.

    Args:
        waits: lengths of waits, each with True if the first token ended it.
    """

    def __init__(self, waits: Sequence[tuple[float, bool]]) -> None:
        self._parts_s: tuple[float, ...] = ()
        self._times_s: list[float] = []
        self._longer: list[float] = []  # probability of a wait longer than the time at the same place
        share, left = 1.0, len(waits) + _DOUBT
        for time_s, is_given_up in sorted([(time_s, not is_end) for time_s, is_end in waits]):
            if not is_given_up:
                share *= 1.0 - 1.0 / left
                self._times_s.append(time_s)
                self._longer.append(share)
            left -= 1.0

    def longer(self, time_s: float) -> float:
        """Return the probability of a wait that is longer than a time; constant beyond all that was seen."""
        index = bisect_right(self._times_s, time_s)
        return self._longer[index - 1] if index else 1.0

    def quantile_s(self, share: float) -> float:
        """Return the time below which a share of the waits is; the longest seen if that is unknown, 0 without any."""
        times_s = self._times_s
        index = bisect_left(self._longer, share - 1.0, key=lambda longer: -longer)
        return times_s[min(index, len(times_s) - 1)] if times_s else 0.0

    @property
    def parts_s(self) -> tuple[float, ...]:
        """The waits in the middle of each eighth: eight equally probable ones."""
        if not self._parts_s:
            self._parts_s = tuple(self.quantile_s(share) for share in _PARTS)
        return self._parts_s


class WaitsState(msgspec.Struct, frozen=True):
    """The last waits of a way as plain values.

    Attributes:
        waits: lengths, each with True if the first token ended it.
        refusals: last attempts; True for a refused one.
        share: share of the primaries that went this way.
    """

    waits: Annotated[list[tuple[Annotated[float, msgspec.Meta(ge=0.0)], bool]], msgspec.Meta(max_length=_LAST)]
    refusals: Annotated[list[bool], msgspec.Meta(max_length=_LAST)]
    share: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]


class Waits:
    """The last waits at one replica.

    Attributes:
        added: number of waits and refusals so far.
        seen: number of waits so far.
    """

    def __init__(self) -> None:
        self._waits: deque[tuple[float, bool]] = deque(maxlen=_LAST)
        self._refused: deque[bool] = deque(maxlen=_LAST)
        self._outside: deque[int] = deque(maxlen=_CHANGE)  # 1 above the upper end, -1 below the lower one
        self._ends_s = (0.0, math.inf)
        self._ends_due = _ENDS_EVERY
        self._curves: dict[int, WaitCurve] = {}  # by number of waits
        self._new: deque[tuple[float, bool] | None] = deque(maxlen=_LAST)  # own ones for other gateways; None: refused
        self.added = self.seen = 0

    def add(self, wait_s: float, *, is_end: bool) -> None:
        """Add a wait that a first token ended, or that was given up."""
        self._waits.append((wait_s, is_end))
        self._curves.clear()
        self.seen += 1
        self._new.append((wait_s, is_end))
        self._watch(wait_s, is_end=is_end)
        self._count(refused=False)

    def add_refusal(self) -> None:
        """Add an attempt that ended at once, without a bill."""
        self._new.append(None)
        self._count(refused=True)

    def take_new(self) -> list[tuple[float, bool] | None]:
        """Return the own waits, and None for each own refusal, since the last call; at most the last 480."""
        new = list(self._new)
        self._new.clear()
        return new

    def put(self, waits: Iterable[tuple[float, bool]], refusals: int) -> None:
        """Add what other gateways have seen, in no certain order: a change of time is found in own waits only."""
        for wait in waits:
            self._waits.append(wait)
            self.seen += 1
            self._count(refused=False)
        for _ in range(min(refusals, _LAST)):
            self._count(refused=True)
        self._curves.clear()

    def state(self, share: float) -> WaitsState:
        """Return the last waits as plain values; `share` is of the primaries."""
        waits = [(round(wait_s, _DIGITS), is_end) for wait_s, is_end in self._waits]
        return WaitsState(waits[-IN_USE:], list(self._refused)[-IN_USE:], min(1.0, share))

    @classmethod
    def restored(cls, state: WaitsState) -> "Waits":
        """Return the waits of a recorded state."""
        found = cls()
        found._waits.extend(state.waits)
        found._refused.extend(state.refusals)
        found.seen = found._ends_due = len(state.waits)
        found.added = len(state.refusals)
        return found

    def _watch(self, wait_s: float, *, is_end: bool) -> None:
        """Forget the earlier waits if the last ones show that they belong to another time."""
        low_s, high_s = self._ends_s
        self._outside.append(1 if wait_s > high_s else -1 if wait_s < low_s and is_end else 0)
        if max(self._outside.count(1), self._outside.count(-1)) >= _OUTSIDE:
            self._keep(_CHANGE)
        if self.seen >= self._ends_due:
            curve = self.curve()
            self._ends_s = curve.quantile_s(_END), curve.quantile_s(1.0 - _END)
            self._ends_due = self.seen + _ENDS_EVERY

    def _keep(self, last: int) -> None:
        """Keep only the last waits and refusals."""
        self._waits = deque(list(self._waits)[-last:], _LAST)
        self._refused = deque(list(self._refused)[-last:], _LAST)
        self._curves.clear()
        self._outside.clear()
        self._ends_s, self._ends_due = (0.0, math.inf), self.seen + _ENDS_EVERY

    def _count(self, *, refused: bool) -> None:
        self._refused.append(refused)
        self.added += 1

    @property
    def refused(self) -> float:
        """Share of the attempts that were refused."""
        return sum(self._refused) / len(self._refused) if self._refused else 0.0

    def curve(self, last: int = _LAST) -> WaitCurve:
        """Return the curve of the last waits."""
        if last not in self._curves:
            waits = list(self._waits)
            self._curves[last] = WaitCurve(waits[-last:])
        return self._curves[last]

    def forget_old(self) -> None:
        """Forget all waits but the recent ones: they belong to a time that is over."""
        self._keep(RECENT)
