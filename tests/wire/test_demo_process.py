"""The demo as a process, with its replicas in another: how it ends, and what its traffic shows. Real time."""

import asyncio
import functools
import re
import signal

from gateway.cli.parser import ExitCode
from running import run_real
from spawned import Gateway, refuses, rest, started, stream, until


def test_ctrl_c_ends_the_demo() -> None:
    """Ctrl-C ends the demo and its replicas with code 0, and a stream that would run for minutes with an error."""

    async def main() -> None:
        async with started("demo", "--port", "0") as gateway:
            await gateway.ready(gateway.process.stdout, b"admin ")
            reader, writer = await stream(gateway.port, "demo", 8000)
            ports = replica_ports(gateway)
            gateway.process.send_signal(signal.SIGINT)
            last, (code, output) = await asyncio.gather(rest(reader, writer), gateway.ended())
            assert b'"error"' in last
            assert code == ExitCode.OK, output
            assert all([await refuses(port) for port in ports])

    run_real(main())


def test_replicas_do_not_outlive_the_demo() -> None:
    """Even killed outright, the demo takes its replicas along."""

    async def main() -> None:
        async with started("demo", "--port", "0") as gateway:
            await gateway.ready(gateway.process.stdout, b"admin ")
            ports = replica_ports(gateway)
            assert not await refuses(ports[0])
            gateway.process.kill()
            await gateway.process.wait()
            for port in ports:
                await until(functools.partial(refuses, port))

    run_real(main())


def test_demo_traffic_ends_by_itself() -> None:
    """With --seconds the traffic ends by itself, nothing fails, and the final table has both sides."""

    async def main() -> None:
        async with started("demo", "--traffic", "--seconds", "2", "--port", "0") as gateway:
            code, output = await gateway.ended()
        assert code == ExitCode.OK, output
        text = output.decode()
        assert "\x1b[" not in text
        time = "([0-9,]+|-)"  # a busy machine has no times
        rows = re.findall(rf"^(off|on) +([0-9]+) +{time} +{time} +{time} ", text, re.MULTILINE)
        assert [row[0] for row in rows] == ["off", "on"]
        assert all(int(row[1]) > 0 for row in rows)
        assert "failed" not in text
        assert re.search(r"^on .* [0-9.-]+ of [0-9.]+$", text, re.MULTILINE), text
        assert text.rstrip().splitlines()[-1].startswith(("p99: ", "no comparison: "))

    run_real(main())


def replica_ports(demo: Gateway) -> list[int]:
    """Return the ports of the replicas from the demo's output."""
    ports = [int(port) for port in re.findall(rb" on port ([0-9]+)", demo.said)]
    assert len(ports) == 3, demo.said
    return ports
