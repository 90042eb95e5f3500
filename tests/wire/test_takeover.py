"""A gateway that starts on the addresses of another one, which drains. Real processes and sockets."""

import asyncio
import json
import signal
from functools import partial
from pathlib import Path

import pytest

import simulated_sockets
from running import run_real
from spawned import WAIT_S, refuses, rest, started, stream, until
from unused_ports import unused_port

_GET = b"GET %b HTTP/1.1\r\nhost: localhost\r\n\r\n"


async def _got(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> bytes:
    """Return the head of the response to a GET."""
    writer.write(_GET % path.encode())
    async with asyncio.timeout(WAIT_S):
        return await reader.readuntil(b"\r\n\r\n")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_new_gateway_takes_both_addresses_of_one_that_drains(workers: int, tmp_path: Path) -> None:
    """The old one closes its public and its admin address, and its stream and its open admin connections go on."""
    ports = unused_port(), unused_port()
    file = tmp_path / "gateway.yaml"

    async def main() -> None:
        async with simulated_sockets.serving(0, ttft="1ms", gap="50ms", tokens=600) as replica:
            row = {"name": "a", "kind": "simulated", "base_url": replica.url}
            listen = {"listen": f"127.0.0.1:{ports[0]}", "admin_listen": f"127.0.0.1:{ports[1]}"}
            file.write_text(json.dumps({**listen, "workers": workers, "models": [{"name": "m", "replicas": [row]}]}))
            async with started("serve", "--config", str(file)) as old:
                await old.ready(old.process.stderr)
                long = await stream(old.port)
                feed = await asyncio.open_connection("127.0.0.1", ports[1])
                assert b" 200 " in await _got(*feed, "/admin/events")
                old.process.send_signal(signal.SIGTERM)
                for port in ports:
                    await until(partial(refuses, port))
                assert old.process.returncode is None
                async with started("serve", "--config", str(file)) as new:
                    await new.ready(new.process.stderr)
                    admin = await asyncio.open_connection("127.0.0.1", ports[1])
                    assert b" 200 " in await _got(*admin, "/metrics")
                    admin[1].close()
                    reader, writer = await stream(ports[0], tokens=2)
                    async with asyncio.timeout(WAIT_S):
                        await reader.readuntil(b"data: [DONE]\n\n")
                    writer.close()
                    assert not feed[0].at_eof()
                    assert old.process.returncode is None
                    old.process.send_signal(signal.SIGTERM)  # the second one ends the stream
                    assert b'"error"' in await rest(*long)
                    code, _ = await old.ended()
                    assert code == 128 + signal.SIGTERM
                    feed[1].close()
                    new.process.send_signal(signal.SIGINT)
                    assert (await new.ended())[0] == 0

    run_real(main())
