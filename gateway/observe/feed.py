"""The event feed: every event as a server-sent event for its subscribers.

Owns the subscribers and their queues. A subscriber that is too slow loses the oldest events and receives their number;
it never slows the gateway. Independent of the subscribers' transport. Without subscribers an event costs nothing.

Units: events; seconds inside them, as the core emits them.
"""

import asyncio
from collections import deque
from collections.abc import Callable

import msgspec

from gateway.events import NAMES, Event

_SUBSCRIBERS_MAX = 16
_QUEUE_MAX = 1_000  # events per subscriber; their bytes are shared: about 1 MB

_encode = msgspec.json.Encoder().encode


class Subscription:
    """One subscriber's queue; each iteration returns all queued events, as complete server-sent events."""

    def __init__(self) -> None:
        self._queue: deque[bytes] = deque(maxlen=_QUEUE_MAX)
        self._dropped = 0
        self._wake = asyncio.Event()
        self._closed = False

    def put(self, event: bytes) -> None:
        """Add an event, in place of the oldest if the queue is full."""
        self._dropped += len(self._queue) == _QUEUE_MAX
        self._queue.append(event)
        self._wake.set()

    def close(self) -> None:
        """End the iteration immediately."""
        self._closed = True
        self._wake.set()

    def __aiter__(self) -> "Subscription":
        return self

    async def __anext__(self) -> bytes:
        await self._wake.wait()
        if self._closed:
            raise StopAsyncIteration
        self._wake.clear()
        events = b"".join(self._queue)
        self._queue.clear()
        if self._dropped:
            events = _sse("events_dropped", b'{"events":%d}' % self._dropped) + events
            self._dropped = 0
        return events


class Feed:
    """Passes events to its subscribers.

    Args:
        on_use: called with the first subscriber, and after the last one.
    """

    def __init__(self, on_use: Callable[[], object] = bool) -> None:
        self._on_use = on_use
        self._subscriptions: list[Subscription] = []
        self._closed = False

    @property
    def is_used(self) -> bool:
        """True if there is a subscriber."""
        return bool(self._subscriptions)

    def on_event(self, event: Event) -> None:
        """Pass an event to every subscriber (a `gateway.events.Listener`)."""
        if self._subscriptions:
            self.put(encoded_event(event))

    def put(self, encoded: bytes) -> None:
        """Pass an event to every subscriber, as `encoded_event` returns it."""
        for subscription in self._subscriptions:
            subscription.put(encoded)

    def join(self) -> Subscription | None:
        """Return a new subscription, to be returned with `leave`; None if there are too many."""
        if len(self._subscriptions) >= _SUBSCRIBERS_MAX:
            return None
        subscription = Subscription()
        if self._closed:
            subscription.close()
        self._subscriptions.append(subscription)
        if len(self._subscriptions) == 1:
            self._on_use()
        return subscription

    def leave(self, subscription: Subscription) -> None:
        """Remove a subscription."""
        self._subscriptions.remove(subscription)
        if not self._subscriptions:
            self._on_use()

    def close(self) -> None:
        """End all subscriptions now, and each later one when it begins."""
        self._closed = True
        for subscription in self._subscriptions:
            subscription.close()


def encoded_event(event: Event, worker: int | None = None) -> bytes:
    """Return an event as a server-sent event.

    Args:
        worker: number of the worker that emitted it, as a field of the event; None for none.
    """
    data = _encode(event)
    if worker is not None:
        data = b'%b,"worker":%d}' % (data[:-1], worker)
    return _sse(NAMES[type(event)], data)


def _sse(name: str, data: bytes) -> bytes:
    """Encode one event; JSON contains no line break."""
    return b"event: %s\r\ndata: %s\r\n\r\n" % (name.encode(), data)
