"""Endings of HTTP responses, and what callers get of them through the plain clients and through the transports."""

import asyncio
import gzip
import ssl
import zlib
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, NamedTuple

import aiohttp
import httpx
import httpx2

from client_replicas import FINISH, ROLE, Answer, Replicas, chunk, delta, event
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
_TEXT, _EVENTS = b"content-type: text/plain\r\n", b"content-type: text/event-stream\r\n"
_CHUNKED = b"transfer-encoding: chunked\r\n"
_CONTENT = (ROLE, delta(content="Hel"), delta(content="lo"), FINISH)
_ERROR = event({"error": {"message": "overloaded", "type": "server_error"}})


def _head(status: bytes, *headers: bytes) -> bytes:
    return b"HTTP/1.1 " + status + b"\r\n" + b"".join(headers) + b"\r\n"


def _sized(status: bytes, body: bytes, *headers: bytes) -> bytes:
    return _head(status, b"content-length: %d\r\n" % len(body), *headers) + body


def _stream(*pieces: bytes, headers: bytes = _EVENTS, end: bytes = b"0\r\n\r\n") -> bytes:
    return _head(b"200 OK", headers, _CHUNKED) + b"".join(map(chunk, pieces)) + end


def _packed(kind: int, name: bytes) -> bytes:
    pack = zlib.compressobj(wbits=kind)
    data = b"".join(pack.compress(piece) + pack.flush(zlib.Z_SYNC_FLUSH) for piece in _CONTENT) + pack.flush()
    return _stream(data[:50], data[50:], headers=_EVENTS + b"content-encoding: %b\r\n" % name)


ENDINGS: dict[str, bytes] = {
    "content": _stream(*_CONTENT),
    "content in one piece": _stream(b"".join(_CONTENT)),
    "content in bytes": _stream(*(b"".join(_CONTENT)[at : at + 1] for at in range(40)), b"".join(_CONTENT)[40:]),
    "CR LF": _stream(*(piece.replace(b"\n", b"\r\n") for piece in _CONTENT)),
    "no last blank line": _stream(ROLE, delta(content="Hello").rstrip(b"\n")),
    "large": _stream(ROLE, delta(content="x" * 300_000), FINISH),
    "large without content": _stream(*[b": " + b"p" * 10_000 + b"\n\n"] * 40),
    "error event": _stream(_ERROR, b"data: [DONE]\n\n"),
    "error event after the role": _stream(ROLE, _ERROR),
    "no content": _stream(ROLE, FINISH),
    "empty stream": _stream(),
    "pings": _stream(b": ping\n\n", b": ping\n\n"),
    "plain text": _sized(b"200 OK", b"hello", _TEXT),
    "empty body": _sized(b"200 OK", b"", _TEXT),
    "json": _sized(b"200 OK", b'{"a": 1}', b"content-type: application/json\r\n"),
    "gzip": _packed(31, b"gzip"),
    "zlib": _packed(15, b"deflate"),
    "raw deflate": _packed(-15, b"deflate"),
    "gzip of text": _sized(b"200 OK", gzip.compress(b"hello"), _TEXT, b"content-encoding: gzip\r\n"),
    "no gzip": _sized(b"200 OK", b"hello", _TEXT, b"content-encoding: gzip\r\n"),
    "unknown coding": _stream(*_CONTENT, headers=_EVENTS + b"content-encoding: x-odd\r\n"),
    "redirect": _sized(b"302 Found", b"moved", b"location: /v1/there\r\n"),
    "307": _sized(b"307 Temporary Redirect", b"moved", b"location: /v1/there\r\n"),
    "redirect to nowhere": _sized(b"302 Found", b"moved", _TEXT),
    "early hints": _head(b"103 Early Hints", b"link: </a>\r\n") + _stream(*_CONTENT),
    "continue": _head(b"100 Continue") + _sized(b"200 OK", b"hello", _TEXT),
    "204": _head(b"204 No Content"),
    "304": _head(b"304 Not Modified", b'etag: "1"\r\n'),
    "400": _sized(b"400 Bad Request", b'{"error": {"message": "wrong"}}', b"content-type: application/json\r\n"),
    "404": _sized(b"404 Not Found", b"none", _TEXT),
    "429": _sized(b"429 Too Many Requests", b"slow down", b"retry-after: 1\r\n"),
    "500": _sized(b"500 Internal Server Error", b"broken", _TEXT),
    "503 in chunks": _head(b"503 Service Unavailable", _CHUNKED) + chunk(b"broken") + b"0\r\n\r\n",
    "trailers": _stream(*_CONTENT, end=b"0\r\nx-sum: 1\r\n\r\n"),
    "same header twice": _sized(b"200 OK", b"hello", b"set-cookie: a=1\r\n", b"Set-Cookie: b=2\r\n"),
    "until close": _head(b"200 OK", _EVENTS, b"connection: close\r\n") + b"".join(_CONTENT) + b"!",
    "cut before an event": _stream(end=b""),
    "cut before content": _stream(ROLE, end=b""),
    "cut after content": _stream(ROLE, delta(content="Hel"), end=b""),
    "cut in a chunk": _head(b"200 OK", _EVENTS, _CHUNKED) + chunk(ROLE) + b"400\r\ndata: {",
    "too short": _head(b"200 OK", b"content-length: 10\r\n", _TEXT) + b"hel",
    "broken chunk": _head(b"200 OK", _EVENTS, _CHUNKED) + chunk(ROLE) + b"zz\r\n",
    "no response": b"",
    "no HTTP": b"SSH-2.0-server\r\n\r\n",
    "half a head": b"HTTP/1.1 200 OK\r\ncontent-le",
}
"""Bytes of a response. After each but those in `_OPEN`, the connection is closed."""

_OPEN = {name for name in ENDINGS if not name.startswith(("cut", "too", "broken", "no ", "half", "until"))}


def _answering(name: str) -> Answer:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _headers: bytes) -> None:
        writer.write(ENDINGS[name])
        if name not in _OPEN or name in ("no content", "no last blank line", "no gzip"):
            await writer.drain()
            raise ConnectionError

    return answer


ANSWERS = {name: _answering(name) for name in ENDINGS}


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
