"""What every HTTP client must do where a connection is used again, half closed or answered early: one suite for all.

The servers are scripted, on real sockets; `half closed` is a server that has shut its writing side and goes on reading.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from http_clients import CLIENTS, REUSES, client_of
from running import run_real
from scripted_http import ASK, CHUNKED, OK, Recorder, answering, exchange, read_request, serving, until
from ttft_gateway.apis.base import HttpStream, Request
from ttft_gateway.apis.errors import ConnectionCut

pytestmark = pytest.mark.parametrize("kind", CLIENTS)

BIG_BYTES = 8_000_000  # more than two sockets buffer
_BIG_BODY = bytes(range(250)) * (BIG_BYTES // 250)
BIG = Request(
    b"POST / HTTP/1.1\r\nhost: test\r\ncontent-length: %d\r\n\r\n" % BIG_BYTES,
    (_BIG_BODY[:10], memoryview(_BIG_BODY)[10:]),  # as a large body is sent: without a copy
)
REFUSAL = b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 7\r\n\r\ntoo big"


# Used again


def test_answers_on_kept_connections_belong_to_their_requests(kind: str) -> None:
    """Ten requests in turn get ten answers in order; what is not in use afterwards is one idle connection, or none."""

    async def numbered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            _, body = await read_request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))

    async def main() -> None:
        async with serving(numbered) as server, client_of(kind, server) as client:
            for i in range(10):
                asked = Request(ASK.head, b"%02d" % i)
                assert (await exchange(client, asked)).body == asked.body
            assert server.accepted == (1 if REUSES[kind] else 10)
            assert client.connections == (1 if REUSES[kind] else 0)

    run_real(main())


def test_a_body_of_every_framing_may_be_followed_by_another(kind: str) -> None:
    """Length, chunks with trailers, no body and an informational answer: each ends where the next begins."""
    empty = b"HTTP/1.1 204 No Content\r\n\r\n"
    hinted = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK

    async def main() -> None:
        async with serving(answering(OK, CHUNKED, empty, hinted)) as server, client_of(kind, server) as client:
            wanted = [b"hi", b"abcde", b"", b"hi"] if REUSES[kind] else [b"hi"] * 4
            assert [(await exchange(client)).body for _ in wanted] == wanted
            assert server.accepted == (1 if REUSES[kind] else 4)

    run_real(main())


def test_an_answer_that_ended_while_paused_ends_when_resumed(kind: str) -> None:
    """Whoever pauses in the last piece of an answer hears of its end, at the latest when resuming; so does the next."""

    class Pausing(Recorder):
        stream: HttpStream

        def on_body(self, data: bytes) -> None:
            super().on_body(data)
            self.stream.pause()

    async def main() -> None:
        async with serving(answering(OK, OK)) as server, client_of(kind, server) as client:
            for _ in range(2):
                sink = Pausing()
                sink.stream = client.send(ASK, sink)
                await sink.first.wait()
                sink.stream.resume()
                await sink.over.wait()
                assert (sink.body, sink.error, sink.closes) == (b"hi", None, 1)

    run_real(main())


def test_bytes_that_nobody_asked_for_are_no_answer(kind: str) -> None:
    """What a server sends on an idle connection costs the connection and never reaches the next request."""
    gone = asyncio.Event()

    async def talks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(OK)
        await asyncio.sleep(0.02)
        writer.write(OK)
        await reader.read()
        gone.set()

    async def main() -> None:
        async with serving(talks, answering(CHUNKED)) as server, client_of(kind, server) as client:
            await exchange(client)
            await gone.wait()
            assert (await exchange(client)).body == b"abcde"

    run_real(main())


# Half closed


def _half_closing(
    answer: bytes, left: Callable[[bytes], object], *, at_once: bool = True
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """Answer one request and shut the writing side, immediately or after the client has read it; return later bytes."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(answer)
        if not at_once:
            await writer.drain()
            await asyncio.sleep(0.02)
        writer.write_eof()
        left(await reader.read())

    return script


@pytest.mark.parametrize("answer", [OK, CHUNKED])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_server_that_shuts_its_side_behind_an_answer_is_left(kind: str, answer: bytes, *, at_once: bool) -> None:
    """A whole answer counts; its half-closed connection is closed from our side, too, and no request goes there."""

    async def main() -> None:
        left: list[bytes] = []
        async with (
            serving(_half_closing(answer, left.append, at_once=at_once), answering(OK)) as server,
            client_of(kind, server) as client,
        ):
            sink = await exchange(client)
            assert (sink.status, sink.error, sink.closes) == (200, None, 1)
            await until(lambda: bool(left) and client.connections == 0)
            assert left == [b""]
            assert (await exchange(client)).body == b"hi"
            assert server.accepted == 2

    run_real(main())


def test_the_next_request_may_meet_the_shutdown(kind: str) -> None:
    """A request sent in the moment in which the server shuts its side is sent again, and answered once."""

    async def main() -> None:
        left: list[bytes] = []
        async with (
            serving(_half_closing(OK, left.append), answering(CHUNKED)) as server,
            client_of(kind, server) as client,
        ):
            await exchange(client)
            sink = await exchange(client)  # the end of the first connection has not been seen yet
            assert (sink.body, sink.error, sink.closes) == (b"abcde", None, 1)
            await until(lambda: bool(left))
            assert server.accepted == 2

    run_real(main())


def test_a_server_that_shuts_its_side_under_the_next_request_is_asked_anew(kind: str) -> None:
    """No byte of an answer on a kept-alive connection: the request goes out once more, on a new one."""

    async def shuts(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(OK)
        await read_request(reader)
        writer.write_eof()
        await reader.read()

    async def main() -> None:
        async with serving(shuts, answering(CHUNKED)) as server, client_of(kind, server) as client:
            await exchange(client)
            sink = await exchange(client)
            assert (sink.body, sink.error, server.accepted) == (b"abcde", None, 2)

    run_real(main())


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\ncont",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n",
        b"HTTP/1.1 103 Early Hints\r\n\r\n",
    ],
)
def test_a_server_that_shuts_its_side_within_an_answer_has_cut_it(kind: str, answer: bytes) -> None:
    """What is there of the answer arrives, then ConnectionCut, once; the server is not left waiting for our end."""

    async def main() -> None:
        left: list[bytes] = []
        async with serving(_half_closing(answer, left.append)) as server, client_of(kind, server) as client:
            sink = await exchange(client)
            assert isinstance(sink.error, ConnectionCut)
            assert (sink.closes, server.accepted) == (1, 1)
            assert sink.body in answer
            await until(lambda: bool(left) and client.connections == 0)

    run_real(main())


def test_without_framing_the_shutdown_is_the_end_of_the_answer(kind: str) -> None:
    """Shutting the writing side ends a body without length or chunks, and our side is closed, too."""

    async def main() -> None:
        left: list[bytes] = []
        script = _half_closing(b"HTTP/1.1 200 OK\r\n\r\nall of it", left.append)
        async with serving(script) as server, client_of(kind, server) as client:
            sink = await exchange(client)
            assert (sink.body, sink.error) == (b"all of it", None)
            await until(lambda: bool(left) and client.connections == 0)

    run_real(main())


# Answered early


def _refusing(end: str) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """Answer 413 before the body has been read, then end the connection in one of four ways."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(REFUSAL)
        await writer.drain()
        if end == "reset":  # with bytes unread, or a linger of zero, the kernel resets
            linger = b"\1\0\0\0\0\0\0\0"
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            await asyncio.sleep(0.02)
            writer.transport.abort()
        elif end == "closed":
            writer.close()
        elif end == "lingering":  # as nginx does it
            writer.write_eof()
            while await reader.read(1 << 20):
                pass
        else:
            await asyncio.sleep(0.2)

    return script


@pytest.mark.parametrize("end", ["closed", "reset", "lingering", "late"])
def test_an_answer_before_the_request_is_out_is_heard(kind: str, end: str) -> None:
    """A server may refuse before it has read the body: its words arrive, and its connection is not used again."""

    async def main() -> None:
        async with serving(_refusing(end), answering(OK)) as server, client_of(kind, server) as client:
            sink = await exchange(client, BIG)
            assert (sink.status, sink.body, sink.error, sink.closes) == (413, b"too big", None, 1)
            assert (await exchange(client)).body == b"hi"
            assert server.accepted == 2

    run_real(main())


def test_a_server_that_ends_before_the_request_is_out_has_cut_it(kind: str) -> None:
    """Without an answer the end is an error, told once, however much of the request was still to be sent."""

    async def main() -> None:
        async def hangs_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.close()

        async with serving(hangs_up) as server, client_of(kind, server) as client:
            sink = await exchange(client, BIG)
            assert isinstance(sink.error, ConnectionCut)
            assert (sink.status, sink.closes, server.accepted) == (None, 1, 1)
            await until(lambda: client.connections == 0)

    run_real(main())


def test_an_informational_answer_does_not_end_the_request(kind: str) -> None:
    """Early hints may come while a long request is still going out: all of it does, and the answer counts."""

    async def main() -> None:
        async def hints(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            assert head == BIG.head
            writer.write(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n")
            await writer.drain()
            await asyncio.sleep(0.02)
            body = await reader.readexactly(BIG_BYTES)
            writer.write(OK if body == _BIG_BODY else REFUSAL)
            await reader.read()

        async with serving(hints) as server, client_of(kind, server) as client:
            sink = await exchange(client, BIG)
            assert (sink.status, sink.body, sink.error) == (200, b"hi", None)

    run_real(main())


@pytest.mark.parametrize("reads", [True, False])
def test_an_early_answer_ends_its_connection(kind: str, *, reads: bool) -> None:
    """The rest of the request would be read as the next one, or never: an early answer closes the connection."""

    async def main() -> None:
        closed = asyncio.Event()

        async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(REFUSAL)
            await writer.drain()
            while reads and await reader.read(1 << 20):
                pass
            await closed.wait()

        async with serving(early, answering(OK)) as server, client_of(kind, server) as client:
            try:
                assert (await exchange(client, BIG)).status == 413
                async with asyncio.timeout(5):
                    await until(lambda: client.connections == 0)
            finally:
                closed.set()
            assert (await exchange(client)).body == b"hi"
            assert server.accepted == 2

    run_real(main())


def test_aborting_before_the_request_is_out_leaves_nothing(kind: str) -> None:
    """A request given up while most of it is unsent closes its connection immediately, and no error is reported."""

    async def main() -> None:
        begun, closed = asyncio.Event(), asyncio.Event()

        async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            begun.set()
            await closed.wait()
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(BIG_BYTES)
            writer.close()

        async with serving(deaf) as server, client_of(kind, server) as client:
            sink = Recorder()
            stream = client.send(BIG, sink)
            await begun.wait()
            stream.abort()
            await until(lambda: client.connections == 0)
            closed.set()
            await server.gone.wait()
            assert (sink.closes, server.accepted) == (0, 1)

    run_real(main())
