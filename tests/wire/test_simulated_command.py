"""The command that runs a simulated server by itself."""

import asyncio
import json
import os
import signal
import sys

import pytest

from checkout import ROOT
from running import run_real
from simulated_sockets import chat, request_of, send, serving


def test_command_runs_until_interrupted() -> None:
    """The command prints its address, follows its flags, and exits cleanly on Ctrl-C."""

    async def main() -> tuple[int | None, bytes]:
        flags = ["--port", "0", "--control-port", "0", "--ttft", "1ms", "--tokens", "2", "--faults", "500 once"]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gateway.simulated.server", *flags),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "PYTHONWARNINGS": "error"},
        )
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        port = int(line.rsplit(":", 1)[1].split("/")[0])
        statuses = [(await send(port, chat())).status for _ in range(2)]
        assert statuses == [500, 200]
        process.send_signal(signal.SIGINT)
        rest, _ = await process.communicate()
        return process.returncode, rest

    code, rest = run_real(main())
    assert code == 0
    assert rest.startswith(b"control on http://127.0.0.1:")
    assert rest.count(b"\n") == 1


def test_a_fleet_ends_with_its_input() -> None:
    """A fleet prints its ports, serves each profile, and exits at the end of its input."""

    async def main() -> int | None:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gateway.simulated.fleet", '[{"ttft": "1ms"}, {"faults": ["500"]}]'),
            cwd=ROOT,
            stdin=pipe,
            stdout=pipe,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        ports = json.loads(await process.stdout.readline())
        assert [(await send(port, chat())).status for port, _ in ports] == [200, 500]
        stats = [await send(control, request_of("GET", "/sim/stats?records=0")) for _, control in ports]
        assert [answer.json["requests"] for answer in stats] == [1, 1]
        process.stdin.close()
        return await process.wait()

    assert run_real(main()) == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--ttft", "soon"], b"argument --ttft: 'soon' is not a duration; write a duration"),
        (["--prefill-per-1k", "x"], b"argument --prefill-per-1k: 'x' is not a duration"),
        (["--faults", "sulk"], b"argument --faults: the fault 'sulk' is unknown; write one of"),
        (["--control-port", "65536"], b"argument --control-port: '65536' is not a port; write 0 to 65535"),
        (["--port", "taken"], b"address already in use); change --host, --port or --control-port"),
    ],
    ids=str,
)
def test_command_explains_mistakes(flags: list[str], message: bytes) -> None:
    """An invalid flag or an unavailable port ends the command with one sentence."""

    async def main() -> tuple[int | None, bytes]:
        if "taken" not in flags:
            return await _command("server", *flags)
        async with serving() as server:
            return await _command("server", "--port", str(server.port))

    code, output = run_real(main())
    assert code in (1, 2)
    assert message in output
    assert b"Traceback" not in output


@pytest.mark.parametrize(
    ("profiles", "message"),
    [
        ("{", b"'{' is not a JSON list of profiles; write"),
        ("[1]", b"'[1]' is not a JSON list of profiles; write"),
        ('[{"ttft": "soon"}]', b"ttft: 'soon' is not a duration; write a duration"),
    ],
)
def test_fleet_explains_mistakes(profiles: str, message: bytes) -> None:
    """Invalid profiles end a fleet with one sentence."""
    code, output = run_real(_command("fleet", profiles))
    assert code == 2
    assert message in output
    assert b"Traceback" not in output


async def _command(name: str, *flags: str) -> tuple[int | None, bytes]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", f"gateway.simulated.{name}", *flags),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode, output
