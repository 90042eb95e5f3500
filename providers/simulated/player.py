"""Plays one script in real or virtual time: tells a subclass when the head, each frame and the end are due.

Owns timers and the request's slot; knows nothing of sockets or sinks. The clock is the event loop's, in seconds.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable

from providers.base import Frame
from providers.simulated.engine import Slots
from providers.simulated.script import End, Script


class Player(ABC):
    """One response on its way out; a subclass says what that means.

    Attributes:
        script: what is played.
        over: nothing more will be told.
    """

    __slots__ = ("_base_s", "_begun", "_head_timer", "_headed", "_loop", "_next", "_paused", "_slots", "_timer",
                 "over", "script")  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop, slots: Slots, script: Script) -> None:
        self.script = script
        self.over = False
        self._loop = loop
        self._slots = slots
        self._base_s = 0.0  # when the work on the request began
        self._begun = False
        self._headed = False
        self._paused = False
        self._next = 0  # step
        self._head_timer: asyncio.Handle | None = None
        self._timer: asyncio.Handle | None = None

    @abstractmethod
    def on_head(self) -> None:
        """The response head and the prelude are due."""

    @abstractmethod
    def on_step(self, frame: Frame) -> None:
        """A step is due."""

    @abstractmethod
    def on_over(self) -> None:
        """All steps were told; not called for End.SILENCE."""

    def start(self) -> None:
        """Begin now; nothing is told in this loop turn."""
        if self.script.head_s is not None:
            self._head_timer = self._after(self.script.head_s, self._head)
        if self.script.slot:
            self._slots.acquire(self._begin)
        else:
            self._begin()

    def pause(self) -> None:
        """Tell no step until `resume`."""
        self._paused = True

    def resume(self) -> None:
        """Go on, from a later loop turn."""
        self._paused = False
        if self._begun and self._timer is None and not self.over:
            self._timer = self._loop.call_soon(self._advance)

    def stop(self) -> None:
        """Tell nothing more; idempotent."""
        if self.over:
            return
        self._leave()
        for timer in (self._timer, self._head_timer):
            if timer is not None:
                timer.cancel()

    def _begin(self) -> None:
        """It is this request's turn."""
        self._begun = True
        self._base_s = self._loop.time()
        steps = self.script.steps
        self._timer = self._after(steps[0].at_s if steps else 0.0, self._advance)

    def _after(self, delay_s: float, call: Callable[[], None]) -> asyncio.Handle:
        return self._loop.call_at(self._loop.time() + delay_s, call) if delay_s else self._loop.call_soon(call)

    def _head(self) -> None:
        self._headed = True
        if self.script.status:
            self.on_head()

    def _advance(self) -> None:
        """Tell the steps that are due."""
        self._timer = None
        if not self._headed:
            if self._head_timer is not None:
                self._head_timer.cancel()
            self._head()
        steps = self.script.steps
        now_s = self._loop.time()
        while not self.over:
            if self._next == len(steps):
                self._finish()
                return
            due_s = self._base_s + steps[self._next].at_s
            if due_s > now_s:
                self._timer = self._loop.call_at(due_s, self._advance)
                return
            if self._paused:
                return
            self._next += 1
            self.on_step(steps[self._next - 1].frame)

    def _finish(self) -> None:
        if self.script.end is not End.SILENCE:
            self._leave()
            self.on_over()

    def _leave(self) -> None:
        self.over = True
        if self.script.slot:
            self._slots.release(self._begin)
