"""What requests and connections to upstreams leave in memory at their end, without a search for garbage."""

import asyncio
import gc
import itertools
import json
import ssl
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import h2.connection
import httpcore
import pytest
import trustme

import gateway_fixture
from http2_server import Http2Server
from http_clients import client_of
from providers.transport.http1 import Connection
from providers.transport.tls import TlsTransport
from raw_http import CHAT, answer, request_bytes
from running import run_real
from scripted_http import ASK, Recorder, Script, answering, exchange, serving, until
from ttft_gateway.apis.errors import ConnectError, ConnectionCut

_KINDS = Connection, TlsTransport, httpcore.AsyncHTTP2Connection, h2.connection.H2Connection
_AUTHORITY = trustme.CA()
_TRUSTING = ssl.create_default_context()
_AUTHORITY.configure_trust(_TRUSTING)

Left = Callable[[], Counter[str]]


def _name(each: object) -> str:
    return type(each).__name__


@pytest.fixture
def left() -> Iterator[Left]:
    """A function that counts the objects of a client's connections, while nothing looks for garbage."""

    def count() -> Counter[str]:
        found = [each for each in gc.get_objects() if isinstance(each, _KINDS)]
        servers = (each for each in found if isinstance(each, h2.connection.H2Connection))
        return Counter(map(_name, found)) - Counter(_name(each) for each in servers if not each.config.client_side)

    gc.collect()
    gc.disable()
    yield count
    gc.enable()


def _server(*protocols: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _AUTHORITY.issue_cert("localhost").configure_cert(context)
    context.set_alpn_protocols(list(protocols))
    return context


def _http2(*, is_cut: bool) -> Script:
    """Return a server that sends the beginning of an answer, and then nothing or a reset."""
    server = Http2Server(endless=True)

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server.script(reader, writer))
            await until(lambda: server.sent > 0)
            if is_cut:
                writer.transport.abort()

    return script


def _http1(*, is_cut: bool) -> Script:
    begun = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhi"
    return answering(begun, then=(lambda writer: writer.transport.abort()) if is_cut else None)


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("kind", ["wire", "httpx"])
def test_an_answer_that_is_cancelled_or_cut_leaves_nothing(kind: str, left: Left, *, tls: bool, is_cut: bool) -> None:
    """Over HTTP/1.1 and HTTP/2, with TLS and without, no object of a connection refers to itself after its end."""

    async def main() -> None:
        http2 = kind == "httpx"
        listening = _server(*(["h2"] if http2 else [])) if tls else None
        script = (_http2 if http2 else _http1)(is_cut=is_cut)
        async with (
            serving(script, tls=listening) as server,
            client_of(kind, server, host="localhost", tls=_TRUSTING if tls else None, http2=http2) as client,
        ):
            sink = Recorder()
            stream = client.send(ASK, sink)
            await sink.first.wait()
            if is_cut:
                await sink.over.wait()
                assert isinstance(sink.error, ConnectionCut)
            stream.abort()
            await until(lambda: not client.connections)

    run_real(main())
    assert not left()


def test_a_failed_handshake_leaves_nothing(left: Left) -> None:
    """The error for a certificate that is not trusted is no part of its connection."""

    async def main() -> None:
        trusting_others = ssl.create_default_context()
        async with (
            serving(answering(), tls=_server()) as server,
            client_of("wire", server, host="localhost", tls=trusting_others) as client,
        ):
            assert isinstance((await exchange(client)).error, ConnectError)

    run_real(main())
    assert not left()


_CHAT: Mapping[str, object] = {"messages": [{"role": "user", "content": "hello"}]}
_BODIES: Mapping[str, Mapping[str, object]] = {
    CHAT: _CHAT,
    "/v1/completions": {"prompt": "hello"},
    "/v1/messages": {**_CHAT, "max_tokens": 9},
    "/v1/responses": {"input": "hello"},
}


@pytest.mark.parametrize("path", _BODIES)
def test_a_request_leaves_nothing(path: str) -> None:
    """Streamed or not, hedged, read to the end or not, with usage or not: no object of the gateway refers to itself."""

    async def ask(port: int) -> None:
        for stream, usage in itertools.product((True, False), ("off", "on")):
            body = json.dumps({"model": "m", "stream": stream, **_BODIES[path]}).encode()
            payload = request_bytes(body, path, headers={"x-ttft-usage": usage})
            async with answer(port, payload) as whole:
                assert whole.status == 200
                await whole.body()
            async with answer(port, payload):
                pass  # the client leaves

    async def main() -> list[str]:
        replicas = {name: {"ttft": "5ms", "tokens": 9, "gap": "1ms"} for name in "ab"}
        hedge = {"policy": "static", "delay": "1ms", "hedge_delay_min": "1ms", "budget": "100%"}
        async with gateway_fixture.serving(replicas, hedge=hedge) as site:
            await ask(site.port)
            gc.collect()
            await ask(site.port)
            await site.until_idle()
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            gc.set_debug(0)
            return [f"{type(each).__module__}.{_name(each)}" for each in gc.garbage]

    gc.disable()
    left = run_real(main())
    gc.garbage.clear()
    gc.enable()
    assert not [name for name in left if name.startswith(("gateway.api", "gateway.race", "providers", "ttft_gateway"))]
