"""An event loop in virtual time: it never waits, the clock jumps to the next timer.

Owns time only. It has no sockets, threads or signals, so that a program on it must produce its own bytes and random
numbers; a run then repeats to the last bit, and a 30 s straggler costs microseconds. Tests and the bench run the
gateway's own race on it: `asyncio.Runner(loop_factory=VirtualLoop)`. Times are seconds since the loop was made.
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
    """No callback is ready and no timer is set: the program would wait forever."""


class _Timer(asyncio.TimerHandle):
    """A timer that runs after earlier timers of the same instant; asyncio leaves that order open."""

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
        self._scheduled = True  # the loop counts cancelled timers that are in its heap

    def __lt__(self, other: object) -> bool:
        return self._place < other._place if isinstance(other, _Timer) else NotImplemented


class VirtualLoop(asyncio.BaseEventLoop):
    """A loop with a `time()` that starts at 0 and moves only when nothing else can run."""

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
        """Call `callback` at the time `when`, after earlier timers of the same time."""
        timer = _Timer(next(self._timers_set), when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)
        return timer

    def select(self, timeout_s: float | None) -> tuple[()]:
        """Move the clock to the earliest timer instead of waiting.

        Args:
            timeout_s: 0 if callbacks are ready; None if there is no timer.

        Returns:
            The I/O events, which are none.

        Raises:
            StandstillError: No timer is set.
        """
        if timeout_s is None:
            tasks = sorted(map(str, asyncio.all_tasks(self)))
            shown = "".join(f"\n  {task}" for task in tasks[:_TASKS_SHOWN_MAX])
            raise StandstillError(f"no timer is set at {self._now_s} s, and {len(tasks)} tasks wait{shown}")
        if timeout_s > 0:
            self._move_clock(self._scheduled[0].when())
        return ()

    def _move_clock(self, now_s: float) -> None:
        """Set the time; BaseEventLoop then calls a timer due if it is earlier than time plus resolution."""
        self._now_s = now_s
        self._clock_resolution = math.ulp(now_s)  # one step of a float, so that only timers at now_s or before are due

    def _process_events(self, event_list: tuple[()]) -> None:
        """Handle the result of `select`: none."""

    def _write_to_self(self) -> None:
        """Wake the loop from outside: never needed, because `select` does not block."""
