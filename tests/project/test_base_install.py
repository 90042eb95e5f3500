"""The base installation is the client library; the extra `serve` adds the gateway."""

import re
import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement

from checkout import ROOT
from gateway.version import VERSION

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
IMPORT = """
import sys
import httpx
before = set(sys.modules)
from ttft_gateway import {0}
loaded = sys.modules.keys() - before
own = [vars(sys.modules[name]) for name in loaded if name.startswith("ttft_gateway")]
print(*loaded)
print(*[name for names in own for name, each in names.items() if hasattr(each, "__dataclass_fields__")])
"""
MODULES_MAX = 73  # of this package, for a transport
INTERRUPTED = """
import importlib.metadata
import sys
class Commands(dict):
    def load(self):
        raise KeyboardInterrupt
class Distribution:
    entry_points = {name: Commands() for name in ("ttft-gateway", "ttft-bench")}
importlib.metadata.distribution = lambda name: Distribution
import ttft_gateway.__main__ as commands
sys.exit(getattr(commands, sys.argv[1])())
"""
INTERRUPTED_EARLY = """
import sys
import types
class Metadata(types.ModuleType):
    def __getattr__(self, name):
        raise KeyboardInterrupt
sys.modules["importlib.metadata"] = Metadata("importlib.metadata")
import ttft_gateway.__main__ as commands
sys.exit(getattr(commands, sys.argv[1])())
"""
COMMANDS_WITHOUT_SERVE = """
import importlib.metadata
import sys
def distribution(name):
    raise importlib.metadata.PackageNotFoundError(name)
importlib.metadata.distribution = distribution
import ttft_gateway.__main__ as commands
sys.exit(getattr(commands, sys.argv[1])())
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


@pytest.mark.parametrize("name", ["HedgingTransport", "AsyncHedgingTransport"])
def test_the_import_of_a_transport_stays_quick(name: str) -> None:
    """A transport loads few modules, of few packages, and no dataclass: a `Struct` is made a hundred times faster."""
    loaded, dataclasses = _run(IMPORT.format(name)).stdout.split("\n")[:2]
    packages = {each.partition(".")[0] for each in loaded.split()} - sys.stdlib_module_names
    assert packages == {"msgspec", "ttft_gateway", "typing_extensions"}
    assert sum(each.startswith("ttft_gateway") for each in loaded.split()) <= MODULES_MAX
    assert dataclasses == ""


def test_the_synchronous_transport_loads_no_event_loop() -> None:
    """A program without asyncio pays for none."""
    assert "asyncio" not in _run(USE).stdout.split()


@pytest.mark.parametrize("command", ["gateway", "bench"])
def test_a_command_without_the_extra_names_it(command: str) -> None:
    """Without the server's distribution, a command ends with exit code 2 and one line that names the extra."""
    done = _run(COMMANDS_WITHOUT_SERVE, command)
    assert done.returncode == 2, done.stderr
    assert re.fullmatch(r"ttft-(gateway|bench): only the client library .*\"ttft-gateway\[serve\]\"\n", done.stderr)


@pytest.mark.parametrize("code", [INTERRUPTED_EARLY, INTERRUPTED])
def test_ctrl_c_while_modules_are_imported_prints_nothing(code: str) -> None:
    """Ctrl-C before a command has begun ends it with exit code 130 and without a traceback."""
    done = _run(code, "gateway")
    assert (done.returncode, done.stderr) == (130, "")


def test_the_command_of_the_base_runs_the_gateway() -> None:
    """The commands of the base distribution find the functions of the server's distribution."""
    done = _run("import sys\nimport ttft_gateway.__main__ as commands\nsys.exit(commands.gateway())", "version")
    assert done.returncode == 0, done.stderr
    assert VERSION in done.stdout


def test_the_base_has_no_library_of_the_server() -> None:
    """What the server alone needs is in its own distribution, of the same version, which the extra `serve` installs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    server = tomllib.loads((ROOT / "packaging/server/pyproject.toml").read_text())["project"]
    assert {Requirement(each).name for each in project["dependencies"]} == {"ddsketch", "httpx", "msgspec"}
    assert project["optional-dependencies"]["serve"] == [f"ttft-gateway-server=={VERSION}"]
    assert f"ttft-gateway=={VERSION}" in server["dependencies"]
    assert server["requires-python"] == project["requires-python"]


def test_the_checkout_is_what_runs() -> None:
    """The commands of an editable installation run the files of the checkout, not copies."""
    code = "import gateway, providers, streaming_bench, ttft_gateway as t; print(gateway.__file__, t.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd="/", env={}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split() == [str(ROOT / "gateway/__init__.py"), str(ROOT / "ttft_gateway/__init__.py")], (
        done.stderr
    )
