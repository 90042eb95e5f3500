"""Sends bytes that are pushed over ASGI, in order, without a task while the client keeps up.

Units: bytes.
"""

import asyncio
from typing import Protocol

from gateway.api.asgi import Message, Send
from gateway.api.eager import Begun
from gateway.errors import GatewayError
from providers.base import Burst, Headers

BUFFER_BYTES_MAX = 64 * 1024  # beyond this the upstream is paused


class Leavable(Protocol):
    """What hears that its client has left."""

    def client_gone(self) -> None:
        """The client has left."""


class RaceControl(Leavable, Protocol):
    """What a client tells its race."""

    def give_up(self, error: GatewayError) -> None:
        """What came makes no answer: fail with this error."""

    def pause(self) -> None:
        """The client is slow."""

    def resume(self) -> None:
        """It has caught up."""

    def usage(self) -> tuple[bytes, bytes] | None:
        """What the request has used and cost, as a header; None where that cannot be told."""


class Outbox:
    """Sends pushed bytes in order over ASGI.

    Args:
        send: ASGI's.
        loop: the running loop.
        tasks: owner of the task that waits for a slow client.
        burst: what is given while it is open leaves at its end.

    Attributes:
        started: a status was given.
        ended: the end was given; nothing more will be.
        body_sent: content was given.
        race: hears of a slow client, None while there is none.
        headers: added to those of the response, whatever it is.
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
        self._paused = False  # the race was told to pause
        self.race: RaceControl | None = None
        self.headers: Headers = ()
        self.started = False
        self.ended = False
        self.body_sent = False

    def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Give the status; it leaves with the first bytes that follow at once."""
        self.started = True
        if self.headers:
            headers = [*headers, *self.headers]
        self._start = {"type": "http.response.start", "status": status, "headers": headers}
        self._schedule()

    def write(self, data: bytes, *, content: bool = True) -> None:
        """Give bytes; content=False for signs of life that commit to nothing."""
        self._pending.append(data)
        self._bytes += len(data)
        self.body_sent = self.body_sent or content
        if not self._scheduled:
            self._schedule()
        if self._bytes > BUFFER_BYTES_MAX and not self._paused and self.race is not None:
            self._paused = True
            self.race.pause()

    def end(self) -> None:
        """Give the end."""
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
        """Send what has gathered, without a task if the client keeps up."""
        self._scheduled = False
        if self._blocked or self._done:
            return  # a task that is sending looks again when it is done
        messages = self._messages()
        try:
            for place, message in enumerate(messages, 1):
                sending = self._send(message)
                try:
                    waiting_for = sending.send(None)
                except StopIteration:
                    continue
                self._blocked = True
                self._tasks.create_task(self._send_slowly(Begun(sending, waiting_for), messages[place:]))
                return
        except Exception:  # the server refused the message: there is no client any more
            self._broken()
        else:
            if self._paused:
                self._caught_up()

    def _messages(self) -> list[Message]:
        """Everything gathered, for the server."""
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
        """Finish a send that had to wait for the client, then send the rest, and what has gathered meanwhile."""
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
        """All that was given is sent: the upstream may be read again."""
        if self._paused and self.race is not None:
            self._paused = False
            self.race.resume()

    def _broken(self) -> None:
        self._pending.clear()
        if self.race is not None:
            self.race.client_gone()
