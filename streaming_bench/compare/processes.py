"""The processes of a comparison: a fleet of simulated replicas, and one gateway for each row.

Replicas end with this process, however it ends, since their input is a pipe from here; gateways when they are left. All
listen on ports that the system chose. What is asked of them here blocks: it is asked between stretches of traffic only.
Units: seconds.
"""

import contextlib
import http.client
import json
import os
import re
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from streaming_bench.errors import BenchError

_ROOT: Final = Path(__file__).resolve().parents[2]  # where the packages are
_START_S_MAX: Final = 20.0
_ANSWER_S_MAX: Final = 10.0
_END_S_MAX: Final = 5.0
_READ_BYTES: Final = 65_536
_READY: Final = re.compile(r"ready at http://127\.0\.0\.1:(\d+)/v1")
_ADMIN: Final = re.compile(r"admin at http://127\.0\.0\.1:(\d+) ")


class Counts(NamedTuple):
    """What all replicas together have seen: requests, tokens sent, requests that their client left."""

    requests: int
    tokens: int
    cancelled: int
    in_flight: int


class Fleet:
    """Running replicas.

    Attributes:
        urls: where their APIs begin.
    """

    def __init__(self, ports: Sequence[tuple[int, int]]) -> None:
        self.urls = [f"http://127.0.0.1:{port}/v1" for port, _ in ports]
        self._controls = [control for _, control in ports]

    def configure(self, profiles: Sequence[Mapping[str, object]]) -> None:
        """Give each replica its profile, and let it begin anew."""
        for port, profile in zip(self._controls, profiles, strict=True):
            _request_json(port, "POST", "/sim/profile", profile)
            _request_json(port, "POST", "/sim/reset")

    def slow_down(self, count: int, factor: float, begin_s: float, length_s: float) -> None:
        """Make the first so many replicas slow for a while; its beginning counts from their first request."""
        for port in self._controls[:count]:
            _request_json(
                port, "POST", "/sim/profile", {"episodes": [f"x{factor:g} from {begin_s:.3f}s for {length_s:.3f}s"]}
            )

    def counts(self) -> Counts:
        """Since they began anew."""
        stats = [_request_json(port, "GET", "/sim/stats?records=0") for port in self._controls]
        return Counts(*(sum(int(str(each[name])) for each in stats) for name in Counts._fields))


@contextlib.contextmanager
def fleet(profiles: Sequence[Mapping[str, object]], seed: int) -> Iterator[Fleet]:
    """Replicas while inside.

    Raises:
        BenchError: They did not start.
    """
    command = [sys.executable, "-m", "providers.simulated.fleet", "--seed", str(seed), json.dumps(list(profiles))]
    pipe = subprocess.PIPE
    # A session of its own: Ctrl-C in a terminal goes to all processes of this one.
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=_ROOT, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            ready, _, _ = select.select([process.stdout], [], [], _START_S_MAX)
            told = process.stdout.readline() if ready else b""
            if not told:
                raise BenchError(f"the simulated replicas did not start within {_START_S_MAX:g} s")
            yield Fleet(json.loads(told))
        finally:
            _stop(process)


class Gateway(NamedTuple):
    """A running gateway: where its API begins, its admin port, and the model to ask for."""

    url: str
    admin_port: int
    model: str

    def learned_delay_ms(self) -> float | None:
        """After how long it hedges: the mean over its replicas, None if it does not."""
        state = _request_json(self.admin_port, "GET", f"/admin/models/{self.model}")
        pools = state["pools"]
        assert isinstance(pools, list)
        delays = [replica["hedge_delay_ms"] for replica in pools[0]["replicas"]]
        known = [float(delay) for delay in delays if delay is not None]
        return sum(known) / len(known) if known else None


@contextlib.contextmanager
def gateway(urls: Sequence[str], hedge: Mapping[str, object], signal: str | None = None) -> Iterator[Gateway]:
    """Run the real gateway in front of these replicas.

    Args:
        urls: of the replicas.
        hedge: the `hedge` section of its configuration.
        signal: one of `gateway_process.SIGNALS` instead of first content; None for the gateway as it is.

    Raises:
        BenchError: It did not start.
    """
    replicas = [{"name": f"replica-{n}", "kind": "simulated", "base_url": url} for n, url in enumerate(urls)]
    config = {
        "listen": "127.0.0.1:0",
        "admin_listen": "127.0.0.1:0",
        "drain_timeout": "300ms",
        "models": [{"name": "bench", "replicas": replicas, "hedge": dict(hedge)}],
    }
    with tempfile.TemporaryDirectory(prefix="ttft-bench-") as folder:
        file = Path(folder) / "gateway.yaml"
        file.write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
        command = [sys.executable, "-m", "gateway", "serve", "--config", str(file)]
        if signal is not None:
            command = [sys.executable, "-m", "streaming_bench.compare.gateway_process", signal, str(file)]
        nothing, pipe = subprocess.DEVNULL, subprocess.PIPE
        with subprocess.Popen(
            command, stdin=nothing, stdout=nothing, stderr=pipe, cwd=_ROOT, start_new_session=True
        ) as process:
            try:
                said = _read_startup(process, _ADMIN)
                url, admin = _READY.search(said), _ADMIN.search(said)
                if url is None or admin is None:
                    raise BenchError(f"the gateway did not start: {said.strip() or 'it said nothing'}")
                yield Gateway(f"http://127.0.0.1:{url[1]}/v1", int(admin[1]), "bench")
            finally:
                process.terminate()
                _stop(process)


def _read_startup(process: subprocess.Popen[bytes], until: re.Pattern[str]) -> str:
    """What a process says on standard error until some words have come, or for as long as it may take to start."""
    stream = process.stderr
    assert stream is not None
    said = b""
    while not until.search(said.decode(errors="replace")):
        ready, _, _ = select.select([stream], [], [], _START_S_MAX)
        piece = os.read(stream.fileno(), _READ_BYTES) if ready else b""
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


def _request_json(port: int, method: str, target: str, body: Mapping[str, object] | None = None) -> dict[str, object]:
    """One request to a control or admin address, answered with a JSON object."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_ANSWER_S_MAX)
    try:
        connection.request(method, target, None if body is None else json.dumps(body))
        answer = connection.getresponse()
        text = answer.read()
    except OSError as error:
        raise BenchError(f"{method} {target} on port {port} failed: {error}") from error
    finally:
        connection.close()
    if answer.status != 200:
        raise BenchError(f"{method} {target} on port {port} was answered with {answer.status}: {text[:500]!r}")
    found = json.loads(text)
    assert isinstance(found, dict)
    return found
