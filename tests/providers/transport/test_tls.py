"""TLS of one connection without sockets: bytes cut anywhere, and what is written while a server renegotiates."""

import asyncio
import contextlib
import ssl
from collections.abc import Sequence
from typing import cast

import hypothesis.strategies as st
import trustme
from hypothesis import given, settings

from providers.transport.tls import TlsTransport
from running import run_virtual

_AUTHORITY = trustme.CA()
_TRUSTING = ssl.create_default_context()
_AUTHORITY.configure_trust(_TRUSTING)
_SERVER = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
_AUTHORITY.issue_cert("localhost").configure_cert(_SERVER)


class _Socket(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.ends: list[str] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        self.ends.append("close")

    def abort(self) -> None:
        self.ends.append("abort")

    def taken(self) -> bytes:
        written, self.written = self.written, b""
        return written


class _Protocol(asyncio.Protocol):
    """Keeps what it receives, and whether it may write."""

    def __init__(self) -> None:
        self.received = b""
        self.flow: list[str] = []
        self.lost: list[Exception | None] = []

    def data_received(self, data: bytes) -> None:
        assert data
        self.received += data

    def pause_writing(self) -> None:
        self.flow.append("pause")

    def resume_writing(self) -> None:
        self.flow.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


class _Server:
    """The server's side, in memory."""

    def __init__(self) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = _SERVER.wrap_bio(self.incoming, self.outgoing, server_side=True)

    def opened(self, tls: TlsTransport) -> _Socket:
        """Shake hands with a client."""
        socket = _Socket()
        tls.connection_made(socket)
        for _ in range(2):
            self.incoming.write(socket.taken())
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                tls.data_received(self.outgoing.read())
        return socket


def _fed(texts: Sequence[bytes], cuts: Sequence[float], garbage: bytes) -> tuple[_Protocol, _Socket]:
    """Send one record for each text, then garbage or `close_notify`, in pieces that end anywhere."""
    protocol, server = _Protocol(), _Server()
    tls = TlsTransport(protocol, _TRUSTING, "localhost")
    socket = server.opened(tls)
    for text in texts:
        server.tls.write(text)
    if not garbage:
        with contextlib.suppress(ssl.SSLWantReadError):
            server.tls.unwrap()
    data = server.outgoing.read() + garbage
    ends = sorted(int(cut * len(data)) for cut in cuts)
    for start, end in zip([0, *ends], [*ends, len(data)], strict=True):
        if start < end and not socket.ends:
            tls.data_received(data[start:end])
    tls.connection_lost(None)
    return protocol, socket


@settings(max_examples=40)
@given(
    st.lists(st.binary(min_size=1, max_size=20_000), max_size=4),
    st.lists(st.floats(0, 1), max_size=6),
    st.sampled_from([b"", b"\x17\3\3\0\2??", b"HTTP/1.1 200 OK\r\n\r\n", b"\x17\3\3\xff\xff"]),
)
def test_records_may_be_cut_anywhere(texts: list[bytes], cuts: list[float], garbage: bytes) -> None:
    """All text arrives once and in order, and one end follows: an error unless the server has said that it is over."""

    async def main() -> tuple[_Protocol, _Socket]:
        return _fed(texts, cuts, garbage)

    protocol, socket = run_virtual(main())
    assert protocol.received == b"".join(texts)
    (lost,) = protocol.lost
    assert (lost is None) == (not garbage)
    assert socket.ends == (["abort"] if garbage else ["close"])


class _Renegotiating:
    """OpenSSL while a server renegotiates: it writes nothing until it has read the server's part."""

    def __init__(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> None:
        self._incoming, self._outgoing = incoming, outgoing
        self.blocked = False
        self.writes_max = 3  # bytes a call

    def do_handshake(self) -> None:
        """Succeed immediately."""

    def read(self, size: int) -> bytes:
        data = self._incoming.read(size)
        self.blocked = data == b"renegotiate"
        raise ssl.SSLWantReadError

    def write(self, data: memoryview) -> int:
        if self.blocked:
            raise ssl.SSLWantReadError
        return self._outgoing.write(data[: self.writes_max])


class _Context:
    """Makes such objects."""

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, **_: object) -> _Renegotiating:
        return _Renegotiating(incoming, outgoing)


def test_what_is_written_while_a_server_renegotiates_follows_in_order() -> None:
    """A request waits for the new keys, the writer is paused until then, and every byte is sent once."""

    async def main() -> None:
        protocol, socket = _Protocol(), _Socket()
        tls = TlsTransport(protocol, cast(ssl.SSLContext, _Context()), "localhost")
        tls.connection_made(socket)
        tls.write(b"before")
        tls.data_received(b"renegotiate")
        tls.write(b"while")
        tls.write(memoryview(b" blocked"))
        assert (socket.taken(), tls.get_write_buffer_size(), protocol.flow) == (b"before", 13, ["pause"])
        tls.pause_writing()  # the socket is full, too
        tls.data_received(b"new keys")
        assert (socket.taken(), tls.get_write_buffer_size(), protocol.flow) == (b"while blocked", 0, ["pause"])
        tls.resume_writing()
        assert protocol.flow == ["pause", "resume"]

    run_virtual(main())


def test_a_connection_that_is_dropped_while_a_server_renegotiates_keeps_nothing() -> None:
    """An abort drops what waits, and nothing is written after it."""

    async def main() -> None:
        protocol, socket = _Protocol(), _Socket()
        tls = TlsTransport(protocol, cast(ssl.SSLContext, _Context()), "localhost")
        tls.connection_made(socket)
        tls.data_received(b"renegotiate")
        tls.write(b"lost")
        tls.abort()
        tls.write(b"late")
        tls.close()
        assert (socket.written, socket.ends, tls.get_write_buffer_size()) == (b"", ["abort"], 0)
        assert tls.is_closing()

    run_virtual(main())
