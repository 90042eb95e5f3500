"""Limits of one process, a rate per minute and slots, and the interface that leased limits share with them. Pure.

Units: requests and tokens; now_s in seconds, of one clock.
"""

import math
from collections.abc import Callable
from typing import Final, Protocol

from ttft_gateway.limits.bucket import Bucket, Limit, QuotaBucket

RATE_WINDOW_S: Final = 60.0
_ROUNDING: Final = 1e-6  # of the limit: counts as available


class Rate(Protocol):
    """A limit per minute that refills continuously.

    Attributes:
        limit: amount per minute.
    """

    limit: int

    @property
    def is_asking(self) -> bool:
        """True while the engine of the fleet is asked for more, and answers."""

    @property
    def is_refused(self) -> bool:
        """True while nothing may be used, because the engine of the fleet is away."""

    def left(self, now_s: float) -> float:
        """Return the remaining amount; negative if more was used than reserved."""

    def take(self, amount: float, now_s: float) -> None:
        """Take an amount; a negative one gives back."""

    def wait_s(self, amount: float, now_s: float, waiting: int | None = None) -> float:
        """Return the time until an amount is available, 0 for now; `ASK_WAIT_S` while that is being asked.

        Args:
            waiting: requests that wait for an answer, without the one that calls; None if they are not counted.
        """

    def part_wait_s(self, amount: float, now_s: float) -> float:
        """Return the time until this process's part of what the last answer left has room; 0 for now."""

    def reset_s(self, now_s: float) -> float:
        """Return the time until the full limit is available."""


class LocalRate:
    """A limit per minute of this process, initially full."""

    is_asking: Final = False
    is_refused: Final = False
    __slots__ = ("_left", "_now_s", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._left = float(limit)
        self._now_s = -math.inf

    def left(self, now_s: float) -> float:
        """Return the remaining amount; negative if more was used than reserved."""
        if now_s > self._now_s:
            if self._left < self.limit:
                self._left = min(float(self.limit), self._left + (now_s - self._now_s) * self.limit / RATE_WINDOW_S)
            self._now_s = now_s
        return self._left

    def take(self, amount: float, now_s: float) -> None:
        """Take an amount; a negative one gives back."""
        self._left = min(float(self.limit), self.left(now_s) - amount)

    def wait_s(self, amount: float, now_s: float, waiting: int | None = None) -> float:
        """Return the time until `amount` is available; a millionth of the limit counts as available (rounding)."""
        missing = amount - self.left(now_s)
        return missing * RATE_WINDOW_S / self.limit if missing > _ROUNDING * self.limit else 0.0

    part_wait_s = wait_s

    def reset_s(self, now_s: float) -> float:
        """Return the time until the full limit is available."""
        return self.wait_s(self.limit, now_s)


class Slots:
    """A limit on concurrent requests.

    Args:
        limit: number of slots; infinite for no limit.

    Attributes:
        limit: number of slots.
        allowed: slots that this process may use now; always all of them in this class.
        taken: slots in use.
    """

    __slots__ = ("allowed", "limit", "taken")

    def __init__(self, limit: float) -> None:
        self.limit = self.allowed = limit
        self.taken = 0

    @property
    def is_refused(self) -> bool:
        """True while no further slot may be used, because the engine of the fleet is away."""
        return False

    @property
    def has_part(self) -> bool:
        """True if this process's part of what the last answer left has a free slot."""
        return self.taken < self.allowed

    def release(self) -> None:
        """Release a slot."""
        self.taken -= 1

    def serve(self, waiting: Callable[[], int], on_more: Callable[[], None]) -> None:
        """Serve a queue.

        Args:
            waiting: returns the number of requests that wait for a slot.
            on_more: called when slots are free that were not before, other than by `release`.
        """

    def passes_on(self) -> bool:
        """Return True if a request that ends may pass its slot on to one that waits in this process."""
        return True

    def is_asking(self, now_s: float, waiting: int = 0) -> bool:
        """Have further slots asked for, and return True until the answer is known; called while all are taken.

        Args:
            waiting: requests that wait for a slot, without the one that calls.
        """
        return False


class LimitMaker(Protocol):
    """Makes limits, of this process or leased from the fleet. Names are unique, and the same in every process."""

    def rate(self, name: str, limit: int) -> Rate:
        """Return a limit per minute."""

    def slots(self, name: str, limit: float) -> Slots:
        """Return a limit on concurrency; `limit` is infinite for none."""

    def bucket(self, name: str, limit: Limit) -> QuotaBucket:
        """Return one configured limit of a quota."""


class LocalLimits:
    """Makes limits of this process."""

    def rate(self, name: str, limit: int) -> Rate:
        """Return a limit per minute."""
        return LocalRate(limit)

    def slots(self, name: str, limit: float) -> Slots:
        """Return a limit on concurrency."""
        return Slots(limit)

    def bucket(self, name: str, limit: Limit) -> QuotaBucket:
        """Return one configured limit of a quota."""
        return Bucket(limit)


LOCAL: Final[LimitMaker] = LocalLimits()
