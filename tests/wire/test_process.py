"""The gateway as a process: signals, exit codes, output. Real time, real sockets."""

import asyncio
import os
import re
import signal
import socket

import pytest

import gateway.cli.kinds
from gateway.cli.kinds import detect_kinds
from gateway.cli.parser import ExitCode
from gateway.config.loader import from_replicas
from gateway.simulated.server import SimulatedServer
from running import run_real
from served import replicas
from spawned import WAIT_S, refuses, request, rest, serving, spawn, started, stream, until


async def answers(port: int, path: str, status: int) -> bool:
    """Return True if a GET gets this status."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET %s HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n" % path.encode())
    async with asyncio.timeout(WAIT_S):
        answer = await reader.read()
    writer.close()
    return answer.startswith(b"HTTP/1.1 %d " % status)


async def is_stuck(replica: SimulatedServer) -> bool:
    """Return True if an answer has begun and all buffers of its connection are full."""
    before = replica.stats.tokens
    await asyncio.sleep(0.3)
    return replica.stats.tokens == before > 0


def test_sigterm_drains() -> None:
    """After SIGTERM, /readyz returns 503, the running stream completes, new connections fail; exit code 0."""

    async def main() -> None:
        async with serving(ttft="50ms", gap="100ms", tokens=20) as (gateway, _):
            assert await answers(gateway.port, "/readyz", 200)
            reader, writer = await stream(gateway.port)
            gateway.process.send_signal(signal.SIGTERM)
            await until(lambda: answers(gateway.port, "/readyz", 503))
            await until(lambda: refuses(gateway.port))
            assert (await rest(reader, writer)).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
            code, output = await gateway.ended()
            assert code == ExitCode.OK
            assert b"stopping: " in output

    run_real(main())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_second_signal_ends_at_once(number: signal.Signals, code: int) -> None:
    """A second signal ends a long stream with an error; the exit code shows the signal."""

    async def main() -> None:
        async with serving(ttft="50ms", gap="1s", tokens=600) as (gateway, _):
            reader, writer = await stream(gateway.port)
            gateway.process.send_signal(number)
            await gateway.says(gateway.process.stderr, b"stopping: ")
            gateway.process.send_signal(number)
            last, (ended, output) = await asyncio.gather(rest(reader, writer), gateway.ended())
            assert ended == code
            assert b"1 running requests were ended with an error" in output
            assert b'"error"' in last
            assert b"[DONE]" not in last

    run_real(main())


def test_second_signal_does_not_wait_for_a_client_that_does_not_read() -> None:
    """A client that takes nothing holds nothing up."""

    async def main() -> None:
        async with serving(ttft="10ms", tokens=100_000, tokens_max=100_000) as (gateway, replica):
            with socket.socket() as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)  # else the kernel takes up to 32 MB
                client.connect(("127.0.0.1", gateway.port))
                client.sendall(request("m"))
                await until(lambda: is_stuck(replica))
                gateway.process.send_signal(signal.SIGINT)
                await gateway.says(gateway.process.stderr, b"stopping: ")
                gateway.process.send_signal(signal.SIGINT)
                code, _ = await gateway.ended()
            assert code == ExitCode.SECOND_CTRL_C

    run_real(main())


def test_taken_port() -> None:
    """A port that is taken ends with code 4 and a sentence that names it."""

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            listen = ["--listen", f"127.0.0.1:{port}", "--admin-listen", "off"]
            async with started("serve", "--model", "m", "--replica", "http://127.0.0.1:9", *listen) as gateway:
                code, output = await gateway.ended()
        assert code == ExitCode.CANNOT_LISTEN
        assert f"cannot listen on 127.0.0.1:{port}: Address already in use".encode() in output
        assert b"Traceback" not in output

    run_real(main())


def test_introduction() -> None:
    """The output at start has addresses, models, and a warning about an unreachable replica."""

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as unused:
            url = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"
        listen = ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]
        async with started("serve", "--model", "llama", "--replica", url, *listen) as gateway:
            await gateway.ready(gateway.process.stderr)
            await gateway.says(gateway.process.stderr, b"cannot be reached")
            gateway.process.send_signal(signal.SIGINT)
            code, _ = await gateway.ended()
        assert code == ExitCode.OK
        text = gateway.said.decode()
        assert re.search(r"admin at http://127\.0\.0\.1:[1-9]", text)
        assert "llama: 127.0.0.1:" in text
        assert f"at {url} cannot be reached: Connection refused" in text
        assert "no keys are configured" in text
        assert f"is unknown (GET {url}/models names none), so compatible is assumed" in text

    run_real(main())


def test_light_commands_load_no_framework() -> None:
    """`version` loads nothing heavy, `check-config` no server and no numpy."""
    program = (
        "import sys; from gateway.__main__ import main; main(sys.argv[1:]); "
        "print([name for name in ('numpy', 'fastapi', 'prometheus_client') if name in sys.modules])"
    )

    async def main() -> None:
        for command in ("version", "config-schema"):
            out, err = await (await spawn("-c", program, command)).communicate()
            assert (out.splitlines()[-1], err) == (b"[]", b"")

    run_real(main())


def test_closed_output() -> None:
    """A closed output, as in `config-schema | head`, does not cause a traceback."""

    async def main() -> None:
        reading, writing = os.pipe()
        os.close(reading)
        process = await spawn("-m", "gateway", "config-schema", stdout=writing)
        os.close(writing)
        _, err = await process.communicate()
        assert (process.returncode, err) == (ExitCode.FAILED, b"")

    run_real(main())


def test_kinds_are_asked_in_bounded_time(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A server that names itself gets its kind; a silent one is `compatible`."""
    monkeypatch.setattr(gateway.cli.kinds, "_ASK_S_MAX", 0.5)
    with replicas(a={}) as urls, socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        settings = detect_kinds(from_replicas("m", [urls["a"], url]))
    assert [replica.kind for replica in settings.models[0].replicas] == ["simulated", "compatible"]
    err = capsys.readouterr().err
    assert "kind simulated was found for 127.0.0.1:" in err
    assert f"is unknown (GET {url}/models names none)" in err
