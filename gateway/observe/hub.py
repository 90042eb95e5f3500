"""Passes the core's events to the observers in batches, so that observing costs a request one append while it runs.

A batch is passed on when it is full, soon after its first event, and before a reader of an observer gets its counts
(`Hub.flush`). Each observer receives all events in the order in which they were emitted. Observers of every request
receive whole batches.

Units: events; seconds of the loop's clock.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator

from gateway.events import Event, Listener

Collector = Callable[[Iterator[Event]], None]
"""Receives the events of a batch; after an exception it is called again with the rest of them."""

_EVENTS_MAX = 32  # of a batch: under 1 ms of the loop's time
_LAG_S_MAX = 0.1  # not noticed in the log, which a thread writes, or in the feed


class Hub:
    """Collects events for observers; an exception in an observer costs neither a request nor another event.

    Args:
        loop: event loop on which events are emitted.

    Attributes:
        collectors: receivers of every batch.
        listeners: receivers of every event.
        failures: number of exceptions in collectors and listeners.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.collectors: list[Collector] = []
        self.listeners: list[Listener] = []
        self.failures = 0
        self._loop = loop
        self._events: list[Event] = []
        self._timer: asyncio.TimerHandle | None = None

    def emit(self, event: Event) -> None:
        """Add an event to the batch."""
        events = self._events
        events.append(event)
        if self._timer is None:
            self._timer = self._loop.call_later(_LAG_S_MAX, self._on_time)
        if len(events) >= _EVENTS_MAX:
            self.flush()

    def emit_now(self, event: Event) -> None:
        """Pass on an event that ends the batch: its cause is about to be confirmed to an operator."""
        self.emit(event)
        self.flush()

    def flush(self) -> None:
        """Pass on every event emitted so far."""
        events, self._events = self._events, []
        for collect in self.collectors:
            rest = iter(events)
            for _ in events:  # again after an exception, which costs one event
                try:
                    collect(rest)
                    break
                except Exception as error:  # an observer's bug
                    self._on_failure(error)
        for listener in self.listeners:
            for event in events:
                try:
                    listener(event)
                except Exception as error:  # likewise
                    self._on_failure(error)

    def _on_time(self) -> None:
        self._timer = None
        self.flush()

    def _on_failure(self, error: Exception) -> None:
        self.failures += 1
        if self.failures == 1:
            logging.getLogger(__name__).error("an observer failed; further failures are not logged", exc_info=error)
