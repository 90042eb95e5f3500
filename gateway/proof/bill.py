"""The bill of a model with tiers, and what it saved against all requests on the usual tier. Pure.

Each answer has two bills with the same tokens, so the saving of the counted requests is no estimate. Its interval is
for as many further requests of the same kind: it follows from the spread of the savings of single requests, as if they
were independent. A request without an answer has a bill and no usual one.

Units: money in the configuration's currency.
"""

import math
from typing import Final

import msgspec

from gateway.proof.intervals import Interval

_Z: Final = 1.96
_FURTHER: Final = math.sqrt(2.0)  # the counted and the further requests have the same noise


class BillSums(msgspec.Struct, gc=False):
    """Sums of the bills of requests.

    Attributes:
        requests: number of requests.
        cost: bill of all attempts.
        usual: bill of the answers on the usual tier.
        squares: squares of the savings of single requests.
    """

    requests: int = 0
    cost: float = 0.0
    usual: float = 0.0
    squares: float = 0.0

    def add(self, cost: float, usual: float) -> None:
        """Add a request."""
        self.requests += 1
        self.cost += cost
        self.usual += usual
        self.squares += (usual - cost) ** 2

    def merge(self, other: "BillSums") -> None:
        """Add the sums of another span or gateway."""
        self.requests += other.requests
        self.cost += other.cost
        self.usual += other.usual
        self.squares += other.squares

    @property
    def saved(self) -> Interval:
        """Saved money, with the 95 % interval for as many further requests; negative if the usual tier is cheaper."""
        value, count = self.usual - self.cost, max(1, self.requests)
        spread = math.sqrt(max(0.0, self.squares - value * value / count))
        half = _Z * _FURTHER * spread
        return Interval(value, value - half, value + half)
