"""The memory that all request bodies may take together. Pure.

Units: bytes, seconds.
"""

from typing import Final

from gateway.limits.wait_estimate import WaitEstimator

ARRIVING_MAX: Final = 1_000  # bodies waited for at a time; of each the server may hold 64 kB that are not taken yet


class BodyMemory:
    """Bytes of all request bodies together: taken before they are read, given back when the request ends.

    Args:
        bytes_max: how many there may be.
        arriving_max: how many bodies may be waited for at a time.

    Attributes:
        held: bytes taken.
        arriving: bodies that are waited for.
    """

    __slots__ = ("_turnover", "arriving", "arriving_max", "bytes_max", "held")

    def __init__(self, bytes_max: int, arriving_max: int = ARRIVING_MAX) -> None:
        self.bytes_max = bytes_max
        self.arriving_max = arriving_max
        self.held = 0
        self.arriving = 0
        self._turnover = WaitEstimator(bytes_max)

    def take(self, size: int) -> bool:
        """Take so many bytes, or none and say False."""
        if self.held + size > self.bytes_max:
            return False
        self.held += size
        return True

    def give(self, size: int) -> None:
        """Give back bytes that became no request."""
        self.held -= size

    def ended(self, size: int, held_s: float) -> None:
        """A request is over that had so many bytes."""
        self.held -= size
        self._turnover.ended(held_s, size)

    def wait_s(self, size: int) -> float:
        """When there may be room for so many bytes."""
        return self._turnover.wait_s(max(1, self.held + size - self.bytes_max))
