"""Two gateways before one provider with an enforced quota: real processes, and a replica that answers 429 above it.

Units: seconds, requests.
"""

import asyncio
import contextlib
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any, Final, NamedTuple

import simulated_sockets
from redis_server import RedisServer, redis_server
from simulated_sockets import send
from spawned import Gateway, started, until
from worker_site import Site

PROVIDER_LIMIT: Final = 300  # requests a minute, and in one burst
PER_S: Final = 25.0  # offered to both gateways together: five times what the quota refills
FOR_S: Final = 40.0
_TTFT: Final = "20ms"
_KEY: Final = "sk-of-the-team-0123456789"


class Refusals(NamedTuple):
    """What the provider and the clients got.

    Attributes:
        limited: number of 429s of the provider.
        answered: number of requests that it has answered.
        allowed: number of requests that its quota allows.
        statuses: number of the clients' responses by status.
    """

    limited: int
    answered: int
    allowed: float
    statuses: Counter[int]


async def one_quota(
    folder: Path, *, shared: bool, headers: bool, part: float = 0.5, seed: int = 1, for_s: float = FOR_S
) -> Refusals:
    """Offer traffic to two gateways with one replica, which enforces the quota that both have configured.

    Args:
        folder: for the files of gateways and server.
        shared: True if the gateways share over a server.
        headers: True if each response states the limits.
        part: part of the traffic that the first gateway gets.
        seed: of the traffic.
        for_s: length.
    """
    provider = "openai" if headers else "vllm"
    async with contextlib.AsyncExitStack() as stack:
        replica = await stack.enter_async_context(
            simulated_sockets.serving(0, ttft=_TTFT, gap="1ms", provider=provider, requests_per_min=PROVIDER_LIMIT)
        )
        server = stack.enter_context(redis_server(folder)) if shared else None
        file = folder / "gateway.yaml"
        file.write_text(json.dumps(_settings(replica.url, server)), encoding="utf-8")
        sites = [await _started(stack, file) for _ in range(2)]
        if shared:

            async def each_counts_both() -> bool:
                return [await site.metric("ttft_gateway_share_processes") for site in sites] == [2, 2]

            await until(each_counts_both)
        statuses = await _offer([site.port for site in sites], part, random.Random(seed), for_s)
        stats = replica.stats
        answered = stats.streams
        return Refusals(stats.requests - answered, answered, PROVIDER_LIMIT * (1 + for_s / 60), statuses)


async def _started(stack: contextlib.AsyncExitStack, file: Path) -> Site:
    gateway: Gateway = await stack.enter_async_context(started("serve", "--config", str(file)))
    await gateway.ready(gateway.process.stderr, b"admin at ")
    admin = gateway.said.partition(b"admin at http://127.0.0.1:")[2].partition(b" ")[0]
    return Site(gateway, int(admin), file)


def _settings(url: str, server: RedisServer | None) -> dict[str, Any]:
    replica = {"name": "a", "kind": "simulated", "base_url": url, "quota": "q"}
    share = {} if server is None else {"share": {"url": f"redis://127.0.0.1:{server.port}"}}
    return {
        "listen": "127.0.0.1:0",
        "admin_listen": "127.0.0.1:0",
        "keys": [{"name": "team", "key": _KEY}],
        "models": [{"name": "m", "replicas": [replica]}],
        "quotas": [{"name": "q", "requests_per_min": PROVIDER_LIMIT, "enforce": True}],
        **share,
    }


async def _offer(ports: list[int], part: float, rand: random.Random, for_s: float) -> Counter[int]:
    loop, statuses = asyncio.get_running_loop(), Counter[int]()
    body = simulated_sockets.chat({"model": "m", "max_tokens": 2}, authorization=f"Bearer {_KEY}")

    async def ask(port: int) -> None:
        statuses[(await send(port, body)).status] += 1

    at_s = loop.time()
    end_s = at_s + for_s
    async with asyncio.TaskGroup() as clients:
        while (at_s := at_s + rand.expovariate(PER_S)) < end_s:
            await asyncio.sleep(at_s - loop.time())
            clients.create_task(ask(ports[rand.random() >= part]))
    return statuses
