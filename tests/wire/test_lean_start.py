"""What a started gateway has loaded after its first answer. Real sockets, a process."""

import contextlib
import signal
import subprocess
import sys
from pathlib import Path

import simulated_sockets
from checkout import ROOT
from gateway.cli.parser import ExitCode
from running import run_real
from spawned import Gateway, spawn, stream

_LATER = (
    "email.parser",  # reading the metadata of a distribution imports it
    *("anyio", "fastapi", "h11", "h2", "httpcore", "httpx", "prometheus_client", "redis", "sse_starlette", "starlette"),
    *("uvicorn", "gateway.server.admin", "gateway.server.admin_server", "gateway.cli.demo"),
    *("gateway.workers.supervisor", "gateway.workers.top", "gateway.workers.worker", "gateway.simulated"),
)
_OF_CLOUDS = ("aws_bedrock_token_generator", "azure.identity", "botocore.session", "google.auth")
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


def test_no_package_of_a_cloud_is_loaded_without_its_credential(tmp_path: Path) -> None:
    """Replicas at clouds that send a key load none of the clouds' packages, although all are installed."""
    for name in _OF_CLOUDS:
        folder = tmp_path / "installed" / name.replace(".", "/")
        folder.mkdir(parents=True)
        for each in (folder, *folder.relative_to(tmp_path / "installed").parents):
            (tmp_path / "installed" / each / "__init__.py").touch()
    clouds = {"bedrock": "region: us-east-1", "vertex": "region: global, project: p", "foundry": "resource: r"}
    models = {"bedrock": "anthropic.claude-x", "vertex": "claude-x", "foundry": "claude-x"}
    rows = [
        f"{{name: {kind}, kind: {kind}, {place}, model: {models[kind]}, api_key: k}}" for kind, place in clouds.items()
    ]
    file = tmp_path / "gateway.yaml"
    file.write_text(f"allow_anonymous: true\nmodels: [{{name: m, replicas: [{', '.join(rows)}]}}]\n")
    program = f"import sys; sys.path.insert(0, {str(tmp_path / 'installed')!r})\nfrom gateway.__main__ import main\n"
    program += "import gateway.server.app, gateway.server.credentials.keepers\ncode = main(sys.argv[1:])\n"
    program += f"print(code, [name for name in {_OF_CLOUDS} if name in sys.modules])\n"
    program += f"import importlib; print([importlib.import_module(name).__name__ for name in {_OF_CLOUDS}])"
    done = subprocess.run(
        [sys.executable, "-c", program, "check-config", str(file)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-2:] == ["0 []", str(list(_OF_CLOUDS))], done.stdout + done.stderr
