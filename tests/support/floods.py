"""Floods of connections, and a gateway with a limit of open files and one key. Real sockets, a process."""

import asyncio
import contextlib
import json
import os
import resource
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from checkout import ROOT
from raw_http import ASK, CHAT, request_bytes
from spawned import WAIT_S, Gateway
from unused_ports import unused_port

KEY = "secret-of-team-a"


def open_files(count: int) -> None:
    """Raise the soft limit of this process to `count` open files, or to the hard limit if that is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


async def reconnecting(port: int) -> None:
    """Connect, send nothing, and connect again when the connection is closed."""
    loop = asyncio.get_running_loop()
    while True:
        with contextlib.suppress(OSError), socket.socket() as sock:
            sock.setblocking(False)
            await loop.sock_connect(sock, ("127.0.0.1", port))
            await loop.sock_recv(sock, 1)
        await asyncio.sleep(0.3)


async def opened(port: int, payload: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect and send bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(payload)
    return reader, writer


async def status(port: int, path: str) -> int:
    """Return the status of a GET request with the key."""
    get = f"GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {KEY}\r\nconnection: close\r\n\r\n"
    reader, writer = await opened(port, get.encode())
    try:
        async with asyncio.timeout(WAIT_S):
            answer = await reader.read()
            return int(answer.split(b" ", 2)[1])
    finally:
        writer.transport.abort()


def chat_bytes() -> bytes:
    """Return a streaming request with the key."""
    return request_bytes(json.dumps(ASK).encode(), CHAT, headers={"authorization": f"Bearer {KEY}"})


@contextlib.asynccontextmanager
async def limited(url: str, port: int, folder: Path, files: int) -> AsyncIterator[Gateway]:
    """Start a gateway, at first not ready, with a hard limit of open files.

    Args:
        url: base URL of its replica.
        port: port of its public address.
        folder: folder for its configuration.
        files: the limit.
    """
    config = {
        "listen": f"127.0.0.1:{port}",
        "admin_listen": f"127.0.0.1:{unused_port()}",
        "keys": [{"name": "team-a", "key": KEY}],
        "models": [{"name": "m", "replicas": [{"name": "a", "kind": "simulated", "base_url": url}]}],
    }
    (folder / "gateway.yaml").write_text(json.dumps(config), encoding="utf-8")
    argv = ["-m", "limited_gateway", str(files), "serve", "--config", str(folder / "gateway.yaml")]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests/support'}"}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, *argv, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe
    )
    try:
        yield Gateway(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def stream(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Begin a stream; connect again, as SDKs do, if the connection is closed before the response."""
    while True:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await opened(port, chat_bytes())
            begun = False
            try:
                begun = b" 200 " in await reader.readuntil(b"\r\n\r\n")
            finally:
                if not begun:
                    writer.transport.abort()
            return reader, writer
