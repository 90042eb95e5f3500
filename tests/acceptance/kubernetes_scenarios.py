"""Requests while the pods of a Service come and go sixty times, and the API server is in trouble; real sockets.

The API server is a fake one with TLS, the pods are simulated replicas. A pod that ends refuses connections one second
after it is `terminating`, and stops after its last request. Units: seconds.
"""

import asyncio
import itertools
import json
import ssl
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import trustme

from fake_kubernetes import SLICES, Endpoint, FakeKubernetes, endpoint_slice, serve_api
from gateway.simulated.profile import parse_profile
from gateway.simulated.server import SimulatedServer
from raw_http import ASK, CHAT
from spawned import started

PER_S = 25  # requests
_CHANGES = 60
_CHANGE_S = 0.5
_PODS = 4
_POD = {"ttft": "30ms", "tokens": 20, "gap": "10ms"}


class Changed(NamedTuple):
    """Results.

    Attributes:
        results: number of requests by "whole" and the reason why not.
        second_attempts: requests that needed more than one attempt.
        changes: changes of the Service.
        in_use: names of the replicas at the end.
        expected: names of the pods at the end.
    """

    results: Counter[str]
    second_attempts: int
    changes: int
    in_use: set[str]
    expected: set[str]


class _Pods:
    """The pods of a Service, each in an EndpointSlice of its own."""

    def __init__(self, cluster: FakeKubernetes) -> None:
        self._cluster = cluster
        self._names = (f"vllm-{number}" for number in itertools.count())
        self.running: dict[str, SimulatedServer] = {}
        self.changes = 0

    async def start(self) -> None:
        """Start a pod."""
        name, server = next(self._names), SimulatedServer(parse_profile(_POD))
        await server.start()
        self.running[name] = server
        self._put(name, "ready")

    async def end(self) -> None:
        """End the oldest pod: it gets nothing new, stops, and leaves the Service."""
        name, server = next(iter(self.running.items()))
        del self.running[name]
        self._put(name, "terminating", server)
        await asyncio.sleep(2 * _CHANGE_S)
        server.stop_listening()
        while server.stats.in_flight:
            await asyncio.sleep(_CHANGE_S / 10)
        await server.close()
        self.changes += 1
        self._cluster.delete(SLICES, name)

    def _put(self, name: str, state: str, server: SimulatedServer | None = None) -> None:
        end = urlsplit((server or self.running[name]).url)
        pods = {name: Endpoint(end.hostname or "", state)}
        self.changes += 1
        self._cluster.put(SLICES, endpoint_slice(name, pods, ports={"http": end.port or 0}))


def _troubles(cluster: FakeKubernetes) -> Iterator[Callable[[], object]]:
    """Yield what happens to the API server, again and again."""

    def away() -> None:
        cluster.is_away = True
        cluster.restart()
        asyncio.get_running_loop().call_later(0.4, setattr, cluster, "is_away", False)

    def slow() -> None:
        cluster.answer_s = 0.3
        cluster.restart()
        asyncio.get_running_loop().call_later(2.0, setattr, cluster, "answer_s", 0.0)

    yield from itertools.cycle(
        [lambda: None, cluster.restart, cluster.expire, lambda: setattr(cluster, "is_cutting", True), away, slow]
    )


async def changed_pods() -> Changed:
    """Send requests during sixty changes."""
    cluster, tls, authority = FakeKubernetes(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), trustme.CA()
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    pods = _Pods(cluster)
    for _ in range(_PODS):
        await pods.start()
    pods.changes = 0
    with tempfile.TemporaryDirectory() as folder:
        async with serve_api(cluster, tls=tls) as port, httpx.AsyncClient(timeout=30, trust_env=False) as client:
            file = _configuration(Path(folder), port, authority)
            async with started("serve", "--config", str(file)) as gateway:
                await gateway.ready(gateway.process.stderr, b"admin at ")
                admin = gateway.said.decode().split("admin at ")[1].split(" ")[0]
                results, second = await _under_load(client, gateway.port, _change(cluster, pods))
                await asyncio.sleep(1.0)
                found = (await client.get(f"{admin}/admin/replicas")).json()["models"]["m"]
    for server in pods.running.values():
        await server.close()
    in_use = {name for name, each in found.items() if not each.get("draining")}
    return Changed(results, second, pods.changes, in_use, set(pods.running))


async def _change(cluster: FakeKubernetes, pods: _Pods) -> None:
    """Replace the pods, one after the other."""
    troubles = _troubles(cluster)
    async with asyncio.TaskGroup() as ending:
        for _ in range(_CHANGES // 3):
            next(troubles)()
            await pods.start()
            await asyncio.sleep(_CHANGE_S)
            ending.create_task(pods.end())
            await asyncio.sleep(2 * _CHANGE_S)


async def _under_load(client: httpx.AsyncClient, port: int, change: Any) -> tuple[Counter[str], int]:
    results, attempts = Counter[str](), list[int]()

    async def ask(*, streaming: bool) -> None:
        try:
            got = await client.post(f"http://127.0.0.1:{port}{CHAT}", json={**ASK, "stream": streaming})
        except httpx.HTTPError as error:
            results[type(error).__name__] += 1
            return
        attempts.append(int(got.headers.get("x-ttft-attempts", 1)))
        is_whole = got.text.endswith("data: [DONE]\n\n") if streaming else "choices" in got.json()
        results["whole" if got.status_code == 200 and is_whole else f"{got.status_code} {got.text[-80:]}"] += 1

    async with asyncio.TaskGroup() as tasks:
        changing = tasks.create_task(change)
        while not changing.done():
            tasks.create_task(ask(streaming=len(attempts) % 4 != 0))
            await asyncio.sleep(1 / PER_S)
    return results, sum(count > 1 for count in attempts)


def _configuration(folder: Path, port: int, authority: trustme.CA) -> Path:
    authority.cert_pem.write_to_path(str(folder / "ca.crt"))
    (folder / "token").write_text("token-of-the-pod", encoding="utf-8")
    settings = {
        "listen": "127.0.0.1:0",
        "admin_listen": "127.0.0.1:0",
        "kubernetes": {"url": f"https://127.0.0.1:{port}", "token_file": "token", "ca_file": "ca.crt"},
        "models": [{"name": "m", "discover": {"endpointslices": "vllm.llm", "port": "http", "kind": "simulated"}}],
        "hedge": {"policy": "off"},
    }
    file = folder / "gateway.yaml"
    file.write_text(json.dumps(settings), encoding="utf-8")
    return file
