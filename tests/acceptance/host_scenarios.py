"""Gateways before one Redis server, with one limit of a key and one quota of a provider: in outages, and on busy cores.

Real processes and sockets. Units: seconds.
"""

import asyncio
import contextlib
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any, Final, NamedTuple

import simulated_sockets
from leased_fleet import Meter
from redis_server import RedisServer, redis_server
from simulated_sockets import read_response
from spawned import spawn, started, until
from worker_site import Site

HOST_LIMIT: Final = 1200  # a minute, of the key, and of the provider
HOST_TROUBLES: Final = ("none", "killed", "hung")
WORKERS: Final = 2
_CLIENTS: Final = 8  # of each host and kind
_KEYS: Final = {"limited": "sk-limited-0123456789abcdef", "plain": "sk-plain-0123456789abcdef0"}
_MODELS: Final = {"limited": "m", "plain": "q"}


class HostsSeen(NamedTuple):
    """What came of the limits.

    Attributes:
        over: deepest debt of one true bucket that is charged for all that was admitted with the key.
        admitted: part of what such a bucket allows.
        provider_429s: 429s of the provider with the shared quota.
        quota_used: part of what the provider allows.
        wait_s: longest time of a response to an admitted request with the key.
        errors: number of responses with another status than 200 and 429.
        back_s: time after the trouble until all processes are answered again.
    """

    over: float
    admitted: float
    provider_429s: int
    quota_used: float
    wait_s: float
    errors: int
    back_s: float


class BusySeen(NamedTuple):
    """What gateways made of the replies that reached them late, because other processes had the cores.

    Attributes:
        aways: times at which a gateway found the server to be away.
        refused: number of 429s at half of what is allowed.
        errors: number of responses with another status than 200 and 429.
        load: processes that were ready to run at the end, on average over a minute.
    """

    aways: float
    refused: int
    errors: int
    load: float


def shared_config(urls: dict[str, str], server: RedisServer, limit: int, workers: int = WORKERS) -> dict[str, Any]:
    """Return the configuration of every host."""
    replica = {"kind": "simulated"}
    return {
        "listen": "127.0.0.1:0",
        "admin_listen": "127.0.0.1:0",
        "workers": workers,
        "share": {"url": f"redis://127.0.0.1:{server.port}", "fleet": "hosts"},
        "keys": [
            {"name": "limited", "key": _KEYS["limited"], "requests_per_min": limit},
            {"name": "plain", "key": _KEYS["plain"]},
        ],
        "quotas": [{"name": "provider", "requests_per_min": limit, "enforce": True}],
        "models": [
            {"name": "m", "replicas": [{"name": "a", "base_url": urls["m"], **replica}]},
            {"name": "q", "replicas": [{"name": "b", "base_url": urls["q"], "quota": "provider", **replica}]},
        ],
    }


async def host(stack: contextlib.AsyncExitStack, file: Path) -> Site:
    """Start a gateway, and return when it is ready."""
    gateway = await stack.enter_async_context(started("serve", "--config", str(file)))
    await gateway.ready(gateway.process.stderr, b"admin at ")
    admin = gateway.said.partition(b"admin at http://127.0.0.1:")[2].partition(b" ")[0]
    return Site(gateway, int(admin), file)


async def all_count_all(sites: list[Site], processes: int) -> None:
    """Wait until every process counts all processes."""

    async def count() -> bool:  # metric: the worker that counts most; part: the worker with the least
        shares = [await site.get("/admin/share") for site in sites]
        return all(share["processes"] == processes and share["away_part"] == 0.9 / processes for share in shares)

    await until(count)


async def _all_are_answered(sites: list[Site]) -> None:
    async def are_answered() -> bool:
        return all([await site.metric("ttft_gateway_share_up") for site in sites])

    await until(are_answered)


class Traffic:
    """Requests at a steady rate over kept-alive connections.

    Attributes:
        statuses: number of responses by kind and status.
        waits: times of the responses with status 200 to the limited key.
    """

    def __init__(self, sites: list[Site], limit: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._ports = [site.port for site in sites]
        self.meter = Meter(limit, self._loop.time())
        self.statuses = {kind: Counter[int]() for kind in _KEYS}
        self.waits: list[float] = []

    async def offer(self, per_s: float, for_s: float) -> None:
        """Offer each kind this many requests a second."""
        clients = len(self._ports) * _CLIENTS
        async with asyncio.TaskGroup() as tasks:
            for kind in _KEYS:
                for number in range(clients):
                    port = self._ports[number % len(self._ports)]
                    tasks.create_task(self._client(kind, port, number / clients, clients / per_s, for_s))

    async def _client(self, kind: str, port: int, place: float, every_s: float, for_s: float) -> None:
        body = json.dumps({"model": _MODELS[kind], "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1})
        key = f"Bearer {_KEYS[kind]}"
        request = simulated_sockets.request_of("POST", "/v1/chat/completions", body.encode(), authorization=key)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        at_s = self._loop.time() + place * every_s
        end_s = self._loop.time() + for_s
        while at_s < end_s:
            await asyncio.sleep(max(0.0, at_s - self._loop.time()))
            sent_s = self._loop.time()
            writer.write(request)
            response = await read_response(reader)
            now_s = self._loop.time()
            self.statuses[kind][response.status] += 1
            if response.status == 200 and kind == "limited":  # the other kind may wait for the quota
                self.waits.append(now_s - sent_s)
                self.meter.charge(now_s)
            at_s += every_s
        writer.close()


async def two_hosts(folder: Path, trouble: str, limit: int = HOST_LIMIT, part_s: float = 5.0) -> HostsSeen:
    """Offer twice both limits, before, during and after a trouble of the server.

    Args:
        folder: for files.
        trouble: one of HOST_TROUBLES.
        limit: requests a minute.
        part_s: time before, during and after the trouble.
    """
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        server = stack.enter_context(redis_server(folder))
        free = await stack.enter_async_context(simulated_sockets.serving(0, ttft="1ms"))
        bound = await stack.enter_async_context(simulated_sockets.serving(0, ttft="1ms", requests_per_min=limit))
        file = folder / "gateway.yaml"
        file.write_text(json.dumps(shared_config({"m": free.url, "q": bound.url}, server, limit)), encoding="utf-8")
        sites = list(await asyncio.gather(host(stack, file), host(stack, file)))
        await all_count_all(sites, 2 * WORKERS)
        traffic = Traffic(sites, limit)
        burst_s = 0.6 * part_s
        await traffic.offer(1.2 * limit / burst_s, burst_s)  # both limits are used up
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(traffic.offer(2 * limit / 60, 3 * part_s))
            await asyncio.sleep(part_s)
            _begin(trouble, server)
            await asyncio.sleep(part_s)
            _end(trouble, server)
            ended_s = loop.time()
            await _all_are_answered(sites)
            back_s = loop.time() - ended_s
        now_s = loop.time()
        answers = [await site.text("/metrics") for site in sites]
    refused = sum(_rate_limited(text) for text in answers)
    allowed = traffic.meter.allowed(now_s)
    statuses = traffic.statuses["limited"] + traffic.statuses["plain"]
    errors = sum(count for status, count in statuses.items() if status not in (200, 429))
    used = traffic.statuses["plain"][200] / allowed
    admitted = traffic.statuses["limited"][200] / allowed
    return HostsSeen(traffic.meter.over, admitted, refused, used, max(traffic.waits), errors, back_s)


async def busy_hosts(folder: Path, hosts: int, spinning: int, limit: int = HOST_LIMIT, for_s: float = 60.0) -> BusySeen:
    """Offer half of both limits to gateways of one worker, while other processes spin on all cores."""
    async with contextlib.AsyncExitStack() as stack:
        server = stack.enter_context(redis_server(folder))
        replica = await stack.enter_async_context(simulated_sockets.serving(0, ttft="1ms"))
        file = folder / "gateway.yaml"
        config = shared_config({"m": replica.url, "q": replica.url}, server, limit, workers=1)
        file.write_text(json.dumps(config), encoding="utf-8")
        sites = [await host(stack, file) for _ in range(hosts)]
        await all_count_all(sites, hosts)
        traffic = Traffic(sites, limit)
        before = await _aways(sites)
        for _ in range(spinning):
            stack.callback((await spawn("-c", "while True: pass")).kill)
        await traffic.offer(limit / 60 / 2, for_s)
        load = os.getloadavg()[0]
        aways = await _aways(sites) - before
    statuses = traffic.statuses["limited"] + traffic.statuses["plain"]
    errors = sum(count for status, count in statuses.items() if status not in (200, 429))
    return BusySeen(aways, statuses[429], errors, load)


async def _aways(sites: list[Site]) -> float:
    return sum([await site.metric("ttft_gateway_share_away_total") for site in sites])


def _rate_limited(metrics: str) -> int:
    rows = [row for row in metrics.splitlines() if row.startswith("ttft_gateway_attempts_total{")]
    return round(sum(float(row.rpartition(" ")[2]) for row in rows if 'outcome="rate_limited"' in row))


def _begin(trouble: str, server: RedisServer) -> None:
    if trouble == "killed":
        server.kill()
    elif trouble == "hung":
        server.hang()


def _end(trouble: str, server: RedisServer) -> None:
    if trouble == "killed":
        server.start()
    elif trouble == "hung":
        server.go_on()
