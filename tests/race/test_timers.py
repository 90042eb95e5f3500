"""Alarms on one timer: whatever is set and taken back, also while others go off, each goes off once and in time."""

import asyncio
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from gateway.race import deadlines
from gateway.race.deadlines import TimerQueue, Wakeup
from running import run_virtual

_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.sampled_from([-1.0, 0.0, 0.5, 1.0, 1.0, 2.5])),
        st.tuples(st.just("cancel"), st.integers(0, 9)),
        st.tuples(st.just("put off"), st.integers(0, 9)),
        st.tuples(st.just("sooner"), st.integers(0, 9)),
        st.tuples(st.just("wait"), st.sampled_from([0.0, 0.5, 3.0])),
        st.tuples(st.just("raise"), st.just(1.0)),
    ),
    max_size=40,
)


class _Broken(Exception):
    """Of an alarm that raises."""


class _Clock:
    """Sets and takes back alarms, and keeps those that are awaited.

    Attributes:
        waiting: by number, when they are due.
        raised: how many did.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, later: list[tuple[str, float]]) -> None:
        self._loop = loop
        self._later = later  # what alarms do when they go off, in turn
        self._set: dict[int, Wakeup] = {}
        self._numbers = 0
        self.timers = TimerQueue(loop)
        self.waiting: dict[int, float] = {}
        self.raised = 0

    def do(self, step: str, value: float) -> None:
        """One step."""
        if step in ("set", "raise"):
            self._numbers += 1
            number, at_s = self._numbers, self._loop.time() + value
            self.waiting[number] = at_s
            wakeup = self._set[number] = Wakeup(self.timers, partial(self._ring, number, raises=step == "raise"))
            wakeup.no_later_than(at_s)
            wakeup.no_later_than(at_s + 1.0)
        elif step == "cancel" and self._set:
            number = sorted(self._set)[int(value) % len(self._set)]
            del self.waiting[number]
            self._set.pop(number).cancel()
        elif step in ("put off", "sooner") and self._set:
            number = sorted(self._set)[int(value) % len(self._set)]
            self.waiting[number] += 1.7 if step == "put off" else -0.2
            self._set[number].at(self.waiting[number])

    def _ring(self, number: int, *, raises: bool) -> None:
        del self._set[number]
        assert self.waiting.pop(number) <= self._loop.time()
        if self._later:
            self.do(*self._later.pop())
        if raises:
            self.raised += 1
            raise _Broken


@given(steps=_STEPS, later=_STEPS)
def test_each_alarm_goes_off_once_and_in_time(steps: list[tuple[str, float]], later: list[tuple[str, float]]) -> None:
    """Cancelled timers never run; one that raises, sets or cancels a timer does not stop the others."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        raised: list[object] = []
        loop.set_exception_handler(lambda _, context: raised.append(context.get("exception")))
        clock = _Clock(loop, later)
        for step, value in steps:
            clock.do(step, value)
            if step == "wait":
                await asyncio.sleep(value + 0.1)
                assert all(at_s > loop.time() - 0.2 for at_s in clock.waiting.values())
        await asyncio.sleep(200)
        assert not clock.waiting
        assert len(raised) == clock.raised
        assert all(isinstance(error, _Broken) for error in raised)

    run_virtual(main())


def test_what_is_taken_back_is_forgotten() -> None:
    """However many alarms are set and cancelled before their time, few are stored."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        all_alarms, rung = TimerQueue(loop), asyncio.Event()
        Wakeup(all_alarms, rung.set).at(loop.time() + 1000)
        for _ in range(10_000):
            taken_back = Wakeup(all_alarms, rung.clear)
            taken_back.at(loop.time() + 100)
            taken_back.cancel()
        assert all_alarms.stale <= deadlines._STALE_MAX + 1
        await rung.wait()

    run_virtual(main())
