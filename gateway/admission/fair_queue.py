"""Admits requests to a model up to a limit, queues more, and picks the next one. Pure: without waiting or a clock.

A limit on concurrent requests, with a bounded queue. Keys take turns by deficit round robin (Shreedhar and Varghese,
1995): each turn gives a key credit for `QUANTUM` tokens, and its requests are admitted in order as far as its credit
goes. So each key gets its share, whatever any key sends. The queue's capacity is shared in the same way: when the queue
is full, the key with the most queued requests loses its newest one to a key that has fewer.

Units: cost in tokens, prompt and expected answer together.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from gateway.admission.wait_estimator import WaitEstimator
from ttft_gateway.limits.rates import Slots

QUANTUM: Final = 2_000.0  # a usual request: most turns admit one
COST_MAX: Final = 16_000.0  # cap of a request's cost, so that a turn comes within eight rounds


class Waiter(Protocol):
    """A request to be admitted.

    Attributes:
        cost: expected tokens.
    """

    key_name: str
    cost: float


W = TypeVar("W", bound=Waiter)


@dataclass(slots=True)
class _Lane(Generic[W]):
    """The queued requests of one key, oldest first, and its unused credit."""

    waiting: dict[W, None] = field(default_factory=dict)
    credit: float = 0.0


class FairQueue(Generic[W]):
    """Admission to one model. Requests wait only while every slot is taken.

    Args:
        slots: maximum number of concurrent requests.
        waiting_max: maximum number of queued requests.
        held: the slots themselves; None for slots of this process alone.

    Attributes:
        waiting: queued requests.
    """

    def __init__(self, slots: int, waiting_max: int, held: Slots | None = None) -> None:
        self.slots = slots
        self.waiting_max = waiting_max
        self._held = Slots(slots) if held is None else held
        self.waiting = 0
        self._lanes: dict[str, _Lane[W]] = {}  # in the order of their turns
        self._wait_estimator = WaitEstimator(slots)

    @property
    def in_flight(self) -> int:
        """Slots taken."""
        return self._held.taken

    def try_acquire(self) -> bool:
        """Take a slot if one is free."""
        held = self._held
        if held.taken >= held.allowed:
            return False
        held.taken += 1
        return True

    def is_asking(self, now_s: float) -> bool:
        """Return True while the fleet is asked for a slot; called when none is free."""
        return self._held.is_asking(now_s, self.waiting)

    def admit(self) -> W | None:
        """Take a free slot for the next queued request, and return the request; None without both."""
        if not self.waiting or not self.try_acquire():
            return None
        return self._pop()

    def enqueue(self, request: W) -> W | None:
        """Queue a request; return the request that has no place: this one, an evicted one, or None."""
        evicted: W | None = None
        if self.waiting >= self.waiting_max:
            evicted = self._pick_evicted(request)
            if evicted is request:
                return evicted
            self.remove(evicted)
        self._lanes.setdefault(request.key_name, _Lane()).waiting[request] = None
        self.waiting += 1
        return evicted

    def remove(self, request: W) -> None:
        """Remove a request from the queue."""
        lane = self._lanes[request.key_name]
        del lane.waiting[request]
        self.waiting -= 1
        if not lane.waiting:
            del self._lanes[request.key_name]  # with its credit: an idle key saves nothing

    def release(self, held_s: float) -> W | None:
        """Release a slot held for `held_s`; return the request that takes it over, or None."""
        self._wait_estimator.ended(held_s)
        return self.release_unused()

    def release_unused(self) -> W | None:
        """Release a slot that was not used; return the request that takes it over, or None."""
        if not self.waiting or not self._held.passes_on():
            self._held.release()
            return None
        return self._pop()

    def wait_s(self) -> float:
        """Return the expected time until all queued requests, and one more, could be admitted."""
        return self._wait_estimator.wait_s(self.waiting + 1)

    def waiting_by_key(self) -> Mapping[str, int]:
        """Return the number of queued requests per key."""
        return {key_name: len(lane.waiting) for key_name, lane in self._lanes.items()}

    def _pop(self) -> W:
        request = self._next()
        self.remove(request)
        return request

    def _next(self) -> W:
        """Return the next request to admit; the queue must not be empty."""
        while True:
            key_name, lane = next(iter(self._lanes.items()))
            request = next(iter(lane.waiting))
            cost = min(request.cost, COST_MAX)
            if cost <= lane.credit:
                lane.credit -= cost
                return request
            lane.credit += QUANTUM
            self._lanes[key_name] = self._lanes.pop(key_name)  # after all others

    def _pick_evicted(self, request: W) -> W:
        """Return the newest request of the longest lane, or `request` if its own lane would be as long."""
        if not self._lanes:
            return request
        own = self._lanes.get(request.key_name)
        longest = max(self._lanes.values(), key=lambda lane: len(lane.waiting))
        if len(longest.waiting) <= (len(own.waiting) if own is not None else 0) + 1:
            return request
        return next(reversed(longest.waiting))
