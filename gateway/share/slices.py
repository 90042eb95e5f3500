"""The state of one gateway in a slice: counts by time that all gateways add to, and what others have added. Pure.

Units: seconds.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from gateway.share.messages import BIN_S, SliceAnswer, SliceAsk

SAMPLES_PERIOD_S: Final = 1.0


class Slice:
    """The state of one gateway in a slice: finds the additions of others in the bins that have ended since.

    Args:
        known_age_s: time before the first answer until which the gateway has the additions of all; None if it has none.
    """

    def __init__(self, known_age_s: float | None = None) -> None:
        self._known_age_s = known_age_s
        self._since = 0
        self._added: Counter[str] = Counter()  # since the last answer
        self._own: dict[int, Counter[str]] = {}  # own additions by bin, until it has ended

    def ask(self, key: str, added: Mapping[str, int]) -> SliceAsk:
        """Return the ask that adds to the present bin."""
        self._added.update(added)
        return SliceAsk(key, added, self._since)

    def others(self, answer: SliceAnswer) -> dict[str, int]:
        """Return what others have added in bins that have ended since the last answer, or in the last `SLICE_S`."""
        if self._added:  # after a lost reply, some of it may be in the bin before
            self._own.setdefault(answer.now, Counter()).update(self._added)
            self._added = Counter()
        found: Counter[str] = Counter()
        for number, sums in self._unknown(answer).items():
            found.update(sums)
            found.subtract(self._own.get(number, {}))
        self._since = answer.now
        self._own = {number: added for number, added in self._own.items() if number >= answer.now}
        return {name: count for name, count in found.items() if count > 0}

    def _unknown(self, answer: SliceAnswer) -> Mapping[int, Mapping[str, int]]:
        known_age_s, self._known_age_s = self._known_age_s, None
        if known_age_s is None:
            return answer.bins
        known = answer.now - known_age_s / BIN_S  # of the bin in which it lies, too: a bin is not divided
        return {number: sums for number, sums in answer.bins.items() if number > known}
