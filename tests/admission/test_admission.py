"""Admission in virtual time: every end of a request passes its slot on, and no request waits for ever."""

import asyncio
import gc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission_house import FOREVER_S, House, Work
from gateway.admission.admission import Permit, RequestSize
from gateway.errors import Overloaded
from gateway.events import ComponentFailed, RequestRejected
from running import run_virtual


class Buggy(Work):
    """A request that raises when its turn has come."""

    def start(self) -> None:
        """Raise."""
        raise ZeroDivisionError


ARRIVALS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.0, 0.1, 1.0]),  # since the one before
        st.sampled_from([0.0, 0.5, 3.0, 20.0]),  # length
        st.sampled_from(["a", "b", "limited"]),
        st.one_of(st.none(), st.sampled_from([0.0, 0.1, 1.0, 5.0])),  # seconds until the client disconnects
    ),
    max_size=40,
)


@settings(max_examples=60)
@given(ARRIVALS, st.integers(1, 4), st.integers(0, 8), st.sampled_from([0.5, 5.0]))
def test_slots_are_never_exceeded_lost_or_waited_for_in_vain(
    arrivals: list[tuple[float, float, str, float | None]], slots: int, places: int, timeout_s: float
) -> None:
    """For any arrivals, ends and disconnects: at most N run, each ends once, within its wait, and all is released."""

    async def main() -> None:
        house = House(slots, places, timeout_s, concurrency=6)
        works = []
        for gap_s, length_s, key, leaves_after_s in arrivals:
            await asyncio.sleep(gap_s)
            work = house.ask(length_s, key)
            works.append(work)
            if leaves_after_s is not None:
                house.loop.call_later(leaves_after_s, work.leave)
        await asyncio.sleep(FOREVER_S)
        assert house.most <= slots
        for work in works:
            left = any(event.status == 499 for event in house.events if isinstance(event, RequestRejected))
            assert len(work.ended) == 1 or (work.ended == [] and left and work.begun_s is None)
            assert work.begun_s is None or work.begun_s - work.caller.arrived_s <= timeout_s + 1e-9
            assert work.begun_s is None or work.caller.queued_s == pytest.approx(work.begun_s - work.caller.arrived_s)
        assert (house.running, house.fair_queue.in_flight, house.fair_queue.waiting, house.account.in_flight) == (
            0,
            0,
            0,
            0,
        )
        assert not any(isinstance(event, ComponentFailed) for event in house.events)

    run_virtual(main())


def test_with_room_nothing_is_scheduled() -> None:
    """A request that finds a slot begins in the same call, without a timer of its place."""

    async def main() -> None:
        house = House(slots=2, requests_per_min=5)
        work = house.ask()
        assert (work.begun_s, work.caller.queued_s) == (house.loop.time(), 0.0)
        assert work.place is not None
        assert work.place._timer is None

    run_virtual(main())


def test_the_next_begins_when_one_ends() -> None:
    """A released slot is used in the same instant, and the request gets the time it waited."""

    async def main() -> None:
        house = House()
        first, second = house.ask(3.0), house.ask(1.0)
        await asyncio.sleep(FOREVER_S)
        assert (first.begun_s, second.begun_s) == (0.0, 3.0)
        assert second.caller.queued_s == 3.0

    run_virtual(main())


def test_a_full_queue_says_when_to_come_back() -> None:
    """With a full queue it is an immediate 503, with the time that all queued requests need; retries are allowed."""

    async def main() -> None:
        house = House(places=2)
        house.ask(4.0)
        await asyncio.sleep(4.0)
        house.ask(4.0), house.ask(4.0), house.ask(4.0)
        refused = house.ask()
        assert isinstance(refused.error, Overloaded)
        headers = dict(refused.error.headers())
        assert (refused.error.status, headers[b"retry-after"], headers[b"retry-after-ms"]) == (503, b"12", b"12000")
        assert b"x-should-retry" not in headers
        assert house.fair_queue.waiting == 2
        await asyncio.sleep(FOREVER_S)

    run_virtual(main())


def test_a_wait_has_an_end() -> None:
    """After the timeout it is a 503, emitted once with its wait; the slot then goes to a request still queued."""

    async def main() -> None:
        house = House()
        house.ask(6.0)
        late = house.ask()
        await asyncio.sleep(2.0)
        patient = house.ask()
        await asyncio.sleep(FOREVER_S)
        assert isinstance(late.error, Overloaded)
        assert house.told == [(503, "overloaded", 5.0)]
        assert (late.begun_s, patient.begun_s) == (None, 6.0)

    run_virtual(main())


def test_nobody_waits_longer_than_its_client() -> None:
    """A request is not queued for longer than its client's timeout."""

    async def main() -> None:
        house = House()
        house.ask(60.0)
        work = house.ask(size=RequestSize(1.0, 1.0, deadline_s=0.5))
        await asyncio.sleep(FOREVER_S)
        assert isinstance(work.error, Overloaded)
        assert house.told == [(503, "overloaded", 0.5)]

    run_virtual(main())


def test_who_leaves_gives_its_place_up_at_once() -> None:
    """A client that goes while it waits is not started later, and its place is free in that instant."""

    async def main() -> None:
        house = House(places=1)
        house.ask(2.0)
        gone = house.ask()
        await asyncio.sleep(1.0)
        gone.leave()
        stays = house.ask()
        await asyncio.sleep(FOREVER_S)
        assert (gone.begun_s, gone.ended, stays.begun_s) == (None, [], 2.0)
        assert house.told == [(499, "client_gone", 1.0)]

    run_virtual(main())


def test_who_leaves_when_its_turn_has_just_come_passes_the_slot_on() -> None:
    """Between the turn and the beginning a client may go: the next one gets the slot, and it is not lost."""

    async def main() -> None:
        house = House()
        first, gone, following = house.ask(FOREVER_S), house.ask(), house.ask()
        first.end("complete")  # `gone` has its turn, and begins in the next turn of the loop
        gone.leave()
        await asyncio.sleep(0.5)
        assert (gone.begun_s, following.begun_s) == (None, 0.0)
        await asyncio.sleep(FOREVER_S)
        assert house.fair_queue.in_flight == 0

    run_virtual(main())


def test_the_drain_ends_all_cleanly() -> None:
    """After the drain, running requests are shut down and queued ones get a 503; none starts then."""

    async def main() -> None:
        house = House()
        works = [house.ask(60.0), house.ask(), house.ask()]
        works[0].end("complete")  # the second has its turn, and has not begun
        for work in works:
            assert work.place is not None
            work.place.shut_down()
        await asyncio.sleep(FOREVER_S)
        assert [work.begun_s for work in works] == [0.0, None, None]
        assert [work.error.code if work.error else None for work in works[1:]] == ["gateway_shutting_down"] * 2
        assert (house.fair_queue.in_flight, house.fair_queue.waiting) == (0, 0)

    run_virtual(main())


def test_a_greedy_key_is_pushed_out_of_its_last_place() -> None:
    """The one that loses its place gets the 503, the one that came gets its turn."""

    async def main() -> None:
        house = House(places=2)
        house.ask(1.0)
        greedy = [house.ask(key="greedy"), house.ask(key="greedy")]
        modest = house.ask(key="modest")
        assert [isinstance(work.error, Overloaded) for work in greedy] == [False, True]
        await asyncio.sleep(FOREVER_S)
        assert modest.ended == ["complete"]

    run_virtual(main())


def test_a_request_that_cannot_begin_gives_its_slot_back() -> None:
    """A bug in the start of a queued request is its own client's 500 and no other's."""

    async def main() -> None:
        house = House()
        first, broken = house.ask(1.0), house.ask(kind=Buggy)
        following = house.ask(1.0)
        await asyncio.sleep(1.5)
        assert first.ended == ["complete"]
        assert broken.error is not None
        assert broken.error.status == 500
        broken.leave()
        await asyncio.sleep(FOREVER_S)
        assert following.ended == ["complete"]
        assert house.fair_queue.in_flight == 0

    run_virtual(main())


def test_no_cycle_outlives_a_request() -> None:
    """After a request its permit is freed without the garbage collector."""

    async def main() -> tuple[int, int]:
        house = House()
        for _ in range(3):
            house.ask(1.0)
        house.ask(60.0).leave()
        before = _places()
        await asyncio.sleep(100.0)
        return before, _places()

    gc.collect()
    gc.disable()
    try:
        assert run_virtual(main()) == (3, 0)  # one has disconnected
    finally:
        gc.enable()


def _places() -> int:
    return sum(isinstance(thing, Permit) for thing in gc.get_objects())
