"""Any bytes as an upstream's response: one end, no exception, bounded memory, the same answer however they are cut."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from fuzz.pieces import cuts
from providers.transport.http1 import HEADERS_BYTES_MAX, Connection, Exchange, WireClient
from ttft_gateway.apis.base import Headers, Request
from ttft_gateway.apis.errors import UpstreamError

WORDS: Final = (
    b"HTTP/1.1 200 OK\r\n",
    b"HTTP/1.1 103 Early Hints\r\n\r\n",
    b"HTTP/1.0 200\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    b"content-length: 5\r\n",
    b"transfer-encoding: chunked\r\n",
    b"transfer-encoding: gzip\r\n",
    b"connection: close\r\n",
    b"\r\n\r\n",
    b"5\r\nhello\r\n",
    b"0\r\n\r\n",
    b"ffffffffffffffff\r\n",
    b"5;x=y\r\n",
    b"trailer: x\r\n",
)


class _Transport(asyncio.Transport):
    """A socket that takes all and says whether it was closed."""

    closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def resume_reading(self) -> None:
        pass


class _Client(WireClient):
    """Counts the calls of a connection, and opens none."""

    def __init__(self) -> None:
        self.released = self.lost_count = 0

    def connect(self, exchange: Exchange) -> None:
        raise AssertionError("a connection that was not kept alive is not replaced")

    def opened(self) -> None:
        pass

    def lost(self, connection: Connection) -> None:
        self.lost_count += 1

    def leave(self, exchange: Exchange) -> None:
        pass

    def release(self, connection: Connection) -> None:
        self.released += 1


@dataclass
class _Sink:
    """What came of one response."""

    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    closes: list[str] = field(default_factory=list)

    def on_response(self, status: int, headers: Headers) -> None:
        assert not self.status
        assert not self.closes
        assert status >= 200
        self.status, self.headers = status, list(headers)

    def on_body(self, data: bytes) -> None:
        assert self.status
        assert data
        assert not self.closes
        self.body += data

    def on_close(self, error: UpstreamError | None) -> None:
        self.closes.append("" if error is None else type(error).__name__)


def check(data: bytes) -> None:
    """Read it in several ways, the connection lost in the end."""
    seen = [read(pieces) for pieces in cuts(data)]
    for other in seen[1:]:
        assert seen[0] == other


def read(pieces: Iterable[bytes]) -> _Sink:
    """Feed the pieces to a connection with an exchange, until it closes."""
    client, sink, transport = _Client(), _Sink(), _Transport()
    connection = Connection(client)
    connection.connection_made(transport)
    exchange = Exchange(client, Request(b"GET / HTTP/1.1\r\n\r\n", b""), sink)
    connection.start(exchange)
    for piece in pieces:
        if transport.closed:
            break
        connection.data_received(piece)
        assert sum(len(name) + len(value) for name, value in sink.headers) <= HEADERS_BYTES_MAX
        assert client.released <= 1
    connection.connection_lost(None)
    assert len(sink.closes) == 1
    assert client.lost_count == 1
    assert exchange.connection is None
    return sink
