"""The processes of the cost bench: the back end, and gateways in front of it.

The measured process has a core of its own if there are two; this process and the back end share the other one. Ports
are chosen by the system. All processes end with their context. Units: seconds.
"""

import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from streaming_bench.errors import BenchError
from streaming_bench.processes import ROOT, end, read_line, start_gateway
from streaming_bench.research.overhead.backend import STEP
from streaming_bench.research.overhead.client import MODEL

REPLICAS: Final = 3  # of a measured gateway
KEY: Final = "bench"  # the caller's, where keys are required
_FILES: Final = 65_536  # 1,000 streams take 2,000 of a gateway


class ProxyProcess(NamedTuple):
    """A measured gateway or another proxy.

    Attributes:
        port: port of its API.
        pid: id of its process.
        start_s: time from its start until it was ready.
    """

    port: int
    pid: int
    start_s: float = 0.0


class Machine:
    """Cores and file limits of this machine.

    Attributes:
        core: core of the measured process; None on a machine with one core.
    """

    def __init__(self) -> None:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        soft = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        cores = sorted(os.sched_getaffinity(0))
        self.core = cores[-1] if len(cores) > 1 else None
        if self.core is not None:
            os.sched_setaffinity(0, cores[:1])  # child processes inherit it

    def pin(self, pid: int) -> None:
        """Move a process to the core of its own; it has just been started, and has one thread."""
        if self.core is not None:
            os.sched_setaffinity(pid, {self.core})


class Backend:
    """The running back end.

    Attributes:
        ports: ports of plain HTTP.
        tls_ports: ports of TLS; empty without a certificate.
        certificate: path of the certificate; None without TLS.
    """

    def __init__(self, process: subprocess.Popen[bytes], count: int, certificate: str | None) -> None:
        self._process = process
        ports = self._read_json()
        assert isinstance(ports, list)
        self.ports: list[int] = ports[:count]
        self.tls_ports: list[int] = ports[count:]
        self.certificate = certificate

    def pace(self, gap_ms: int) -> int:
        """Set the gap between tokens; return the number of requests received so far."""
        self._write(b"%d" % gap_ms)
        return int(str(self._read_json()))

    def step(self) -> None:
        """Release the next token of each answer; the gap must be STEPPED."""
        self._write(STEP)

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + b"\n")
        self._process.stdin.flush()

    def _read_json(self) -> object:
        line = read_line(self._process)
        if not line:
            raise BenchError(
                "the back end of the bench does not answer; run `python -m streaming_bench.research.overhead.backend 1`"
            )
        return json.loads(line)


@contextlib.contextmanager
def backend(ports: int) -> Iterator[Backend]:
    """Run the back end while inside, with TLS if openssl can make a certificate."""
    with tempfile.TemporaryDirectory(prefix="ttft-cost-") as folder:
        certificate = _certificate(Path(folder))
        command = [
            sys.executable,
            "-m",
            "streaming_bench.research.overhead.backend",
            str(ports),
            *filter(None, [certificate]),
        ]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=ROOT, start_new_session=True) as process:
            try:
                yield Backend(process, ports, certificate)
            finally:
                end(process)


def _certificate(folder: Path) -> str | None:
    """Make a self-signed certificate for 127.0.0.1, with its key in the same file; None without openssl."""
    if shutil.which("openssl") is None:
        return None
    file = folder / "backend.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    made += ["-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    made += ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run(made, check=True, capture_output=True)
    file.write_text((folder / "cert.pem").read_text("ascii") + (folder / "key.pem").read_text("ascii"), "ascii")
    return str(file)


@contextlib.contextmanager
def gateway(
    machine: Machine,
    config: Mapping[str, object],
    certificate: str | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    wrapper: Sequence[str] = (),
    folder: Path = ROOT,
) -> Iterator[ProxyProcess]:
    """Run a gateway with this configuration while inside.

    Args:
        machine: cores of this machine.
        config: its configuration.
        certificate: path of the replicas' certificate; None without TLS.
        environment: additional environment variables.
        wrapper: program that runs the gateway, with its arguments; empty for none.
        folder: folder of the packages.

    Raises:
        BenchError: The gateway did not start.
    """
    variables = {"OMP_NUM_THREADS": "1", **({} if certificate is None else {"SSL_CERT_FILE": certificate})}
    variables |= environment or {}
    with start_gateway(config, environment=variables, wrapper=wrapper, folder=folder, on_start=machine.pin) as process:
        yield ProxyProcess(process.port, process.pid, process.start_s)


def settings(ports: Sequence[int], *, policy: str = "adaptive", tls: bool = False) -> dict[str, object]:
    """Return the configuration of a gateway for these ports."""
    replicas = _replicas(ports, "https" if tls else "http")
    return {"models": [{"name": MODEL, "replicas": replicas, "hedge": {"policy": policy}}]}


def limited_settings(ports: Sequence[int]) -> dict[str, object]:
    """Return a configuration with a key, limits for it, prices and a quota; no limit is ever reached."""
    plenty = {"requests_per_min": 100_000_000, "tokens_per_min": 100_000_000_000}
    prices = {"prompt": 0.1, "completion": 0.4}
    return {
        "models": [{"name": MODEL, "replicas": _replicas(ports, "http", quota="fleet", prices=prices)}],
        "keys": [{"name": "team", "key": KEY, **plenty}],
        "quotas": [{"name": "fleet", **plenty}],
    }


def _replicas(ports: Sequence[int], scheme: str, **more: object) -> list[dict[str, object]]:
    return [
        {"name": f"r{n}", "kind": "vllm", "model": "bench", "base_url": f"{scheme}://127.0.0.1:{port}/v1", **more}
        for n, port in enumerate(ports)
    ]
