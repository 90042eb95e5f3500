"""Connections taken over from anyio: the same bytes and errors as anyio's, over TCP and over TLS."""

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, Final, NamedTuple

import httpcore
import httpx
import pytest
import trustme

from ttft_gateway import AsyncHedgingTransport
from ttft_gateway.client.streams import QuickStream, _Errors, quick

_OK: Final = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
_STREAM: Final = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
_LARGE: Final = 3_000_000  # bytes, more than all buffers take
Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


class _Got(NamedTuple):
    """What a client has of an answer."""

    content: bytes
    error: str  # type and text


async def _head(reader: asyncio.StreamReader) -> None:
    await reader.readuntil(b"\r\n\r\n")


async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer three requests on one connection."""
    for _ in range(3):
        await _head(reader)
        writer.write(_OK)


async def answers_in_pieces(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send pieces of which each arrives alone."""
    await _head(reader)
    for piece in (_STREAM, *(b"5\r\nhello\r\n" for _ in range(5)), b"0\r\n\r\n"):
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0.002)


async def answers_much(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send more than the buffers hold."""
    await _head(reader)
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % _LARGE + b"x" * _LARGE)
    await writer.drain()


async def takes_much(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read a large body slowly at first."""
    await _head(reader)
    await asyncio.sleep(0.02)
    await reader.readexactly(_LARGE)
    writer.write(_OK)


async def is_silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    """Send nothing until the client leaves."""
    await _head(reader)
    await reader.read()


async def reads_nothing(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Leave the request in the buffers."""
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    await asyncio.sleep(3.0)


async def is_silent_after_a_piece(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Stop in the middle."""
    await _head(reader)
    writer.write(_STREAM + b"5\r\nhello\r\n")
    await reader.read()


async def cuts(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Close in the middle."""
    await _head(reader)
    writer.write(_STREAM + b"5\r\nhello\r\n")
    await writer.drain()


async def cuts_after_a_pause(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Close while the client waits."""
    await cuts(reader, writer)
    await asyncio.sleep(0.02)


async def resets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Reset the connection while the client waits."""
    await cuts_after_a_pause(reader, writer)
    _abort(writer)


async def resets_before_an_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Reset the connection after the request."""
    await _head(reader)
    _abort(writer)


async def closes_at_once(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    """Accept, and close."""


async def ends_with_the_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a body that ends where the connection ends."""
    await _head(reader)
    writer.write(b"HTTP/1.1 200 OK\r\n\r\nhello")


async def rejects_an_upload(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer before the body is read, and read it after that."""
    await _head(reader)
    writer.write(b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 2\r\n\r\nno")
    await reader.readexactly(_LARGE)


def _abort(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


BEHAVIOURS: Final = (
    answers,
    answers_in_pieces,
    answers_much,
    takes_much,
    is_silent,
    reads_nothing,
    is_silent_after_a_piece,
    cuts,
    cuts_after_a_pause,
    resets,
    resets_before_an_answer,
    closes_at_once,
    ends_with_the_connection,
    rejects_an_upload,
)
_UPLOADS: Final = (takes_much, reads_nothing, rejects_an_upload)


@cache
def _contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    authority, server, client = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(server)
    authority.configure_trust(client)
    return server, client


@asynccontextmanager
async def _server(behaviour: Behaviour, *, tls: bool) -> AsyncIterator[str]:
    """Run a server; yield its URL."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await behaviour(reader, writer)
        except (OSError, EOFError):
            pass
        finally:
            writer.transport.abort() if writer.is_closing() else writer.close()

    running: list[asyncio.Task[None]] = []
    async with asyncio.TaskGroup() as tasks:
        server = await asyncio.start_server(
            lambda reader, writer: running.append(tasks.create_task(connected(reader, writer))),
            "127.0.0.1",
            0,
            ssl=_contexts()[0] if tls else None,
        )
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        server.close()
        for task in running:
            task.cancel()


def _transport(*, is_quick: bool, **settings: Any) -> httpx.AsyncHTTPTransport:
    transport = httpx.AsyncHTTPTransport(verify=_contexts()[1], **settings)
    if is_quick:
        quick(transport._pool)
    return transport


async def _ask(url: str, transport: httpx.AsyncHTTPTransport, body: bytes = b"", times: int = 1) -> _Got:
    """Send requests, and read the answers as far as they come."""
    timeout = httpx.Timeout(0.2, pool=5.0)
    content = b""
    async with httpx.AsyncClient(transport=transport, timeout=timeout) as client:
        try:
            for _ in range(times):
                async with client.stream("POST", url, content=body) as response:
                    async for piece in response.aiter_raw():
                        content += piece
        except (httpx.TransportError, ssl.SSLError) as error:
            return _Got(content, f"{type(error).__name__}: {error}")
    return _Got(content, "")


@pytest.mark.parametrize("tls", [False, True], ids=["tcp", "tls"])
@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_bytes_and_errors_are_those_of_anyio(behaviour: Behaviour, tls: bool) -> None:
    """Each behaviour of a server gives the client the same bytes and the same error."""
    body = b"x" * _LARGE if behaviour in _UPLOADS else b""
    times = 3 if behaviour is answers else 1

    async def main() -> list[_Got]:
        async with _server(behaviour, tls=tls) as url:
            return [await _ask(url, _transport(is_quick=each), body, times) for each in (False, True)]

    plain, taken_over = asyncio.run(main())
    assert taken_over == plain


@pytest.mark.parametrize("failing", ["refused", "unknown", "untrusted", "silent", "cut", "no tls"])
def test_a_connection_that_fails_has_anyios_error(failing: str) -> None:
    """No connection, no such name, no trust, and handshakes without an end or without TLS."""
    behaviour = {"silent": reads_nothing, "cut": closes_at_once, "no tls": answers_at_once}.get(failing, answers)
    elsewhere = {"refused": "http://127.0.0.1:1/", "unknown": "http://name.invalid/"}

    async def main() -> list[_Got]:
        async with _server(behaviour, tls=failing == "untrusted") as there:
            url, got = elsewhere.get(failing, there.replace("http:", "https:")), []
            for is_quick in (False, True):
                transport = _transport(is_quick=is_quick)
                if failing == "untrusted":
                    transport._pool._ssl_context = ssl.create_default_context()
                got.append(await _ask(url, transport))
            return got

    plain, taken_over = asyncio.run(main())
    assert plain.error
    assert taken_over == plain


async def answers_at_once(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer before there is a request."""
    writer.write(_OK)
    await writer.drain()


async def _leave(writer: asyncio.StreamWriter) -> None:
    """Close as many servers do: without waiting until the client has read all, and has ended its TLS, too."""
    transport: Any = writer.transport
    below = transport._ssl_protocol._transport if transport.get_extra_info("ssl_object") else transport
    while transport.get_write_buffer_size() or below.get_write_buffer_size():
        await asyncio.sleep(0.001)
    below.close()


async def proxies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Connect to the address of a CONNECT request, and pass bytes on."""
    line = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode()
    host, _, port = line.rpartition(":")
    there, to = await asyncio.open_connection(host, int(port))
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")

    async def passes(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(4096):
            sink.write(data)
            await sink.drain()
        await _leave(sink)

    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(passes(reader, to))
            tasks.create_task(passes(there, writer))
    finally:
        to.close()


@pytest.mark.parametrize("tls_proxy", [False, True], ids=["tcp", "tls"])
def test_tls_through_a_proxy(tls_proxy: bool) -> None:
    """TLS begins within the connection to a proxy, also if that has TLS itself."""

    async def main() -> _Got:
        async with _server(answers, tls=True) as url, _server(proxies, tls=tls_proxy) as proxy:
            through = httpx.Proxy(proxy, ssl_context=_contexts()[1] if tls_proxy else None)
            return await _ask(url, _transport(is_quick=True, proxy=through), times=3)

    assert asyncio.run(main()) == _Got(b"ok" * 3, "")


async def injects(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send an answer of its own in plain text, more than is read at once, and pass on nothing."""
    await _head(reader)
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n".ljust(65_536) + _OK)
    await reader.read()


def test_what_comes_before_tls_is_no_answer() -> None:
    """Bytes of a proxy that precede the handshake are not read as if the server had encrypted them."""

    async def main() -> list[_Got]:
        async with _server(answers, tls=True) as url, _server(injects, tls=False) as proxy:
            return [await _ask(url, _transport(is_quick=each, proxy=httpx.Proxy(proxy))) for each in (False, True)]

    plain, taken_over = asyncio.run(main())
    assert plain.error.startswith("ConnectError")
    assert taken_over == plain


def test_a_caller_that_does_not_read_stops_the_server() -> None:
    """What waits for a slow reader is bounded, and arrives whole."""

    async def main() -> None:
        async with (
            _server(answers_much, tls=False) as url,
            httpx.AsyncClient(transport=_transport(is_quick=True)) as client,
            client.stream("GET", url) as response,
        ):
            stream = response.extensions["network_stream"]
            assert isinstance(stream, QuickStream)
            await asyncio.sleep(0.05)
            assert stream._queued < 1_000_000
            assert sum([len(piece) async for piece in response.aiter_raw()]) == _LARGE

    asyncio.run(main())


@pytest.mark.parametrize("through", ["tcp", "tls", "tls in tls"])
def test_a_slow_reader_gets_what_the_server_sent_before_it_closed(through: str) -> None:
    """A body that ends with the connection is whole, although the connection has ended long before it is read."""

    async def main() -> None:
        async with _server(sends_much_and_leaves, tls=through != "tcp") as url, _server(proxies, tls=True) as proxy:
            settings = {"proxy": httpx.Proxy(proxy, ssl_context=_contexts()[1])} if through == "tls in tls" else {}
            transport, size = _transport(is_quick=True, **settings), 0
            async with httpx.AsyncClient(transport=transport) as client, client.stream("GET", url) as response:
                async for piece in response.aiter_raw():
                    size += len(piece)
                    await asyncio.sleep(0.001)
            assert size == _LARGE

    asyncio.run(main())


async def sends_much_and_leaves(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send more than the buffers hold, without its length."""
    await _head(reader)
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * _LARGE)
    await _leave(writer)


class _FastNetwork(asyncio.Transport):
    """A transport that takes everything at once."""

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:  # type: ignore[override]
        pass


def test_an_upload_to_a_fast_network_lets_other_tasks_run() -> None:
    """A long request, of which no write waits, does not stop the event loop."""

    async def main() -> None:
        stream, turns = QuickStream(None, _FastNetwork(), _Errors(*(7 * [OSError]))), 0

        async def other() -> None:
            nonlocal turns
            while not is_sent:
                turns += 1
                await asyncio.sleep(0.0)

        is_sent = False
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(other())
            for _ in range(100):
                await stream.write(b"x" * 65_536)
            is_sent = True
        assert turns >= 50

    asyncio.run(main())


def test_a_cancelled_read_loses_nothing() -> None:
    """Data that arrives after a cancelled read is of the next one."""

    async def main() -> None:
        async with _server(is_silent_after_a_piece, tls=False) as url:
            host, port = url[7:-1].split(":")
            pool = httpcore.AsyncConnectionPool()
            quick(pool)
            stream: Any = await pool._network_backend.connect_tcp(host, int(port))
            async with asyncio.TaskGroup() as tasks:
                reading = tasks.create_task(stream.read(9))
                await asyncio.sleep(0.0)
                reading.cancel()
            await stream.write(b"GET / HTTP/1.1\r\n\r\n")
            assert await stream.read(9) == _STREAM[:9]
            assert not stream.get_extra_info("is_readable") or stream._queue
            await stream.read(1000)
            await stream.aclose()
            assert stream.get_extra_info("is_readable")
            with pytest.raises(httpcore.ReadError):
                await stream.read(1000)

    asyncio.run(main())


@pytest.mark.parametrize("tls", [False, True], ids=["tcp", "tls"])
def test_an_idle_connection_that_the_server_has_closed_is_found(tls: bool) -> None:
    """The next request gets a new connection."""

    async def main() -> None:
        async with _server(answers_then_leaves, tls=tls) as url:
            assert await _ask(url, _transport(is_quick=True), times=3) == _Got(b"ok" * 3, "")

    asyncio.run(main())


async def answers_then_leaves(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one request, and close without a word."""
    await _head(reader)
    writer.write(_OK)


def test_a_connection_that_is_closed_while_it_is_chosen_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was sent on it, so a request that may not be repeated is sent on another one."""
    ask = QuickStream.get_extra_info

    def closed_after_it(stream: QuickStream, info: str) -> Any:
        found = ask(stream, info)
        if info == "is_readable":
            stream.eof_received()
        return found

    async def main() -> None:
        async with _server(answers, tls=False) as url:
            monkeypatch.setattr(QuickStream, "get_extra_info", closed_after_it)
            assert await _ask(url, _transport(is_quick=True), times=3) == _Got(b"ok" * 3, "")

    asyncio.run(main())


@pytest.mark.parametrize("tls", [False, True], ids=["tcp", "tls"])
def test_a_connection_that_ends_before_the_loop_sees_it_is_replaced(monkeypatch: pytest.MonkeyPatch, tls: bool) -> None:
    """The socket is polled last, when the request is sent."""
    write, sockets = QuickStream.write, []

    async def answers_and_can_be_ended(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sockets.append(writer.get_extra_info("socket"))
        await answers(reader, writer)

    async def ended_before_it(stream: QuickStream, *args: Any, **settings: Any) -> None:
        if stream._is_chosen:
            sockets[-1].shutdown(socket.SHUT_WR)
        await write(stream, *args, **settings)

    async def main() -> None:
        async with _server(answers_and_can_be_ended, tls=tls) as url:
            monkeypatch.setattr(QuickStream, "write", ended_before_it)
            assert await _ask(url, _transport(is_quick=True), times=3) == _Got(b"ok" * 3, "")

    asyncio.run(main())
    assert len(sockets) == 3


def test_backends_that_a_program_brings_are_left_alone() -> None:
    """Only the backend that httpcore chooses is replaced, once."""
    own = httpcore.AnyIOBackend()
    pool = httpcore.AsyncConnectionPool(network_backend=own)
    quick(pool)
    assert pool._network_backend is own
    transport = AsyncHedgingTransport()
    backend = transport._inner._pool._network_backend
    AsyncHedgingTransport(transport=transport._inner)
    assert transport._inner._pool._network_backend is backend
    quick(None)
