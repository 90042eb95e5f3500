"""Builds the Go programs of examples/go and runs them against a gateway over simulated replicas; see matrix.py."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from checkout import ROOT
from checks import GO_CHECKS, GO_PROGRAMS
from clients import CACHE, INSTALL_S_MAX, Line, surroundings
from served import gateway, replicas

PAGE = ROOT / "docs" / "guides" / "sidecar.md"
_SOURCE = ROOT / "examples" / "go"
_LIMIT_S = 60.0
_POLL_S = 0.02
_KEY = "sk-matrix"
_REPLICAS: Mapping[str, tuple[Mapping[str, object], ...]] = {  # by model
    "fast": ({"ttft": "8ms", "gap": "1ms", "tokens": 8}, {"ttft": "8ms", "gap": "1ms", "tokens": 8}),
    "half": ({"ttft": "60s"}, {"ttft": "8ms", "gap": "1ms", "tokens": 8}),
    "silent": ({"ttft": "60s"},),
    "endless": ({"gap": "50ms", "tokens": 2000},),
}

Ran = dict[tuple[str, str], Line]  # by program and check


def go() -> str:
    """Return the path of the Go command."""
    return shutil.which("go") or "/usr/local/go/bin/go"


def built() -> Path:
    """Build the programs; return their folder."""
    folder = CACHE / "go"
    folder.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"CGO_ENABLED": "0"}
    command = [go(), "build", "-o", f"{folder}/", "./..."]
    subprocess.run(command, cwd=_SOURCE, env=environment, check=True, timeout=INSTALL_S_MAX)
    return folder


def ran(programs: tuple[str, ...] = GO_PROGRAMS) -> Ran:
    """Run all checks of the programs."""
    folder, results = built(), Ran()
    profiles = {f"{model}-{number}": each for model, those in _REPLICAS.items() for number, each in enumerate(those)}
    with (
        replicas(**profiles) as urls,
        tempfile.TemporaryDirectory() as files,
        gateway(_configured(urls), Path(files)) as served,
    ):
        for program in programs:
            print(f"{program}, through a sidecar", file=sys.stderr)
            sidecar = Sidecar(folder / program, served.url, urls)
            for check, function in CHECKS.items():
                try:
                    function(sidecar)
                    results[program, check] = Line(ok=True, said="")
                except Exception as error:
                    results[program, check] = Line(ok=False, said=f"{type(error).__name__}: {error}")
    return results


def _configured(urls: Mapping[str, str]) -> dict[str, object]:
    models = [
        {
            "name": model,
            "replicas": [
                {"name": f"{model}-{number}", "kind": "simulated", "base_url": urls[f"{model}-{number}"]}
                for number, _ in enumerate(those)
            ],
        }
        for model, those in _REPLICAS.items()
    ]
    hedge = {"policy": "static", "delay": "1ms", "hedge_delay_min": "1ms", "budget": "100%"}
    return {"keys": [{"name": "matrix", "key": _KEY}], "models": models, "hedge": hedge}


class Sidecar:
    """A program and the gateway on its host.

    Args:
        urls: base URLs of the replicas.
    """

    def __init__(self, program: Path, gateway_url: str, urls: Mapping[str, str]) -> None:
        self._program = program
        self._gateway_url = gateway_url
        self._urls = urls

    def start(self, model: str, key: str = _KEY) -> subprocess.Popen[str]:
        """Start the program."""
        variables = {"OPENAI_BASE_URL": f"{self._gateway_url}/v1", "OPENAI_API_KEY": key, "OPENAI_MODEL": model}
        return subprocess.Popen(
            [self._program],
            env=surroundings() | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def answered(self, model: str) -> None:
        """Run the program to its end."""
        with self.start(model) as process:
            printed, errors = process.communicate(timeout=_LIMIT_S)
        assert process.returncode == 0, errors
        text, _, end = printed.rpartition("\nreplica ")
        assert text, printed
        assert end.startswith(f"{model}-"), end

    def cancelled(self, model: str, *, until: Callable[[subprocess.Popen[str]], None]) -> None:
        """Interrupt the program; its replica's connection is closed."""
        before = self.count(model, "cancelled")
        with self.start(model) as process:
            until(process)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=_LIMIT_S)
        assert process.returncode == 1, process.returncode
        assert "canceled" in errors or "interrupt" in errors, errors  # Go 1.26 reports the signal
        self.wait(model, "cancelled", before)

    def wait(self, model: str, name: str, before: int) -> None:
        """Wait until a counter of a model's first replica has risen."""
        clock = threading.Event()
        for _ in range(int(_LIMIT_S / _POLL_S)):
            if self.count(model, name) > before:
                return
            clock.wait(_POLL_S)
        raise AssertionError(f"{name} of {model} is still {before}")

    def count(self, model: str, name: str) -> int:
        """Return a counter of a model's first replica."""
        address = self._urls[f"{model}-0"].removesuffix("/v1") + "/sim/stats?records=0"
        with urllib.request.urlopen(address, timeout=_LIMIT_S) as answer:
            return int(json.load(answer)[name])

    def rejected(self) -> None:
        """Run the program with a wrong key."""
        with self.start("fast", key="sk-wrong") as process:
            _, errors = process.communicate(timeout=_LIMIT_S)
        assert process.returncode == 1, process.returncode
        assert "401" in errors, errors


def _cancel_waiting(sidecar: Sidecar) -> None:
    before = sidecar.count("silent", "requests")
    sidecar.cancelled("silent", until=lambda _: sidecar.wait("silent", "requests", before))


def _first_text(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.read(1)


CHECKS: Mapping[str, Callable[[Sidecar], None]] = {
    "stream": lambda sidecar: sidecar.answered("fast"),
    "hedge": lambda sidecar: sidecar.answered("half"),
    "cancel while waiting": _cancel_waiting,
    "cancel a stream": lambda sidecar: sidecar.cancelled("endless", until=_first_text),
    "wrong key": Sidecar.rejected,
}


def table(results: Ran) -> str:
    """Return the table in Markdown."""
    version = subprocess.run([go(), "env", "GOVERSION"], capture_output=True, text=True, check=True).stdout.strip()
    library = next(_required())
    text = f"Versions: `{library}`; Go {version.removeprefix('go')}.\n\n"
    text += f"| check |{''.join(f' {name} |' for name in GO_PROGRAMS)}\n|---|{'---|' * len(GO_PROGRAMS)}\n"
    for check in GO_CHECKS:
        cells = (results[name, check] for name in GO_PROGRAMS)
        text += f"| {check} |{''.join(f' {_cell(line)} |' for line in cells)}\n"
    return text


def _required() -> Iterator[str]:
    """Yield the modules that examples/go names."""
    for line in (_SOURCE / "go.mod").read_text(encoding="utf-8").splitlines():
        if line.startswith("require ") and "(" not in line:
            yield line.removeprefix("require ").replace(" ", "@")


def _cell(line: Line) -> str:
    return "yes" if line.ok else "**no**"
