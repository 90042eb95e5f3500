"""Starting as docker/Dockerfile does: nothing but variables in the environment. Real processes, real time."""

import asyncio
import re
import signal

import pytest

from gateway.cli.parser import ExitCode
from running import run_real
from spawned import rest, spawn, started

ENVIRONMENT = {
    "TTFT_GATEWAY_CONFIG": "no/such/gateway.yaml",
    "TTFT_GATEWAY_LISTEN": "127.0.0.1:0",
    "TTFT_GATEWAY_ADMIN_LISTEN": "127.0.0.1:0",
    "TTFT_GATEWAY_ONE_TIME_KEY": "true",
}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


async def status(port: int, key: str) -> bytes:
    """The status line of a streaming request with that key."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = b'{"model":"demo","stream":true,"max_tokens":1,"messages":[{"role":"user","content":"x"}]}'
    head = f"host: localhost\r\nauthorization: Bearer {key}\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\n" + head.encode() + body)
    return (await rest(reader, writer)).partition(b"\r\n")[0]


async def health(listen: str) -> tuple[int | None, bytes]:
    """Exit code and words of `health`."""
    process = await spawn("-m", "gateway", "health", "--listen", listen)
    out, err = await process.communicate()
    return process.returncode, out + err


def test_without_any_configuration() -> None:
    """The default command runs the demo, prints a key, serves only callers with that key, and is healthy."""

    async def main() -> None:
        async with started("serve", "--or-demo") as gateway:
            await gateway.ready(gateway.process.stdout, b"flush=True")
            [key] = set(re.findall(r"ttft-[0-9a-f]{32}", gateway.said.decode()))
            assert await status(gateway.port, key) == b"HTTP/1.1 200 OK"
            assert await status(gateway.port, "any") == b"HTTP/1.1 401 Unauthorized"
            assert await health(f"0.0.0.0:{gateway.port}") == (ExitCode.OK, b"")
            gateway.process.send_signal(signal.SIGINT)
            code, output = await gateway.ended()
        assert code == ExitCode.OK, output
        assert key.encode() not in output
        unhealthy, why = await health(f"127.0.0.1:{gateway.port}")
        assert unhealthy == ExitCode.FAILED
        assert b"refused" in why

    run_real(main())


def test_traffic_sends_the_key() -> None:
    """The demo's own traffic sends the key that the demo asks for."""

    async def main() -> None:
        async with started("demo", "--traffic", "--seconds", "1") as gateway:
            code, output = await gateway.ended()
        assert code == ExitCode.OK, output
        assert b"failed" not in output

    run_real(main())


@pytest.mark.parametrize("answer", [b"HTTP/1.1 503 Service Unavailable\r\n\r\n", b"", b"SSH-2.0\r\n"])
def test_health_takes_200_only(answer: bytes) -> None:
    """An answer other than a healthy gateway's is reported, with exit code 1."""

    async def main() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            code, output = await health(f"127.0.0.1:{port}")
        assert code == ExitCode.FAILED
        assert b"instead of 200" in output

    run_real(main())
