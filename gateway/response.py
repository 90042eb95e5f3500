"""The client's side of a race over ASGI: the status is held until it is known, the winner's bytes go out as they came.

Races push from callbacks, ASGI wants coroutines. An `Outbox` bridges the two without a task: it gathers what one read
of an upstream brought, or one turn of the loop, and steps `send` by hand, which on uvicorn returns without suspending
unless the client is slow. Only then a task takes over. The winner's upstream is paused while more than 64 kB wait,
even within one read. The endpoint's own coroutine does nothing but `receive()`, so a client that leaves is noticed at
once, first token or not.

Two clients of a race: `EventStream` forwards, `JsonAnswer` assembles; their telling kinds say what it has cost, too.
Units: bytes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, Protocol

from gateway.begun import Begun
from gateway.client_api import ClientApi, is_last
from gateway.errors import GatewayError, UpstreamFailed
from providers.base import Assembler, Burst, Call, Headers

Message = MutableMapping[str, Any]  # ASGI's own shape
Send = Callable[[Message], Coroutine[Any, Any, None]]
Receive = Callable[[], Coroutine[Any, Any, Message]]
Scope = MutableMapping[str, Any]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

BUFFER_BYTES_MAX = 64 * 1024  # beyond this the upstream is paused
ANSWER_BYTES_MAX = 64 * 1024 * 1024  # of a non-streaming answer, as events

_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx in front of us must not gather tokens
]


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


class EventStream:
    """A `gateway.request.Client` that forwards events."""

    __slots__ = ("_api", "_ending", "_outbox", "_request_id", "write")

    def __init__(self, outbox: "Outbox", request_id: str, api: ClientApi) -> None:
        self._outbox = outbox
        self._request_id = request_id
        self._api = api
        self._ending = api.ending(request_id)
        self.write: Callable[[bytes], None] = outbox.write  # one call less for every event
        if self._ending.note is not None:
            self.write = self._write_noted

    @property
    def committed(self) -> bool:
        return self._outbox.body_sent

    def begin(self, headers: list[tuple[bytes, bytes]]) -> None:
        if not self._outbox.started:  # else the 200 went out early, without them
            self._outbox.start(200, [*_STREAM_HEADERS, _id_header(self._request_id), *headers])

    def keep_alive(self) -> None:
        self.begin([])
        self._outbox.write(self._api.keep_alive, content=False)

    def finish(self) -> None:
        self._outbox.end()

    def fail(self, error: GatewayError) -> None:
        if self._outbox.started:
            self._outbox.write(self._ending.error(error))
            self._outbox.end()
        else:
            respond_error(self._outbox, error, self._request_id, self._api)

    def _write_noted(self, raw: bytes) -> None:
        assert self._ending.note is not None
        self._ending.note(raw)
        self._outbox.write(raw)


class TellingStream(EventStream):
    """An event stream that tells at its end what the request has used, in a comment before the last event.

    SDKs skip comments. They would also skip one behind the last event, but the body is to end there.
    """

    __slots__ = ("_forward", "_told")

    def __init__(self, outbox: "Outbox", request_id: str, api: ClientApi) -> None:
        super().__init__(outbox, request_id, api)
        self._forward = self.write
        self._told = False
        self.write = self._write_telling

    def finish(self) -> None:
        self._tell()  # a stream may be complete without a closing event
        super().finish()

    def _write_telling(self, raw: bytes) -> None:
        if is_last(raw):
            self._tell()
        self._forward(raw)

    def _tell(self) -> None:
        if not self._told and self._outbox.race is not None and (usage := self._outbox.race.usage()):
            self._told = True
            self._outbox.write(b": %b %b\n\n" % usage)


class JsonAnswer:
    """A `gateway.request.Client` that gathers the events of a non-streaming request into one JSON body.

    Args:
        outbox: where it goes.
        request_id: ours.
        api: the API that the client speaks.
        call: its request.
    """

    __slots__ = ("_api", "_assembler", "_body", "_body_bytes", "_call", "_headers", "_outbox", "_request_id")

    def __init__(self, outbox: "Outbox", request_id: str, api: ClientApi, call: Call) -> None:
        self._outbox = outbox
        self._request_id = request_id
        self._api = api
        self._call = call
        self._assembler: Assembler | None = None  # stays None where the upstream answers with the body itself
        self._headers: list[tuple[bytes, bytes]] = []
        self._body, self._body_bytes = b"", 0

    @property
    def committed(self) -> bool:
        return False  # until finish() nothing goes out

    def begin(self, headers: list[tuple[bytes, bytes]]) -> None:
        self._headers = headers
        self._body, self._body_bytes = b"", 0
        make = self._api.assembler
        self._assembler = make(self._call) if make is not None and self._call.assemble else None

    def keep_alive(self) -> None:
        """A non-streaming request never gets an early 200."""

    def write(self, raw: bytes) -> None:
        self._body_bytes += len(raw)
        if self._body_bytes > ANSWER_BYTES_MAX:
            self._give_up(f"the upstream's answer is over {ANSWER_BYTES_MAX} bytes; ask for a stream")
        elif self._assembler is not None:
            self._assembler.add(raw)
        else:
            self._body += raw

    def finish(self) -> None:
        try:
            body = self._assembler.body() if self._assembler is not None else self._body
        except (ValueError, TypeError, LookupError, AttributeError):  # events that make no answer
            self._give_up("the upstream's events could not be put together to one answer")
            return
        headers = [(b"content-type", b"application/json"), _id_header(self._request_id), *self._headers]
        respond(self._outbox, 200, headers, body)

    def fail(self, error: GatewayError) -> None:
        if not self._outbox.started:
            respond_error(self._outbox, error, self._request_id, self._api)

    def _give_up(self, message: str) -> None:
        if self._outbox.race is not None:
            self._outbox.race.give_up(UpstreamFailed(message, status=502, code="upstream_protocol_error"))


class TellingAnswer(JsonAnswer):
    """A JSON answer that tells in a header what the request has used."""

    __slots__ = ()

    def finish(self) -> None:
        if self._outbox.race is not None and (usage := self._outbox.race.usage()):
            self._headers = [*self._headers, usage]
        super().finish()


def respond(
    outbox: "Outbox", status: int, headers: list[tuple[bytes, bytes]], body: bytes, *, end: bool = True
) -> None:
    """Send a whole response."""
    outbox.start(status, [*headers, (b"content-length", b"%d" % len(body))])
    outbox.write(body)
    if end:
        outbox.end()


def respond_error(outbox: "Outbox", error: GatewayError, request_id: str, api: ClientApi, *, end: bool = True) -> None:
    """Send an error with its status, body and headers, with end=False all but the end; nothing has been sent before."""
    headers = [(b"content-type", b"application/json"), _id_header(request_id), *error.headers()]
    respond(outbox, error.status, headers, api.error_body(error), end=end)


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


async def serve(race: Leavable, outbox: Outbox, receive: Receive) -> None:
    """Watch the client until it leaves or has everything; returns when the request is over.

    After a complete response ASGI's receive() says "http.disconnect", too.
    """
    try:
        while (await receive())["type"] != "http.disconnect":
            pass
    finally:
        race.client_gone()  # does nothing when the race is over
        outbox.race = None  # no cycle outlives a request


def _id_header(request_id: str) -> tuple[bytes, bytes]:
    return (b"x-request-id", request_id.encode())
