"""One thread that calls functions after a time; it exists while there is something to wait for."""

import heapq
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Final

from gateway.client.hedger import safely

_IDLE_S: Final = 1.0  # time between two searches for cancelled appointments, after the last of which the thread ends


class Appointment:
    """One call to come.

    Attributes:
        function: the function; None after the call, or if it was cancelled.
    """

    __slots__ = ("due_s", "function", "number")

    def __init__(self, due_s: float, number: int, function: Callable[[], None]) -> None:
        self.due_s = due_s
        self.number = number
        self.function: Callable[[], None] | None = function

    def __lt__(self, other: "Appointment") -> bool:
        return (self.due_s, self.number) < (other.due_s, other.number)

    def cancel(self) -> None:
        """Call nothing."""
        self.function = None


class Alarm:
    """Calls functions, each of which returns at once, in a thread of its own."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._entries: list[Appointment] = []
        self._numbers = count()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def after(self, delay_s: float, function: Callable[[], None]) -> Appointment:
        """Call a function after a time."""
        entry = Appointment(time.monotonic() + delay_s, next(self._numbers), function)
        with self._changed:
            if self._is_closed:
                return entry
            heapq.heappush(self._entries, entry)
            if self._thread is None or not self._thread.is_alive():  # none yet, or that of the parent before a fork
                self._thread = threading.Thread(target=self._run, name="ttft-hedge-alarm", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:  # no more threads: the function is not called
                    self._thread = None
            elif self._entries[0] is entry:
                self._changed.notify()
        return entry

    def close(self) -> None:
        """End the thread; later calls are not made."""
        with self._changed:
            self._is_closed = True
            self._entries.clear()
            self._changed.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        while (function := self._next()) is not None:
            safely(function)

    def _next(self) -> Callable[[], None] | None:
        """Wait for the next function; None: there are no more, and the thread ends."""
        with self._changed:
            while True:
                now_s = time.monotonic()
                self._entries = [entry for entry in self._entries if entry.function is not None]
                heapq.heapify(self._entries)
                if not self._entries:
                    self._thread = None
                    return None
                first = self._entries[0]
                if first.due_s <= now_s:
                    function, first.function = first.function, None
                    return function
                self._changed.wait(min(_IDLE_S, first.due_s - now_s))
