"""Exchanges how far shared limits are used up, for the time without the engine. Pure.

When the engine goes away, each gateway divides what is left of a limit. A gateway that has not asked about the limit
lately does not know what the others have used since. So each gateway reports twice a second the limits of which an
answer has shown that a part is used, and the others take the larger part as used. The limits share a fixed number of
rows, by a hash of their names: the cost does not grow with the number of keys, and where several limits have a row in
common, the most used one counts for all.

Units: seconds of the loop's clock; parts of a limit.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final, Protocol
from zlib import crc32

from gateway.share.messages import Answer, Ask, GaugeAnswer, GaugeAsk, keep_silent
from gateway.share.rows import LIMIT_USE, Row, checked
from ttft_gateway.pool.learned import Drop

UNUSED: Final = 15 / 16  # a limit of which more is left is not reported
_FORM: Final = "limits1"  # of the rows; another meaning of a place is another form
_ROWS: Final = 128
_LEVELS: Final = len(LIMIT_USE)  # equal parts of a limit
_NO_LEVEL: Final = -1
_PERIOD_S: Final = 0.5  # others use a sixth of a limit in 2 s at five times its rate; a tenth is never divided
_KNOWN_S: Final = 3.0  # age of an answer from which reports count as unknown; more than any period
_USED_MAX: Final = 4_096
_EMPTY: Final = (0,)
_NAMES: Final = [str(number) for number in range(_ROWS)]
_LEVEL_ROWS: Final = [(*(0,) * level, 1) for level in range(_LEVELS)]


class UsedLimit(Protocol):
    """A limit of which a part is used.

    Attributes:
        key: name of the limit in the fleet.
    """

    key: str

    def part_left(self, now_s: float) -> float:
        """Return the part that is left by the last answer, with the refill since."""


class LowLimits:
    """The exchange of one gateway (a `gateway.share.sync.Exchange`).

    Args:
        drop: receives each row that is out of range, and is not used.
    """

    def __init__(self, drop: Drop = keep_silent) -> None:
        self._drop = drop
        self._used: dict[UsedLimit, None] = {}  # least recently noted first
        self._levels: dict[int, int] = {}  # by row, as last reported
        self._rows: Mapping[str, Row] = dict.fromkeys(_NAMES, _EMPTY)
        self._others: dict[int, int] = {}
        self._sums: Mapping[str, Row] = {}  # over the others, in the last answer, and their version
        self._version = 0
        self._due_s = self._known_s = -math.inf

    def note(self, limit: UsedLimit) -> None:
        """Report a limit from now on, until it is full again."""
        self._used.pop(limit, None)
        self._used[limit] = None
        if len(self._used) > _USED_MAX:
            del self._used[next(iter(self._used))]

    def others_left(self, key: str, now_s: float) -> float | None:
        """Return the part of a limit that is left at least by the reports of the others; None if they are unknown."""
        if now_s > self._known_s + _KNOWN_S:
            return None
        level = self._others.get(_row(key), _NO_LEVEL)
        return UNUSED if level == _NO_LEVEL else 1 - (level + 1) / _LEVELS

    def asks(self, now_s: float, period_s: float) -> Sequence[Ask]:
        """Return the levels twice a second."""
        if now_s < self._due_s:
            return ()
        self._due_s = now_s + _PERIOD_S - period_s / 2
        levels: dict[int, int] = {}
        for limit in tuple(self._used):
            left = limit.part_left(now_s)
            if left >= UNUSED:
                del self._used[limit]
            else:
                row = _row(limit.key)
                levels[row] = max(levels.get(row, 0), min(_LEVELS - 1, int(_LEVELS * (1 - left))))
        if levels != self._levels:
            self._levels = levels
            self._rows = dict.fromkeys(_NAMES, _EMPTY) | {_NAMES[row]: _LEVEL_ROWS[levels[row]] for row in levels}
        return (GaugeAsk(_FORM, self._rows, self._version),)

    def answered(self, answers: Sequence[Answer], now_s: float) -> None:
        """Take in the levels of the others."""
        [answer] = answers
        if not isinstance(answer, GaugeAnswer):
            return
        self._known_s, self._version = now_s, answer.version
        if answer.others is not None:
            self._sums, self._others = answer.sums(self._sums), {}
            for name, row in self._sums.items():
                try:
                    counts = checked(row, LIMIT_USE[: len(row)], max(1, answer.processes - 1))
                except ValueError as error:
                    self._drop(f"the use of limits {name}", str(error))
                    continue
                self._others[int(name)] = max(
                    (level for level, count in enumerate(counts[:_LEVELS]) if count), default=_NO_LEVEL
                )


def _row(key: str) -> int:
    return crc32(key.encode()) % _ROWS
