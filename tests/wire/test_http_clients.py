"""What every HTTP client must do, against scripted servers on real sockets: one suite, all clients.

Framing, cuts, cancelling, back-pressure, bounds and every kind of address; TLS with authorities made here. Connections
that are used again, half closed or answered early: test_http_connections.py. What only one of them does (a pool that
knows its connections, HTTP/2, proxies) has tests of its own.
"""

import asyncio
import ssl
import tempfile

import pytest
import trustme

from http_clients import CLIENTS, REUSES, client_of
from providers.transport.origin import Origin
from running import run_real
from scripted_http import ASK, CHUNKED, OK, Recorder, answering, exchange, read_request, serving, until
from ttft_gateway.apis.base import HttpStream
from ttft_gateway.apis.errors import ConnectError, ConnectionCut, OutOfResources, ProtocolError

_CHUNKS = b"\r\n2\r\nhi\r\n0\r\n\r\n"

pytestmark = pytest.mark.parametrize("kind", CLIENTS)


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (OK, b"hi"),
        (CHUNKED, b"abcde"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK, b"hi"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", b""),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2  \r\nab\r\n0\r\n\r\n", b"ab"),
    ],
)
def test_a_complete_answer_arrives_whole(kind: str, answer: bytes, body: bytes) -> None:
    """Every framing of a complete answer gives its body and no error, and so does the next one."""

    async def main() -> None:
        async with serving(answering(answer, answer)) as server, client_of(kind, server) as client:
            for _ in range(2):
                sink = await exchange(client)
                assert sink.error is None
                assert sink.body == body
            assert server.accepted == (1 if REUSES[kind] else 2)

    run_real(main())


def test_an_answer_in_single_bytes_is_the_same_answer(kind: str) -> None:
    """How TCP cuts an answer changes nothing."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        for i in range(len(CHUNKED)):
            writer.write(CHUNKED[i : i + 1])
            await writer.drain()
            await asyncio.sleep(0)
        await reader.read()

    async def main() -> None:
        async with serving(script) as server, client_of(kind, server) as client:
            sink = await exchange(client)
            assert (sink.status, sink.body, sink.error) == (200, b"abcde", None)

    run_real(main())


def test_a_body_without_framing_ends_with_the_connection(kind: str) -> None:
    """Without length or chunks the end of the connection is the end of the body, and no error."""
    answer = b"HTTP/1.1 200 OK\r\n\r\nall of it"

    async def main() -> None:
        async with (
            serving(answering(answer, then=lambda writer: writer.close())) as server,
            client_of(kind, server) as client,
        ):
            sink = await exchange(client)
            assert (sink.body, sink.error) == (b"all of it", None)
            assert client.connections == 0

    run_real(main())


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\ncont",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\nab",
    ],
)
@pytest.mark.parametrize("how", ["close", "abort"])
def test_a_cut_answer_is_an_error(kind: str, answer: bytes, how: str) -> None:
    """A connection that ends before its answer is complete gives ConnectionCut once, never a clean end."""

    def cut(writer: asyncio.StreamWriter) -> None:
        writer.close() if how == "close" else writer.transport.abort()

    async def main() -> None:
        async with serving(answering(answer, then=cut)) as server, client_of(kind, server) as client:
            sink = await exchange(client)
            assert isinstance(sink.error, ConnectionCut)
            assert sink.closes == 1

    run_real(main())


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000 + b"\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
        *(
            b"HTTP/1.1 200 OK\r\n" + b"".join(b"Transfer-Encoding: %b\r\n" % value for value in codings) + _CHUNKS
            for codings in (
                [b"chunked", b"chunked"],
                [b"identity", b"chunked"],
                [b"gzip", b"chunked"],
                [b"chunked", b"identity"],
                [b"gzip, chunked"],
                [b"chunked, chunked"],
                [b"chunked, identity"],
                [b",chunked"],
                [b"identity"],
                [b"xchunked"],
                [b"chunked;a=b"],
                [b'"chunked"'],
                [b"\x0bchunked"],
                [b""],
            )
        ),
    ],
)
def test_what_is_not_http_is_refused(kind: str, answer: bytes) -> None:
    """Anything but HTTP/1.1 within bounds gives ProtocolError and closes the connection."""

    async def main() -> None:
        async with serving(answering(answer)) as server, client_of(kind, server) as client:
            sink = await exchange(client)
            assert isinstance(sink.error, ProtocolError)
            await server.gone.wait()

    run_real(main())


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"surplus",
        OK + OK,
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi",
    ],
)
def test_a_connection_that_cannot_be_trusted_is_not_used_again(kind: str, answer: bytes) -> None:
    """Bytes behind the answer, or a server that says close, cost the connection and never reach the next request."""

    async def main() -> None:
        async with serving(answering(answer), answering(CHUNKED)) as server, client_of(kind, server) as client:
            first = await exchange(client)
            assert (first.body, first.error) == (b"hi", None)
            second = await exchange(client)
            assert (second.body, second.error) == (b"abcde", None)
            assert server.accepted == 2

    run_real(main())


def test_a_new_connection_that_dies_is_an_error(kind: str) -> None:
    """Only a kept-alive connection is replaced: a server that closes a new one has had its chance."""

    async def main() -> None:
        async with (
            serving(answering(b"", then=lambda writer: writer.close())) as server,
            client_of(kind, server) as client,
        ):
            assert isinstance((await exchange(client)).error, ConnectionCut)
            assert server.accepted == 1

    run_real(main())


def test_a_name_that_cannot_be_looked_up_is_an_error(kind: str) -> None:
    """Whatever the resolver raises costs the request its connection, and nobody else anything."""

    async def main() -> None:
        async with serving(answering(OK)) as server, client_of(kind, server, host="a..b", spare=True) as client:
            assert isinstance((await exchange(client)).error, (ConnectError, ProtocolError))

    run_real(main())


def test_aborting_closes_the_socket_and_silences_the_sink(kind: str) -> None:
    """After abort() the server sees the end immediately, and the sink gets nothing more."""

    async def main() -> None:
        begun = answering(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhi")
        async with serving(begun) as server, client_of(kind, server) as client:
            sink = Recorder()
            stream: HttpStream = client.send(ASK, sink)
            await sink.first.wait()
            stream.abort()
            stream.abort()
            await server.gone.wait()
            assert sink.closes == 0
            assert client.connections == 0

    run_real(main())


def test_aborting_while_connecting_leaves_nothing(kind: str) -> None:
    """A request given up before its connection stands never reaches the server."""

    async def main() -> None:
        async with serving(answering(OK)) as server, client_of(kind, server) as client:
            sink = Recorder()
            client.send(ASK, sink).abort()
            assert (await exchange(client)).body == b"hi"
            assert sink.closes == 0

    run_real(main())


@pytest.mark.parametrize("host", ["127.0.0.1", "does-not-exist.invalid"])
def test_no_connection_is_an_error_that_says_so(kind: str, host: str) -> None:
    """A refused connection and an unknown name give ConnectError, from a later loop turn."""

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            sink = await exchange(CLIENTS[kind](Origin(host, 1, connect_s=2), tasks))
            assert isinstance(sink.error, ConnectError)
            assert "connect" in sink.error.message

    run_real(main())


def test_a_paused_stream_stops_the_server(kind: str) -> None:
    """While paused nothing arrives and the sender blocks; resumed, everything does, in order."""
    size = 30_000_000
    sent = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        for _ in range(size // 100_000):
            writer.write(b"z" * 100_000)
            await writer.drain()
            sent += 100_000
        await reader.read()

    async def main() -> None:
        async with serving(script) as server, client_of(kind, server) as client:
            sink = Recorder()
            stream = client.send(ASK, sink)
            await sink.first.wait()
            stream.pause()
            await asyncio.sleep(0.2)
            at_pause = len(sink.body)
            assert sent < size - 10_000_000
            await asyncio.sleep(0.1)
            assert len(sink.body) == at_pause
            stream.resume()
            await sink.over.wait()
            assert len(sink.body) == size

    run_real(main())


def test_connections_are_bounded(kind: str) -> None:
    """A request beyond the bound of open connections fails immediately instead of queueing."""

    async def main() -> None:
        async with serving(answering(b"")) as server, client_of(kind, server, connections_max=1) as client:
            first = Recorder()
            stream = client.send(ASK, first)
            await until(lambda: client.connections > 0)
            assert isinstance((await exchange(client)).error, OutOfResources)
            stream.abort()

    run_real(main())


def test_a_server_that_does_not_answer_is_left_at_once(kind: str) -> None:
    """An abort while the answer is waited for closes the socket."""

    async def main() -> None:
        async with serving(answering(b"")) as server, client_of(kind, server) as client:
            stream = client.send(ASK, Recorder())
            await until(lambda: server.accepted == 1)
            stream.abort()
            await server.gone.wait()
            await until(lambda: client.connections == 0)

    run_real(main())


def test_a_connection_that_does_not_come_is_given_up(kind: str) -> None:
    """Whoever accepts and then says nothing of TLS costs the time for connecting, and no more."""

    async def main() -> None:
        tls = ssl.create_default_context()
        async with serving(answering(b"")) as server, client_of(kind, server, tls=tls, connect_s=0.1) as client:
            sink = await exchange(client)
            assert isinstance(sink.error, ConnectError)
            assert "after 0.1 s" in sink.error.message

    run_real(main())


def test_compressed_bodies_are_handed_on_as_they_came(kind: str) -> None:
    """A client decodes nothing, so that whoever asked sees what it is."""
    body = b"\x1f\x8b\x08 not really"
    answer = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)

    async def main() -> None:
        async with serving(answering(answer)) as server, client_of(kind, server) as client:
            sink = await exchange(client)
            assert (b"content-encoding", b"gzip") in sink.headers
            assert sink.body == body

    run_real(main())


def test_ipv6_and_unix_sockets(kind: str) -> None:
    """An address may be IPv6, or the path of a socket."""

    async def main() -> None:
        async with serving(answering(OK), host="::1") as server, client_of(kind, server, host="::1") as client:
            assert (await exchange(client)).body == b"hi"
        with tempfile.TemporaryDirectory() as folder:
            there, gone = (
                {"host": "localhost", "port": 80, "socket": f"{folder}/{name}"} for name in ("vllm.sock", "gone.sock")
            )
            async with (
                serving(answering(OK), path=f"{folder}/vllm.sock") as server,
                client_of(kind, server, **there) as client,
                client_of(kind, server, **gone) as lost,
            ):
                assert (await exchange(client)).body == b"hi"
                assert isinstance((await exchange(lost)).error, ConnectError)

    run_real(main())


class Authority:
    """A certificate authority, with a server and a client that it vouches for."""

    def __init__(self, name: str) -> None:
        authority = trustme.CA()
        self.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(name).configure_cert(self.server)
        authority.configure_trust(self.server)
        self.names: list[str | None] = []
        self.server.sni_callback = lambda _socket, said, _context: self.names.append(said)
        self.trusting = ssl.create_default_context()
        authority.configure_trust(self.trusting)
        self.known = ssl.create_default_context()
        authority.configure_trust(self.known)
        authority.issue_cert("gateway@example.com").configure_cert(self.known)


@pytest.mark.parametrize(("host", "said"), [("localhost", "localhost"), ("127.0.0.1", None)])
def test_tls_names_hosts_and_no_addresses(kind: str, host: str, said: str | None) -> None:
    """A certificate is checked against name or address; the server is told the name, so that it can choose."""

    async def main() -> None:
        ours = Authority(host)
        async with (
            serving(answering(OK), tls=ours.server) as server,
            client_of(kind, server, host=host, tls=ours.trusting) as client,
        ):
            assert (await exchange(client)).body == b"hi"
        assert ours.names == [said]

    run_real(main())


@pytest.mark.parametrize("wrong", ["name", "authority"])
def test_tls_that_cannot_be_trusted_is_no_connection(kind: str, wrong: str) -> None:
    """A certificate of somebody else, or of an unknown authority, is told as what it is."""

    async def main() -> None:
        ours = Authority("localhost" if wrong == "authority" else "other.example")
        trusting = ours.trusting if wrong == "name" else ssl.create_default_context()
        async with (
            serving(answering(OK), tls=ours.server) as server,
            client_of(kind, server, host="localhost", tls=trusting) as client,
        ):
            sink = await exchange(client)
            assert isinstance(sink.error, ConnectError)
            assert "TLS with the upstream failed: CERTIFICATE_VERIFY_FAILED" in sink.error.message

    run_real(main())


def test_a_client_certificate_is_shown_to_who_asks(kind: str) -> None:
    """Where the server wants to know its clients, ours is known, and one without a certificate gets no answer."""

    async def main() -> None:
        ours = Authority("localhost")
        ours.server.verify_mode = ssl.CERT_REQUIRED
        for tls, known in ((ours.known, True), (ours.trusting, False)):
            async with (
                serving(answering(OK), tls=ours.server) as server,
                client_of(kind, server, host="localhost", tls=tls) as client,
            ):
                sink = await exchange(client)
                assert (sink.status == 200, sink.error is None) == (known, known)

    run_real(main())
