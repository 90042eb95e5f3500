"""Bounds on what is not a request's body, on a transport that is only pretended."""

import asyncio

import pytest
import uvicorn
from uvicorn.server import ServerState

from gateway.http_protocol import HEAD_BYTES_MAX, UNREAD_S_MAX, BoundedHttpProtocol
from gateway.response import Receive, Scope, Send
from running import run_virtual

_HEAD = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
_PIECE = 16 * 1024


class _Transport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False
        self.unsent = 0

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def abort(self) -> None:
        self.closed = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def _sent(first: bytes, piece: bytes) -> _Transport:
    """What became of a connection that sent a head, then something, then far more than a head may have of pieces."""

    async def application(_scope: Scope, receive: Receive, _send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async def main() -> _Transport:
        config = uvicorn.Config(application, lifespan="off", ws="none", log_config=None, interface="asgi3")
        config.load()
        protocol = BoundedHttpProtocol(config, ServerState(), {}, asyncio.get_running_loop())
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
    """Trailers are kept in memory like headers, so they have the headers' bound."""
    transport = _sent(first, piece)
    assert transport.written.startswith(b"HTTP/1.1 431 ")


def test_a_body_is_not_bounded_as_a_head_is() -> None:
    """A chunked body far larger than a head may be passes."""
    transport = _sent(b"3\r\nabc\r\n", b"%x\r\n" % _PIECE + b"v" * _PIECE + b"\r\n")
    assert transport.written == b""


@pytest.mark.parametrize(("unsent", "closed"), [((9, 9), True), ((9, 8), False), ((0, 0), False)])
def test_a_client_that_takes_nothing_is_let_go(unsent: tuple[int, int], *, closed: bool) -> None:
    """An answer of which nothing is taken for a minute is dropped with its connection; a slow reader is not."""

    async def application(_scope: Scope, _receive: Receive, _send: Send) -> None:
        """Never called."""

    async def main() -> bool:
        config = uvicorn.Config(application, lifespan="off", ws="none", log_config=None, interface="asgi3")
        config.load()
        protocol = BoundedHttpProtocol(config, ServerState(), {}, asyncio.get_running_loop())
        transport = _Transport()
        protocol.connection_made(transport)
        protocol.head_since_s = None  # its request has come
        for now_s, left in ((0.0, unsent[0]), (UNREAD_S_MAX, unsent[1]), (UNREAD_S_MAX + 1, unsent[1])):
            transport.unsent = left
            protocol.check(now_s)
        return transport.closed

    assert run_virtual(main()) is closed
