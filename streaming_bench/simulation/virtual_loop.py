"""An event loop in virtual time: nothing waits, the clock jumps to the next timer.

Owns time only. It has no sockets, no threads and no signals, so whatever runs on it must get its bytes and its random
numbers from the program itself; then a run repeats to the last bit, and a 30 s straggler costs microseconds. Tests and
the bench run the gateway's own race on it: `asyncio.Runner(loop_factory=VirtualLoop)`. Times are seconds since the
loop was made.
"""

import asyncio
import heapq
import math
from collections.abc import Callable
from contextvars import Context
from itertools import count
from typing import TypeVarTuple

_TASKS_SHOWN_MAX = 5
_Args = TypeVarTuple("_Args")


class StandstillError(RuntimeError):
    """Nothing is ready and no timer is set: the program would wait for ever."""


class _Timer(asyncio.TimerHandle):
    """A timer that comes after those of the same instant that were set before it; asyncio leaves that order open."""

    __slots__ = ("_place",)

    def __init__(
        self,
        number: int,
        when: float,
        callback: Callable[[*_Args], object],
        args: tuple[*_Args],
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
    ) -> None:
        super().__init__(when, callback, args, loop, context)
        self._place = (when, number)
        self._scheduled = True  # it goes into the loop's heap at once, which counts those cancelled there

    def __lt__(self, other: object) -> bool:
        return self._place < other._place if isinstance(other, _Timer) else NotImplemented


class VirtualLoop(asyncio.BaseEventLoop):
    """A loop whose `time()` starts at 0 and moves only when nothing else can run."""

    _scheduled: list[asyncio.TimerHandle]  # BaseEventLoop's heap of timers

    def __init__(self) -> None:
        super().__init__()
        self._selector = self  # BaseEventLoop asks its selector to wait; this loop is its own
        self._timers_set = count()
        self._move_clock(0.0)

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._now_s

    def call_at(
        self, when: float, callback: Callable[[*_Args], object], *args: *_Args, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call `callback` when the time is `when`, after what was set for the same time before."""
        timer = _Timer(next(self._timers_set), when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)
        return timer

    def select(self, timeout_s: float | None) -> tuple[()]:
        """Wait as a selector would, but at once: move the clock to the earliest timer.

        Args:
            timeout_s: 0 if callbacks are ready, None if there is nothing to wait for.

        Returns:
            The I/O events seen, which are none.

        Raises:
            StandstillError: There is nothing to wait for.
        """
        if timeout_s is None:
            tasks = sorted(map(str, asyncio.all_tasks(self)))
            shown = "".join(f"\n  {task}" for task in tasks[:_TASKS_SHOWN_MAX])
            raise StandstillError(
                f"time stands still at {self._now_s} s: no timer is set, {len(tasks)} tasks wait{shown}"
            )
        if timeout_s > 0:
            self._move_clock(self._scheduled[0].when())
        return ()

    def _move_clock(self, now_s: float) -> None:
        """Set the time; BaseEventLoop then calls a timer due if it is earlier than time plus resolution."""
        self._now_s = now_s
        self._clock_resolution = math.ulp(now_s)  # one step of a float, so that only timers at now_s or before are due

    def _process_events(self, event_list: tuple[()]) -> None:
        """Handle what `select` returned: nothing."""

    def _write_to_self(self) -> None:
        """Wake the loop from outside: never needed, since `select` does not block."""
