"""Alarms of many races on one timer of the event loop.

A race sets an alarm for every request and nearly always takes it back: most answers come long before. asyncio's timers
are Python objects that are compared in Python; here setting one is one step of a heap of tuples, and taking it back is
none. An alarm goes off no earlier than its time, those that are due one after the other in its order.

Units: seconds of the loop's clock.
"""

import asyncio
import heapq
import itertools
import math
from collections.abc import Callable
from typing import Final

_DEAD_MAX: Final = 256  # alarms taken back that may wait for their time; beyond it they may not outnumber the others


class Timer:
    """One alarm that was set."""

    __slots__ = ("_timers", "callback")

    def __init__(self, timers: "TimerQueue", callback: Callable[[], None]) -> None:
        self._timers = timers
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Take it back, once at most; it has not gone off."""
        self.callback = None
        self._timers.dead += 1


class TimerQueue:
    """The alarms of one loop.

    Args:
        loop: whose clock and timer they use.

    Attributes:
        dead: those that were taken back and are not forgotten yet.
    """

    __slots__ = ("_due_s", "_heap", "_loop", "_numbers", "_timer", "dead")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._heap: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = math.inf  # when the timer runs
        self.dead = 0

    def set(self, at_s: float, callback: Callable[[], None]) -> Timer:
        """Have something called at a time."""
        timer = Timer(self, callback)
        heapq.heappush(self._heap, (at_s, next(self._numbers), timer))
        if at_s < self._due_s:
            self._wait(at_s)
        if self.dead > _DEAD_MAX and 2 * self.dead > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].callback is not None]
            heapq.heapify(self._heap)
            self.dead = 0
        return timer

    def _wait(self, until_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due_s = until_s
        self._timer = self._loop.call_at(until_s, self._run)

    def _run(self) -> None:
        """Ring what is due."""
        self._timer, self._due_s = None, math.inf
        now_s = self._loop.time()
        try:
            while self._heap and ((timer := self._heap[0][2]).callback is None or self._heap[0][0] <= now_s):
                heapq.heappop(self._heap)
                callback, timer.callback = timer.callback, None
                if callback is None:
                    self.dead -= 1
                else:
                    callback()
        finally:  # one that raises is told of by the loop, and keeps nobody else from going off
            if self._heap and self._heap[0][0] < self._due_s:
                self._wait(self._heap[0][0])
