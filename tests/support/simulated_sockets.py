"""A simulated server and raw sockets to it, for tests of bytes on the wire."""

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from gateway.simulated.profile import parse_profile
from gateway.simulated.server import SimulatedServer

HELLO = {"model": "m", "temperature": 0, "messages": [{"role": "user", "content": "hello"}]}


@contextlib.asynccontextmanager
async def serving(seed: int = 1, control_port: int | None = None, **profile: Any) -> AsyncIterator[SimulatedServer]:
    """A server with these keys in its profile, closed at the end."""
    server = SimulatedServer(parse_profile(profile), seed)
    await server.start(control_port=control_port)
    try:
        yield server
    finally:
        await server.close()


def request_of(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    """The bytes of a request; underscores in header names are hyphens."""
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"{method} {path} HTTP/1.1\r\nhost: sim\r\n{lines}content-length: {len(body)}\r\n\r\n".encode() + body


def chat(fields: dict[str, Any] | None = None, **headers: str) -> bytes:
    """A streaming chat completion request; the fault is the header `x_sim_fault`."""
    body = json.dumps({**HELLO, "stream": True, **(fields or {})}).encode()
    return request_of("POST", "/v1/chat/completions", body, **headers)


@dataclass
class Response:
    """One response as it was on the wire: status, headers with lower-case names, and the body without its framing."""

    status: int
    headers: dict[str, str]
    body: bytes
    trailers: bytes = b""

    @property
    def sha256(self) -> str:
        """Of the body."""
        return hashlib.sha256(self.body).hexdigest()

    @property
    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)


@contextlib.asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection, closed at the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def read_response(reader: asyncio.StreamReader) -> Response:
    """One response with its body.

    Raises:
        asyncio.IncompleteReadError: The connection ends before the end of the body.
    """
    status, headers = await read_head(reader)
    if headers.get("transfer-encoding") == "chunked":
        body = b""
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        trailers = b""
        while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
            trailers += line
        return Response(status, headers, body, trailers)
    if "content-length" in headers:
        return Response(status, headers, await reader.readexactly(int(headers["content-length"])))
    return Response(status, headers, await reader.read())


async def read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """One response head."""
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[:-2]
    return int(first.split()[1]), dict(line.split(": ", 1) for line in lines)


async def send(port: int, request: bytes) -> Response:
    """One request on a connection of its own."""
    async with connected(port) as (reader, writer):
        writer.write(request)
        return await read_response(reader)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds; the test's timeout bounds it."""
    while not condition():
        await asyncio.sleep(0.001)
