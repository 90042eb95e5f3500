"""Gateways as processes of their own, and what a test says to them over real sockets.

Every wait has a limit, and every process ends with its test. Units: seconds.
"""

import asyncio
import contextlib
import os
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import simulated_sockets
from checkout import ROOT
from gateway.simulated.server import SimulatedServer

READY = re.compile(rb"ready at http://127\.0\.0\.1:([0-9]+)/v1")
WAIT_S = 60.0  # of a loaded machine


class Gateway:
    """A running process and what it has said on stderr (the demo: on stdout) until it was ready."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.port = 0
        self.said = b""

    async def ready(self, stream: asyncio.StreamReader | None, until: bytes = b"") -> None:
        """Wait until it says that it is ready, and then `until`."""
        await self.says(stream, b"ready at ")
        match = READY.search(self.said)
        assert match is not None
        self.port = int(match[1])
        await self.says(stream, until)

    async def says(self, stream: asyncio.StreamReader | None, words: bytes) -> None:
        """Wait until it has said that."""
        assert stream is not None
        async with asyncio.timeout(WAIT_S):
            while words not in self.said:
                line = await stream.readline()
                assert line, self.said
                self.said += line

    async def ended(self) -> tuple[int, bytes]:
        """Exit code and what else it said."""
        async with asyncio.timeout(WAIT_S):
            out, err = await self.process.communicate()
        code = self.process.returncode
        assert code is not None
        return code, out + err


async def spawn(
    *argv: str, stdout: int = asyncio.subprocess.PIPE, stderr: int = asyncio.subprocess.PIPE
) -> asyncio.subprocess.Process:
    """This Python with these arguments."""
    return await asyncio.create_subprocess_exec(sys.executable, *argv, cwd=ROOT, stdout=stdout, stderr=stderr)


@contextlib.asynccontextmanager
async def started(*argv: str) -> AsyncIterator[Gateway]:
    """`ttft-gateway ARGV` while inside, at first not ready."""
    process = await spawn("-m", "gateway", *argv)
    try:
        yield Gateway(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@contextlib.asynccontextmanager
async def serving(**profile: Any) -> AsyncIterator[tuple[Gateway, SimulatedServer]]:
    """A gateway before one simulated replica."""
    async with simulated_sockets.serving(0, **profile) as replica:
        listen = ["--listen", "127.0.0.1:0", "--admin-listen", "off"]
        async with started("serve", "--model", "m", "--replica", replica.url, *listen) as gateway:
            await gateway.ready(gateway.process.stderr)
            yield gateway, replica


def request(model: str, tokens: int | None = None) -> bytes:
    """A streaming request, for so many tokens if told so."""
    bound = b"" if tokens is None else b'"max_tokens":%d,' % tokens
    body = b'{"model":"%s","stream":true,%b"messages":[{"role":"user","content":"x"}]}' % (model.encode(), bound)
    return b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


async def stream(
    port: int, model: str = "m", tokens: int | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A streaming request, answered as far as its first content."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request(model, tokens))
    async with asyncio.timeout(WAIT_S):
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in head, head
        await reader.readuntil(b"\n\n")
    return reader, writer


async def rest(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """What else comes until the connection ends, cleanly or not."""
    async with asyncio.timeout(WAIT_S):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.close()


async def refuses(port: int) -> bool:
    """Whether nobody listens there."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return True
    writer.close()
    return False


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(WAIT_S):
        while True:
            if await holds():
                return
            await asyncio.sleep(0.02)


def children(process: int) -> set[int]:
    """Return the process ids of the children of a process; Linux."""
    return set(map(int, Path(f"/proc/{process}/task/{process}/children").read_text(encoding="ascii").split()))


def is_running(process: int) -> bool:
    """Return True unless a process has ended; one that nothing waits for has, too; Linux."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@contextlib.contextmanager
def full_pipe() -> Iterator[int]:
    """Yield the writing end of a pipe that has no room and no reader."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, b"x" * 4096)
    os.set_blocking(writing, True)
    yield writing
    os.close(reading)
    os.close(writing)
