"""Calls many races at their times, on one timer of the event loop.

A race sets a wake-up for every request, and most are cancelled or postponed, because answers come long before. The
timers of asyncio are Python objects that are compared in Python. Here setting a wake-up is one step of a heap of
tuples, and cancelling or postponing it takes none: the entry is found out of date when its time comes. A call is made
no earlier than its time; due calls are made in the order of their times.

Units: seconds of the loop's clock.
"""

import asyncio
import heapq
import itertools
from collections.abc import Callable
from heapq import heappop, heappush, heapreplace
from math import inf
from typing import Final

import msgspec

_STALE_MAX: Final = 256  # entries out of date in the heap; above it, they are at most half of all


class Wakeup(msgspec.Struct, eq=False):
    """One function that is called at a time; it may find nothing due and set the next call.

    Attributes:
        queue: the queue of the loop.
        callback: called without arguments.
        at_s: loop time of the last call that was set.
        entry_s: time of its entry in the heap, not after `at_s`; infinite while it has no entry.
    """

    queue: "TimerQueue"
    callback: Callable[[], None]
    at_s: float = inf
    entry_s: float = inf

    def no_later_than(self, at_s: float) -> None:
        """Call the function at `at_s`, or earlier if an earlier call is set."""
        if at_s < self.at_s or self.entry_s == inf:
            self.at(at_s)

    def at(self, at_s: float) -> None:
        """Call the function at `at_s`, in place of any call that is set."""
        self.at_s = at_s
        if at_s < self.entry_s:
            self.queue.add(at_s, self)

    def cancel(self) -> None:
        """Call nothing any more."""
        if self.entry_s != inf:
            self.entry_s = inf
            self.queue.note_stale()
        self.callback = _nothing  # the owner of the function would be part of a cycle


class TimerQueue:
    """The wake-ups of one loop.

    Args:
        loop: event loop with the clock and the one timer.

    Attributes:
        stale: number of entries in the heap that are out of date.
    """

    __slots__ = ("_due_s", "_heap", "_loop", "_numbers", "_timer", "stale")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._heap: list[tuple[float, int, Wakeup]] = []
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = inf  # time at which the loop's timer runs
        self.stale = 0

    def add(self, at_s: float, wakeup: Wakeup) -> None:
        """Add the entry of a wake-up, in place of a later one."""
        replaced_s, wakeup.entry_s = wakeup.entry_s, at_s
        heappush(self._heap, (at_s, next(self._numbers), wakeup))
        if at_s < self._due_s:
            self._wait(at_s)
        if replaced_s != inf:
            self.note_stale()

    def note_stale(self) -> None:
        """Count an entry that is out of date from now on."""
        self.stale += 1
        if self.stale > _STALE_MAX and 2 * self.stale > len(self._heap):
            self._heap[:] = [entry for entry in self._heap if entry[0] == entry[2].entry_s]
            heapq.heapify(self._heap)
            self.stale = 0

    def _wait(self, until_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due_s = until_s
        self._timer = self._loop.call_at(until_s, self._run)

    def _run(self) -> None:
        """Make the due calls."""
        self._timer, self._due_s = None, inf
        heap, now_s = self._heap, self._loop.time()
        try:
            while heap:
                entry_s, _, wakeup = heap[0]
                if entry_s != wakeup.entry_s:
                    heappop(heap)
                    self.stale -= 1
                elif entry_s > now_s:
                    break
                elif wakeup.at_s > now_s:  # it was postponed
                    wakeup.entry_s = wakeup.at_s
                    heapreplace(heap, (wakeup.at_s, next(self._numbers), wakeup))
                else:
                    heappop(heap)
                    wakeup.entry_s = inf
                    wakeup.callback()
        finally:  # the loop reports a callback that raises; the other calls must still be made
            if heap and heap[0][0] < self._due_s:
                self._wait(heap[0][0])


def _nothing() -> None:
    """Do nothing."""
