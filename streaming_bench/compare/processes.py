"""The processes of a comparison: simulated replicas, and one gateway for each run.

The replicas end with this process, however it ends, because their input is a pipe from here. Everything here blocks:
call it only between stretches of traffic. Units: seconds.
"""

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final, NamedTuple

from streaming_bench.errors import BenchError
from streaming_bench.processes import ROOT, SERVE, START_S_MAX, GatewayProcess, end, read_line, start_gateway

MODEL: Final = "bench"

_RESPONSE_S_MAX: Final = 10.0


class Counts(NamedTuple):
    """Counts of all replicas together.

    Attributes:
        requests: requests received.
        tokens: tokens sent.
        cancelled: requests ended by a disconnect of the client.
        in_flight: requests being answered.
    """

    requests: int
    tokens: int
    cancelled: int
    in_flight: int


class Fleet:
    """Running replicas.

    Attributes:
        urls: base URLs of their APIs.
    """

    def __init__(self, ports: Sequence[tuple[int, int]]) -> None:
        self.urls = [f"http://127.0.0.1:{port}/v1" for port, _ in ports]
        self._controls = [control for _, control in ports]

    def configure(self, profiles: Sequence[Mapping[str, object]]) -> None:
        """Give each replica its profile, and reset its counts."""
        for port, profile in zip(self._controls, profiles, strict=True):
            _request_json(port, "POST", "/sim/profile", profile)
            _request_json(port, "POST", "/sim/reset")

    def slow_down(self, count: int, factor: float, begin_s: float, length_s: float) -> None:
        """Make the first `count` replicas slow for a while; begin_s counts from their first request."""
        for port in self._controls[:count]:
            _request_json(
                port, "POST", "/sim/profile", {"episodes": [f"x{factor:g} from {begin_s:.3f}s for {length_s:.3f}s"]}
            )

    def counts(self) -> Counts:
        """Return the counts since the last reset."""
        stats = [_request_json(port, "GET", "/sim/stats?records=0") for port in self._controls]
        return Counts(*(sum(int(str(each[name])) for each in stats) for name in Counts._fields))


@contextmanager
def fleet(profiles: Sequence[Mapping[str, object]], seed: int) -> Iterator[Fleet]:
    """Run simulated replicas while inside.

    Raises:
        BenchError: The replicas did not start.
    """
    command = [sys.executable, "-m", "gateway.simulated.fleet", "--seed", str(seed), json.dumps(list(profiles))]
    pipe = subprocess.PIPE
    # A session of its own: Ctrl-C in a terminal goes to all processes of this one.
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=ROOT, start_new_session=True) as process:
        try:
            line = read_line(process)
            if not line:
                raise BenchError(f"the simulated replicas did not start within {START_S_MAX:g} s")
            yield Fleet(json.loads(line))
        finally:
            end(process)


def gateway(
    urls: Sequence[str], hedge: Mapping[str, object], signal: str | None = None
) -> AbstractContextManager[GatewayProcess]:
    """Run a gateway in front of replicas while inside.

    Args:
        urls: base URLs of the replicas.
        hedge: `hedge` section of its configuration.
        signal: one of `gateway_process.SIGNALS` instead of first content; None for the gateway without changes.

    Raises:
        BenchError: The gateway did not start.
    """
    replicas = [{"name": f"replica-{n}", "kind": "simulated", "base_url": url} for n, url in enumerate(urls)]
    config = {"models": [{"name": MODEL, "replicas": replicas, "hedge": dict(hedge)}]}
    own = ["streaming_bench.compare.gateway_process", signal] if signal is not None else None
    return start_gateway(config, module=own or SERVE)


def learned_delay_ms(process: GatewayProcess) -> float | None:
    """Return a gateway's hedge delay, as the mean over its replicas; None if it does not hedge."""
    state = _request_json(process.admin_port, "GET", f"/admin/models/{MODEL}")
    pools = state["pools"]
    assert isinstance(pools, list)
    delays = [replica["hedge_delay_ms"] for replica in pools[0]["replicas"]]
    known = [float(delay) for delay in delays if delay is not None]
    return sum(known) / len(known) if known else None


def _request_json(port: int, method: str, target: str, body: Mapping[str, object] | None = None) -> dict[str, object]:
    """Send one request to a control or admin address; return the JSON object of the response."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_RESPONSE_S_MAX)
    try:
        connection.request(method, target, None if body is None else json.dumps(body))
        answer = connection.getresponse()
        text = answer.read()
    except OSError as error:
        raise BenchError(f"{method} {target} on port {port} failed: {error}") from error
    finally:
        connection.close()
    if answer.status != 200:
        raise BenchError(f"{method} {target} on port {port} got status {answer.status}: {text[:500]!r}")
    found = json.loads(text)
    assert isinstance(found, dict)
    return found
