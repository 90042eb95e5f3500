"""A limit of which a test sets what is left."""

from dataclasses import dataclass


@dataclass(eq=False)
class Used:
    """A limit (a `gateway.share.low_limits.UsedLimit`).

    Attributes:
        key: its name.
        left: the part that is left.
    """

    key: str
    left: float

    def part_left(self, now_s: float) -> float:
        """Return what is left."""
        return self.left
