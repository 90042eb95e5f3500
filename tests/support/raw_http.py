"""An HTTP/1.1 client of the tests' own, written against the RFC and sharing no code with the gateway or the replicas.

It takes chunks apart itself, reads no faster than it is asked to, and can leave at any moment. One request a
connection. Units: bytes, seconds of the event loop's clock.
"""

import asyncio
import contextlib
import json
import re
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

CHAT = "/v1/chat/completions"
ASK: Mapping[str, object] = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True}
_CONTENT = re.compile(rb'"(content|text|refusal)":"[^"]')


class Cut(Exception):
    """The connection ended before the body did."""


@dataclass
class Answer:
    """A response after its head has come.

    Attributes:
        status: HTTP status.
        headers: by name in lower case.
        began_s: when the request was sent.
    """

    status: int
    headers: dict[str, str]
    began_s: float
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def pieces(self) -> AsyncGenerator[bytes]:
        """The body as it comes, chunk framing taken off.

        Raises:
            Cut: it ended too early.
        """
        try:
            if "content-length" in self.headers:
                yield await self.reader.readexactly(int(self.headers["content-length"]))
                return
            assert self.headers.get("transfer-encoding") == "chunked", self.headers
            while size := int((await self.reader.readuntil(b"\r\n")).split(b";")[0], 16):
                yield await self.reader.readexactly(size)
                assert await self.reader.readexactly(2) == b"\r\n"
            assert await self.reader.readuntil(b"\r\n") == b"\r\n"
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise Cut from error

    async def body(self) -> bytes:
        """All of the body."""
        return b"".join([piece async for piece in self.pieces()])

    async def ttft_s(self) -> float:
        """Read up to the first content; how long it took from the request on."""
        seen = b""
        async with contextlib.aclosing(self.pieces()) as pieces:
            async for piece in pieces:
                seen += piece
                if _CONTENT.search(seen):
                    break
        return asyncio.get_running_loop().time() - self.began_s

    def error(self, body: bytes) -> dict[str, Any]:
        """The error object of a body, which must be one."""
        error = json.loads(body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return dict(error)

    async def leave(self, *, abruptly: bool = True) -> float:
        """Close the connection, with a reset of what is not read or properly; when that was."""
        left_s = asyncio.get_running_loop().time()
        if abruptly:
            self.writer.transport.abort()
        else:
            self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()
        return left_s


def request_bytes(
    body: bytes, path: str = CHAT, method: str = "POST", headers: Mapping[str, str] | None = None
) -> bytes:
    """A request as it goes over the wire."""
    fields = {
        "host": "localhost",
        "content-type": "application/json",
        "content-length": str(len(body)),
        **(headers or {}),
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


async def connect(port: int, receive_bytes: int = 0) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to a local port; with a small receive buffer if told so."""
    loop = asyncio.get_running_loop()
    raw = socket.socket()
    raw.setblocking(False)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if receive_bytes:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    try:
        await loop.sock_connect(raw, ("127.0.0.1", port))
        return await asyncio.open_connection(sock=raw, limit=2**16)
    except BaseException:  # a cancelled test closes it too
        raw.close()
        raise


async def head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, began_s: float) -> Answer:
    """Read a response head."""
    try:
        status_line, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise Cut from error
    pairs = [line.split(": ", 1) for line in lines]
    return Answer(
        int(status_line.split(" ")[1]), {name.lower(): value for name, value in pairs}, began_s, reader, writer
    )


@contextlib.asynccontextmanager
async def answer(port: int, payload: bytes, receive_bytes: int = 0) -> AsyncIterator[Answer]:
    """Send bytes and read the head of the answer; the connection is closed in the end."""
    reader, writer = await connect(port, receive_bytes)
    try:
        began_s = asyncio.get_running_loop().time()
        writer.write(payload)
        yield await head(reader, writer, began_s)
    finally:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def asking(**fields: object) -> bytes:
    """A streamed chat completion, with these fields besides or instead; None leaves one out."""
    body = {name: value for name, value in {**ASK, **fields}.items() if value is not None}
    return request_bytes(json.dumps(body).encode())
