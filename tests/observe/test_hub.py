"""Batches of events: when they are passed on, in which order, and what an observer's bug costs."""

import asyncio
import os
import sys
from collections.abc import Callable, Iterator

import pytest

from gateway.events import BreakerChanged, Event, HedgeFired
from gateway.observe import hub as hub_module
from gateway.observe.hub import Hub, Observers
from running import run_virtual
from sample_events import EVENTS, REJECTED, REQUEST


def with_hub(use: Callable[[Hub, list[Event]], None], wait_s: float = 0.0) -> list[Event]:
    """Return the events that a listener has received `wait_s` after `use`."""

    async def main() -> list[Event]:
        hub, seen = Hub(asyncio.get_running_loop()), list[Event]()
        hub.listeners.append(seen.append)
        use(hub, seen)
        if wait_s:
            await asyncio.sleep(wait_s)
        return seen.copy()

    return run_virtual(main())


def emit_all(hub: Hub, seen: list[Event]) -> None:
    """Emit every sample event; none is passed on to the stack that emits it."""
    for event in EVENTS:
        hub.emit(event)
    assert not seen


@pytest.mark.parametrize(("wait_s", "received"), [(0.09, ()), (0.11, EVENTS)])
def test_events_are_passed_on_soon_and_in_order(wait_s: float, received: tuple[Event, ...]) -> None:
    """Events of all kinds wait for 0.1 s, and keep their order."""
    assert with_hub(emit_all, wait_s) == [*received]


def test_a_second_batch_is_passed_on_as_soon_as_the_first() -> None:
    """Every batch has its own time limit, also after one that was passed on early."""

    async def main() -> None:
        hub, seen = Hub(asyncio.get_running_loop()), list[Event]()
        hub.listeners.append(seen.append)
        for count in (1, 2, 3):
            hub.emit(REQUEST)
            if count == 2:
                hub.flush()
            await asyncio.sleep(0.11)
            assert len(seen) == count

    run_virtual(main())


def test_a_full_batch_is_passed_on_at_once() -> None:
    """The number of waiting events is bounded."""

    def flood(hub: Hub, seen: list[Event]) -> None:
        for count in range(1, 200):
            hub.emit(REQUEST)
            assert count - len(seen) < hub_module._EVENTS_MAX

    assert len(with_hub(flood)) == 199 // hub_module._EVENTS_MAX * hub_module._EVENTS_MAX


def test_a_reader_and_an_operator_find_everything_counted() -> None:
    """`flush` and `emit_now` pass on what was emitted before, as one batch."""

    def use(hub: Hub, seen: list[Event]) -> None:
        batches: list[int] = []
        hub.collectors.append(lambda events: batches.append(len([*events])))
        hub.flush()
        hub.emit(REQUEST)
        hub.emit(REJECTED)
        hub.flush()
        hub.flush()
        assert len(seen) == 2
        hub.emit(REQUEST)
        hub.emit_now(BreakerChanged(1.0, "llama", "a", "open"))
        assert [type(event) for event in seen[2:]] == [type(REQUEST), BreakerChanged]
        assert batches == [2, 2]

    with_hub(use)


def test_a_bug_of_an_observer_costs_one_event(caplog: pytest.LogCaptureFixture) -> None:
    """The observer's other events and other observers go on; the first failure has a traceback."""

    def use(hub: Hub, seen: list[Event]) -> None:
        fired: list[Event] = []
        collected: list[Event] = []

        def pick(event: Event) -> None:
            if not isinstance(event, HedgeFired):
                raise ZeroDivisionError
            fired.append(event)

        def collect(events: Iterator[Event]) -> None:
            for event in events:
                pick(event)
            collected.extend(fired)

        hub.listeners.insert(0, pick)
        hub.collectors.append(collect)
        emit_all(hub, seen)
        hub.flush()
        assert [type(event) for event in fired] == [HedgeFired] * 2
        assert [type(event) for event in collected] == [HedgeFired]
        assert hub.failures == 2 * (len(EVENTS) - 1)

    assert with_hub(use) == [*EVENTS]
    assert [record.exc_info is not None for record in caplog.records] == [True]


def test_a_collector_that_always_fails_is_given_up() -> None:
    """It is called at most once for each event of the batch, and the other observers have the batch."""

    def use(hub: Hub, seen: list[Event]) -> None:
        def fail(_: Iterator[Event]) -> None:
            raise ZeroDivisionError

        hub.collectors.append(fail)
        emit_all(hub, seen)
        hub.flush()
        assert hub.failures == len(EVENTS)

    assert with_hub(use) == [*EVENTS]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_lines_on_a_terminal_are_text(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is text if standard output is a terminal, otherwise JSON."""
    reading, writing = os.openpty() if is_terminal else os.pipe()

    async def main() -> None:
        with os.fdopen(writing, "w") as out:
            monkeypatch.setattr(sys, "stdout", out)
            observers = Observers(asyncio.get_running_loop(), "1.2.3")
            observers.metrics()
            observers.hub.emit(REQUEST)
            observers.close()

    run_virtual(main())
    line = os.read(reading, 4096)
    os.close(reading)
    assert line.startswith(b"{") is not is_terminal
