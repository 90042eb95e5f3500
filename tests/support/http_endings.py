"""Callers of HTTP responses with any ending, through the plain clients and through the transports."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, NamedTuple

import aiohttp
import httpx
import httpx2

from client_replicas import Replicas
from response_endings import ANSWERS
from ttft_gateway import (
    AsyncHedgingTransport,
    AsyncHedgingTransport2,
    HedgeConfig,
    HedgingSession,
    HedgingTransport,
    HedgingTransport2,
)

_ALONE = HedgeConfig(warmup_delay=3600.0)
_RACED = HedgeConfig(warmup_delay=0.0, min_delay=0.0, budget_percent=100.0)
_CALL = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True}
_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # of all clients: making one takes longer than a request


class Received(NamedTuple):
    """A response as its caller gets it; `error` ended its body, or the request."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    history: int
    error: str


OnPiece = Callable[[bytes], object]
"""Called with each piece that a reader gets, and before the first one with nothing."""


def _gather(
    read: Iterable[bytes], status: int, headers: Any, history: int, errors: type[Exception], on_piece: OnPiece
) -> Received:
    found: list[bytes] = []
    error = ""
    on_piece(b"")
    try:
        for piece in read:  # those before an error count
            found.append(piece)
            on_piece(piece)
    except errors as raised:
        error = f"{type(raised).__name__}: {raised}"
    return Received(status, list(headers), b"".join(found), history, error)


async def _gather_async(
    read: AsyncIterator[bytes], status: int, headers: Any, history: int, errors: type[Exception], on_piece: OnPiece
) -> Received:
    found: list[bytes] = []
    error = ""
    on_piece(b"")
    try:
        async for piece in read:
            found.append(piece)
            on_piece(piece)
    except errors as raised:
        error = f"{type(raised).__name__}: {raised}"
    return Received(status, list(headers), b"".join(found), history, error)


Send = Callable[[str, str, HedgeConfig | None], Received]
"""Sends a request to an address and reads it one way, through the plain client or through a transport."""
METHODS = ("POST", "GET")
READS = ("whole", "raw", "lines")


def _by_httpx(library: Any, made: Callable[..., Any], read: str, on_piece: OnPiece) -> Send:
    def send(method: str, url: str, config: HedgeConfig | None) -> Received:
        inner = library.HTTPTransport(verify=_TLS)
        transport = inner if config is None else made(config, transport=inner)
        options = {"json": _CALL} if method == "POST" else {}
        with library.Client(transport=transport, follow_redirects=True, timeout=30.0) as client:
            try:
                with client.stream(method, url, **options) as response:
                    if read == "whole":
                        pieces: Iterable[bytes] = (response.read() for _ in range(1))
                    elif read == "raw":
                        pieces = response.iter_raw()
                    else:
                        pieces = (line.encode() + b"\n" for line in response.iter_lines())
                    shown = response.headers.multi_items()
                    return _gather(pieces, response.status_code, shown, len(response.history), Exception, on_piece)
            except library.HTTPError as error:
                return Received(0, [], b"", 0, type(error).__name__)

    return send


def _by_async_httpx(library: Any, made: Callable[..., Any], read: str, on_piece: OnPiece) -> Send:
    async def whole(response: Any) -> AsyncIterator[bytes]:
        yield await response.aread()

    async def lines(response: Any) -> AsyncIterator[bytes]:
        async for line in response.aiter_lines():
            yield line.encode() + b"\n"

    async def main(method: str, url: str, config: HedgeConfig | None) -> Received:
        inner = library.AsyncHTTPTransport(verify=_TLS)
        transport = inner if config is None else made(config, transport=inner)
        options = {"json": _CALL} if method == "POST" else {}
        async with library.AsyncClient(transport=transport, follow_redirects=True, timeout=30.0) as client:
            try:
                async with client.stream(method, url, **options) as response:
                    ways: dict[str, Any] = {"whole": whole, "raw": lambda given: given.aiter_raw(), "lines": lines}
                    shown = response.headers.multi_items()
                    return await _gather_async(
                        ways[read](response), response.status_code, shown, len(response.history), Exception, on_piece
                    )
            except library.HTTPError as error:
                return Received(0, [], b"", 0, type(error).__name__)

    return lambda method, url, config: asyncio.run(main(method, url, config))


def _by_aiohttp(read: str, on_piece: OnPiece) -> Send:
    async def whole(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        yield await response.read()

    async def lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        async for line in response.content:
            yield line

    ways: dict[str, Callable[[aiohttp.ClientResponse], AsyncIterator[bytes]]] = {
        "whole": whole,
        "raw": lambda response: response.content.iter_any(),
        "lines": lines,
    }

    async def main(method: str, url: str, config: HedgeConfig | None) -> Received:
        session: Any = aiohttp.ClientSession() if config is None else HedgingSession(config)
        options = {"json": _CALL} if method == "POST" else {}
        async with session:
            try:
                async with session.request(method, url, **options) as response:
                    shown = response.headers.items()
                    return await _gather_async(
                        ways[read](response), response.status, shown, len(response.history), Exception, on_piece
                    )
            except aiohttp.ClientError as error:
                return Received(0, [], b"", 0, type(error).__name__)

    return lambda method, url, config: asyncio.run(main(method, url, config))


TRANSPORTS: dict[str, Callable[[str, OnPiece], Send]] = {
    "httpx": lambda read, on_piece: _by_httpx(httpx, HedgingTransport, read, on_piece),
    "httpx async": lambda read, on_piece: _by_async_httpx(httpx, AsyncHedgingTransport, read, on_piece),
    "httpx2": lambda read, on_piece: _by_httpx(httpx2, HedgingTransport2, read, on_piece),
    "httpx2 async": lambda read, on_piece: _by_async_httpx(httpx2, AsyncHedgingTransport2, read, on_piece),
    "aiohttp": _by_aiohttp,
}


def differences(site: Replicas, transport: str, ending: str, ways: Iterable[tuple[str, str]]) -> list[tuple[str, ...]]:
    """Return the methods and ways to read for which a response differs from the plain client's, raced or alone."""
    found: list[tuple[str, ...]] = []
    for method, read in ways:
        send = TRANSPORTS[transport](read, len)
        plain, alone = (site.add(ending, answers=ANSWERS) for _ in range(2))
        raced = site.add(f"late:{ending}", ending, answers=ANSWERS)
        received = [
            _anywhere(send(method, f"{replica.url}/chat/completions", config), replica.port)
            for replica, config in ((plain, None), (alone, _ALONE), (raced, _RACED))
        ]
        found += [
            (method, read, how) for how, got in zip(("alone", "raced"), received[1:], strict=True) if got != received[0]
        ]
    return found


def _anywhere(received: Received, port: int) -> Received:
    return received._replace(error=received.error.replace(str(port), "PORT"))
