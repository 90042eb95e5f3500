"""A real gateway in front of simulated replicas, everything on loopback sockets; nothing is left behind.

The gateway runs on the test's own loop, or as a process of its own, started as a person would start it, where its
memory or its CPU must not be mixed with the test's. It is configured as anybody configures it. Units: seconds, bytes.
"""

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from gateway.api.plain_routes import contract
from gateway.config.loader import load
from gateway.events import Event
from gateway.server import process as serve
from gateway.server.app import Gateway
from gateway.server.http_server import name_of
from gateway.server.sockets import Inherited
from gateway.simulated.profile import parse_profile
from gateway.simulated.server import SimulatedServer
from gateway.simulated.stats import RequestRecord
from spawned import WAIT_S, started

contract()  # read the file while no loop is running

Profiles = Mapping[str, Mapping[str, object]]


@dataclass
class Site:
    """What runs.

    Attributes:
        port: of the gateway's public address.
        replicas: the simulated servers by name.
        gateway: its object graph, None where it is a process of its own.
        pid: of that process, else 0.
    """

    port: int
    replicas: dict[str, SimulatedServer] = field(default_factory=dict)
    gateway: Gateway | None = None
    pid: int = 0
    _events: list[Event] = field(default_factory=list)

    @property
    def events(self) -> list[Event]:
        """Every event of its core so far; of a process of its own none."""
        if self.gateway is not None:
            self.gateway.hub.flush()
        return self._events

    @property
    def url(self) -> str:
        """Base URL for an OpenAI client."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def reached(self) -> int:
        """Requests that the replicas have had together."""
        return sum(server.stats.requests for server in self.replicas.values())

    def record(self, headers: Mapping[str, str]) -> RequestRecord:
        """What the replica that won a request has recorded of it."""
        return self.replicas[headers["x-ttft-replica"]].stats.records[headers["x-upstream-request-id"]]

    def records(self) -> list[RequestRecord]:
        """Every request that any replica has had."""
        return [record for server in self.replicas.values() for record in server.stats.records.values()]

    async def until_idle(self) -> None:
        """Wait until no replica answers anything any more."""
        await until(lambda: not any(server.stats.in_flight for server in self.replicas.values()))


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(WAIT_S):
        while True:
            if holds():
                return
            await asyncio.sleep(0.002)


@contextlib.asynccontextmanager
async def serving(
    profiles: Profiles,
    *,
    fallback: Profiles | None = None,
    alike: bool = False,
    models: int = 1,
    process: bool = False,
    model: Mapping[str, object] | None = None,
    kind: str = "simulated",
    own: Mapping[str, Mapping[str, object]] = MappingProxyType({}),
    beside: Sequence[Mapping[str, object]] = (),
    **settings: object,
) -> AsyncIterator[Site]:
    """A gateway and its replicas while inside.

    Args:
        profiles: each replica's name and behaviour, in the form of `simulated_profile.KEYS`.
        fallback: the same for replicas that are used only when those have failed.
        alike: replicas draw the same and say the same to the same prompt.
        models, process, model, kind, own, beside, settings: see `fronting`.
    """
    every = {**profiles, **(fallback or {})}
    replicas = {
        name: SimulatedServer(parse_profile(profile), 0 if alike else number)
        for number, (name, profile) in enumerate(every.items())
    }
    async with contextlib.AsyncExitStack() as opened:
        for server in replicas.values():
            await server.start()
            opened.push_async_callback(server.close)
        pools = [{name: replicas[name].url for name in pool} for pool in (profiles, fallback) if pool]
        site = await opened.enter_async_context(
            fronting(*pools, models=models, process=process, model=model, kind=kind, own=own, beside=beside, **settings)
        )
        site.replicas = replicas
        yield site


@contextlib.asynccontextmanager
async def fronting(
    *pools: Mapping[str, str],
    models: int = 1,
    process: bool = False,
    model: Mapping[str, object] | None = None,
    kind: str = "simulated",
    own: Mapping[str, Mapping[str, object]] = MappingProxyType({}),
    beside: Sequence[Mapping[str, object]] = (),
    **settings: object,
) -> AsyncIterator[Site]:
    """A gateway while inside.

    Args:
        pools: base URLs of replicas by name; each mapping after the first is a fallback.
        models: 1: one model "m"; more: "m0", "m1", ... over the same replicas, each with a memory of its own.
        process: run the gateway as a process.
        model: settings of each model; without them broken streams stay so.
        kind: of the replicas.
        own: settings of single replicas, by name.
        beside: further models, as they would stand in a file.
        settings: top-level settings as they would stand in a file.
    """
    rows = [
        {"replicas": [{"name": name, "kind": kind, "base_url": url, **own.get(name, {})} for name, url in pool.items()]}
        for pool in pools
    ]
    names = ["m"] if models == 1 else [f"m{number}" for number in range(models)]
    config = {
        "listen": "127.0.0.1:0",
        "admin_listen": "off",
        **settings,
        "models": [
            *({"name": name, **rows[0], "fallbacks": rows[1:], **(model or {"recovery": "off"})} for name in names),
            *beside,
        ],
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "gateway.yaml"
        file.write_text(json.dumps(config), encoding="utf-8")
        async with _as_process(file) if process else _in_process(file) as site:
            yield site


@contextlib.asynccontextmanager
async def _in_process(file: Path) -> AsyncIterator[Site]:
    """As `gateway.server.process.run` does, without its signals and its patience."""
    settings = await asyncio.to_thread(load, file, {})
    async with asyncio.TaskGroup() as tasks:
        gateway = Gateway(settings, tasks, lambda: load(file, {}))
        await gateway.start_tokens()
        with await serve._bind(settings.listen, Inherited()) as sock:
            server = serve._public_server(gateway, sock, None)
            sweeping = tasks.create_task(serve.sweep(server, gateway))
            server.acceptor.start()
            site = Site(name_of(sock).port, gateway=gateway)
            gateway.hub.listeners.append(site._events.append)
            try:
                yield site
            finally:
                sweeping.cancel()
                await serve.end(gateway, server)


@contextlib.asynccontextmanager
async def _as_process(file: Path) -> AsyncIterator[Site]:
    async with started("serve", "--config", str(file)) as gateway:
        await gateway.ready(gateway.process.stderr)
        yield Site(gateway.port, pid=gateway.process.pid)
