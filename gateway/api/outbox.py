"""Sends pushed bytes over ASGI, in order, without a task while the client keeps up. Units: bytes."""

import asyncio
from typing import Protocol

from gateway.api.asgi import Message, Send
from gateway.api.eager import Begun
from gateway.errors import GatewayError
from providers.base import Burst, Headers

BUFFER_BYTES_MAX = 64 * 1024  # beyond this the upstream is paused


class Leavable(Protocol):
    """Receives the disconnect of its client."""

    def client_gone(self) -> None:
        """The client disconnected."""


class RaceControl(Leavable, Protocol):
    """The methods of a race that its client calls."""

    def give_up(self, error: GatewayError) -> None:
        """Fail with this error: the events received cannot be made into a response."""

    def pause(self) -> None:
        """Stop reading the upstream: the client is slow."""

    def resume(self) -> None:
        """Read the upstream again: the client has caught up."""

    def usage(self) -> tuple[bytes, bytes] | None:
        """Return the request's usage and cost so far as a header, None if they cannot be computed."""


class Outbox:
    """Sends pushed bytes in order over ASGI.

    Args:
        tasks: owner of the task that waits for a slow client.
        burst: one read of an upstream; bytes written while it is open are sent at its end.

    Attributes:
        started: True once `start` was called.
        ended: True once `end` was called; nothing follows.
        body_sent: True once content was written.
        race: the race to pause for a slow client, None before it starts and after it ends.
        headers: headers added to every response.
    """

    __slots__ = (
        "_blocked",
        "_burst",
        "_bytes",
        "_done",
        "_loop",
        "_paused",
        "_pending",
        "_scheduled",
        "_send",
        "_start",
        "_tasks",
        "body_sent",
        "ended",
        "headers",
        "race",
        "started",
    )

    def __init__(self, send: Send, loop: asyncio.AbstractEventLoop, tasks: asyncio.TaskGroup, burst: Burst) -> None:
        self._send = send
        self._burst = burst
        self._loop = loop
        self._tasks = tasks
        self._start: Message | None = None
        self._pending: list[bytes] = []
        self._bytes = 0
        self._scheduled = False
        self._blocked = False  # a task is sending
        self._done = False  # the end was sent
        self._paused = False  # the race is paused
        self.race: RaceControl | None = None
        self.headers: Headers = ()
        self.started = False
        self.ended = False
        self.body_sent = False

    def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Set status and headers; they are sent together with the bytes that are written in the same turn."""
        self.started = True
        if self.headers:
            headers = [*headers, *self.headers]
        self._start = {"type": "http.response.start", "status": status, "headers": headers}
        self._schedule()

    def write(self, data: bytes, *, content: bool = True) -> None:
        """Write bytes; content=False for keep-alives, which do not commit the answer."""
        self._pending.append(data)
        self._bytes += len(data)
        self.body_sent = self.body_sent or content
        if not self._scheduled:
            self._schedule()
        if self._bytes > BUFFER_BYTES_MAX and not self._paused and self.race is not None:
            self._paused = True
            self.race.pause()

    def end(self) -> None:
        """End the response."""
        self.ended = True
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            if self._burst.is_open:
                self._burst.at_end.append(self._flush)
            else:
                self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Send everything written so far, without a task if the client keeps up.

        Example: `_messages` returns [head, body].

            sending = send(head); sending.send(None)
                StopIteration    the coroutine returned: head is with the server, go on with body
            sending = send(body); sending.send(None)
                StopIteration    sent: nothing is left, no task was needed
                a future         the server waits for a slow client: a task takes over `sending` where it is,
                                 and then sends messages[2:] and whatever is written meanwhile
        """
        self._scheduled = False
        if self._blocked or self._done:
            return  # a task that is sending looks for more before it ends
        messages = self._messages()
        try:
            for position, message in enumerate(messages, 1):
                sending = self._send(message)
                try:
                    waiting_for = sending.send(None)
                except StopIteration:
                    continue
                self._blocked = True
                self._tasks.create_task(self._send_slowly(Begun(sending, waiting_for), messages[position:]))
                return
        except Exception:  # the server rejected the message: the client is gone
            self._broken()
        else:
            if self._paused:
                self._caught_up()

    def _messages(self) -> list[Message]:
        """Return everything written since the last call as ASGI messages."""
        messages = []
        if self._start is not None:
            messages.append(self._start)
            self._start = None
        pending = self._pending
        if pending or self.ended:
            data = pending[0] if len(pending) == 1 else b"".join(pending)
            pending.clear()
            self._bytes = 0
            self._done = self.ended
            messages.append({"type": "http.response.body", "body": data, "more_body": not self._done})
        return messages

    async def _send_slowly(self, begun: Begun[None], messages: list[Message]) -> None:
        """Finish a send that waits for the client, then send the rest, and everything written meanwhile."""
        try:
            await begun
            while True:
                for message in messages:
                    await self._send(message)
                messages = [] if self._done else self._messages()
                if not messages:
                    break
        except Exception:  # as in _flush
            self._broken()
        self._blocked = False
        self._caught_up()

    def _caught_up(self) -> None:
        """Resume the race: everything written is sent."""
        if self._paused and self.race is not None:
            self._paused = False
            self.race.resume()

    def _broken(self) -> None:
        self._pending.clear()
        if self.race is not None:
            self.race.client_gone()
