"""Requests in small connection pools: no backup waits for a connection, and a request with a failed primary ends."""

import asyncio
from importlib import import_module
from typing import Any

import aiohttp
import pytest

import client_fixtures
from aiohttp_client import CALL
from client_replicas import Replicas, whole
from ttft_gateway import HedgeConfig, HedgingSession, Stats

site = client_fixtures.shared_site

AT_ONCE = HedgeConfig(warmup_delay=0.0, min_delay=0.0, budget_percent=100.0)
TRANSPORTS = ("HedgingTransport", "HedgingTransport2", "AsyncHedgingTransport", "AsyncHedgingTransport2", "aiohttp")
LARGE = b"broken" * 100_000
ANSWERS = {"large_error": whole(b"500 Internal Server Error", LARGE), "hello": whole(b"200 OK", b"hello")}

Received = tuple[int, bytes]
"""Status and body."""


async def _by_aiohttp(url: str, stats: Stats, limit: int, host_limit: int = 0) -> Received:
    connector = aiohttp.TCPConnector(limit=limit, limit_per_host=host_limit)
    async with (
        HedgingSession(AT_ONCE, stats=stats, connector=connector, timeout=None) as session,
        session.post(url, json=CALL) as response,
    ):
        return response.status, await response.read()


def _send(name: str, url: str, stats: Stats, connections: int) -> Received:
    """Send a request that is late immediately, without any time limit, in a pool with few connections."""
    if name == "aiohttp":
        return asyncio.run(_by_aiohttp(url, stats, connections))
    kind = "Async" if name.startswith("Async") else ""
    library = import_module("httpx2" if name.endswith("2") else "httpx")
    made: Any = getattr(import_module("ttft_gateway"), name)
    inner = getattr(library, f"{kind}HTTPTransport")(verify=False, limits=library.Limits(max_connections=connections))
    client = getattr(library, f"{kind}Client")(transport=made(AT_ONCE, transport=inner, stats=stats), timeout=None)
    if not kind:
        with client:
            response = client.post(url, json=CALL)
            return response.status_code, response.content

    async def main() -> Received:
        async with client:
            answer = await client.post(url, json=CALL)
            return answer.status_code, answer.content

    return asyncio.run(main())


@pytest.mark.parametrize("name", TRANSPORTS)
def test_a_failed_primary_waits_for_no_backup_without_a_connection(name: str, site: Replicas) -> None:
    """A backup that waited for the primary's connection would keep the request for ever."""
    replica, stats = site.add("large_error", "hello", answers=ANSWERS), Stats()
    assert _send(name, f"{replica.url}/chat/completions", stats, 1) == (500, LARGE)
    counts = stats.snapshot()
    assert (len(replica.seen), counts.hedges, dict(counts.denied)) == (1, 0, {"no_replica": 1})


@pytest.mark.parametrize("name", TRANSPORTS)
def test_a_backup_is_sent_where_a_connection_is_free(name: str, site: Replicas) -> None:
    """A pool with two connections has one for the backup."""
    replica, stats = site.add("late:large_error", "hello", answers=ANSWERS), Stats()
    assert _send(name, f"{replica.url}/chat/completions", stats, 2) == (200, b"hello")
    assert stats.snapshot().hedges == 1


def test_the_connections_to_one_host_may_be_limited(site: Replicas) -> None:
    """The limit of aiohttp for each host counts, too."""
    replica, stats = site.add("large_error", "hello", answers=ANSWERS), Stats()
    url = f"{replica.url}/chat/completions"
    assert asyncio.run(_by_aiohttp(url, stats, 100, 1)) == (500, LARGE)
    assert stats.snapshot().hedges == 0
