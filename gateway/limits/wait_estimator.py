"""How soon what is taken comes back: the honest part of a Retry-After. Pure.

By Little's law, what is all taken and held for a mean time W comes back at capacity / W: n of it in n * W / capacity.
The mean is that of the last twenty or so holders, so it needs no warm traffic and does not fade while nothing happens.

Units: seconds; amounts are whatever is taken, slots or bytes.
"""

from typing import Final

_KEEP: Final = 0.95  # of the past at each end: the last 20 count
_UNKNOWN_S: Final = 5.0  # told while nothing has ended yet: a chat answer's usual length
_WAIT_S_MIN: Final = 0.1  # sooner would be a second knock at a door that was just found shut
_WAIT_S_MAX: Final = 60.0  # longer is a guess, and OpenAI's SDKs take no longer wait from a header


class WaitEstimator:
    """What holders have held, and for how long.

    Args:
        capacity: how much can be taken in all.
    """

    __slots__ = ("_amount", "_amount_s", "_capacity")

    def __init__(self, capacity: float) -> None:
        self._capacity = capacity
        self._amount = 0.0
        self._amount_s = 0.0

    def ended(self, held_s: float, amount: float = 1.0) -> None:
        """Somebody gave so much back after so long."""
        self._amount = _KEEP * self._amount + amount
        self._amount_s = _KEEP * self._amount_s + amount * held_s

    def wait_s(self, amount: float = 1.0) -> float:
        """How long it takes until so much has come back, where all is taken."""
        if not self._amount:
            return _UNKNOWN_S
        mean_s = self._amount_s / self._amount
        return min(max(amount * mean_s / self._capacity, _WAIT_S_MIN), _WAIT_S_MAX)
