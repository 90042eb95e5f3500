"""Slots and the prefix cache of a simulated replica."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.simulated.engine import PrefixCache, Slots


class Job:
    """A request that counts its starts."""

    def __init__(self) -> None:
        self.started = 0

    def start(self) -> None:
        self.started += 1


def test_later_requests_wait_in_order() -> None:
    """With two slots the third request starts at the first release, and the fourth after it."""
    slots = Slots(2, 10)
    jobs = [Job() for _ in range(4)]
    for job in jobs:
        slots.acquire(job.start)
    assert [job.started for job in jobs] == [1, 1, 0, 0]
    slots.release(jobs[1].start)
    assert [job.started for job in jobs] == [1, 1, 1, 0]
    slots.release(jobs[3].start)  # ends waiting
    slots.release(jobs[0].start)
    assert [job.started for job in jobs] == [1, 1, 1, 0]


def test_queue_is_bounded() -> None:
    """Slots are full when all slots and all places in the queue are taken."""
    slots = Slots(1, 1)
    states = []
    for _ in range(3):
        states.append(slots.full)
        slots.acquire(Job().start)
    assert states == [False, False, True]


def test_unlimited_slots_never_wait() -> None:
    """With 0 slots every request starts immediately."""
    slots = Slots(0, 0)
    jobs = [Job() for _ in range(100)]
    for job in jobs:
        slots.acquire(job.start)
    assert all(job.started for job in jobs)
    assert not slots.full


def test_more_slots_let_waiting_requests_begin() -> None:
    """A larger or unlimited number of slots takes effect immediately."""
    slots = Slots(1, 10)
    jobs = [Job() for _ in range(4)]
    for job in jobs:
        slots.acquire(job.start)
    slots.resize(2, 10)
    assert [job.started for job in jobs] == [1, 1, 0, 0]
    slots.resize(0, 10)
    assert [job.started for job in jobs] == [1, 1, 1, 1]


@given(st.integers(1, 4), st.lists(st.integers(0, 9), max_size=60))
def test_never_more_at_work_than_slots(count: int, moves: list[int]) -> None:
    """After any moves at most `count` requests are in work, and none waits while a slot is free."""
    slots = Slots(count, 100)
    inside: list[Job] = []
    for move in moves:
        if move < len(inside):
            slots.release(inside.pop(move).start)
        else:
            inside.append(Job())
            slots.acquire(inside[-1].start)
        working = sum(job.started for job in inside)
        assert working == min(count, len(inside))
    assert all(job.started <= 1 for job in inside)


def test_prefix_is_cached_in_whole_blocks() -> None:
    """A prompt that begins like an earlier one finds the blocks of 64 tokens they share, and no others."""
    cache = PrefixCache(10_000)
    shared = bytes(range(256)) * 3
    assert cache.use(shared + b"a" * 600) == 0
    assert cache.use(shared + b"b" * 600) == 3 * 64
    assert cache.use(b"c" + shared) == 0
    assert cache.use(shared[:255]) == 0


def test_least_recently_used_prefix_is_evicted() -> None:
    """The cache is bounded in tokens and evicts the least recently used prefix."""
    cache = PrefixCache(128)
    first, second, third = b"1" * 256, b"2" * 256, b"3" * 256
    for prompt in (first, second, first, third):
        cache.use(prompt)
    assert [cache.use(first), cache.use(second)] == [64, 0]
