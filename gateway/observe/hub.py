"""Passes the core's events to the observers in batches, so that observing costs a request one append while it runs.

A batch is passed on when it is full, soon after its first event, and before a reader of an observer gets its counts
(`Hub.flush`). Each observer receives all events in the order in which they were emitted.

Units: events; seconds of the loop's clock.
"""

import asyncio
import logging
from collections.abc import Callable

from gateway.events import Event, Listener

_EVENTS_MAX = 32  # of a batch: under 1 ms of the loop's time
_LAG_S_MAX = 0.1  # not noticed in the log, which a thread writes, or in the feed


class Hub:
    """Collects events for listeners; an exception in a listener costs neither a request nor another event.

    Args:
        loop: event loop on which events are emitted.

    Attributes:
        listeners: receivers of every event.
        batch_ends: functions that are called after each batch.
        failures: number of exceptions in listeners.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.listeners: list[Listener] = []
        self.batch_ends: list[Callable[[], None]] = []
        self.failures = 0
        self._loop = loop
        self._events: list[Event] = []
        self._timer: asyncio.TimerHandle | None = None

    def emit(self, event: Event) -> None:
        """Add an event to the batch."""
        self._events.append(event)
        if self._timer is None:
            self._timer = self._loop.call_later(_LAG_S_MAX, self._on_time)
        if len(self._events) >= _EVENTS_MAX:
            self.flush()

    def emit_now(self, event: Event) -> None:
        """Pass on an event that ends the batch: its cause is about to be confirmed to an operator."""
        self.emit(event)
        self.flush()

    def flush(self) -> None:
        """Pass on every event emitted so far."""
        events, self._events = self._events, []
        for listener in self.listeners:
            for event in events:
                try:
                    listener(event)
                except Exception as error:  # an observer's bug
                    self._on_failure(error)
        for end in self.batch_ends if events else ():
            try:
                end()
            except Exception as error:  # likewise
                self._on_failure(error)

    def _on_time(self) -> None:
        self._timer = None
        self.flush()

    def _on_failure(self, error: Exception) -> None:
        self.failures += 1
        if self.failures == 1:
            logging.getLogger(__name__).error("an observer failed; further failures are not logged", exc_info=error)
