"""Leased slots: requested, returned, passed on, and still leased after a loss."""

import pytest

from gateway.share.fleet import WhenAway
from gateway.share.leased_slots import LeasedSlots
from gateway.share.messages import SlotsAnswer, SlotsAsk
from lease_table import Table


def test_slots_are_asked_for_and_given_back() -> None:
    """One spare slot stays leased for 2 s."""
    table = Table()
    slots = LeasedSlots(table.leases, "c", 4)
    assert slots.is_asking(table.now_s)
    table.answer()
    assert (slots.allowed, slots.is_asking(table.now_s)) == (2, True)
    table.answer()
    slots.taken = 2
    slots.release()
    slots.release()
    table.leases.tick(table.now_s)
    assert not table.wanting
    table.now_s += 2.0
    table.leases.tick(table.now_s)
    table.answer()
    assert slots.allowed == 0
    table.leases.tick(table.now_s)
    assert table.leases.held == {}


def test_a_slot_that_another_process_lacks_goes_back_at_once() -> None:
    """Also from a queue, down to an equal part."""
    table = Table(processes=2)
    slots = LeasedSlots(table.leases, "c", 4)
    for _ in range(4):
        slots.is_asking(table.now_s)
        table.answer()
        slots.taken = int(slots.allowed)
    assert slots.taken == 4
    asked = SlotsAsk("c", 4, 0, 1)
    table.hub.answer(table.now_s, "other", [asked])
    table.now_s += 0.06
    assert slots.is_asking(table.now_s)
    table.answer()
    assert [slots.passes_on() for _ in range(3)] == [False, False, True]
    slots.release()
    table.answer()
    [answer] = table.hub.answer(table.now_s, "other", [asked]).answers
    assert answer == SlotsAnswer(1, 3, 4)


def test_a_queue_gets_slots_that_others_release() -> None:
    """The tick asks for them, and the queue is notified."""
    table = Table()
    slots = LeasedSlots(table.leases, "c", 2)
    told: list[float] = []
    waiting = 1
    slots.serve(lambda: waiting, lambda: told.append(slots.allowed))
    table.hub.answer(table.now_s, "other", [SlotsAsk("c", 2, 2)])
    assert slots.is_asking(table.now_s)
    table.answer()
    assert (slots.allowed, slots.is_asking(table.now_s)) == (0, False)
    table.leases.tick(table.now_s)
    table.answer()
    assert told == []
    table.hub.answer(table.now_s, "other", [SlotsAsk("c", 2, 1)])
    table.leases.tick(table.now_s)
    table.answer()
    assert told == [1]


@pytest.mark.parametrize(("when_away", "allowed"), [(WhenAway.SHARE, 2), (WhenAway.ALONE, 8), (WhenAway.REFUSE, 0)])
def test_slots_while_the_engine_is_away(when_away: WhenAway, allowed: int) -> None:
    """A part of those that were free, at least one; slots in use stay."""
    table = Table(when_away, processes=4)
    slots = LeasedSlots(table.leases, "c", 8)
    slots.is_asking(table.now_s)
    table.lose()
    table.leave()
    for _ in range(10):
        assert not slots.is_asking(table.now_s)
        table.fleet.is_alone = False
        table.leave()  # again, without an answer in between
    assert slots.allowed == pytest.approx(allowed, abs=1)
    assert slots.is_refused is (when_away is WhenAway.REFUSE)


def test_after_a_loss_a_process_states_what_it_holds() -> None:
    """Also more than the engine granted, if it was alone."""
    table = Table(processes=2)
    slots = LeasedSlots(table.leases, "c", 4)
    slots.is_asking(table.now_s)
    table.answer()
    slots.taken = 3
    table.now_s += 2.0
    table.leases.tick(table.now_s)
    table.answer()
    assert (slots.allowed, table.asks[-1]) == (3, SlotsAsk("c", 4, 3, 0, 0))
