"""A replica that keeps what it is sent and answers bytes, for requests that are passed on."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field

from scripted_http import serving

JSON = {"content-type": "application/json"}


@dataclass
class Received:
    """One request."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


Reply = tuple[int, Mapping[str, str], bytes]


@dataclass
class Storing:
    """The server.

    Attributes:
        reply: makes the answer to a request; a RuntimeError closes the connection instead.
        reads: set while bodies are read.
        requests: received so far, each after its body.
        body_bytes: bytes of bodies read so far.
        left: connections that ended in the middle of a request.
    """

    reply: Callable[[Received], Reply]
    reads: asyncio.Event = field(default_factory=asyncio.Event)
    requests: list[Received] = field(default_factory=list)
    body_bytes: int = 0
    left: int = 0
    url: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                return
            first, *lines = head.decode().split("\r\n")[:-2]
            method, target, _ = first.split(" ")
            headers = dict(line.split(": ", 1) for line in lines)
            try:
                body = await self._body(reader, headers)
            except (asyncio.IncompleteReadError, ConnectionError):
                self.left += 1
                return
            received = Received(method, target, headers, body)
            self.requests.append(received)
            status, fields, content = self.reply(received)
            fields = {"content-length": str(len(content)), **fields}
            written = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
            writer.write(f"HTTP/1.1 {status} Status\r\n{written}\r\n".encode() + content)
            await writer.drain()
            if headers_close(fields):
                return

    async def _body(self, reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
        await self.reads.wait()
        body = bytearray()
        if headers.get("transfer-encoding") == "chunked":
            while size := int(await reader.readuntil(b"\r\n"), 16):
                body += await reader.readexactly(size)
                self.body_bytes += size
                await reader.readexactly(2)
            await reader.readexactly(2)
        while len(body) < int(headers.get("content-length", "0")):
            await self.reads.wait()
            piece = await reader.read(65536)
            if not piece:
                raise asyncio.IncompleteReadError(bytes(body), None)
            body += piece
            self.body_bytes += len(piece)
        return bytes(body)


def headers_close(fields: Mapping[str, str]) -> bool:
    """Return True if the connection ends after this answer."""
    return fields.get("connection") == "close"


def echo(received: Received) -> Reply:
    """Answer with the body that was sent."""
    return 200, {"content-type": "application/octet-stream"}, received.body


@contextlib.asynccontextmanager
async def storing(reply: Callable[[Received], Reply] = echo) -> AsyncIterator[Storing]:
    """Serve on a free port while inside."""
    server = Storing(reply)
    server.reads.set()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await server.serve(reader, writer)
        except RuntimeError:  # the reply is to close the connection
            writer.transport.abort()

    async with serving(script) as listener:
        server.url = f"http://127.0.0.1:{listener.port}/v1"
        yield server
