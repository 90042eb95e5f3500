"""A model's entrance: never more than its slots, never a slot lost, turns and places shared fairly between keys."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from gateway.limits.fair_queue import COST_MAX, QUANTUM, FairQueue


@dataclass(eq=False)
class Request:
    """What waits."""

    key_name: str
    cost: float = 500.0


@dataclass
class Crowd:
    """A gate with one request in it for each slot, and those that wait, as a test sees them."""

    gate: FairQueue[Request]
    inside: list[Request] = field(default_factory=list)

    def fill(self) -> None:
        """Take every slot."""
        while self.gate.try_acquire():
            self.inside.append(Request("first"))

    def let_in(self) -> Request | None:
        """One leaves; who comes in."""
        return self.gate.release(1.0)


def crowd(slots: int = 1, waiting_max: int = 1_000) -> Crowd:
    """A full house."""
    made = Crowd(FairQueue(slots, waiting_max))
    made.fill()
    return made


class GateMachine(RuleBasedStateMachine):
    """Requests come, wait, leave and end in any order."""

    waiting = Bundle("waiting")
    SLOTS, PLACES = 3, 6

    def __init__(self) -> None:
        super().__init__()
        self.gate: FairQueue[Request] = FairQueue(self.SLOTS, self.PLACES)
        self.inside: list[Request] = []
        self.queue: list[Request] = []

    @rule(target=waiting, key_name=st.sampled_from("abc"), cost=st.floats(0.0, 1e7))
    def come(self, key_name: str, cost: float) -> Request:
        """A request enters, waits, takes another's place, or is sent away."""
        request = Request(key_name, cost)
        if self.gate.try_acquire():
            assert not self.queue
            self.inside.append(request)
            return request
        lost = self.gate.enqueue(request)
        if lost is not request:
            self.queue.append(request)
        if lost is not None and lost is not request:
            shares = {name: sum(other.key_name == name for other in self.queue) for name in "abc"}
            assert shares[lost.key_name] == max(shares.values())
            assert [other for other in self.queue if other.key_name == lost.key_name][-1] is lost
            self.queue.remove(lost)
        assert lost is None or len(self.queue) == self.PLACES
        return request

    @rule(request=consumes(waiting))
    def leave(self, request: Request) -> None:
        """One that waits leaves its place, or one inside ends."""
        if request in self.queue:
            self.queue.remove(request)
            self.gate.remove(request)
        elif request in self.inside:
            self.inside.remove(request)
            following = self.gate.release(1.0)
            assert (following is None) == (not self.queue)
            if following is not None:
                assert following is next(other for other in self.queue if other.key_name == following.key_name)
                self.queue.remove(following)
                self.inside.append(following)

    @invariant()
    def counts(self) -> None:
        """The gate knows who is inside and who waits; nobody waits beside a free slot."""
        assert self.gate.in_flight == len(self.inside) <= self.SLOTS
        assert self.gate.waiting == len(self.queue) <= self.PLACES
        assert not self.queue or len(self.inside) == self.SLOTS
        counts = self.gate.waiting_by_key()
        assert counts == {name: count for name in "abc" if (count := sum(r.key_name == name for r in self.queue))}

    def teardown(self) -> None:
        """When all have ended every slot is free again: nobody was left waiting."""
        while self.inside:
            self.inside.pop()
            following = self.gate.release(1.0)
            if following is not None:
                self.queue.remove(following)
                self.inside.append(following)
        assert (self.queue, self.gate.in_flight, self.gate.waiting) == ([], 0, 0)


GateMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40)
TestGate = GateMachine.TestCase

COSTS = st.lists(st.floats(0.0, 2 * COST_MAX), min_size=1, max_size=6)


@given(COSTS, COSTS, st.integers(1, 60))
def test_two_keys_that_wait_get_the_same(costs_a: list[float], costs_b: list[float], turns: int) -> None:
    """Between two backlogs what was let in never differs by more than two large requests and a quantum."""
    full = crowd()
    for costs, name in ((costs_a, "a"), (costs_b, "b")):
        for turn in range(turns):
            full.gate.enqueue(Request(name, costs[turn % len(costs)]))
    got = {"a": 0.0, "b": 0.0}
    for _ in range(turns):  # neither backlog is used up before that
        request = full.let_in()
        assert request is not None
        got[request.key_name] += min(request.cost, COST_MAX)
        assert abs(got["a"] - got["b"]) <= 2 * COST_MAX + QUANTUM


@pytest.mark.parametrize("backlog", [1, 10, 500])
def test_a_backlog_holds_up_nobody_else(backlog: int) -> None:
    """However much another key has waiting, a single request is let in after a turn of it."""
    full = crowd()
    for _ in range(backlog):
        full.gate.enqueue(Request("greedy"))
    full.gate.enqueue(Request("modest"))
    entered = []
    while (request := full.let_in()) is not None:
        entered.append(request.key_name)
    assert entered.index("modest") <= 2 * QUANTUM / 500


def test_one_key_is_first_come_first_served() -> None:
    """Requests of a key keep their order, whatever their size."""
    full = crowd()
    requests = [Request("a", cost) for cost in (1e6, 1.0, 3000.0, 0.0, 1e9)]
    for request in requests:
        full.gate.enqueue(request)
    assert [full.let_in() for _ in requests] == requests
    assert full.let_in() is None


def test_places_are_shared() -> None:
    """A key that has filled the queue gives its newest place to one that has none, down to an even share."""
    full = crowd(waiting_max=4)
    greedy = [Request("greedy") for _ in range(5)]
    assert [full.gate.enqueue(request) for request in greedy] == [None, None, None, None, greedy[4]]
    modest = [Request("modest") for _ in range(3)]
    assert [full.gate.enqueue(request) for request in modest] == [greedy[3], greedy[2], modest[2]]
    assert full.gate.waiting_by_key() == {"greedy": 2, "modest": 2}


def test_without_places_nobody_waits() -> None:
    """A queue of nothing sends everybody away who finds no slot."""
    full = crowd(waiting_max=0)
    request = Request("a")
    assert full.gate.enqueue(request) is request
    assert full.let_in() is None
    assert full.gate.try_acquire()


def test_how_long_to_wait() -> None:
    """All that wait, and one more, at the pace of the slots."""
    full = crowd(slots=4)
    for _ in range(7):
        full.gate.enqueue(Request("a"))
    full.gate.release(8.0)
    assert full.gate.wait_s() == pytest.approx(7 * 8.0 / 4)  # six wait still, and one who asks
