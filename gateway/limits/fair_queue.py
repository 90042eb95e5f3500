"""Who may enter a model, who waits, and whose turn is next. Pure: it waits for nothing and knows no clock.

So many requests at a time, and a bounded queue beyond that. Keys take turns by deficit round robin (Shreedhar and
Varghese, 1995): each turn gives a key credit for `QUANTUM` tokens, and its requests go in their order as far as that
reaches. So a key gets its share however much it or another asks. The same holds for places in the queue: when all are
taken, whoever has most of them loses its newest to a key that has fewer.

Units: cost in tokens, prompt and expected answer together.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from gateway.limits.wait_estimator import WaitEstimator

QUANTUM: Final = 2_000.0  # a usual request: most turns let one through
COST_MAX: Final = 16_000.0  # beyond this a request counts no more, so that a turn comes within eight rounds


class Waiter(Protocol):
    """A request that wants to enter.

    Attributes:
        key_name: whose.
        cost: its size.
    """

    key_name: str
    cost: float


W = TypeVar("W", bound=Waiter)


@dataclass(slots=True)
class _Lane(Generic[W]):
    """The requests of one key that wait, oldest first, and what its turns have left."""

    waiting: dict[W, None] = field(default_factory=dict)
    credit: float = 0.0


class FairQueue(Generic[W]):
    """One model's entrance. Somebody waits only while every slot is taken.

    Args:
        slots: requests at a time.
        waiting_max: requests that may wait.

    Attributes:
        in_flight: slots taken.
        waiting: requests that wait.
    """

    __slots__ = ("_lanes", "_wait_estimator", "in_flight", "slots", "waiting", "waiting_max")

    def __init__(self, slots: int, waiting_max: int) -> None:
        self.slots = slots
        self.waiting_max = waiting_max
        self.in_flight = 0
        self.waiting = 0
        self._lanes: dict[str, _Lane[W]] = {}  # in the order of their turns
        self._wait_estimator = WaitEstimator(slots)

    def try_acquire(self) -> bool:
        """Take a slot if one is free."""
        if self.in_flight >= self.slots:
            return False
        self.in_flight += 1
        return True

    def enqueue(self, request: W) -> W | None:
        """Queue a request; returns the request that lost its place: this one, another one, or None."""
        lost: W | None = None
        if self.waiting >= self.waiting_max:
            lost = self._loser(request)
            if lost is request:
                return lost
            self.remove(lost)
        self._lanes.setdefault(request.key_name, _Lane()).waiting[request] = None
        self.waiting += 1
        return lost

    def remove(self, request: W) -> None:
        """Wait no longer."""
        lane = self._lanes[request.key_name]
        del lane.waiting[request]
        self.waiting -= 1
        if not lane.waiting:
            del self._lanes[request.key_name]  # with its credit: who has nothing to send saves nothing up

    def release(self, held_s: float) -> W | None:
        """Give a slot back that was held for so long; returns whose it is now, None when it is free."""
        self._wait_estimator.ended(held_s)
        return self.release_unused()

    def release_unused(self) -> W | None:
        """The same for a slot that was not used."""
        if not self.waiting:
            self.in_flight -= 1
            return None
        request = self._next()
        self.remove(request)
        return request

    def wait_s(self) -> float:
        """How long until all who wait now, and one more, could enter."""
        return self._wait_estimator.wait_s(self.waiting + 1)

    def waiting_by_key(self) -> Mapping[str, int]:
        """How many requests of each key wait."""
        return {key_name: len(lane.waiting) for key_name, lane in self._lanes.items()}

    def _next(self) -> W:
        """Whose turn it is; somebody waits."""
        while True:
            key_name, lane = next(iter(self._lanes.items()))
            request = next(iter(lane.waiting))
            cost = min(request.cost, COST_MAX)
            if cost <= lane.credit:
                lane.credit -= cost
                return request
            lane.credit += QUANTUM
            self._lanes[key_name] = self._lanes.pop(key_name)  # behind all others

    def _loser(self, request: W) -> W:
        """Who goes without a place: the newest of the longest lane, this request where its own is as long with it."""
        if not self._lanes:
            return request
        own = self._lanes.get(request.key_name)
        longest = max(self._lanes.values(), key=lambda lane: len(lane.waiting))
        if len(longest.waiting) <= (len(own.waiting) if own is not None else 0) + 1:
            return request
        return next(reversed(longest.waiting))
