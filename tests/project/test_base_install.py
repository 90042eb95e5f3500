"""The base installation is the client library; the extra `serve` adds the gateway."""

import re
import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement

from checkout import ROOT
from gateway.__main__ import SERVE_LIBRARIES

SERVER_ONLY = (
    "fastapi",
    "starlette",
    "numpy",
    "yaml",
    "pydantic",
    "prometheus_client",
    "httptools",
    "uvloop",
)
USE = """
import sys
import httpx
from ttft_gateway import HedgeConfig, HedgingTransport, Stats
with httpx.Client(transport=HedgingTransport(HedgeConfig(), stats=Stats())) as client:
    try:
        client.post("http://127.0.0.1:1/v1/chat/completions", json={"model": "m", "messages": [], "stream": True})
    except httpx.ConnectError:
        pass
print(*sys.modules)
"""
WITHOUT_SERVE = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
MISSING = set(sys.argv.pop(1).split(","))
sys.meta_path.insert(0, Missing())
from PROGRAM.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def _run(code: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("name", ["HedgingTransport", "AsyncHedgingTransport"])
def test_a_process_with_a_transport_loads_no_server(name: str) -> None:
    """Using a transport imports none of the libraries of the server, no settings and no bench."""
    done = _run(
        USE if name == "HedgingTransport" else f"import sys\nfrom ttft_gateway import {name}\nprint(*sys.modules)"
    )
    loaded = set(done.stdout.split())
    assert "ttft_gateway.client.hedger" in loaded, done.stderr
    assert not loaded.intersection(SERVER_ONLY)
    assert not [each for each in loaded if each.startswith(("gateway.api", "gateway.config", "streaming_bench"))]


def test_the_synchronous_transport_loads_no_event_loop() -> None:
    """A program without asyncio pays for none."""
    assert "asyncio" not in _run(USE).stdout.split()


@pytest.mark.parametrize("command", ["serve", "demo", "check-config", "probe"])
def test_a_command_without_the_extra_names_it(command: str) -> None:
    """Without the extra `serve`, a command ends with exit code 2 and one line that names the extra."""
    missing = ",".join(SERVE_LIBRARIES)
    done = _run(WITHOUT_SERVE.replace("PROGRAM", "gateway"), missing, command)
    assert done.returncode == 2, done.stderr
    assert re.fullmatch(
        rf"ttft-gateway: {command} needs \w+, which is not installed; install the project with its extra `serve`\n",
        done.stderr,
    )


def test_the_bench_without_the_extra_names_it() -> None:
    """The bench runs the gateway's code, and needs the same extra."""
    missing = ",".join(SERVE_LIBRARIES)
    done = _run(WITHOUT_SERVE.replace("PROGRAM", "streaming_bench"), missing, "simulate")
    assert done.returncode == 2
    assert "which is not installed; install the extra `serve`" in " ".join(done.stderr.split())


def test_the_base_has_no_library_of_the_server() -> None:
    """What the server alone needs is in the extra `serve`, and every module of the extra is recognised when missing."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    base = {Requirement(each).name for each in project["dependencies"]}
    serve = {Requirement(each).name for each in project["optional-dependencies"]["serve"]}
    modules = {"pyyaml": "yaml", "sse-starlette": "sse_starlette", "prometheus-client": "prometheus_client"}
    optional = {"uvloop", "httpx", "httpcore"}  # the first is not required, the others are in the base
    assert base == {"ddsketch", "httpx", "msgspec"}
    assert {modules.get(name, name) for name in serve - optional} <= SERVE_LIBRARIES
