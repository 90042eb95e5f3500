"""The command that runs a simulated server by itself."""

import asyncio
import json
import os
import signal
import sys

import pytest

from checkout import ROOT
from running import run_real
from simulated_sockets import ask, chat, request_of, serving


def test_command_runs_until_interrupted() -> None:
    """The command prints where it listens, serves what its flags say, and ends cleanly on Ctrl-C."""

    async def main() -> tuple[int | None, bytes]:
        flags = ["--port", "0", "--control-port", "0", "--ttft", "1ms", "--tokens", "2", "--faults", "500 once"]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "providers.simulated.server", *flags),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "PYTHONWARNINGS": "error"},
        )
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        port = int(line.rsplit(":", 1)[1].split("/")[0])
        statuses = [(await ask(port, chat())).status for _ in range(2)]
        assert statuses == [500, 200]
        process.send_signal(signal.SIGINT)
        rest, _ = await process.communicate()
        return process.returncode, rest

    code, rest = run_real(main())
    assert code == 0
    assert rest.startswith(b"control on http://127.0.0.1:")
    assert rest.count(b"\n") == 1


def test_a_fleet_ends_with_its_input() -> None:
    """Several replicas in one process say their ports, answer as each one's profile says, and end with their input."""

    async def main() -> int | None:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "providers.simulated.fleet", '[{"ttft": "1ms"}, {"faults": ["500"]}]'),
            cwd=ROOT,
            stdin=pipe,
            stdout=pipe,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        ports = json.loads(await process.stdout.readline())
        assert [(await ask(port, chat())).status for port, _ in ports] == [200, 500]
        stats = [await ask(control, request_of("GET", "/sim/stats?records=0")) for _, control in ports]
        assert [answer.json["requests"] for answer in stats] == [1, 1]
        process.stdin.close()
        return await process.wait()

    assert run_real(main()) == 0


@pytest.mark.parametrize("flags", [["--ttft", "soon"], ["--faults", "sulk"], ["--port", "1"]], ids=str)
def test_command_explains_mistakes(flags: list[str]) -> None:
    """A flag that cannot be read, or a port that cannot be had, ends the command with a sentence."""

    async def main() -> tuple[int | None, bytes]:
        if flags[0] == "--port":
            async with serving() as server:
                return await _command("--port", str(server.port))
        return await _command(*flags)

    code, told = run_real(main())
    assert code in (1, 2)
    assert b"write" in told or b"--port" in told
    assert b"Traceback" not in told


async def _command(*flags: str) -> tuple[int | None, bytes]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "providers.simulated.server", *flags),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    told, _ = await process.communicate()
    return process.returncode, told
