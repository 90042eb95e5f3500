"""TLS to an upstream, on both event loops: which servers are trusted, how an answer ends, how much is buffered.

The peers do TLS in memory over a plain socket, so that they choose the records of a write and the end of a connection.
"""

import asyncio
import datetime as dt
import ssl
from collections.abc import Awaitable, Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import pytest
import trustme

from gateway.cli.event_loop import AsyncioLoop
from http_clients import client_of
from providers.transport.http1 import Exchange
from running import run_on
from scripted_http import ASK, OK, Recorder, answering, exchange, serving, until
from ttft_gateway.apis.base import Request
from ttft_gateway.apis.errors import ConnectError, ConnectionCut, UpstreamError

_Loop = Callable[[], asyncio.AbstractEventLoop]
_T = TypeVar("_T")


def _loops() -> dict[str, _Loop]:
    if find_spec("uvloop") is None:
        return {"asyncio": AsyncioLoop}
    return {"asyncio": AsyncioLoop, "uvloop": import_module("gateway.cli.uv_loop").UvLoop}


pytestmark = pytest.mark.parametrize("loop", _loops().values(), ids=_loops())

_UNTIL_END = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n"  # the end of the connection ends the body
_LONG_AGO = dt.datetime(2020, 1, 2, tzinfo=dt.UTC)
_AUTHORITY = trustme.CA()
_TRUSTING = ssl.create_default_context()
_AUTHORITY.configure_trust(_TRUSTING)


def _server(*names: str, not_after: dt.datetime | None = None) -> ssl.SSLContext:
    """A server with a certificate for these names."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _AUTHORITY.issue_cert(*names, not_after=not_after).configure_cert(context)
    return context


def _self_signed(folder: Path) -> ssl.SSLContext:
    context, alone = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), trustme.CA()
    (folder / "pem").write_bytes(alone.private_key_pem.bytes() + alone.cert_pem.bytes())
    context.load_cert_chain(folder / "pem")
    return context


class _Peer:
    """The server's side of one connection."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: ssl.SSLContext | None = None
    ) -> None:
        self._reader, self.writer = reader, writer
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = (context or _server("localhost")).wrap_bio(self._incoming, self._outgoing, server_side=True)

    async def request(self) -> bytes:
        """Shake hands and read until the client waits."""
        await self._step(self._tls.do_handshake)
        return await self._step(lambda: self._tls.read(65_536))

    def records(self, *texts: bytes) -> bytes:
        """Return one record for each text."""
        for text in texts:
            self._tls.write(text)
        return self._outgoing.read()

    def close_notify(self) -> bytes:
        """Return the alert that ends the stream."""
        with pytest.raises(ssl.SSLWantReadError):
            self._tls.unwrap()
        return self._outgoing.read()

    async def rest(self) -> bytes:
        """Read until the client closes; raise if it does so without a `close_notify`."""
        texts = b""
        while text := await self._step(lambda: self._tls.read(65_536)):
            texts += text
        return texts

    async def _step(self, step: Callable[[], _T]) -> _T:
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                self.writer.write(self._outgoing.read())
                data = await self._reader.read(65_536)
                if not data:
                    raise
                self._incoming.write(data)
            finally:
                self.writer.write(self._outgoing.read())


def _peer(script: Callable[[_Peer], Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """A server's script that reads one request, then does this."""

    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = _Peer(reader, writer)
        await peer.request()
        await script(peer)

    return run


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("name", "Hostname mismatch, certificate is not valid for 'localhost'."),
        ("expired", "certificate has expired"),
        ("self-signed", "self-signed certificate"),
        ("authority", "unable to get local issuer certificate"),
    ],
)
def test_a_server_that_cannot_be_trusted_gets_no_request(loop: _Loop, wrong: str, message: str, tmp_path: Path) -> None:
    """The error names the reason, the request is not sent, and nothing stays open."""
    servers = {
        "name": _server("other.example"),
        "expired": _server("localhost", not_after=_LONG_AGO),
        "self-signed": _self_signed(tmp_path),
        "authority": _server("localhost"),
    }
    trusting = ssl.create_default_context() if wrong == "authority" else _TRUSTING

    async def main() -> None:
        async with (
            serving(answering(OK), tls=servers[wrong]) as server,
            client_of("wire", server, host="localhost", tls=trusting) as client,
        ):
            sink = await exchange(client)
            assert isinstance(sink.error, ConnectError)
            assert sink.error.message == f"TLS with the upstream failed: CERTIFICATE_VERIFY_FAILED ({message})"
            assert sink.status is None
            assert client.connections == 0

    run_on(loop, main())


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(
    ("not_after", "message"),
    [(None, "TLSV13_ALERT_CERTIFICATE_REQUIRED"), (_LONG_AGO, "SSLV3_ALERT_CERTIFICATE_EXPIRED")],
    ids=["none", "expired"],
)
def test_a_client_certificate_that_the_server_rejects_is_no_connection(
    loop: _Loop, not_after: dt.datetime | None, message: str, version: ssl.TLSVersion
) -> None:
    """With TLS 1.3 the server rejects it after the handshake: the error has its reason, and is no cut."""
    listening, trusting = _server("localhost"), ssl.create_default_context()
    listening.verify_mode, listening.maximum_version = ssl.CERT_REQUIRED, version
    for context in (listening, trusting):
        _AUTHORITY.configure_trust(context)
    if not_after is not None:
        _AUTHORITY.issue_cert("gateway.example", not_after=not_after).configure_cert(trusting)
    elif version == ssl.TLSVersion.TLSv1_2:
        message = "SSLV3_ALERT_HANDSHAKE_FAILURE"

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _Peer(reader, writer, listening).request()

    async def main() -> None:
        async with serving(script) as server, client_of("wire", server, host="localhost", tls=trusting) as client:
            sink = await exchange(client)
            assert isinstance(sink.error, ConnectError)
            assert sink.error.message == f"TLS with the upstream failed: {message}"

    run_on(loop, main())


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "connecting to the upstream timed out after 0.1 s"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "TLS with the upstream failed: WRONG_VERSION_NUMBER"),
        (None, "cannot connect to the upstream: ConnectionResetError"),
    ],
    ids=["silence", "plain text", "close"],
)
def test_a_handshake_that_does_not_end_is_an_error(loop: _Loop, answer: bytes | None, message: str) -> None:
    """Silence, plain text or a close in place of the server's half: one error in time, and the socket is closed."""
    left: list[bytes] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65_536)
        if answer is None:
            return
        writer.write(answer)
        await reader.read(7 if answer else -1)  # an alert, or nothing more
        left.append(await reader.read())

    async def main() -> None:
        async with (
            serving(script) as server,
            client_of("wire", server, host="localhost", tls=_TRUSTING, connect_s=0.1 if answer == b"" else 3) as client,
        ):
            sink = await exchange(client)
            assert isinstance(sink.error, ConnectError)
            assert sink.error.message == message
            await until(lambda: answer is None or left == [b""])
            assert client.connections == 0

    run_on(loop, main())


@pytest.mark.parametrize(
    ("end", "error"), [("alert", None), ("record", ConnectionCut), ("none", ConnectionCut), ("garbage", ConnectionCut)]
)
def test_only_an_alert_ends_a_body_without_a_length(loop: _Loop, end: str, error: type[UpstreamError] | None) -> None:
    """A connection that closes without `close_notify`, or in the middle of a record, has cut the answer."""

    async def script(peer: _Peer) -> None:
        first, last = peer.records(_UNTIL_END, b"first "), peer.records(b"last")
        endings: dict[str, Callable[[], bytes]] = {
            "alert": lambda: last + peer.close_notify(),
            "record": lambda: last[:-1],
            "none": lambda: last,
            "garbage": lambda: last + b"\x17\3\3\0\1!",
        }
        peer.writer.write(first + endings[end]())

    async def main() -> None:
        async with (
            serving(_peer(script)) as server,
            client_of("wire", server, host="localhost", tls=_TRUSTING) as client,
        ):
            sink = await exchange(client)
            assert sink.body == (b"first " if end == "record" else b"first last")
            assert type(sink.error) is (error or type(None))

    run_on(loop, main())


def test_records_of_one_read_are_pushed_as_one(loop: _Loop) -> None:
    """Twenty records that arrive together are one piece of the body; one in two halves is a piece when it is whole."""
    texts = [b"%02d" % number for number in range(20)]

    async def script(peer: _Peer) -> None:
        peer.writer.write(peer.records(b"HTTP/1.1 200 OK\r\ncontent-length: 42\r\n\r\n"))
        await asyncio.sleep(0.02)
        peer.writer.write(peer.records(*texts))
        await asyncio.sleep(0.02)
        record = peer.records(b"ok")
        peer.writer.write(record[:10])
        await asyncio.sleep(0.02)
        peer.writer.write(record[10:])
        await peer.rest()

    async def main() -> None:
        async with (
            serving(_peer(script)) as server,
            client_of("wire", server, host="localhost", tls=_TRUSTING) as client,
        ):
            sink = await exchange(client)
            assert (sink.body, sink.pieces, sink.error) == (b"".join(texts) + b"ok", 2, None)
            assert client.connections == 1

    run_on(loop, main())


def test_a_large_request_is_sent_as_the_server_reads(loop: _Loop) -> None:
    """Eight megabytes arrive unchanged, and the gateway buffers at most a few pieces of them."""
    body = bytes(range(250)) * 32_000
    request = Request(b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body), (body[:10], memoryview(body)[10:]))
    got = b""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal got
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.05)  # the client has written as much as it may
        assert streams[0].connection is not None
        transport = streams[0].connection.transport
        await until(lambda: transport.get_write_buffer_size() > 0)  # on a slow machine, later
        waiting.append(transport.get_write_buffer_size())
        got = await reader.readexactly(len(body))
        writer.write(OK)
        await reader.read()

    waiting: list[int] = []
    streams: list[Exchange] = []

    async def main() -> None:
        async with (
            serving(script, tls=_server("localhost")) as server,
            client_of("wire", server, host="localhost", tls=_TRUSTING) as client,
        ):
            sink = Recorder()
            stream = client.send(request, sink)
            assert isinstance(stream, Exchange)
            streams.append(stream)
            await sink.over.wait()
            assert (sink.body, sink.error) == (b"hi", None)
            assert got == body
            assert 0 < waiting[0] < 1_000_000

    run_on(loop, main())


def test_an_abort_closes_at_once(loop: _Loop) -> None:
    """The server sees the end of the connection, even if it does not read and the stream is paused."""

    async def script(peer: _Peer) -> None:
        peer.writer.write(peer.records(_UNTIL_END, b"first"))
        with pytest.raises((ssl.SSLWantReadError, ConnectionError)):  # no alert
            await peer.rest()

    async def main() -> None:
        async with (
            serving(_peer(script)) as server,
            client_of("wire", server, host="localhost", tls=_TRUSTING) as client,
        ):
            sink = Recorder()
            stream = client.send(ASK, sink)
            await sink.first.wait()
            stream.pause()
            stream.abort()
            await server.gone.wait()
            assert (sink.body, sink.closes) == (b"first", 0)
            await until(lambda: client.connections == 0)

    run_on(loop, main())


def test_an_idle_connection_is_closed_with_an_alert(loop: _Loop) -> None:
    """A connection that is kept alive and then closed ends with `close_notify`."""
    ends: list[bytes] = []

    async def script(peer: _Peer) -> None:
        peer.writer.write(peer.records(OK))
        ends.append(await peer.rest())

    async def main() -> None:
        async with (
            serving(_peer(script)) as server,
            client_of("wire", server, host="localhost", tls=_TRUSTING) as client,
        ):
            assert (await exchange(client)).body == b"hi"
            assert client.connections == 1
        assert ends == [b""]

    run_on(loop, main())
