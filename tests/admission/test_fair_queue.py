"""A model's queue: at most its slots are taken, none leaks, turns and capacity are shared fairly between keys."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from gateway.admission.fair_queue import COST_MAX, QUANTUM, FairQueue


@dataclass(eq=False)
class Request:
    """A queued request."""

    key_name: str
    cost: float = 500.0


@dataclass
class FullQueue:
    """A queue with one admitted request for each slot, and the queued ones, as a test sees them."""

    fair_queue: FairQueue[Request]
    admitted: list[Request] = field(default_factory=list)

    def fill(self) -> None:
        """Take every slot."""
        while self.fair_queue.try_acquire():
            self.admitted.append(Request("first"))

    def end_one(self) -> Request | None:
        """End one request; return the one admitted in its place."""
        return self.fair_queue.release(1.0)


def full_queue(slots: int = 1, waiting_max: int = 1_000) -> FullQueue:
    """Build a queue without a free slot."""
    made = FullQueue(FairQueue(slots, waiting_max))
    made.fill()
    return made


class FairQueueMachine(RuleBasedStateMachine):
    """Requests arrive, wait, disconnect and end in any order."""

    waiting = Bundle("waiting")
    SLOTS, WAITING_MAX = 3, 6

    def __init__(self) -> None:
        super().__init__()
        self.fair_queue: FairQueue[Request] = FairQueue(self.SLOTS, self.WAITING_MAX)
        self.admitted: list[Request] = []
        self.queue: list[Request] = []

    @rule(target=waiting, key_name=st.sampled_from("abc"), cost=st.floats(0.0, 1e7))
    def arrive(self, key_name: str, cost: float) -> Request:
        """A request is admitted, queued, queued in another's place, or rejected."""
        request = Request(key_name, cost)
        if self.fair_queue.try_acquire():
            assert not self.queue
            self.admitted.append(request)
            return request
        evicted = self.fair_queue.enqueue(request)
        if evicted is not request:
            self.queue.append(request)
        if evicted is not None and evicted is not request:
            shares = {name: sum(other.key_name == name for other in self.queue) for name in "abc"}
            assert shares[evicted.key_name] == max(shares.values())
            assert [other for other in self.queue if other.key_name == evicted.key_name][-1] is evicted
            self.queue.remove(evicted)
        assert evicted is None or len(self.queue) == self.WAITING_MAX
        return request

    @rule(request=consumes(waiting))
    def leave(self, request: Request) -> None:
        """A queued request disconnects, or an admitted one ends."""
        if request in self.queue:
            self.queue.remove(request)
            self.fair_queue.remove(request)
        elif request in self.admitted:
            self.admitted.remove(request)
            following = self.fair_queue.release(1.0)
            assert (following is None) == (not self.queue)
            if following is not None:
                assert following is next(other for other in self.queue if other.key_name == following.key_name)
                self.queue.remove(following)
                self.admitted.append(following)

    @invariant()
    def counts(self) -> None:
        """The queue counts admitted and queued requests; none is queued while a slot is free."""
        assert self.fair_queue.in_flight == len(self.admitted) <= self.SLOTS
        assert self.fair_queue.waiting == len(self.queue) <= self.WAITING_MAX
        assert not self.queue or len(self.admitted) == self.SLOTS
        counts = self.fair_queue.waiting_by_key()
        assert counts == {name: count for name in "abc" if (count := sum(r.key_name == name for r in self.queue))}

    def teardown(self) -> None:
        """After all have ended, every slot is free again and no request is queued."""
        while self.admitted:
            self.admitted.pop()
            following = self.fair_queue.release(1.0)
            if following is not None:
                self.queue.remove(following)
                self.admitted.append(following)
        assert (self.queue, self.fair_queue.in_flight, self.fair_queue.waiting) == ([], 0, 0)


FairQueueMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40)
TestFairQueue = FairQueueMachine.TestCase

COSTS = st.lists(st.floats(0.0, 2 * COST_MAX), min_size=1, max_size=6)


@given(COSTS, COSTS, st.integers(1, 60))
def test_two_keys_that_wait_get_the_same(costs_a: list[float], costs_b: list[float], turns: int) -> None:
    """Between two backlogs what was let in never differs by more than two large requests and a quantum."""
    full = full_queue()
    for costs, name in ((costs_a, "a"), (costs_b, "b")):
        for turn in range(turns):
            full.fair_queue.enqueue(Request(name, costs[turn % len(costs)]))
    admitted_cost = {"a": 0.0, "b": 0.0}
    for _ in range(turns):  # neither backlog is used up before that
        request = full.end_one()
        assert request is not None
        admitted_cost[request.key_name] += min(request.cost, COST_MAX)
        assert abs(admitted_cost["a"] - admitted_cost["b"]) <= 2 * COST_MAX + QUANTUM


@pytest.mark.parametrize("backlog", [1, 10, 500])
def test_a_backlog_delays_no_other_key(backlog: int) -> None:
    """However much another key has waiting, a single request is let in after a turn of it."""
    full = full_queue()
    for _ in range(backlog):
        full.fair_queue.enqueue(Request("greedy"))
    full.fair_queue.enqueue(Request("modest"))
    entered = []
    while (request := full.end_one()) is not None:
        entered.append(request.key_name)
    assert entered.index("modest") <= 2 * QUANTUM / 500


def test_one_key_is_first_come_first_served() -> None:
    """Requests of a key keep their order, whatever their size."""
    full = full_queue()
    requests = [Request("a", cost) for cost in (1e6, 1.0, 3000.0, 0.0, 1e9)]
    for request in requests:
        full.fair_queue.enqueue(request)
    assert [full.end_one() for _ in requests] == requests
    assert full.end_one() is None


def test_places_are_shared() -> None:
    """A key that has filled the queue loses its newest request to a key that has none, down to an even share."""
    full = full_queue(waiting_max=4)
    greedy = [Request("greedy") for _ in range(5)]
    assert [full.fair_queue.enqueue(request) for request in greedy] == [None, None, None, None, greedy[4]]
    modest = [Request("modest") for _ in range(3)]
    assert [full.fair_queue.enqueue(request) for request in modest] == [greedy[3], greedy[2], modest[2]]
    assert full.fair_queue.waiting_by_key() == {"greedy": 2, "modest": 2}


def test_a_queue_of_length_zero_queues_nothing() -> None:
    """A queue of length 0 rejects every request that finds no slot."""
    full = full_queue(waiting_max=0)
    request = Request("a")
    assert full.fair_queue.enqueue(request) is request
    assert full.end_one() is None
    assert full.fair_queue.try_acquire()


def test_how_long_to_wait() -> None:
    """All that wait, and one more, at the pace of the slots."""
    full = full_queue(slots=4)
    for _ in range(7):
        full.fair_queue.enqueue(Request("a"))
    full.fair_queue.release(8.0)
    assert full.fair_queue.wait_s() == pytest.approx(7 * 8.0 / 4)  # six still wait, and one more
