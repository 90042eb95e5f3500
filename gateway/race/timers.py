"""Runs the timers of many races on one timer of the event loop.

A race sets a timer for every request and nearly always cancels it, because most answers come long before. asyncio's
timers are Python objects that are compared in Python; here setting a timer is one step of a heap of tuples, and
cancelling takes none. A timer runs no earlier than its time; due timers run in the order of their times.

Units: seconds of the loop's clock.
"""

import asyncio
import heapq
import itertools
import math
from collections.abc import Callable
from typing import Final

_CANCELLED_MAX: Final = 256  # cancelled timers kept in the heap; above it, at most as many as there are others


class Timer:
    """One timer that was set."""

    __slots__ = ("_timers", "callback")

    def __init__(self, timers: "TimerQueue", callback: Callable[[], None]) -> None:
        self._timers = timers
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Cancel it; called at most once, and not after it has run."""
        self.callback = None
        self._timers.cancelled += 1


class Wakeup:
    """A call of one function at the earliest of the times asked for; it may find nothing due and ask again.

    Args:
        timers: of the loop.
        callback: called without arguments.

    Attributes:
        at_s: loop time of the last call that was set.
    """

    __slots__ = ("_callback", "_timer", "_timers", "at_s")

    def __init__(self, timers: "TimerQueue", callback: Callable[[], None]) -> None:
        self._timers = timers
        self._callback = callback
        self._timer: Timer | None = None
        self.at_s = math.inf

    def no_later_than(self, at_s: float) -> None:
        """Have the function called at `at_s` or earlier."""
        timer = self._timer
        if timer is not None and timer.callback is not None:  # it has not gone off
            if at_s >= self.at_s:
                return
            timer.cancel()
        self.at_s = at_s
        self._timer = self._timers.set(at_s, self._callback)

    def cancel(self) -> None:
        """Have nothing called any more."""
        if self._timer is not None and self._timer.callback is not None:
            self._timer.cancel()
        self._timer, self._callback = None, _nothing  # its owner would be part of a cycle


class TimerQueue:
    """The timers of one loop.

    Args:
        loop: event loop with the clock and the one timer.

    Attributes:
        cancelled: number of cancelled timers still in the heap.
    """

    __slots__ = ("_due_s", "_heap", "_loop", "_numbers", "_timer", "cancelled")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._heap: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = math.inf  # time at which the loop's timer runs
        self.cancelled = 0

    def set(self, at_s: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` at a time."""
        timer = Timer(self, callback)
        heapq.heappush(self._heap, (at_s, next(self._numbers), timer))
        if at_s < self._due_s:
            self._wait(at_s)
        if self.cancelled > _CANCELLED_MAX and 2 * self.cancelled > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].callback is not None]
            heapq.heapify(self._heap)
            self.cancelled = 0
        return timer

    def _wait(self, until_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due_s = until_s
        self._timer = self._loop.call_at(until_s, self._run)

    def _run(self) -> None:
        """Run the due timers."""
        self._timer, self._due_s = None, math.inf
        now_s = self._loop.time()
        try:
            while self._heap and ((timer := self._heap[0][2]).callback is None or self._heap[0][0] <= now_s):
                heapq.heappop(self._heap)
                callback, timer.callback = timer.callback, None
                if callback is None:
                    self.cancelled -= 1
                else:
                    callback()
        finally:  # the loop reports a callback that raises; the other timers must still run
            if self._heap and self._heap[0][0] < self._due_s:
                self._wait(self._heap[0][0])


def _nothing() -> None:
    """Do nothing."""
