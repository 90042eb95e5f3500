"""What a started gateway has loaded after its first answer. Real sockets, a process."""

import contextlib
import signal

import simulated_sockets
from gateway.cli.parser import ExitCode
from running import run_real
from spawned import Gateway, spawn, stream

_LATER = (
    "email.parser",  # reading the metadata of a distribution imports it
    *("anyio", "fastapi", "h11", "h2", "httpcore", "httpx", "prometheus_client", "redis", "sse_starlette", "starlette"),
    *("uvicorn", "gateway.server.admin", "gateway.server.admin_server", "gateway.cli.demo"),
    *("gateway.workers.supervisor", "gateway.workers.top", "gateway.workers.worker", "gateway.simulated"),
)
_PROGRAM = (
    "import sys; from gateway.__main__ import main; code = main(sys.argv[1:]); "
    f"print([name for name in {_LATER} if name in sys.modules], file=sys.stderr); sys.exit(code)"
)


def test_a_stream_needs_no_framework() -> None:
    """A gateway that has answered a stream has loaded no framework and no client that may never be needed."""

    async def main() -> None:
        async with contextlib.AsyncExitStack() as opened:
            replica = await opened.enter_async_context(simulated_sockets.serving(0, tokens=3))
            listen = ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]
            process = await spawn("-c", _PROGRAM, "serve", "--model", "m", "--replica", replica.url, *listen)
            gateway = Gateway(process)
            try:
                await gateway.ready(process.stderr)
                reader, writer = await stream(gateway.port)
                await reader.readuntil(b"[DONE]")
                writer.close()
                process.send_signal(signal.SIGINT)
                code, output = await gateway.ended()
            finally:
                if process.returncode is None:
                    process.kill()
                await process.communicate()
        assert (code, output.splitlines()[-1]) == (ExitCode.OK, b"[]"), output

    run_real(main())
