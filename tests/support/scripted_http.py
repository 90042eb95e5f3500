"""Scripted HTTP servers on real sockets, and a sink that keeps what a client pushes; for tests of HTTP clients.

A script is a coroutine over one connection: it reads and writes bytes, so every misbehaviour is a few lines.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from ttft_gateway.apis.base import Headers, HttpClient, Request
from ttft_gateway.apis.errors import UpstreamError

ASK = Request(b"POST / HTTP/1.1\r\nhost: test\r\ncontent-length: 2\r\n\r\n", b"{}")
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n3;x=y\r\ncde\r\n0\r\ntrailer: t\r\n\r\n"

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Recorder:
    """A sink that keeps everything."""

    status: int | None = None
    headers: Headers = ()
    got: bytearray = field(default_factory=bytearray)
    pieces: int = 0
    error: UpstreamError | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)
    first: asyncio.Event = field(default_factory=asyncio.Event)
    closes: int = 0

    @property
    def body(self) -> bytes:
        """All of the body so far."""
        return bytes(self.got)

    def on_response(self, status: int, headers: Headers) -> None:
        self.status, self.headers = status, list(headers)

    def on_body(self, data: bytes) -> None:
        self.got += data
        self.pieces += 1
        self.first.set()

    def on_close(self, error: UpstreamError | None) -> None:
        self.error = error
        self.closes += 1
        self.over.set()


@dataclass
class Server:
    """A scripted server: one script a connection, in turn; the last one repeats.

    Attributes:
        port: 0 on a unix socket.
        accepted: connections so far.
        gone: the client of any connection has left, or its script has ended.
    """

    port: int
    accepted: int = 0
    gone: asyncio.Event = field(default_factory=asyncio.Event)


@contextlib.asynccontextmanager
async def serving(
    *scripts: Script, host: str = "127.0.0.1", path: str | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Server]:
    """Listen until all connections are over.

    Args:
        scripts: one a connection.
        host: where to listen, on a free port.
        path: of a unix socket, instead.
        tls: of the server.
    """
    server = Server(0)
    handlers: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handlers.add(task)
        script = scripts[min(server.accepted, len(scripts) - 1)]
        server.accepted += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            await script(reader, writer)
        server.gone.set()
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()

    if path is not None:
        listener = await asyncio.start_unix_server(connected, path)
    else:
        listener = await asyncio.start_server(connected, host, 0, ssl=tls)
        server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        if handlers:
            await asyncio.wait(handlers)


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Read a request that states its length: head and body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
    return head, await reader.readexactly(int(length or 0))


def answering(*answers: bytes, then: Callable[[asyncio.StreamWriter], None] | None = None) -> Script:
    """Each request on the connection gets the next answer; `then` runs after the last."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await read_request(reader)
            writer.write(answer)
            await writer.drain()
        if then is not None:
            then(writer)
        else:
            await reader.read()

    return script


async def exchange(client: HttpClient, request: Request = ASK) -> Recorder:
    """Send one request and wait for its end."""
    sink = Recorder()
    client.send(request, sink)
    await sink.over.wait()
    return sink


async def until(happened: Callable[[], bool]) -> None:
    """Look once a millisecond until something has happened; the test's timeout bounds it."""
    while not happened():
        await asyncio.sleep(0.001)
