"""Requests that an ASGI application answers: those of the admin address. Follows ASGI 3.0, HTTP without extensions.

The application runs in a task, and its connection is one of `http_protocol`, with all of its limits. Of a body, at most
`UNREAD_BYTES_MAX` wait for the application, and what exceeds them is dropped: the application must have a lower limit.
Units: bytes.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, Final

import httptools

from gateway.admission.body_memory import BodyMemory
from gateway.api.body_reader import BodyLimits
from gateway.api.dialects.base import ClientApi
from gateway.api.exchange import ClientExchange, Connection
from gateway.api.request_head import RequestHead
from gateway.api.response import respond_error
from gateway.api.turns import Turns
from gateway.errors import GatewayError, Internal
from gateway.race.context import Runtime

Message = MutableMapping[str, Any]  # ASGI's own shape
Send = Callable[[Message], Coroutine[Any, Any, None]]
Receive = Callable[[], Coroutine[Any, Any, Message]]
Scope = MutableMapping[str, Any]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

UNREAD_BYTES_MAX: Final = 64 * 1024
_BODY_S_MAX: Final = 5.0
_ADMIT_KEY: Final = "ttft_gateway.admit"

_LOG = logging.getLogger(__name__)


def admit(scope: Scope, *, known: bool) -> None:
    """Protect the connection of a request until the end of its response; `known` if the request has a valid key."""
    if _ADMIT_KEY in scope:
        scope[_ADMIT_KEY](known=known)


class AsgiRequests:
    """The requests for an ASGI application.

    Args:
        application: the application.
        runtime: the loop.
        tasks: owner of the task of each request.
    """

    def __init__(self, application: Application, runtime: Runtime, tasks: asyncio.TaskGroup) -> None:
        self.application = application
        self.runtime = runtime
        self.tasks = tasks
        memory = BodyMemory(UNREAD_BYTES_MAX)  # holds nothing: bodies go to the application
        self.bodies = BodyLimits(UNREAD_BYTES_MAX, _BODY_S_MAX, memory, runtime, Turns(runtime.loop))

    def open(self, connection: Connection, head: RequestHead) -> "AsgiExchange":
        """Return the exchange for a request."""
        return AsgiExchange(connection, head, self)


class AsgiExchange(ClientExchange):
    """One request for the application; `send` waits for a slow client."""

    __slots__ = ("_body", "_body_changed", "_is_gone", "_requests", "_url", "_writable")

    def __init__(self, connection: Connection, head: RequestHead, requests: AsgiRequests) -> None:
        own_id = f"req_{secrets.token_hex(10)}"
        super().__init__(connection, head, requests.runtime, ClientApi(None), requests.bodies, own_id)
        self._requests = requests
        self._url = httptools.parse_url(head.target)
        self._body = b""  # what the application has not received
        self._body_changed = asyncio.Event()
        self._is_gone = False  # the client has disconnected, or has its whole response
        self._writable = asyncio.Event()
        self._writable.set()

    def on_body(self, piece: bytes) -> None:
        self._body = (self._body + piece)[:UNREAD_BYTES_MAX]

    def receive(self) -> None:
        self._body_changed.set()

    def _open(self) -> None:
        self.race = self
        self._requests.tasks.create_task(self._run())

    async def _run(self) -> None:
        try:
            await self._requests.application(self._scope(), self._receive, self._send)
        except Exception as error:  # a bug in the application
            self._runtime.report("admin", error)
            _LOG.error("a request met a bug", exc_info=error)
        if not self.started:
            respond_error(self, Internal("the gateway failed; see its log"), self.request_id, self._api)
        elif not self.ended:
            self._connection.transport.close()  # the client must not take the response for a whole one

    def _scope(self) -> Scope:
        head, url = self.head, self._url
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": head.version,
            "method": head.method,
            "scheme": "http",
            "path": head.path,
            "raw_path": url.path,
            "query_string": url.query or b"",
            "root_path": "",
            "headers": head.headers,
            "client": None,
            "server": None,
            _ADMIT_KEY: self._connection.admit,
        }

    async def _receive(self) -> Message:
        while not self._is_gone:
            if self._body_changed.is_set():
                self._body_changed.clear()
                body, self._body = self._body, b""
                return {"type": "http.request", "body": body, "more_body": self.more_body}
            await self._body_changed.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self.ended:
            return  # the client is gone, or an error replaced the response
        has_body = self.head.method != "HEAD"
        if message["type"] == "http.response.start":
            headers = [(name, value) for name, value in message["headers"] if name != b"content-length"]
            lengths = [int(value) for name, value in message["headers"] if name == b"content-length"]
            self.start(message["status"], headers, lengths[0] if lengths else None)
            if has_body:
                self.flush()  # the first event of a feed may be far
        elif not message.get("more_body", False):
            if has_body:
                self.write(message.get("body", b""))
            self.end()
        elif has_body:
            self.write_keep_alive(message["body"])  # now, so that a slow client pauses the application here
            await self._writable.wait()

    # the calls of the response writer, as to a race

    def give_up(self, error: GatewayError) -> None:
        respond_error(self, error, self.request_id, self._api)

    def pause(self) -> None:
        self._writable.clear()

    def resume(self) -> None:
        self._writable.set()

    def usage(self) -> None:
        """Return None: no replica was used."""

    def _answer(self, body: bytes) -> None:
        """Do nothing: the application receives the body."""

    def _rejected(self, error: GatewayError) -> None:
        """Report nothing."""

    def _abandon(self) -> None:
        """Do nothing: the application receives the disconnect."""

    def _release(self) -> None:
        self._is_gone = True
        self._body_changed.set()
        self._writable.set()
