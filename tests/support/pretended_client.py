"""A client of the gateway without a socket: requests and responses as bytes, between a test and the server's protocol.

The test plays the transport. Everything from the HTTP parser to the bytes of the response is the gateway's own.
Units: bytes.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import NamedTuple

import httptools

from gateway.admission.body_memory import BodyMemory
from gateway.api.body_reader import BodyLimits
from gateway.api.dialects.base import ClientApi
from gateway.api.exchange import ClientExchange, Connection
from gateway.api.http_protocol import HttpProtocol, OpenConnections, OpenExchange
from gateway.api.request_head import RequestHead
from gateway.api.turns import Turns
from gateway.errors import GatewayError
from gateway.race.context import Runtime
from gateway.race.deadlines import TimerQueue
from gateway.server.app import Gateway
from gateway.server.http_server import waiting_connections

_LAST_CHUNK = b"0\r\n\r\n"


class Response(NamedTuple):
    """One response, without its framing."""

    status: int
    headers: dict[str, str]
    body: bytes


class PretendedTransport(asyncio.Transport):
    """Keeps what is written.

    Attributes:
        written: every write that no response was read from.
        closed: the gateway has closed the connection.
        reading: the gateway wants to read.
        on_write: called after every write and at the end.
    """

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.closed = False
        self.reading = True
        self.protocol: asyncio.Protocol | None = None
        self.on_write: Callable[[], object] = bool

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.closed:
            self.written.append(bytes(data))
            self.on_write()

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            if self.protocol is not None:
                asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)
            self.on_write()

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class PretendedClient:
    """One connection; requests are sent one after the other.

    Args:
        protocol: the gateway's side of the connection; None if the test itself plays it.

    Attributes:
        transport: the gateway's transport.
    """

    def __init__(self, protocol: HttpProtocol | None = None) -> None:
        self.transport = PretendedTransport()
        self.transport.protocol = protocol
        if protocol is not None:
            protocol.connection_made(self.transport)

    def send(self, data: bytes) -> None:
        """Let the gateway read these bytes."""
        protocol = self.transport.protocol
        assert protocol is not None
        protocol.data_received(data)

    def leave(self) -> None:
        """Close the connection."""
        self.transport.close()

    async def receive(self) -> Response:
        """Wait for a whole response, or for as much of one as comes before the connection ends."""
        transport, reader = self.transport, _Reader()
        changed = asyncio.Event()
        transport.on_write = changed.set
        while True:
            changed.clear()
            for data in transport.written:
                reader.feed(data)
            transport.written.clear()
            if reader.is_complete or transport.closed:
                return reader.response
            await changed.wait()

    async def ask(
        self, body: bytes, path: str = "/v1/chat/completions", headers: Mapping[str, str] | None = None
    ) -> Response:
        """Send a request and wait for its response."""
        self.send(request(body, path, headers))
        return await self.receive()

    async def stream(self, data: bytes) -> bytes:
        """Send a request and return its streamed response with framing, found to be complete by its last bytes only."""
        over = asyncio.Event()
        transport = self.transport
        transport.on_write = lambda: over.set() if transport.written[-1].endswith(_LAST_CHUNK) else None
        self.send(data)
        await over.wait()
        received = b"".join(transport.written)
        transport.written.clear()
        return received


def request(body: bytes, path: str = "/v1/chat/completions", headers: Mapping[str, str] | None = None) -> bytes:
    """Return a POST request."""
    fields = {"host": "localhost", "content-type": "application/json", "content-length": len(body), **(headers or {})}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


def connected(gateway: Gateway) -> PretendedClient:
    """Connect to the public address of a gateway; its loop must be running."""
    connections = OpenConnections(gateway.public.open, waiting_connections())
    connections.own_headers = ((b"date", b"Thu, 01 Jan 2026 00:00:00 GMT"),)
    return PretendedClient(HttpProtocol(connections))


def connected_to(open_exchange: OpenExchange) -> PretendedClient:
    """Connect to a server that has nothing but exchanges."""
    return PretendedClient(HttpProtocol(OpenConnections(open_exchange)))


class ScriptedExchange(ClientExchange):
    """A request with a script as its response; its body is dropped."""

    def __init__(
        self, connection: Connection, head: RequestHead, bodies: BodyLimits, begin: Callable[["ScriptedExchange"], None]
    ) -> None:
        super().__init__(connection, head, bodies.runtime, ClientApi(None), bodies, "id")
        self._begin = begin
        self._writable = asyncio.Event()
        self._writable.set()

    async def send(self, piece: bytes) -> None:
        """Send a piece of the response now, and wait until the client may have more."""
        self.write_keep_alive(piece)
        await self._writable.wait()

    def on_body(self, piece: bytes) -> None:
        """Drop the piece."""

    def receive(self) -> None:
        """Do nothing."""

    def _open(self) -> None:
        self.race = self
        self._begin(self)

    def pause(self) -> None:
        self._writable.clear()

    def resume(self) -> None:
        self._writable.set()

    def usage(self) -> None:
        """Return no usage."""

    def give_up(self, error: GatewayError) -> None:
        raise AssertionError(error)

    def _answer(self, body: bytes) -> None:
        raise AssertionError(body)

    def _rejected(self, error: GatewayError) -> None:
        raise AssertionError(error)

    def _abandon(self) -> None:
        """Do nothing: the script goes on."""

    def _release(self) -> None:
        self._writable.set()


Script = Callable[[ScriptedExchange], Coroutine[object, object, None]]
"""Writes a response."""


def answering(script: Script, tasks: asyncio.TaskGroup) -> OpenExchange:
    """Return what opens an exchange for each request, answered by a script in a task."""
    loop = asyncio.get_running_loop()
    runtime = Runtime(loop, lambda _: None, lambda: 0.0, TimerQueue(loop))
    bodies = BodyLimits(1_000_000, 500.0, BodyMemory(1_000_000), runtime, Turns(loop))

    def begin(exchange: ScriptedExchange) -> None:
        tasks.create_task(script(exchange))

    return lambda connection, head: ScriptedExchange(connection, head, bodies, begin)


class _Reader:
    """Reads one response."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._body = b""
        self.is_complete = False

    def feed(self, data: bytes) -> None:
        assert not self.is_complete
        self._parser.feed_data(data)

    @property
    def response(self) -> Response:
        return Response(self._parser.get_status_code(), self._headers, self._body)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode().lower()] = value.decode()

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self.is_complete = self._parser.get_status_code() != 100
