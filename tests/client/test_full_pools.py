"""Requests in small connection pools: no backup waits for a connection, and a request with a failed primary ends."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from importlib import import_module
from typing import Any

import aiohttp
import httpx
import pytest

import client_fixtures
from aiohttp_client import CALL
from client_replicas import Replicas, whole
from ttft_gateway import HedgeConfig, HedgingSession, Stats

site = client_fixtures.shared_site

AT_ONCE = HedgeConfig(warmup_delay=0.0, min_delay=0.0, budget_percent=100.0)
TRANSPORTS = ("HedgingTransport", "HedgingTransport2", "AsyncHedgingTransport", "AsyncHedgingTransport2", "aiohttp")
WRAPPED = ("wrapped HedgingTransport", "wrapped AsyncHedgingTransport", "aiohttp AsyncHedgingTransport")
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


class _Wrapped(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """A transport that sends through another one, as of a program that retries, caches or traces.

    Attributes:
        asked: set when the policy has asked for a connection; a thread with a response waits for it.
    """

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.asked = threading.Event()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response: httpx.Response = self.inner.handle_request(request)
        self.asked.wait(60.0)
        return response

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response: httpx.Response = await self.inner.handle_async_request(request)
        return response

    def close(self) -> None:
        self.inner.close()

    async def aclose(self) -> None:
        await self.inner.aclose()


class _ByAiohttp(httpx.AsyncBaseTransport):
    """A transport that sends through a session of aiohttp, which it makes with its first request."""

    def __init__(self, connections: int) -> None:
        self.client: aiohttp.ClientSession | None = None
        self._connections = connections

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.client is None:
            connector = aiohttp.TCPConnector(limit=self._connections)
            self.client = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout())
        response = await self.client.request(request.method, str(request.url), data=request.content)
        kind = {"content-type": response.content_type}
        return httpx.Response(response.status, headers=kind, content=_pieces(response))

    async def aclose(self) -> None:
        assert self.client is not None
        await self.client.close()


async def _pieces(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    async with response:
        async for piece in response.content.iter_any():
            yield piece


def _ask(has_room: Callable[[], bool], asked: threading.Event) -> bool:
    asked.set()
    return has_room()


def _send(name: str, url: str, stats: Stats, connections: int) -> Received:
    """Send a request that is late immediately, without any time limit, in a pool with few connections."""
    if name == "aiohttp":
        return asyncio.run(_by_aiohttp(url, stats, connections))
    way, _, name = name.rpartition(" ")
    kind = "Async" if name.startswith("Async") else ""
    library = import_module("httpx2" if name.endswith("2") else "httpx")
    made: Any = getattr(import_module("ttft_gateway"), name)
    inner = getattr(library, f"{kind}HTTPTransport")(verify=False, limits=library.Limits(max_connections=connections))
    if way:
        inner = _Wrapped(inner if way == "wrapped" else _ByAiohttp(connections))
    transport = made(AT_ONCE, transport=inner, stats=stats)
    if way == "wrapped":
        transport.hedger.has_room = partial(_ask, transport.hedger.has_room, inner.asked)
    client = getattr(library, f"{kind}Client")(transport=transport, timeout=None)
    if not kind:
        with client:
            response = client.post(url, json=CALL)
            return response.status_code, response.content

    async def main() -> Received:
        async with client:
            answer = await client.post(url, json=CALL)
            return answer.status_code, answer.content

    return asyncio.run(main())


@pytest.mark.parametrize("name", [*TRANSPORTS, *WRAPPED])
def test_a_failed_primary_waits_for_no_backup_without_a_connection(name: str, site: Replicas) -> None:
    """A backup that waited for the primary's connection would keep the request for ever."""
    replica, stats = site.add("large_error", "hello", answers=ANSWERS), Stats()
    assert _send(name, f"{replica.url}/chat/completions", stats, 1) == (500, LARGE)
    counts = stats.snapshot()
    assert (len(replica.seen), counts.hedges, dict(counts.denied)) == (1, 0, {"no_replica": 1})


@pytest.mark.parametrize("name", [*TRANSPORTS, *WRAPPED])
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
