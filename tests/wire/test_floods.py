"""Clients without a key that connect again and again, and more streams than files. Real sockets, a process."""

import asyncio
import signal
from pathlib import Path

import simulated_sockets
from floods import chat_bytes, limited, opened, reconnecting, status, stream
from gateway.cli.parser import ExitCode
from running import run_real
from spawned import WAIT_S
from unused_ports import unused_port

_FILES = 160  # the gateway's limit; a quarter is for callers that it does not know
_CLIENTS = 200
_STATUSES = {"/v1/models": 200, "/nowhere": 404, "/healthz": 200, "/docs": 200, "/openapi.json": 200}


def test_floods_at_the_limit_of_open_files(tmp_path: Path) -> None:
    """Under a flood the gateway starts, reads no file, serves a caller with a key, and writes one line per change."""

    async def main() -> None:
        port = unused_port()
        async with (
            simulated_sockets.serving(ttft="1ms", tokens=300, gap="100ms") as replica,
            asyncio.TaskGroup() as tasks,
            limited(replica.url, port, tmp_path, _FILES) as gateway,
        ):
            flood = [tasks.create_task(reconnecting(port)) for _ in range(_CLIENTS)]
            await gateway.ready(gateway.process.stderr)
            async with asyncio.timeout(WAIT_S):
                streams = [await stream(port) for _ in range(10)]
            await gateway.says(gateway.process.stderr, b"LOADED")
            for task in flood:
                task.cancel()
            assert [await status(port, path) for path in _STATUSES] == [*_STATUSES.values()]
            more = [await opened(port, chat_bytes()) for _ in range(_FILES)]
            await gateway.says(gateway.process.stdout, b"Too many open files")
            for _, writer in (*streams, *more):
                writer.transport.abort()
            async with asyncio.timeout(WAIT_S):
                _, writer = await stream(port)
            writer.transport.abort()
            gateway.process.send_signal(signal.SIGINT)
            code, output = await gateway.ended()
        assert code == ExitCode.OK
        output += gateway.said
        assert [line for line in output.splitlines() if b"READ" in line or b"Traceback" in line] == []
        assert output.count(b'"accepting":false') == 1
        assert len([line for line in output.splitlines() if not line.startswith(b"{")]) < 20

    run_real(main())
