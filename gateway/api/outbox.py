"""Sends pushed bytes over ASGI, in order, without a task while the client keeps up. Units: bytes."""

import asyncio
from typing import Protocol

from gateway.api.asgi import Message, Send
from gateway.api.eager import Begun
from gateway.errors import GatewayError, Internal
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
    """Sends pushed bytes in order over ASGI; created in the task of the request's endpoint.

    A response that the server rejects ends its race with an error, which replaces the response if the status was
    rejected. If the error is rejected too, the endpoint returns, and the server closes the connection.

    Args:
        tasks: owner of the task that waits for a slow client.
        burst: one read of an upstream; bytes written while it is open are sent at its end.

    Attributes:
        started: True once `start` was called.
        ended: True once `end` was called; nothing follows.
        failed: True once the server rejected the response; the endpoint has to return.
        body_sent: True once content was written.
        race: the race to pause for a slow client, None before it starts and after it ends.
        headers: headers added to every response.
    """

    __slots__ = (
        "_blocked",
        "_burst",
        "_bytes",
        "_done",
        "_endpoint",
        "_is_replaced",
        "_loop",
        "_paused",
        "_pending",
        "_scheduled",
        "_send",
        "_tasks",
        "body_sent",
        "ended",
        "failed",
        "headers",
        "race",
        "started",
    )

    def __init__(self, send: Send, loop: asyncio.AbstractEventLoop, tasks: asyncio.TaskGroup, burst: Burst) -> None:
        self._send = send
        self._burst = burst
        self._loop = loop
        self._tasks = tasks
        self._endpoint = asyncio.current_task()
        self._pending: list[bytes] = []
        self._bytes = 0
        self._scheduled = False
        self._blocked = False  # a task is sending
        self._done = False  # the end was sent
        self._paused = False  # the race is paused
        self._is_replaced = False  # the first status was rejected
        self.race: RaceControl | None = None
        self.headers: Headers = ()
        self.started = False
        self.ended = False
        self.failed = False
        self.body_sent = False

    def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Send status and headers at once, so that a race whose response cannot begin ends with an error."""
        self.started = True
        if self.headers:
            headers = [*headers, *self.headers]
        sending = self._send({"type": "http.response.start", "status": status, "headers": headers})
        try:
            waiting_for = sending.send(None)
        except StopIteration:
            return
        except Exception as error:
            self._rejected(error, is_status=True)
        else:
            self._wait(Begun(sending, waiting_for))

    def write(self, data: bytes, *, content: bool = True) -> None:
        """Write bytes; content=False for keep-alives, which do not commit the answer."""
        if self.ended:
            return  # an error replaced the response
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

        Example (`start` repeats these lines: sharing them would cost a call for each token):

            sending = send(message); sending.send(None)
                StopIteration    the coroutine returned: the message is with the server, no task was needed
                a future         the server waits for a slow client: a task takes over `sending` where it is, and then
                                 sends whatever is written meanwhile
        """
        self._scheduled = False
        if self._blocked or self._done:
            return  # a task that is sending looks for more before it ends
        message = self._message()
        if message is None:
            return
        sending = self._send(message)
        try:
            waiting_for = sending.send(None)
        except StopIteration:
            if self._paused:
                self._caught_up()
        except Exception as error:
            self._rejected(error, is_status=False)
        else:
            self._wait(Begun(sending, waiting_for))

    def _wait(self, begun: Begun[None]) -> None:
        self._blocked = True
        self._tasks.create_task(self._send_slowly(begun))

    def _message(self) -> Message | None:
        """Return everything written since the last call as an ASGI message, None if there is nothing to send."""
        pending = self._pending
        if not pending and not self.ended:
            return None
        data = pending[0] if len(pending) == 1 else b"".join(pending)
        pending.clear()
        self._bytes = 0
        self._done = self.ended
        return {"type": "http.response.body", "body": data, "more_body": not self._done}

    async def _send_slowly(self, begun: Begun[None]) -> None:
        """Finish a send that waits for the client, then send everything written meanwhile."""
        try:
            await begun
            while not self._done and (message := self._message()) is not None:
                await self._send(message)
        except Exception as error:
            self._rejected(error, is_status=False)
        self._blocked = False
        self._caught_up()

    def _caught_up(self) -> None:
        """Resume the race: everything written is sent."""
        if self._paused and self.race is not None:
            self._paused = False
            self.race.resume()

    def _rejected(self, error: Exception, *, is_status: bool) -> None:
        """End a response of which the server rejected a message."""
        race = self.race
        if isinstance(error, OSError):  # ASGI: the client disconnected; receive() reports it, too
            self._drop()
            if race is not None:
                race.client_gone()
            return
        failure = Internal("the response cannot be sent; see the gateway's log")
        if race is not None and is_status and not self._is_replaced:
            self._is_replaced, self.started, self.headers = True, False, ()
            race.give_up(failure)
            if self.started:
                return  # the error was sent, or this method was called again
        self._drop()
        self.failed = True
        if self._endpoint is not None and self._endpoint is not asyncio.current_task():
            self._endpoint.cancel()
        if race is not None:
            race.give_up(failure)  # last: a bug there must not keep the endpoint waiting

    def _drop(self) -> None:
        """Send nothing more."""
        self.started = self.ended = self._done = True
        self._pending.clear()
        self._bytes = 0
