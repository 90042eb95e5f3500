"""The HTTP client against scripted servers on real sockets: framing, reuse, cuts, cancelling and bounds."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from providers.base import Request, Stream
from providers.errors import ConnectError, ConnectionCut, ProtocolError
from providers.exchange import HEADERS_BYTES_MAX, Exchange
from providers.wire import Origin, WireClient
from running import run_real
from scripted_http import ASK, CHUNKED, OK, Recorder, Server, answering, exchange, read_request, serving, until


@contextlib.asynccontextmanager
async def client_of(server: Server) -> AsyncIterator[WireClient]:
    """A client of that server, closed at the end."""
    async with asyncio.TaskGroup() as tasks:
        client = WireClient(Origin("127.0.0.1", server.port), tasks)
        yield client
        client.close()


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (OK, b"hi"),
        (CHUNKED, b"abcde"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK, b"hi"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", b""),
    ],
)
def test_a_complete_answer_arrives_whole_and_its_connection_is_used_again(answer: bytes, body: bytes) -> None:
    """Every framing of a complete answer gives its body, no error, and a second request on the same connection."""

    async def main() -> None:
        async with serving(answering(answer, answer)) as server, client_of(server) as client:
            for _ in range(2):
                sink = await exchange(client)
                assert sink.error is None
                assert sink.body == body
            assert server.accepted == 1

    run_real(main())


def test_an_answer_in_single_bytes_is_the_same_answer() -> None:
    """How TCP cuts an answer changes nothing."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        for i in range(len(CHUNKED)):
            writer.write(CHUNKED[i : i + 1])
            await writer.drain()
            await asyncio.sleep(0)
        await reader.read()

    async def main() -> None:
        async with serving(script) as server, client_of(server) as client:
            sink = await exchange(client)
            assert (sink.status, sink.body, sink.error) == (200, b"abcde", None)

    run_real(main())


def test_a_body_without_framing_ends_with_the_connection() -> None:
    """Without length or chunks the end of the connection is the end of the body, and no error."""
    answer = b"HTTP/1.1 200 OK\r\n\r\nall of it"

    async def main() -> None:
        async with (
            serving(answering(answer, then=lambda writer: writer.close())) as server,
            client_of(server) as client,
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
def test_a_cut_answer_is_an_error(answer: bytes, how: str) -> None:
    """A connection that ends before its answer is complete gives ConnectionCut once, never a clean end."""

    def cut(writer: asyncio.StreamWriter) -> None:
        writer.close() if how == "close" else writer.transport.abort()

    async def main() -> None:
        async with serving(answering(answer, then=cut)) as server, client_of(server) as client:
            sink = await exchange(client)
            assert isinstance(sink.error, ConnectionCut)
            assert sink.closes == 1

    run_real(main())


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * (HEADERS_BYTES_MAX + 1) + b"\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
    ],
)
def test_what_is_not_http_is_refused(answer: bytes) -> None:
    """Anything but HTTP/1.1 within bounds gives ProtocolError and closes the connection."""

    async def main() -> None:
        async with serving(answering(answer)) as server, client_of(server) as client:
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
def test_a_connection_that_cannot_be_trusted_is_not_used_again(answer: bytes) -> None:
    """Bytes behind the answer, or a server that says close, cost the connection and never reach the next request."""

    async def main() -> None:
        async with serving(answering(answer), answering(CHUNKED)) as server, client_of(server) as client:
            first = await exchange(client)
            assert (first.body, first.error) == (b"hi", None)
            second = await exchange(client)
            assert (second.body, second.error) == (b"abcde", None)
            assert server.accepted == 2

    run_real(main())


def test_bytes_that_nobody_asked_for_close_an_idle_connection() -> None:
    """What a server sends on an idle connection is never taken for the next answer."""
    gone = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(OK)
        await asyncio.sleep(0.02)
        writer.write(OK)
        await reader.read()
        gone.set()

    async def main() -> None:
        async with serving(script, answering(CHUNKED)) as server, client_of(server) as client:
            await exchange(client)
            await gone.wait()
            assert (await exchange(client)).body == b"abcde"

    run_real(main())


def test_a_kept_connection_that_died_is_replaced_unseen() -> None:
    """A request on a kept-alive connection closed without a byte of answer is sent once more, on a new one."""

    async def dies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(OK)
        await read_request(reader)

    async def main() -> None:
        async with serving(dies, answering(CHUNKED)) as server, client_of(server) as client:
            await exchange(client)
            sink = await exchange(client)
            assert (sink.body, sink.error, server.accepted) == (b"abcde", None, 2)

    run_real(main())


def test_a_new_connection_that_dies_is_an_error() -> None:
    """Only a kept-alive connection is replaced: a server that closes a new one has had its chance."""

    async def main() -> None:
        async with serving(answering(b"", then=lambda writer: writer.close())) as server, client_of(server) as client:
            assert isinstance((await exchange(client)).error, ConnectionCut)
            assert server.accepted == 1

    run_real(main())


def test_aborting_closes_the_socket_and_silences_the_sink() -> None:
    """After abort() the server sees the end at once, and the sink hears nothing more."""

    async def main() -> None:
        begun = answering(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhi")
        async with serving(begun) as server, client_of(server) as client:
            sink = Recorder()
            stream: Stream = client.send(ASK, sink)
            await sink.first.wait()
            stream.abort()
            stream.abort()
            await server.gone.wait()
            assert sink.closes == 0
            assert client.connections == 0

    run_real(main())


def test_aborting_while_connecting_leaves_nothing() -> None:
    """A request given up before its connection stands never reaches the server."""

    async def main() -> None:
        async with serving(answering(OK)) as server, client_of(server) as client:
            sink = Recorder()
            client.send(ASK, sink).abort()
            assert (await exchange(client)).body == b"hi"
            assert sink.closes == 0

    run_real(main())


@pytest.mark.parametrize("host", ["127.0.0.1", "does-not-exist.invalid"])
def test_no_connection_is_an_error_that_says_so(host: str) -> None:
    """A refused connection and an unknown name give ConnectError, from a later loop turn."""

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            client = WireClient(Origin(host, 1, connect_s=2), tasks)
            sink = await exchange(client)
            assert isinstance(sink.error, ConnectError)
            assert "connect" in sink.error.message

    run_real(main())


def test_an_early_answer_counts_although_the_request_is_not_out() -> None:
    """A server may refuse before it has read the body; the connection is then not used again."""

    async def refuses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\n\r\nbig")
        await writer.drain()
        await asyncio.sleep(0.05)

    async def main() -> None:
        big = 8_000_000
        request = Request(b"POST / HTTP/1.1\r\nhost: t\r\ncontent-length: %d\r\n\r\n" % big, b"x" * big)
        async with serving(refuses) as server, client_of(server) as client:
            sink = Recorder()
            client.send(request, sink)
            await sink.over.wait()
            assert (sink.status, sink.body) == (413, b"big")

    run_real(main())


def test_a_paused_stream_stops_the_server() -> None:
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
        async with serving(script) as server, client_of(server) as client:
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


def test_a_connection_whose_answer_ended_while_paused_is_read_again() -> None:
    """Whoever pauses in the last piece of an answer never resumes; the next request on the connection does not hang."""

    class Pausing(Recorder):
        stream: Stream

        def on_body(self, data: bytes) -> None:
            super().on_body(data)
            self.stream.pause()

    async def main() -> None:
        async with serving(answering(OK, OK)) as server, client_of(server) as client:
            sink = Pausing()
            sink.stream = client.send(ASK, sink)
            await sink.over.wait()
            async with asyncio.timeout(5):
                assert (await exchange(client)).body == b"hi"
            assert server.accepted == 1

    run_real(main())


def test_idle_connections_are_bounded() -> None:
    """No more connections are kept than the bound says."""

    async def main() -> None:
        async with serving(answering(OK)) as server, asyncio.TaskGroup() as tasks:
            client = WireClient(Origin("127.0.0.1", server.port, idle_max=2), tasks)
            sinks = [Recorder() for _ in range(5)]
            for sink in sinks:
                client.send(ASK, sink)
            for sink in sinks:
                await sink.over.wait()
            await until(lambda: client.connections <= 2)
            client.close()

    run_real(main())


def test_connections_are_bounded() -> None:
    """A request beyond the bound of open connections fails at once instead of queueing."""

    async def main() -> None:
        async with serving(answering(b"")) as server, asyncio.TaskGroup() as tasks:
            client = WireClient(Origin("127.0.0.1", server.port, connections_max=1), tasks)
            first = Recorder()
            stream = client.send(ASK, first)
            await until(lambda: client.connections > 0)
            assert isinstance((await exchange(client)).error, ConnectError)
            stream.abort()

    run_real(main())


def test_a_spare_connection_is_ready_for_the_next_request() -> None:
    """With one request under way a second connection stands ready, and the next request connects to nothing."""

    async def main() -> None:
        async with serving(answering(b""), answering(OK, OK)) as server, asyncio.TaskGroup() as tasks:
            client = WireClient(Origin("127.0.0.1", server.port, spare=True), tasks)
            loser = client.send(ASK, Recorder())
            await until(lambda: server.accepted == 2 and client.connections == 2 and not client._sparing)
            sink = Recorder()
            winner = client.send(ASK, sink)
            assert isinstance(winner, Exchange)
            assert winner.connecting is None
            loser.abort()
            await sink.over.wait()
            assert sink.status == 200
            client.close()

    run_real(main())


def test_a_spare_that_died_is_replaced_unseen() -> None:
    """A server may close a spare at any time; the request that takes it goes to a new connection."""

    async def main() -> None:
        async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_request(reader)
            writer.transport.abort()

        async with serving(closing, answering(OK)) as server, asyncio.TaskGroup() as tasks:
            client = WireClient(Origin("127.0.0.1", server.port, spare=True), tasks)
            client.warm()
            await until(lambda: client.connections == 1 and not client._sparing)
            assert (await exchange(client)).status == 200
            client.close()

    run_real(main())


def test_a_spare_that_cannot_be_had_is_nobodys_error() -> None:
    """Keeping connections ready for a server that is down disturbs nothing."""

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            client = WireClient(Origin("127.0.0.1", 1, spare=True), tasks)
            client.warm()
            client.warm()
            await until(lambda: not client._sparing)
            client.close()

    run_real(main())


def test_whoever_waits_for_a_connection_takes_the_first_that_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request whose connection takes long leaves on one that another request gives back; its own becomes a spare."""

    async def main() -> None:
        answered, hurry = asyncio.Event(), asyncio.Event()

        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for _ in range(2):
                await read_request(reader)
                await answered.wait()
                writer.write(OK)
            await reader.read()

        async with serving(script) as server, asyncio.TaskGroup() as tasks:
            client = WireClient(Origin("127.0.0.1", server.port), tasks)
            connect = client._loop.create_connection

            async def slowly(*args: Any, **named: Any) -> Any:
                await hurry.wait()
                return await connect(*args, **named)

            first, second = Recorder(), Recorder()
            client.send(ASK, first)
            await until(lambda: client.connections == 1)
            monkeypatch.setattr(client._loop, "create_connection", slowly)
            client.send(ASK, Recorder()).abort()
            client.send(ASK, second)
            answered.set()
            await second.over.wait()
            assert (first.status, second.status, server.accepted) == (200, 200, 1)
            hurry.set()
            await until(lambda: client.connections == 2)
            client.close()

    run_real(main())


def test_a_connection_is_not_used_for_ever() -> None:
    """Behind its age a connection is closed after its answer, so that new ones see what DNS says now."""

    async def main() -> None:
        async with serving(answering(OK)) as server, asyncio.TaskGroup() as tasks:
            client = WireClient(Origin("127.0.0.1", server.port, age_s=0.0), tasks)
            for _ in range(2):
                assert (await exchange(client)).status == 200
            assert server.accepted == 2
            client.close()

    run_real(main())
