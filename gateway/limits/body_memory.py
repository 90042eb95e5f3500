"""A limit on the memory of all buffered request bodies. Pure.

Units: bytes, seconds.
"""

from typing import Final

from gateway.limits.wait_estimator import WaitEstimator

ARRIVING_MAX: Final = 1_000  # concurrent bodies being received; for each, the server may hold 64 kB not yet counted


class BodyMemory:
    """Counts the bytes of all buffered request bodies: reserved before a body is read, released when its request ends.

    Args:
        bytes_max: limit for all bodies together.
        arriving_max: limit for bodies that are being received.

    Attributes:
        held: bytes reserved.
        arriving: bodies being received.
    """

    __slots__ = ("_wait_estimator", "arriving", "arriving_max", "bytes_max", "held")

    def __init__(self, bytes_max: int, arriving_max: int = ARRIVING_MAX) -> None:
        self.bytes_max = bytes_max
        self.arriving_max = arriving_max
        self.held = 0
        self.arriving = 0
        self._wait_estimator = WaitEstimator(bytes_max)

    def try_reserve(self, size: int) -> bool:
        """Reserve `size` bytes; return False and reserve nothing where they do not fit."""
        if self.held + size > self.bytes_max:
            return False
        self.held += size
        return True

    def release(self, size: int) -> None:
        """Release bytes that became no request."""
        self.held -= size

    def ended(self, size: int, held_s: float) -> None:
        """Release the bytes of a request that has ended, held for `held_s`."""
        self.held -= size
        self._wait_estimator.ended(held_s, size)

    def wait_s(self, size: int) -> float:
        """Return the expected wait until `size` bytes fit."""
        return self._wait_estimator.wait_s(max(1, self.held + size - self.bytes_max))
