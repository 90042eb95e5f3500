"""What only the general client does: HTTP/2 and proxies, on real sockets."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trustme

from http2_server import Http2Server, goaway
from providers.transport.httpx_client import HttpxClient
from providers.transport.origin import Origin
from running import run_real
from scripted_http import ASK, OK, Recorder, Server, answering, exchange, serving, until
from ttft_gateway.apis.base import Request
from ttft_gateway.apis.errors import ConnectError, ConnectionCut, UpstreamError

POST = Request(
    b"POST /v1/chat?api-version=1 HTTP/1.1\r\nhost: up.example\r\nx-team: a\r\ncontent-length: 2\r\n\r\n", b"{}"
)


@contextlib.asynccontextmanager
async def client_of(server: Server, **origin: Any) -> AsyncIterator[HttpxClient]:
    """A client of that server, closed at the end."""
    async with asyncio.TaskGroup() as tasks:
        client = HttpxClient(Origin(**{"host": "127.0.0.1", "port": server.port, **origin}), tasks)
        yield client
        client.close()


def _tls(name: str, *protocols: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's context and one that trusts it."""
    authority = trustme.CA()
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert(name).configure_cert(server)
    authority.configure_trust(client)
    if protocols:
        server.set_alpn_protocols(list(protocols))
    return server, client


@pytest.mark.parametrize("encrypted", [False, True])
def test_http2_answers_and_keeps_its_connection(*, encrypted: bool) -> None:
    """With prior knowledge or agreed on in TLS: request and answer are whole, and the connection is used again."""

    async def main() -> None:
        upstream = Http2Server(pieces=(b"ab", b"cde"))
        listening, trusting = _tls("localhost", "h2") if encrypted else (None, None)
        async with (
            serving(upstream.script, tls=listening) as server,
            client_of(server, host="localhost", tls=trusting, http2=True) as client,
        ):
            for _ in range(3):
                sink = await exchange(client, POST)
                assert (sink.status, sink.body, sink.error) == (200, b"abcde", None)
                assert (b"x-case", b"mixed") in sink.headers
            assert (server.accepted, client.connections) == (1, 1)
            headers, body = upstream.requests[0]
            assert body == b"{}"
            wanted = {b":method": b"POST", b":path": b"/v1/chat?api-version=1", b":authority": b"up.example"}
            assert headers.items() >= {**wanted, b"x-team": b"a"}.items()

    run_real(main())


def test_without_agreement_it_is_http_1() -> None:
    """A TLS server that does not speak HTTP/2 is asked as ever."""

    async def main() -> None:
        listening, trusting = _tls("localhost")
        async with (
            serving(answering(OK), tls=listening) as server,
            client_of(server, host="localhost", tls=trusting, http2=True) as client,
        ):
            assert (await exchange(client)).body == b"hi"
            assert client.connections == 0

    run_real(main())


def test_an_http2_answer_that_is_not_whole_is_a_cut() -> None:
    """A stream that the server resets has no clean end."""

    async def main() -> None:
        async with serving(Http2Server(reset=True).script) as server, client_of(server, http2=True) as client:
            sink = await exchange(client)
            assert isinstance(sink.error, ConnectionCut)
            assert client.connections == 0

    run_real(main())


@pytest.mark.parametrize("encrypted", [False, True])
def test_an_http2_answer_ends_after_the_server_has_announced_its_own_end(*, encrypted: bool) -> None:
    """A GOAWAY that permits the stream cuts nothing; the next request has another connection."""

    async def main() -> None:
        upstream = Http2Server(pieces=(b"ab", b"cde"), goaway=goaway(1))
        listening, trusting = _tls("localhost", "h2") if encrypted else (None, None)
        async with (
            serving(upstream.script, tls=listening) as server,
            client_of(server, host="localhost", tls=trusting, http2=True) as client,
        ):
            for _ in range(2):
                sink = await exchange(client, POST)
                assert (sink.status, sink.body, sink.error) == (200, b"abcde", None)
                upstream.sent = 0
            assert (server.accepted, client.connections) == (2, 0)

    run_real(main())


def test_an_http2_request_that_the_server_does_not_process_fails() -> None:
    """A GOAWAY that does not permit the stream, or has an error, is the end."""

    async def main() -> None:
        for frame in (goaway(0), goaway(1, 11)):
            upstream = Http2Server(goaway=frame)
            async with serving(upstream.script) as server, client_of(server, http2=True) as client:
                assert isinstance((await exchange(client)).error, UpstreamError)

    run_real(main())


def test_aborting_an_http2_answer_closes_its_connection() -> None:
    """The server sees the end immediately, and another request's answer goes on."""

    async def main() -> None:
        async with serving(Http2Server(endless=True).script) as server, client_of(server, http2=True) as client:
            left, stays = Recorder(), Recorder()
            streams = [client.send(ASK, left), client.send(ASK, stays)]
            await left.first.wait()
            await stays.first.wait()
            streams[0].abort()
            await server.gone.wait()
            await until(lambda: client.connections == 1)
            assert (left.closes, stays.closes) == (0, 0)
            streams[1].abort()

    run_real(main())


def test_a_paused_http2_answer_stops_its_server_and_no_other() -> None:
    """What is buffered for a slow client has a bound, and others are not held up."""
    size = 60_000_000

    async def main() -> None:
        upstream = Http2Server(pieces=(bytes(size),))
        async with (
            serving(upstream.script, Http2Server().script) as server,
            client_of(server, http2=True) as client,
        ):
            slow = Recorder()
            stream = client.send(ASK, slow)
            await slow.first.wait()
            stream.pause()
            assert (await exchange(client)).body == b"hi"
            await asyncio.sleep(0.1)
            assert upstream.sent < size - 20_000_000
            assert len(slow.body) < 10_000_000
            stream.abort()

    run_real(main())


def test_many_small_frames_do_not_hold_the_event_loop() -> None:
    """Whatever a server sends at once, the loop turns after each 500 pings."""
    pings = (bytes.fromhex("000008060000000000") + bytes(8)) * 10_000
    turns = 0

    def turn() -> None:
        nonlocal turns
        turns += 1
        asyncio.get_running_loop().call_soon(turn)

    async def main() -> None:
        upstream = Http2Server(goaway=pings)
        async with serving(upstream.script) as server, client_of(server, http2=True) as client:
            stream = client.send(ASK, sink := Recorder())
            await until(lambda: bool(upstream.sent))
            turn()
            await sink.over.wait()
            assert (sink.body, sink.error) == (b"hi", None)
            stream.abort()

    run_real(main())
    assert turns > 70  # several for each read; 39 for reads of 64 kB


def test_a_kept_http2_connection_that_died_is_replaced_unseen() -> None:
    """A request on a connection that the server has closed since is sent once more, on a new one."""

    async def main() -> None:
        answered = asyncio.Event()

        async def short(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            async with asyncio.TaskGroup() as tasks:
                serving = tasks.create_task(Http2Server().script(reader, writer))
                await answered.wait()
                serving.cancel()

        async with serving(short, Http2Server().script) as server, client_of(server, http2=True) as client:
            assert (await exchange(client)).body == b"hi"
            answered.set()
            await server.gone.wait()
            await asyncio.sleep(0.02)
            assert (await exchange(client)).body == b"hi"
            assert server.accepted == 2

    run_real(main())


async def _forwarding(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: list[bytes]) -> None:
    """A proxy for one connection: CONNECT is a tunnel, anything else is answered here."""
    head = await reader.readuntil(b"\r\n\r\n")
    asked.append(head)
    if not head.startswith(b"CONNECT "):
        await reader.readexactly(2)
        writer.write(OK)
        await writer.drain()
        await reader.read()
        return
    host, _, port = head.split(b" ")[1].decode().rpartition(":")
    up_reader, up_writer = await asyncio.open_connection(host, int(port))
    writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")

    async def pipe(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
        sink.close()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(pipe(reader, up_writer))
        tasks.create_task(pipe(up_reader, writer))


def test_a_plain_request_goes_to_the_proxy_with_its_whole_address() -> None:
    """An http:// upstream is asked through the proxy, which learns the user and password of its URL."""

    async def main() -> None:
        asked: list[bytes] = []
        async with serving(lambda reader, writer: _forwarding(reader, writer, asked)) as proxy:
            url = f"http://user:word@127.0.0.1:{proxy.port}"
            async with client_of(proxy, host="up.example", port=8000, proxy=url) as client:
                assert (await exchange(client, POST)).body == b"hi"
                assert "word" not in repr(client._origin)
        assert asked[0].startswith(b"POST http://up.example:8000/v1/chat?api-version=1 HTTP/1.1\r\n")
        assert b"proxy-authorization: basic dxnlcjp3b3jk\r\n" in asked[0].lower()

    run_real(main())


@pytest.mark.parametrize("http2", [False, True])
def test_an_encrypted_request_goes_through_a_tunnel(*, http2: bool) -> None:
    """An https:// upstream is asked in a tunnel: the proxy sees its name and nothing of what is said."""

    async def main() -> None:
        asked: list[bytes] = []
        listening, trusting = _tls("localhost", "h2", "http/1.1")
        upstream = Http2Server().script if http2 else answering(OK)
        async with (
            serving(upstream, tls=listening) as server,
            serving(lambda reader, writer: _forwarding(reader, writer, asked)) as proxy,
            client_of(
                server, host="localhost", tls=trusting, http2=http2, proxy=f"http://127.0.0.1:{proxy.port}"
            ) as client,
        ):
            assert (await exchange(client, POST)).body == b"hi"
            assert asked[0].startswith(b"CONNECT localhost:%d " % server.port)
            assert b"x-team" not in asked[0]

    run_real(main())


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_proxy_that_refuses_is_no_connection(*, encrypted: bool) -> None:
    """Its 407 is about the gateway's settings, never an answer to the caller."""

    async def main() -> None:
        refusing = answering(b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n")

        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if not encrypted:
                await refusing(reader, writer)
                return
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            await reader.read()

        _, trusting = _tls("localhost")
        async with (
            serving(script) as proxy,
            client_of(proxy, tls=trusting if encrypted else None, proxy=f"http://127.0.0.1:{proxy.port}") as client,
        ):
            error: UpstreamError | None = (await exchange(client)).error
            assert isinstance(error, ConnectError)
            assert "the proxy re" in error.message
            assert "407" in error.message

    run_real(main())
