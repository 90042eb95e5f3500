"""Plays one script in real or virtual time: calls a subclass when the head, each frame and the end are due.

Owns timers and the request's slot; independent of sockets and sinks. The clock is the event loop's, in seconds.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable

from gateway.simulated.engine import Slots
from gateway.simulated.script import End, Script
from ttft_gateway.apis.base import Frame


class Player(ABC):
    """Plays one script; a subclass writes the response.

    Attributes:
        script: the script.
        over: True after the last call of the subclass.
    """

    __slots__ = ("_base_s", "_head_sent", "_head_timer", "_loop", "_next", "_paused", "_slots", "_started", "_timer",
                 "over", "script")  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop, slots: Slots, script: Script) -> None:
        self.script = script
        self.over = False
        self._loop = loop
        self._slots = slots
        self._base_s = 0.0  # time at which the request got its slot
        self._started = False
        self._head_sent = False
        self._paused = False
        self._next = 0  # index of the next step
        self._head_timer: asyncio.Handle | None = None
        self._timer: asyncio.Handle | None = None

    @abstractmethod
    def on_head(self) -> None:
        """Write the response head and the prelude."""

    @abstractmethod
    def on_step(self, frame: Frame) -> None:
        """Write one step."""

    @abstractmethod
    def on_over(self) -> None:
        """End the response after its last step; not called for End.SILENCE."""

    def start(self) -> None:
        """Start the script; its first call comes in a later turn of the loop."""
        if self.script.head_s is not None:
            self._head_timer = self._after(self.script.head_s, self._head)
        if self.script.slot:
            self._slots.acquire(self._begin_steps)
        else:
            self._begin_steps()

    def pause(self) -> None:
        """Hold all steps until `resume`."""
        self._paused = True

    def resume(self) -> None:
        """Continue in a later turn of the loop."""
        self._paused = False
        if self._started and self._timer is None and not self.over:
            self._timer = self._loop.call_soon(self._advance)

    def stop(self) -> None:
        """Stop all calls; idempotent."""
        if self.over:
            return
        self._close()
        for timer in (self._timer, self._head_timer):
            if timer is not None:
                timer.cancel()

    def _begin_steps(self) -> None:
        self._started = True
        self._base_s = self._loop.time()
        steps = self.script.steps
        self._timer = self._after(steps[0].at_s if steps else 0.0, self._advance)

    def _after(self, delay_s: float, call: Callable[[], None]) -> asyncio.Handle:
        return self._loop.call_at(self._loop.time() + delay_s, call) if delay_s else self._loop.call_soon(call)

    def _head(self) -> None:
        self._head_sent = True
        if self.script.status:
            self.on_head()

    def _advance(self) -> None:
        """Play the steps that are due."""
        self._timer = None
        if not self._head_sent:
            if self._head_timer is not None:
                self._head_timer.cancel()
            self._head()
        steps = self.script.steps
        now_s = self._loop.time()
        while not self.over:
            if self._next == len(steps):
                if self.script.end is not End.SILENCE:
                    self._close()
                    self.on_over()
                return
            due_s = self._base_s + steps[self._next].at_s
            if due_s > now_s:
                self._timer = self._loop.call_at(due_s, self._advance)
                return
            if self._paused:
                return
            self._next += 1
            self.on_step(steps[self._next - 1].frame)

    def _close(self) -> None:
        self.over = True
        if self.script.slot:
            self._slots.release(self._begin_steps)
