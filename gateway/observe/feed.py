"""The event feed: everything that happens, as server-sent events for whoever is watching.

Owns the subscribers and their queues. A subscriber that is too slow loses the oldest events and is told how many; it
never slows the gateway. It must not know who watches or how the bytes travel. Without subscribers an event costs
nothing.

Units: events; seconds inside them, as the core emits them.
"""

import asyncio
import re
from collections import deque
from typing import get_args

import msgspec

from gateway.events import Event

_SUBSCRIBERS_MAX = 16
_QUEUE_MAX = 1_000  # events, shared by all who wait for them: about 1 MB

_NAMES = {kind: re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower() for kind in get_args(Event)}
_encode = msgspec.json.Encoder().encode


class Subscription:
    """One subscriber's queue; iterating gives whole server-sent events, all that have gathered at a time."""

    def __init__(self) -> None:
        self._queue: deque[bytes] = deque(maxlen=_QUEUE_MAX)
        self._dropped = 0
        self._wake = asyncio.Event()
        self._closed = False

    def put(self, event: bytes) -> None:
        """Add an event, in place of the oldest if there is no room."""
        self._dropped += len(self._queue) == _QUEUE_MAX
        self._queue.append(event)
        self._wake.set()

    def close(self) -> None:
        """End at once."""
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
    """Hands events to its subscribers."""

    def __init__(self) -> None:
        self._subscriptions: list[Subscription] = []
        self._closed = False

    def on_event(self, event: Event) -> None:
        """Pass an event on (a `gateway.events.Listener`)."""
        if self._subscriptions:
            written = _sse(_NAMES[type(event)], _encode(event))
            for subscription in self._subscriptions:
                subscription.put(written)

    def join(self) -> Subscription | None:
        """A new subscription, to be given back with `leave`; None when there are too many."""
        if len(self._subscriptions) >= _SUBSCRIBERS_MAX:
            return None
        subscription = Subscription()
        if self._closed:
            subscription.close()
        self._subscriptions.append(subscription)
        return subscription

    def leave(self, subscription: Subscription) -> None:
        """Forget a subscription."""
        self._subscriptions.remove(subscription)

    def close(self) -> None:
        """End every subscription now, and later ones at once."""
        self._closed = True
        for subscription in self._subscriptions:
            subscription.close()


def _sse(name: str, data: bytes) -> bytes:
    """One event; JSON has no line end in it."""
    return b"event: %s\r\ndata: %s\r\n\r\n" % (name.encode(), data)
