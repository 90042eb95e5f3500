"""Answers in which no content was found reach the caller as through the plain client, in each library."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple

import aiohttp
import httpx
import httpx2
import pytest

from aiohttp_client import CALL
from client_replicas import Replicas, ScriptedReplica, replicas
from ttft_gateway import (
    AsyncHedgingTransport,
    AsyncHedgingTransport2,
    HedgeConfig,
    HedgingSession,
    HedgingTransport,
    HedgingTransport2,
)

SHAPES = ("error_event", "no_content", "only_done", "pings", "plain", "packed_twice", "empty", "error_500")
NEVER = HedgeConfig(warmup_delay=3600.0)


class Received(NamedTuple):
    """A response as its caller sees it."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


@pytest.fixture
def site() -> Iterator[Replicas]:
    """Replicas that are stopped at the end."""
    with replicas() as running:
        yield running


async def _whole(response: aiohttp.ClientResponse) -> bytes:
    return await response.read()


async def _lines(response: aiohttp.ClientResponse) -> bytes:
    return b"".join([line async for line in response.content])


async def _pieces(response: aiohttp.ClientResponse) -> bytes:
    return b"".join([piece async for piece in response.content.iter_any()])


async def _chunks(response: aiohttp.ClientResponse) -> bytes:
    return b"".join([piece async for piece, _ in response.content.iter_chunks()])


@pytest.mark.parametrize("read", [_whole, _lines, _pieces, _chunks])
@pytest.mark.parametrize("shape", SHAPES)
def test_aiohttp_loses_no_byte(
    site: Replicas, shape: str, read: Callable[[aiohttp.ClientResponse], Awaitable[bytes]]
) -> None:
    """`HedgingSession` returns the bytes, the status and the headers that a `ClientSession` returns."""
    replica = site.add(shape)

    async def receive(session: aiohttp.ClientSession | HedgingSession) -> Received:
        async with session, session.post(f"{replica.url}/chat/completions", json=CALL) as response:
            return Received(response.status, list(response.headers.items()), await read(response))

    async def main() -> tuple[Received, Received]:
        return await receive(aiohttp.ClientSession()), await receive(HedgingSession(NEVER))

    plain, raced = asyncio.run(main())
    assert raced == plain
    assert raced.body or shape == "empty"


def _by_httpx(replica: ScriptedReplica, client: httpx.Client | httpx2.Client) -> Received:
    with client, client.stream("POST", f"{replica.url}/chat/completions", json=CALL) as response:
        return Received(response.status_code, response.headers.multi_items(), b"".join(response.iter_raw()))


async def _by_httpx_async(replica: ScriptedReplica, client: httpx.AsyncClient | httpx2.AsyncClient) -> Received:
    async with client, client.stream("POST", f"{replica.url}/chat/completions", json=CALL) as response:
        body = b"".join([piece async for piece in response.aiter_raw()])
        return Received(response.status_code, response.headers.multi_items(), body)


@pytest.mark.parametrize("shape", SHAPES)
def test_httpx_loses_no_byte(site: Replicas, shape: str) -> None:
    """The transports for httpx and httpx2 return the bytes, the status and the headers of the plain client."""
    replica = site.add(shape)
    plain = _by_httpx(replica, httpx.Client())
    assert plain.body or shape == "empty"
    assert _by_httpx(replica, httpx.Client(transport=HedgingTransport(NEVER))) == plain
    assert asyncio.run(_by_httpx_async(replica, httpx.AsyncClient(transport=AsyncHedgingTransport(NEVER)))) == plain
    second = httpx2.Client(transport=HedgingTransport2(NEVER))
    assert _by_httpx(replica, second) == plain
    third = httpx2.AsyncClient(transport=AsyncHedgingTransport2(NEVER))
    assert asyncio.run(_by_httpx_async(replica, third)) == plain
