"""Estimates the wait until capacity is released, for Retry-After. Pure.

By Little's law, capacity that is fully taken and held for a mean time W is released at capacity / W: n units in
n * W / capacity. The mean covers about the last twenty releases, so it needs no warm traffic and does not change while
idle.

Units: seconds; amounts are slots or bytes.
"""

from typing import Final

_DECAY: Final = 0.95  # of the past at each release: the last 20 count
_UNKNOWN_S: Final = 5.0  # reported before the first release: the usual duration of a chat answer
_WAIT_S_MIN: Final = 0.1  # retrying sooner would only be rejected again
_WAIT_S_MAX: Final = 60.0  # a longer wait is a guess, and OpenAI's SDKs ignore longer waits in a header


class WaitEstimator:
    """Mean time for which capacity has been taken.

    Args:
        capacity: total amount that can be taken.
    """

    def __init__(self, capacity: float) -> None:
        self._capacity = capacity
        self._amount = 0.0
        self._amount_s = 0.0

    def ended(self, held_s: float, amount: float = 1.0) -> None:
        """Record the release of `amount` after `held_s`."""
        self._amount = _DECAY * self._amount + amount
        self._amount_s = _DECAY * self._amount_s + amount * held_s

    def wait_s(self, amount: float = 1.0) -> float:
        """Return the expected time until `amount` is released, with all capacity taken."""
        if not self._amount:
            return _UNKNOWN_S
        mean_s = self._amount_s / self._amount
        return min(max(amount * mean_s / self._capacity, _WAIT_S_MIN), _WAIT_S_MAX)
