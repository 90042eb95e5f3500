"""Clients without a key that connect again and again, and more streams than files. Real sockets, a process."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import simulated_sockets
from checkout import ROOT
from gateway.cli.parser import ExitCode
from providers.simulated.server import SimulatedServer
from raw_http import ASK, CHAT, request_bytes
from running import run_real
from spawned import WAIT_S, Gateway

_FILES = 160  # the gateway's limit; a quarter is for callers that it does not know
_CLIENTS = 200
_KEY = "secret-of-team-a"
_STATUSES = {"/v1/models": 200, "/nowhere": 404, "/healthz": 200, "/docs": 200, "/openapi.json": 200}


async def _reconnecting(port: int) -> None:
    """Connect, send nothing, and connect again when the connection is closed."""
    loop = asyncio.get_running_loop()
    while True:
        with contextlib.suppress(OSError), socket.socket() as sock:
            sock.setblocking(False)
            await loop.sock_connect(sock, ("127.0.0.1", port))
            await loop.sock_recv(sock, 1)
        await asyncio.sleep(0.3)


async def _request(port: int, payload: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(payload)
    return reader, writer


async def _status(port: int, path: str) -> int:
    get = f"GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {_KEY}\r\nconnection: close\r\n\r\n"
    reader, writer = await _request(port, get.encode())
    try:
        async with asyncio.timeout(WAIT_S):
            answer = await reader.read()
            return int(answer.split(b" ", 2)[1])
    finally:
        writer.transport.abort()


def _chat() -> bytes:
    return request_bytes(json.dumps(ASK).encode(), CHAT, headers={"authorization": f"Bearer {_KEY}"})


@contextlib.asynccontextmanager
async def _limited(replica: SimulatedServer, port: int, folder: Path) -> AsyncIterator[Gateway]:
    config = {
        "listen": f"127.0.0.1:{port}",
        "admin_listen": "off",
        "keys": [{"name": "team-a", "key": _KEY}],
        "models": [{"name": "m", "replicas": [{"name": "a", "kind": "simulated", "base_url": replica.url}]}],
    }
    (folder / "gateway.yaml").write_text(json.dumps(config), encoding="utf-8")
    argv = ["-m", "limited_gateway", str(_FILES), "serve", "--config", str(folder / "gateway.yaml")]
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


async def _stream(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Begin a stream; connect again, as SDKs do, if the connection is closed before the response."""
    while True:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await _request(port, _chat())
            begun = False
            try:
                begun = b" 200 " in await reader.readuntil(b"\r\n\r\n")
            finally:
                if not begun:
                    writer.transport.abort()
            return reader, writer


def test_floods_at_the_limit_of_open_files(tmp_path: Path) -> None:
    """Under a flood the gateway starts, reads no file, serves a caller with a key, and writes one line per change."""

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        async with (
            simulated_sockets.serving(ttft="1ms", tokens=300, gap="100ms") as replica,
            asyncio.TaskGroup() as tasks,
            _limited(replica, port, tmp_path) as gateway,
        ):
            flood = [tasks.create_task(_reconnecting(port)) for _ in range(_CLIENTS)]
            await gateway.ready(gateway.process.stderr)
            async with asyncio.timeout(WAIT_S):
                streams = [await _stream(port) for _ in range(10)]
            for task in flood:
                task.cancel()
            assert [await _status(port, path) for path in _STATUSES] == [*_STATUSES.values()]
            more = [await _request(port, _chat()) for _ in range(_FILES)]
            await gateway.says(gateway.process.stdout, b"Too many open files")
            for _, writer in (*streams, *more):
                writer.transport.abort()
            async with asyncio.timeout(WAIT_S):
                _, writer = await _stream(port)
            writer.transport.abort()
            gateway.process.send_signal(signal.SIGINT)
            code, output = await gateway.ended()
        assert code == ExitCode.OK
        output += gateway.said
        assert b"READ" not in output, output
        assert b"Traceback" not in output, output
        assert output.count(b'"accepting":false') == 1
        assert len([line for line in output.splitlines() if not line.startswith(b"{")]) < 20

    run_real(main())
