"""A gateway with standard output and error that nothing reads. Real time, real sockets, full pipes."""

import asyncio
import signal

import simulated_sockets
from gateway.cli.parser import ExitCode
from running import run_real
from spawned import WAIT_S, full_pipe, refuses, rest, spawn, stream, until
from unused_ports import unused_port


def test_output_that_nothing_reads_stops_nothing() -> None:
    """The gateway starts, serves and ends by a signal while all of its output blocks."""

    async def main() -> None:
        port = unused_port()
        async with simulated_sockets.serving(ttft="1ms", tokens=2) as replica:
            with full_pipe() as pipe:
                listen = ["--listen", f"127.0.0.1:{port}", "--admin-listen", "off"]
                argv = ["serve", "--model", "m", "--replica", replica.url, *listen]
                process = await spawn("-m", "gateway", *argv, stdout=pipe, stderr=pipe)
                try:
                    await until(lambda: _accepts(port))
                    streams = [await stream(port) for _ in range(5)]
                    process.send_signal(signal.SIGTERM)
                    await asyncio.gather(*(rest(*each) for each in streams))
                    async with asyncio.timeout(WAIT_S):
                        code = await process.wait()
                finally:
                    if process.returncode is None:
                        process.kill()
                        await process.wait()
        assert code == ExitCode.OK

    run_real(main())


async def _accepts(port: int) -> bool:
    return not await refuses(port)
