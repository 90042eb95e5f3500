"""The time without hedges after a 429 where no response shows what is left of a limit. Pure.

A 429 while hedges are sent is evidence that they take what primaries need. But some servers answer 429 now and then
for another reason, such as a slot that was taken for a moment; then 429s are as frequent without hedges. So their
share is measured while there are no hedges, and afterwards hedging ends only if it has grown.

Units: seconds of one clock; requests.
"""

import math
from typing import Final

PAUSE_S: Final = 300.0  # after a 429, other clients are expected to use more
PAUSE_S_MAX: Final = 21_600.0
_SHARE_MAX: Final = 0.08  # share of 429s without hedges from which a limit is used up
_EXCESS: Final = 0.05  # share of 429s beyond that one which ends hedging: half of a common budget,
_SURE: Final = 7.0  # once the logarithm of its likelihood ratio exceeds this: by chance in 20,000 requests or more
_RUN: Final = 5  # 429s in a row, with at most one other request between two, which a limit that is used up sends


class Pause:
    """The time without hedges of one quota.

    Attributes:
        began_s: time of the 429 that began the last pause, or prolonged it; -inf before the first.
        length_s: its length, or half of it: if there are more 429s in it, they are counted from then on for as long.
    """

    __slots__ = ("_count", "_excess", "_first", "_last", "_run", "_until_s", "_usual", "began_s", "length_s")

    def __init__(self) -> None:
        self._last = self._run = 0  # requests sent until the last 429, and 429s in a row
        self.restore(-math.inf, PAUSE_S)

    def restore(self, began_s: float, length_s: float) -> None:
        """Go on with a pause that began then."""
        self.began_s, self.length_s, self._until_s = began_s, length_s, began_s + length_s
        self._count = self._first = 0  # 429s that are counted, and requests sent until the first of them
        self._usual = self._excess = 0.0  # share of 429s without hedges, and the evidence that it has grown

    def is_on(self, now_s: float) -> bool:
        """Return True while there are no hedges."""
        return now_s < self._until_s

    def begin(self, now_s: float) -> None:
        """Begin, or extend: twice as long as the last one if it had ended only recently."""
        hedged_s, length_s = now_s - self._until_s, self.length_s
        if hedged_s > length_s:
            length_s = PAUSE_S
        elif hedged_s > 0.0:
            length_s = min(2.0 * length_s, PAUSE_S_MAX)
        self.restore(now_s, length_s)

    def on_bare(self, sent: int, now_s: float) -> bool:
        """Record a 429 that states neither a wait nor a limit; return False if it is as usual without hedges.

        Args:
            sent: requests sent to the quota until now.
        """
        is_limit = True
        self._run = self._run + 1 if sent - self._last <= 2 else 1
        if now_s < self.began_s + self.length_s:
            self._until_s = self.began_s + 2.0 * self.length_s  # what hedges took is refilled before 429s are counted
        elif self.is_on(now_s):
            self._first = self._first or sent
            self._usual = self._count / max(self._count, sent - self._first, 1)
            self._count += 1
            if self._usual > _SHARE_MAX or self._run >= _RUN:
                self._until_s = now_s + self.length_s
        elif is_limit := self._has_grown(sent):
            self.begin(now_s)
        self._last = sent
        return is_limit

    def _has_grown(self, sent: int) -> bool:
        """Return True if 429s are more frequent than without hedges, by a sequential test (CUSUM)."""
        usual, more = self._usual, self._usual + _EXCESS
        if not 0.0 < usual <= _SHARE_MAX or self._run >= _RUN:
            return True
        passed = max(0, sent - self._last - 1) * math.log((1.0 - more) / (1.0 - usual))
        self._excess = max(0.0, self._excess + passed) + math.log(more / usual)
        return self._excess > _SURE
