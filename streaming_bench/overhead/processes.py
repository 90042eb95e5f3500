"""The processes of the cost bench: the back end, gateways, and nginx before the same back end.

What is measured has a core of its own, where there are two; this process and the back end share the other one. All
ports were chosen by the system. Everything ends when it is left. Units: seconds.
"""

import contextlib
import json
import os
import re
import resource
import select
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple, cast

from streaming_bench.errors import BenchError

_ROOT: Final = Path(__file__).resolve().parents[2]  # where the packages are
_START_S_MAX: Final = 30.0
_END_S_MAX: Final = 5.0
KEY: Final = "bench"  # of the caller, where keys are asked for
_FILES: Final = 65_536  # 5,000 streams take 10,000 of a gateway
_SBIN: Final = "/usr/sbin:/usr/local/sbin"  # where Debian has nginx, and not every PATH
_READY: Final = re.compile(r"ready at http://127\.0\.0\.1:(\d+)/v1")
_ADMIN: Final = re.compile(r"admin at http://127\.0\.0\.1:(\d+) ")
_NGINX: Final = """worker_processes 1; daemon off; pid {folder}/nginx.pid; error_log stderr error;
events {{ worker_connections 20000; }}
http {{
  access_log off; keepalive_requests 1000000000; client_max_body_size 8m; client_body_buffer_size 2m;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  upstream replicas {{ {servers} keepalive 6000; keepalive_requests 1000000000; }}
  server {{ listen 127.0.0.1:{port} backlog=4096;
    location / {{ proxy_pass {scheme}://replicas; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_ssl_session_reuse on; }} }}
}}
"""


class ProxyProcess(NamedTuple):
    """What is measured: where it listens, its process, its admin port if it has one, and its models."""

    port: int
    pid: int
    admin_port: int = 0
    start_s: float = 0.0
    models: Sequence[str] = ("m0",)


class Machine:
    """The cores and files of this machine.

    Attributes:
        core: of what is measured; None where there is only one.
    """

    def __init__(self) -> None:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        soft = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        cores = sorted(os.sched_getaffinity(0))
        self.core = cores[-1] if len(cores) > 1 else None
        if self.core is not None:
            os.sched_setaffinity(0, cores[:1])  # children inherit it

    def pin(self, pid: int) -> None:
        """Give a process the core of its own; it has just been started, and has no other threads."""
        if self.core is not None:
            os.sched_setaffinity(pid, {self.core})


class Backend:
    """The running back end.

    Attributes:
        ports: of plain HTTP.
        tls_ports: of TLS; empty without a certificate.
        certificate: its path, None without one.
    """

    def __init__(self, process: subprocess.Popen[bytes], count: int, certificate: str | None) -> None:
        self._process = process
        ports = self._told()
        assert isinstance(ports, list)
        self.ports: list[int] = ports[:count]
        self.tls_ports: list[int] = ports[count:]
        self.certificate = certificate

    def pace(self, gap_ms: int) -> int:
        """Set the gap between tokens; returns how many requests it has had."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"%d\n" % gap_ms)
        self._process.stdin.flush()
        return int(str(self._told()))

    def _told(self) -> object:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], _START_S_MAX)
        line = self._process.stdout.readline() if ready else b""
        if not line:
            raise BenchError(
                "the bench's own back end does not answer; run `python -m streaming_bench.overhead.backend 1`"
            )
        return json.loads(line)


@contextlib.contextmanager
def backend(ports: int) -> Iterator[Backend]:
    """The back end while inside, with TLS where openssl can make a certificate."""
    with tempfile.TemporaryDirectory(prefix="ttft-cost-") as folder:
        certificate = _certificate(Path(folder))
        command = [sys.executable, "-m", "streaming_bench.overhead.backend", str(ports), *filter(None, [certificate])]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=_ROOT, start_new_session=True) as process:
            try:
                yield Backend(process, ports, certificate)
            finally:
                _stop(process)


def _certificate(folder: Path) -> str | None:
    """A self-signed one for 127.0.0.1, with its key in the same file."""
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
def gateway(machine: Machine, config: Mapping[str, object], certificate: str | None = None) -> Iterator[ProxyProcess]:
    """A gateway with these settings while inside.

    Raises:
        BenchError: it did not start.
    """
    names = [model["name"] for model in cast(list[dict[str, str]], config["models"])]
    config = {"listen": "127.0.0.1:0", "admin_listen": "127.0.0.1:0", "drain_timeout": "300ms", **config}
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if certificate is not None:
        environment["SSL_CERT_FILE"] = certificate
    with tempfile.TemporaryDirectory(prefix="ttft-cost-") as folder:
        file = Path(folder) / "gateway.yaml"
        file.write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
        command = [sys.executable, "-m", "gateway", "serve", "--config", str(file)]
        nothing, pipe = subprocess.DEVNULL, subprocess.PIPE
        begin = datetime.now(UTC)
        with subprocess.Popen(
            command, stdin=nothing, stdout=nothing, stderr=pipe, cwd=_ROOT, start_new_session=True, env=environment
        ) as process:
            machine.pin(process.pid)
            try:
                said = _read_startup(process)
                port, admin = _READY.search(said), _ADMIN.search(said)
                if port is None or admin is None:
                    raise BenchError(f"the gateway did not start: {said.strip() or 'it said nothing'}")
                start_s = (datetime.now(UTC) - begin).total_seconds()
                yield ProxyProcess(int(port[1]), process.pid, int(admin[1]), start_s, names)
            finally:
                process.terminate()
                _stop(process)


def settings(
    ports: Sequence[int], *, policy: str = "adaptive", models: int = 1, tls: bool = False
) -> dict[str, object]:
    """Of a gateway before these ports; its models are m0, m1, and so on."""
    replicas = _replicas(ports, "https" if tls else "http")
    return {"models": [{"name": f"m{n}", "replicas": replicas, "hedge": {"policy": policy}} for n in range(models)]}


def limited_settings(ports: Sequence[int]) -> dict[str, object]:
    """The same with a key, limits for it, prices and a quota; nothing of it is ever reached."""
    plenty = {"requests_per_min": 100_000_000, "tokens_per_min": 100_000_000_000}
    prices = {"prompt": 0.1, "completion": 0.4}
    return {
        "models": [{"name": "m0", "replicas": _replicas(ports, "http", quota="fleet", prices=prices)}],
        "keys": [{"name": "team", "key": KEY, **plenty}],
        "quotas": [{"name": "fleet", **plenty}],
    }


def _replicas(ports: Sequence[int], scheme: str, **more: object) -> list[dict[str, object]]:
    return [
        {"name": f"r{n}", "kind": "vllm", "model": "bench", "base_url": f"{scheme}://127.0.0.1:{port}/v1", **more}
        for n, port in enumerate(ports)
    ]


@contextlib.contextmanager
def nginx(machine: Machine, ports: Sequence[int], *, tls: bool = False) -> Iterator[ProxyProcess | None]:
    """What nginx does before these ports while inside; None where it is not installed."""
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:{_SBIN}")
    if program is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="ttft-cost-") as folder:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        servers = " ".join(f"server 127.0.0.1:{each};" for each in ports)
        file, scheme = Path(folder) / "nginx.conf", "https" if tls else "http"
        file.write_text(_NGINX.format(folder=folder, port=port, servers=servers, scheme=scheme), encoding="utf-8")
        command = [program, "-e", "stderr", "-p", folder, "-c", str(file)]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True) as process:
            machine.pin(process.pid)
            try:
                _await_port(process, port)
                yield ProxyProcess(port, process.pid)
            finally:
                process.terminate()
                _stop(process)


def _await_port(process: subprocess.Popen[bytes], port: int) -> None:
    begin = datetime.now(UTC)
    while process.poll() is None and (datetime.now(UTC) - begin).total_seconds() < _START_S_MAX:
        with socket.socket() as trying:
            if trying.connect_ex(("127.0.0.1", port)) == 0:
                return
    raise BenchError(f"nginx did not start on port {port}; what it said stands above")


def _read_startup(process: subprocess.Popen[bytes]) -> str:
    """What a gateway says until it is ready, or for as long as that may take."""
    stream = process.stderr
    assert stream is not None
    said = b""
    while not _ADMIN.search(said.decode(errors="replace")):
        ready, _, _ = select.select([stream], [], [], _START_S_MAX)
        piece = os.read(stream.fileno(), 65_536) if ready else b""
        if not piece:
            break
        said += piece
    return said.decode(errors="replace")


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(_END_S_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
