"""Bounds on what is not a request's body, on a transport that is only pretended."""

import asyncio
import socket

import pytest

from gateway.api.http_protocol import (
    HEAD_BYTES_MAX,
    HEAD_S_MAX,
    PIPELINED_MAX,
    UNREAD_S_MAX,
    HttpProtocol,
    OpenConnections,
    WaitingConnections,
)
from gateway.api.response import respond
from pretended_client import PretendedTransport, ScriptedExchange, answering
from running import run_real, run_virtual

_HEAD = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
_PIECE = 16 * 1024


class _Transport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self, sock: socket.socket | None = None) -> None:
        super().__init__({"socket": sock})
        self.written = b""
        self.closed = False
        self.unsent = 0

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def abort(self) -> None:
        self.closed = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.closed:
            self.written += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


_GET = b"GET /%d HTTP/1.1\r\nhost: x\r\n\r\n"


_SLOW_S = 8.0  # shorter than a head may take, longer than a connection may be idle


async def _slow(exchange: ScriptedExchange) -> None:
    """An answer that takes its time."""
    await asyncio.sleep(_SLOW_S)
    respond(exchange, 200, [], b"ok")


def _answered(*pieces: bytes, after_s: float = 0.0) -> _Transport:
    """A connection after some time, to a server that takes 5 s for a response."""

    async def script(exchange: ScriptedExchange) -> None:
        exchange.start(200, [], 4)
        await exchange.send(exchange.head.path[:2].encode())
        await asyncio.sleep(5)
        if not exchange.ended:
            exchange.write(b"ok")
            exchange.end()

    async def main() -> _Transport:
        async with asyncio.TaskGroup() as tasks:
            protocol = HttpProtocol(OpenConnections(answering(script, tasks)))
            transport = _Transport()
            protocol.connection_made(transport)
            for piece in pieces:
                protocol.data_received(piece)
                await asyncio.sleep(0.1)
            protocol.check(asyncio.get_running_loop().time() + after_s)
            await asyncio.sleep(1000)
            protocol.connection_lost(None)
            return transport

    return run_virtual(main())


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("requests", [1, 3])
def test_a_refusal_waits_for_the_answers_before_it(requests: int, *, split: bool) -> None:
    """Invalid HTTP gets its 400 after the responses to earlier complete requests, never in the middle of one."""
    pieces = [*(_GET % number for number in range(requests)), b"nonsense\r\n\r\n"]
    transport = _answered(*(pieces if split else [b"".join(pieces)]))
    answers = transport.written.split(b"HTTP/1.1 ")[1:]
    assert [answer[:3] for answer in answers[:requests]] == [b"200"] * requests
    assert all(answer.endswith(b"\r\n\r\n/%dok" % number) for number, answer in enumerate(answers[:requests]))
    assert answers[requests].startswith(b"400 ")
    assert transport.closed


def test_a_late_head_does_not_break_the_answer_before_it() -> None:
    """The next request's head may be as late as it likes: it is refused once the answer that is under way has ended."""
    transport = _answered(_GET % 1, b"GET /2 HT", after_s=HEAD_S_MAX + 1)
    _, first, second = transport.written.split(b"HTTP/1.1 ")
    assert first.endswith(b"\r\n\r\n/1ok")
    assert second.startswith(b"408 ")


def test_a_connection_is_idle_only_while_nothing_is_asked() -> None:
    """A head that began before the answer in front of it had ended is a request like others: it is not cut as idle."""

    async def main() -> _Transport:
        async with asyncio.TaskGroup() as tasks:
            loop = asyncio.get_running_loop()
            waiting = WaitingConnections()
            waiting.idle_s_max = 20.0
            protocol = HttpProtocol(OpenConnections(answering(_slow, tasks), waiting))
            transport = _Transport()
            protocol.connection_made(transport)
            protocol.data_received(_GET % 1 + b"GET /2 HT")
            await asyncio.sleep(_SLOW_S + 1)
            protocol.data_received(b"TP/1.1\r\nhost: x\r\n\r\n")
            closed = []
            for seconds in (_SLOW_S - 1, 2, waiting.idle_s_max):
                await asyncio.sleep(seconds)
                protocol.check(loop.time())
                closed.append(transport.closed)
            assert closed == [False, False, True]
            return transport

    transport = run_virtual(main())
    assert transport.written.count(b"\r\n\r\nok") == 2


@pytest.mark.parametrize("asks_after_s", [1.0, 4.0, None])
def test_a_new_connection_has_time_for_its_first_request(asks_after_s: float | None) -> None:
    """At the end of serving, a request of a client that has just connected is answered; then its connection ends."""

    async def main() -> tuple[PretendedTransport, float]:
        async with asyncio.TaskGroup() as tasks:
            loop, waiting = asyncio.get_running_loop(), WaitingConnections()
            protocol = HttpProtocol(OpenConnections(answering(_slow, tasks), waiting))
            transport = PretendedTransport()
            protocol.connection_made(transport)
            waiting.draining, began_s = True, loop.time()
            protocol.shutdown(5.0)
            if asks_after_s is not None:
                loop.call_later(asks_after_s, protocol.data_received, _GET % 1)
            while not transport.closed:
                await asyncio.sleep(0.1)
            return transport, loop.time() - began_s

    transport, lasted_s = run_virtual(main())
    if asks_after_s is None:
        assert (transport.written, round(lasted_s)) == ([], 5)
    else:
        assert b"".join(transport.written).endswith(b"\r\n\r\nok")
        assert round(lasted_s) == asks_after_s + _SLOW_S


def test_requests_in_advance_are_bounded() -> None:
    """Of thousands of requests in one read those within the bound are answered, and the connection ends."""
    transport = _answered(b"".join(_GET % (number % 10) for number in range(5_000)))
    answers = transport.written.split(b"HTTP/1.1 ")[1:]
    assert [answer[:3] for answer in answers] == [*[b"200"] * (1 + PIPELINED_MAX), b"400"]
    assert transport.closed


def test_the_first_unsent_byte_stops_the_response() -> None:
    """A response to a client that does not read is held up after one write, however small, that the kernel refuses."""

    async def script(exchange: ScriptedExchange) -> None:
        exchange.start(200, [])
        for _ in range(100):  # more than the kernel takes
            if not exchange.ended:
                written.append(_PIECE)
                await exchange.send(bytes(_PIECE))

    async def main() -> int:
        async with asyncio.TaskGroup() as tasks:
            loop = asyncio.get_running_loop()
            protocol = HttpProtocol(OpenConnections(answering(script, tasks)))
            ours, client = socket.socketpair()
            with client:
                transport, _ = await loop.connect_accepted_socket(lambda: protocol, ours)
                client.sendall(_GET % 1)
                before = -1
                while before < len(written):
                    before = len(written)
                    await asyncio.sleep(0.01)
                unsent = transport.get_write_buffer_size()
                transport.abort()
            return unsent

    written: list[int] = []
    assert 0 < run_real(main()) <= 2 * _PIECE


def _sent(first: bytes, piece: bytes) -> _Transport:
    """A connection that sent a head, then a piece, then more pieces than a head may have bytes."""

    async def script(_: ScriptedExchange) -> None:
        """Answer nothing."""

    async def main() -> _Transport:
        async with asyncio.TaskGroup() as tasks:
            protocol = HttpProtocol(OpenConnections(answering(script, tasks)))
            transport = _Transport()
            protocol.connection_made(transport)
            protocol.data_received(_HEAD)
            protocol.data_received(first)
            for _ in range(2 * HEAD_BYTES_MAX // _PIECE):
                if not transport.closed:
                    protocol.data_received(piece)
                await asyncio.sleep(0)
            protocol.connection_lost(None)
            await asyncio.sleep(0.1)
            return transport

    return run_virtual(main())


@pytest.mark.parametrize(
    ("first", "piece"),
    [
        (b"3\r\nabc\r\n0\r\n", b"x-trailer: " + b"v" * _PIECE + b"\r\n"),
        (b"3\r\nabc\r\n0\r\nx-trailer: ", b"v" * _PIECE),
        (b"3;", b"v" * _PIECE),
    ],
    ids=["many trailers", "one endless trailer", "an endless chunk extension"],
)
def test_what_stands_behind_a_body_is_bounded_like_a_head(first: bytes, piece: bytes) -> None:
    """Trailers are stored in memory like headers, so they have the headers' bound."""
    transport = _sent(first, piece)
    assert transport.written.startswith(b"HTTP/1.1 431 ")


def test_a_body_is_not_bounded_as_a_head_is() -> None:
    """A chunked body far larger than a head may be passes."""
    transport = _sent(b"3\r\nabc\r\n", b"%x\r\n" % _PIECE + b"v" * _PIECE + b"\r\n")
    assert transport.written == b""


@pytest.mark.parametrize(
    ("unsent", "takes", "closed"),
    [((9, 9), 0, True), ((9, 8), 0, False), ((0, 0), 0, False), ((9, 9), 1, False)],
    ids=["nothing is taken", "of the transport", "all is", "of the kernel's"],
)
def test_a_client_that_takes_nothing_is_let_go(unsent: tuple[int, int], takes: int, *, closed: bool) -> None:
    """An answer of which nothing is taken for a minute is dropped with its connection; a slow reader is not."""

    async def script(_: ScriptedExchange) -> None:
        """Never called."""

    async def main(ours: socket.socket, client: socket.socket) -> bool:
        async with asyncio.TaskGroup() as tasks:
            protocol = HttpProtocol(OpenConnections(answering(script, tasks)))
            transport = _Transport(ours)
            protocol.connection_made(transport)
            protocol.head_since_s = None  # its request has come
            for piece in (b"a", b"b", b"c"):
                ours.send(piece)
            for now_s, left in ((0.0, unsent[0]), (UNREAD_S_MAX, unsent[1]), (UNREAD_S_MAX + 1, unsent[1])):
                transport.unsent = left
                protocol.check(now_s)
                if takes:
                    client.recv(takes)
            return transport.closed

    ours, client = socket.socketpair()
    with ours, client:
        assert run_virtual(main(ours, client)) is closed


_UPGRADE = b"connection: upgrade\r\nupgrade: h2c\r\n"


@pytest.mark.parametrize("split", [True, False])
def test_what_stands_behind_a_request_to_upgrade_is_served(*, split: bool) -> None:
    """An upgrade is not offered; the request counts without it, and so does the next one, in the same read or not."""
    first = _GET.replace(b"host", _UPGRADE + b"host") % 1
    pieces = (first, _GET % 2) if split else (first + _GET % 2,)
    written = _answered(*pieces).written
    assert (written.count(b"/1ok"), written.count(b"/2ok")) == (1, 1)


@pytest.mark.parametrize("framing", ["length", "chunks", "length, close"])
@pytest.mark.parametrize("size", [1, 10_000])
def test_a_body_is_never_taken_for_a_request(framing: str, size: int) -> None:
    """Java's client sends its first POST with `Upgrade`, of which the parser would skip the body: both are read."""
    body = _GET % 2
    head = b"POST /1 HTTP/1.1\r\nhost: x\r\n" + _UPGRADE
    if framing == "chunks":
        whole = head + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) + _GET % 3
    else:
        close = b"connection: close\r\n" * (framing == "length, close")
        whole = head + close + b"content-length: %d\r\n\r\n" % len(body) + body + _GET % 3
    written = _answered(*(whole[at : at + size] for at in range(0, len(whole), size))).written
    assert (written.count(b"/1ok"), written.count(b"/2ok")) == (1, 0)
    assert written.count(b"/3ok") == (framing != "length, close")


async def _flushing(exchange: ScriptedExchange) -> None:
    """Answer in two pieces, without a length, some time later."""
    await asyncio.sleep(1)
    if not exchange.ended:
        exchange.start(200, [])
        await exchange.send(b"one")
        exchange.write(b"two")
        exchange.end()


def _exchange(*steps: bytes | str) -> tuple[_Transport, list[object]]:
    """A connection to `_flushing`: bytes are received, names of methods are called; also returns their results."""

    async def main() -> tuple[_Transport, list[object]]:
        async with asyncio.TaskGroup() as tasks:
            waiting = WaitingConnections()
            protocol = HttpProtocol(OpenConnections(answering(_flushing, tasks), waiting))
            transport = _Transport()
            protocol.connection_made(transport)
            results: list[object] = []
            for step in steps:
                if isinstance(step, bytes):
                    protocol.data_received(step)
                elif step == "draining":
                    waiting.draining = True
                else:
                    results.append(getattr(protocol, step)())
                await asyncio.sleep(0)
            await asyncio.sleep(5)
            protocol.connection_lost(None)
            return transport, results

    return run_virtual(main())


def test_http_1_0_gets_no_chunks() -> None:
    """HTTP/1.0 has no chunks: a body without a length ends with its connection."""
    transport, _ = _exchange(b"GET / HTTP/1.0\r\n\r\n")
    assert transport.written == b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nonetwo"
    assert transport.closed


@pytest.mark.parametrize("steps", [("draining", _GET % 1), (_GET % 1, "drain")], ids=["before", "under way"])
def test_a_response_announces_the_end_of_its_connection_while_draining(steps: tuple[str | bytes, ...]) -> None:
    """A client must not send its next request on a connection that is about to be closed."""
    transport, _ = _exchange(*steps)
    assert b"\r\nconnection: close\r\n" in transport.written
    assert transport.closed


@pytest.mark.parametrize(("request_", "stays"), [(_GET % 1, True), (_HEAD, False), (b"GET /", False)])
def test_a_client_that_stops_sending_after_its_request(request_: bytes, *, stays: bool) -> None:
    """An end of file after a GET leaves the connection open for the response; after a POST it is a disconnect."""
    transport, results = _exchange(request_, "eof_received")
    assert results == [stays]
    if stays:
        assert transport.written.endswith(b"\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n")
        assert b"\r\nconnection: close\r\n" in transport.written
        assert transport.closed


_MANY = b"".join(b"%05d:v\r\n" % number for number in range(HEAD_BYTES_MAX // 8))
TOO_LARGE = {
    "small headers": b"GET / HTTP/1.1\r\nhost: x\r\n" + _MANY + b"\r\n",
    "small trailers": _HEAD + b"3\r\nabc\r\n0\r\n" + _MANY + b"\r\n",
}
NOT_SUPPORTED = {
    "two codings": b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "a coding": b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip\r\n\r\n0\r\n\r\n",
    "an old version": b"GET / HTTP/0.9\r\n\r\n",
    "no version": b"GET /\r\n\r\n",
}


@pytest.mark.parametrize("request_", TOO_LARGE.values(), ids=TOO_LARGE)
def test_the_bound_of_a_head_holds_within_one_read(request_: bytes) -> None:
    """Many short headers or trailers in one read of less than 256 kB are counted with what separates them."""
    transport, _ = _exchange(request_)
    assert b"HTTP/1.1 431 " in transport.written
    assert transport.closed


@pytest.mark.parametrize("request_", NOT_SUPPORTED.values(), ids=NOT_SUPPORTED)
def test_other_versions_and_codings_are_refused(request_: bytes) -> None:
    """A body in a coding that the gateway does not decode, or another version of HTTP, gets a 400."""
    transport, _ = _exchange(request_)
    assert transport.written.startswith(b"HTTP/1.1 400 ")
    assert transport.closed
