"""Clients that mean harm, on real sockets: each gets a short answer or none, and whoever comes next is served.

What smuggles a request is refused rather than guessed at: a proxy in front might guess otherwise.
"""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator

import pytest

from gateway.api import http_protocol
from gateway.events import RequestEnded
from gateway_fixture import Site, serving, until
from raw_http import ASK, CHAT, connect
from running import run_real
from unread_scenarios import ANSWER_BYTES, UNREAD_BYTES_MAX, UNREAD_HELD_BYTES_MAX, unread

_BODY = json.dumps({**ASK, "stream": False}).encode()
_POST = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n".encode()
_LENGTH = b"content-length: %d\r\n" % len(_BODY)
_CHUNKED = b"transfer-encoding: chunked\r\n"
_CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(_BODY), _BODY)
_NEXT = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"  # what is smuggled
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) \w+")
_ANSWER_MAX = 8_000  # bytes

REFUSED: dict[str, bytes] = {
    "two lengths": _POST + b"content-length: 5\r\n" + _LENGTH + b"\r\n" + _BODY,
    "a list of lengths": _POST + b"content-length: %d, 5\r\n\r\n" % len(_BODY) + _BODY,
    "length and chunks": _POST + _LENGTH + _CHUNKED + b"\r\n" + _CHUNKS + _NEXT,
    "chunks and length": _POST + _CHUNKED + _LENGTH + b"\r\n" + _CHUNKS + _NEXT,
    "a negative length": _POST + b"content-length: -5\r\n\r\n" + _BODY,
    "a length with a sign": _POST + b"content-length: +%d\r\n\r\n" % len(_BODY) + _BODY,
    "a length in hex": _POST + b"content-length: 0x10\r\n\r\n" + _BODY,
    "a length beyond numbers": _POST + b"content-length: 99999999999999999999999\r\n\r\n",
    "an empty length": _POST + b"content-length:\r\n\r\n" + _BODY,
    "space before the colon": _POST + b"content-length : %d\r\n\r\n" % len(_BODY) + _BODY,
    "a folded header": _POST + b"x-a: b\r\n c: d\r\n" + _LENGTH + b"\r\n" + _BODY,
    "a folded framing": _POST + b"transfer-encoding:\r\n chunked\r\n\r\n" + _CHUNKS,
    "bare LF": _POST.replace(b"\r\n", b"\n") + _LENGTH.replace(b"\r\n", b"\n") + b"\n" + _BODY,
    "bare CR": _POST + b"x-a: b\rcontent-length: 5\r\n" + _LENGTH + b"\r\n" + _BODY,
    "another transfer coding": _POST + b"transfer-encoding: gzip\r\n\r\n" + _CHUNKS,
    "chunked in other words": _POST + b"transfer-encoding: xchunked\r\n\r\n" + _CHUNKS,
    "chunked, and then something": _POST + b"transfer-encoding: chunked, identity\r\n\r\n" + _CHUNKS,
    "chunked twice": _POST + _CHUNKED + b"Transfer-Encoding: chunked\r\n\r\n" + _CHUNKS,
    "chunked twice, in one line": _POST + b"transfer-encoding: chunked, chunked\r\n\r\n" + _CHUNKS,
    "identity, and then chunked": _POST + b"transfer-encoding: identity\r\n" + _CHUNKED + b"\r\n" + _CHUNKS,
    "gzip, and then chunked": _POST + b"Transfer-Encoding: gzip\r\n" + _CHUNKED + b"\r\n" + _CHUNKS,
    "gzip and chunked, in one line": _POST + b"transfer-encoding: gzip, chunked\r\n\r\n" + _CHUNKS,
    "chunked, and then identity": _POST + _CHUNKED + b"transfer-encoding: identity\r\n\r\n" + _CHUNKS,
    "no coding, and then chunked": _POST + b"transfer-encoding:\r\n" + _CHUNKED + b"\r\n" + _CHUNKS,
    "identity": _POST + b"transfer-encoding: identity\r\n\r\n" + _CHUNKS,
    "identity and a length": _POST + b"transfer-encoding: identity\r\n" + _LENGTH + b"\r\n" + _BODY,
    "a list that begins with a comma": _POST + b"transfer-encoding: ,chunked\r\n\r\n" + _CHUNKS,
    "chunked with a parameter": _POST + b"transfer-encoding: chunked;a=b\r\n\r\n" + _CHUNKS,
    "chunked in quotes": _POST + b'transfer-encoding: "chunked"\r\n\r\n' + _CHUNKS,
    "chunked after a control character": _POST + b"transfer-encoding: \x0bchunked\r\n\r\n" + _CHUNKS,
    "a coding, space before the colon": _POST + b"transfer-encoding : chunked\r\n\r\n" + _CHUNKS,
    "chunks in HTTP/1.0": _POST.replace(b"1.1", b"1.0") + _CHUNKED + b"\r\n" + _CHUNKS,
    "two equal lengths": _POST + _LENGTH + _LENGTH + b"\r\n" + _BODY,
    "a list of equal lengths": _POST + b"content-length: %d, %d\r\n\r\n" % (len(_BODY), len(_BODY)) + _BODY,
    "a negative chunk": _POST + _CHUNKED + b"\r\n-5\r\n" + _BODY,
    "a chunk beyond numbers": _POST + _CHUNKED + b"\r\nfffffffffffffffff\r\n" + _BODY,
    "a chunk that is longer than it says": _POST + _CHUNKED + b"\r\n5\r\n" + _BODY + b"\r\n0\r\n\r\n",
    "chunks with bare LF": _POST + _CHUNKED + b"\r\n" + _CHUNKS.replace(b"\r\n", b"\n"),
    "an endless chunk extension": _POST + _CHUNKED + b"\r\n5;" + b"x" * 1_000_000,
    "a NUL in a header": _POST + b"x-a: b\0c\r\n" + _LENGTH + b"\r\n" + _BODY,
    "a NUL in the target": b"GET /healthz\0 HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "a header without a name": _POST + b": x\r\n" + _LENGTH + b"\r\n" + _BODY,
    "a header without a colon": _POST + b"nonsense\r\n" + _LENGTH + b"\r\n" + _BODY,
    "a target in two words": b"GET /healthz /x HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "a huge request line": b"GET /" + b"x" * 200_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "a target beyond its limit": b"GET /" + b"x" * 8_192 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "a long path of escapes": b"GET /" + b"%41" * 20_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "a long query": b"GET /healthz?" + b"x" * 60_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "a huge method": b"X" * 200_000 + b" / HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "a header bomb": _POST + b"x-bomb: " + b"x" * 1_000_000 + b"\r\n\r\n",
    "many headers": _POST + b"".join(b"x-%d: y\r\n" % number for number in range(50_000)) + b"\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x12\4\0\0\0\0\0",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),
    "a tunnel": b"CONNECT elsewhere:443 HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "HTTP/3.7": b"GET / HTTP/3.7\r\nhost: localhost\r\n\r\n",
    "another protocol": b"SSH-2.0-OpenSSH_9.9\r\n",
    "NULs": b"\0" * 1000,
    "no host": _POST.replace(b"host: localhost\r\n", b"") + _LENGTH + b"\r\n" + _BODY,
    "two hosts": _POST + b"Host: y\r\n" + _LENGTH + b"\r\n" + _BODY,
    "two keys": _POST + b"authorization: Bearer a\r\nAuthorization: Bearer b\r\n" + _LENGTH + b"\r\n" + _BODY,
    "two equal keys": _POST + b"x-api-key: a\r\nx-api-key: a\r\n" + _LENGTH + b"\r\n" + _BODY,
    "two keys as Azure's clients send them": _POST + b"api-key: a\r\napi-key: b\r\n" + _LENGTH + b"\r\n" + _BODY,
}
SERVED: dict[str, tuple[bytes, list[int]]] = {
    "a target at its limit": (b"GET /healthz?" + b"x" * 8_179 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n", [200]),
    "a request, and then a long target": (_NEXT + b"GET /" + b"x" * 9_000 + b" HTTP/1.1\r\n\r\n", [200, 414]),
    "no length and no chunks": (_POST + b"\r\n", [400]),
    "an absolute target": (b"GET http://elsewhere/healthz HTTP/1.1\r\nhost: localhost\r\n\r\n", [200]),
    "HTTP/1.0": (b"GET /healthz HTTP/1.0\r\n\r\n", [200]),
    "HTTP/1.0, a header twice": (b"GET /healthz HTTP/1.0\r\nx-a: b\r\nx-a: b\r\n\r\n", [200]),
    "no host, then a request": (_NEXT.replace(b"host: localhost\r\n", b"") + _NEXT, [400]),
    "both kinds of key": (_POST + b"authorization: Bearer a\r\nx-api-key: b\r\n" + _LENGTH + b"\r\n" + _BODY, [200]),
    "HTTP/1.0 with a body": (_POST.replace(b"1.1", b"1.0") + _LENGTH + b"\r\n" + _BODY, [200]),
    "chunks, in capital letters": (_POST + b"Transfer-Encoding:\tCHUNKED\r\n\r\n" + _CHUNKS, [200]),
    "an expectation": (_POST + _LENGTH + b"expect:  100-Continue \t\r\n\r\n" + _BODY, [100, 200]),
    "an expectation in HTTP/1.0": (
        _POST.replace(b"1.1", b"1.0") + _LENGTH + b"expect: 100-continue\r\n\r\n" + _BODY,
        [200],
    ),
    "another expectation": (_POST + _LENGTH + b"expect: something\r\n\r\n" + _BODY, [200]),
    "chunk extensions": (
        _POST + _CHUNKED + b'\r\n%x;a=b;c="d"\r\n%b\r\n0\r\nx-t: 1\r\n\r\n' % (len(_BODY), _BODY),
        [200],
    ),
    "a change of protocol": (
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n",
        [200],
    ),
    "a body that looks like a request": (_POST + b"content-length: %d\r\n\r\n" % len(_NEXT) + _NEXT, [400]),
    "a body where none belongs": (
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\n\r\nhello" + _NEXT,
        [200, 200],
    ),
    "requests in a row": (_NEXT * 10, [200] * 10),
    "too many requests in a row": (_NEXT * 3_000, [200] * (1 + http_protocol.PIPELINED_MAX) + [400]),
    "a request, and then nonsense": (_NEXT + b"nonsense\r\n\r\n", [200, 400]),
}


@contextlib.asynccontextmanager
async def _gateway(body_s: float = 30) -> AsyncIterator[Site]:
    limits, timeouts = {"request_body_max": "100kB"}, {"request_body": f"{body_s}s"}
    async with serving({"a": {"ttft": "1ms", "tokens": 1}}, limits=limits, timeouts=timeouts) as site:
        yield site


async def _said(port: int, payload: bytes, answers: int | None = None) -> bytes:
    """What comes back until the connection ends, or until there are so many answers and nothing more for a moment."""
    reader, writer = await connect(port)
    said = b""
    with contextlib.suppress(ConnectionError, TimeoutError):
        writer.write(payload)
        async with asyncio.timeout(60) as limit:
            while (piece := await reader.read(65_536)) and len(said) < 100 * _ANSWER_MAX:
                said += piece
                if len(_statuses(said)) == answers:
                    limit.reschedule(asyncio.get_running_loop().time() + 0.05)
    writer.transport.abort()
    return said


def _statuses(said: bytes) -> list[int]:
    return [int(status) for status in _STATUS.findall(said)]


async def _works(port: int) -> None:
    assert _statuses(await _said(port, _POST + _LENGTH + b"connection: close\r\n\r\n" + _BODY)) == [200]


def test_what_is_ambiguous_or_no_http_is_refused(subtests: pytest.Subtests) -> None:
    """One short 4xx or a closed connection, no request behind it is taken for one, and no replica hears of any."""

    async def main() -> None:
        async with _gateway() as site:
            for name, payload in REFUSED.items():
                with subtests.test(name):
                    said = await _said(site.port, payload)
                    assert len(said) <= _ANSWER_MAX
                    assert all(400 <= status < 500 for status in _statuses(said))
                    assert len(_statuses(said)) <= 1
                    assert said.startswith(b"HTTP/1.1") or not said
            assert site.reached == 0
            await _works(site.port)

    run_real(main())


async def _trickling(port: int) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Hundreds of requests that are not complete, half of them not even in their heads."""
    pairs = [await connect(port) for _ in range(200)]
    for number, (_, writer) in enumerate(pairs):
        payload = _POST + _LENGTH + b"\r\n" + _BODY
        writer.write(payload[: 30 if number % 2 else -1])
    return pairs


def test_who_sends_slowly_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """While hundreds of heads and bodies trickle, others are served."""
    monkeypatch.setattr(http_protocol, "HEAD_S_MAX", 300)

    async def main() -> None:
        async with _gateway(body_s=300) as site:
            pairs = await _trickling(site.port)
            await _works(site.port)
            assert site.reached == 1
            for reader, writer in pairs:
                assert not reader.at_eof()
                writer.transport.abort()

    run_real(main())


def test_who_sends_too_slowly_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of heads and bodies that trickle for too long are told so, and leave nothing behind."""
    monkeypatch.setattr(http_protocol, "HEAD_S_MAX", 0.2)

    async def main() -> None:
        async with _gateway(body_s=0.2) as site:
            for reader, writer in await _trickling(site.port):
                assert _statuses(await reader.read()) == [408]
                writer.transport.abort()
            assert site.reached == 0
            await until(lambda: not site.gateway or not site.gateway.public.active)

    run_real(main())


def test_who_does_not_read_stops_the_upstream() -> None:
    """What a client does not take is not taken from its replica either, beyond a bound; it can go on, and others do."""
    seen = run_real(unread(5, leaving=2, stall_s=5.0, stop_s=6.0))
    assert len(seen.taken_bytes) == 7
    assert max(seen.taken_bytes) <= UNREAD_BYTES_MAX < ANSWER_BYTES  # whenever the buffers of the kernel are full
    assert seen.held_bytes <= UNREAD_HELD_BYTES_MAX
    assert (seen.missing, seen.whole, seen.cancelled) == (0, 5, 2)


def test_what_is_odd_but_clear_is_served(subtests: pytest.Subtests) -> None:
    """Each request of a connection gets its own answer, in order."""

    async def main() -> None:
        async with _gateway() as site:
            for name, (payload, statuses) in SERVED.items():
                with subtests.test(name):
                    assert _statuses(await _said(site.port, payload, len(statuses))) == statuses
            await _works(site.port)

    run_real(main())


@pytest.mark.parametrize("given", ["", "authorization: Bearer sk-a\r\n"], ids=["no key", "another key"])
def test_trailers_are_never_headers(given: str) -> None:
    """A key in a trailer is no key, and does not replace the key of the headers; the next request has no trailers."""

    async def main() -> None:
        keys = [{"name": "a", "key": "sk-a"}, {"name": "b", "key": "sk-b"}]
        async with serving({"a": {"ttft": "1ms", "tokens": 1}}, keys=keys) as site:
            trailer = b"Authorization: Bearer sk-b\r\nx-api-key: sk-b\r\nexpect: 100-continue\r\n"
            for apart in (False, True):
                reader, writer = await connect(site.port)
                head = _POST + given.encode() + _CHUNKED
                writer.write(head + b"\r\n%x\r\n%b\r\n" % (len(_BODY), _BODY))
                if apart:
                    await until(
                        lambda: bool(site.gateway and site.gateway.in_force.topology.memory.arriving) or not given
                    )
                writer.write(b"0\r\n" + trailer + b"\r\n" + _POST + _LENGTH + b"connection: close\r\n\r\n" + _BODY)
                said = await reader.read()
                assert _statuses(said) == [200 if given else 401, 401]
                writer.close()
            names = {event.key_name for event in site.events if isinstance(event, RequestEnded)}
            assert names == ({"a"} if given else set())

    run_real(main())
