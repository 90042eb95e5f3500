"""A server that sends each piece after its reader has got all before it, and the answers that it sends so.

Time is an order here: a piece that a client holds back stops the answer. What is held by design is the beginning: the
response is returned with the event that ends its race, so the pieces before that event are sent together.
"""

import asyncio
import zlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from client_replicas import END, FINISH, HEAD, ROLE, Replicas, chunk, delta, event
from http_endings import TRANSPORTS, Received
from ttft_gateway import HedgeConfig
from ttft_gateway.client.first import HELD_MAX

_WAIT_S_MAX: Final = 20.0  # for a reader, which gets an error then
_BEGIN, _PING = ROLE + delta(content="Hel"), b": ping\n\n"
_CONTENT, _LINES = (_BEGIN, delta(content="lo"), FINISH), (b"", b"one\n", b"two\n")
_TEXT: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n"
_JSON: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n"


class Turned(NamedTuple):
    """An answer in pieces.

    Attributes:
        method: of its request.
        head: status line and headers.
        pieces: pieces of the body; an empty one waits until the reader has the response.
        is_chunked: True if each piece is a chunk of HTTP.
        end: bytes after the last chunk.
        is_cut: True if the connection ends after that.
        has_lines: True if each piece ends with a line.
        wbits: coding of zlib; None for no coding.
    """

    method: str
    head: bytes
    pieces: Sequence[bytes]
    is_chunked: bool = True
    end: bytes = END
    is_cut: bool = False
    has_lines: bool = True
    wbits: int | None = None

    @property
    def reads(self) -> tuple[str, ...]:
        """Ways to read that return each piece when it has arrived; clients differ in raw bytes of a coding."""
        return ("raw",) * (self.wbits is None) + ("lines",) * self.has_lines


ANSWERS: Final = {
    "content": Turned("POST", HEAD, (_BEGIN, delta(content="lo"), _PING, FINISH)),
    "headers": Turned("GET", HEAD, (b"", b"one", b"two", b"three"), has_lines=False),
    "half events": Turned("POST", HEAD, (_BEGIN, b'data: {"choi', b'ces": []}\n\n', FINISH), has_lines=False),
    "CR LF": Turned("POST", HEAD, (_BEGIN.replace(b"\n", b"\r\n"), _PING.replace(b"\n", b"\r\n")), has_lines=False),
    "an error after content": Turned("POST", HEAD, (_BEGIN, event({"error": {"message": "overloaded"}}), _PING)),
    "a cut": Turned("POST", HEAD, (_BEGIN, delta(content="lo")), end=b"", is_cut=True),
    "a cut GET": Turned("GET", HEAD, _LINES, end=b"", is_cut=True),
    "until close": Turned("POST", HEAD.partition(b"transfer")[0], (_BEGIN, _PING, FINISH), is_chunked=False),
    "a length": Turned("GET", _TEXT + b"content-length: 8\r\n", _LINES, is_chunked=False),
    "too short": Turned("GET", _TEXT + b"content-length: 9\r\n", (b"", b"one\n"), is_chunked=False, is_cut=True),
    "JSON": Turned("POST", _JSON, (b'{"a":\n', b"1}\n")),
    "an unknown coding": Turned("POST", HEAD + b"content-encoding: x-odd\r\n", (_PING, _BEGIN, FINISH)),
    "gzip": Turned("POST", HEAD + b"content-encoding: gzip\r\n", _CONTENT, wbits=31),
    "zlib": Turned("POST", HEAD + b"content-encoding: deflate\r\n", _CONTENT, wbits=15),
    "raw deflate": Turned("POST", HEAD + b"content-encoding: deflate\r\n", _CONTENT, wbits=-15),
    "gzip of text": Turned("GET", _JSON + b"content-encoding: gzip\r\n", _LINES, wbits=31),
    "content in bytes": Turned("POST", HEAD, (_BEGIN, *(b"%c" % byte for byte in _PING), FINISH), has_lines=False),
    "no last blank line": Turned("POST", HEAD, (_BEGIN, delta(content="lo").rstrip(b"\n")), has_lines=False),
    "more than is held": Turned("POST", HEAD, (b": " + b"p" * HELD_MAX + b"\n\n", _PING, FINISH)),
    "early hints": Turned("POST", b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + HEAD, _CONTENT),
    "continue": Turned("GET", b"HTTP/1.1 100 Continue\r\n\r\n" + _JSON, _LINES),
    "same header twice": Turned("GET", _JSON + b"set-cookie: a=1\r\nSet-Cookie: b=2\r\n", _LINES),
    "trailers": Turned("POST", HEAD, _CONTENT, end=b"0\r\nx-sum: 1\r\n\r\n"),
    "a cut in a chunk": Turned("POST", HEAD, _CONTENT, end=b"400\r\ndata: {", is_cut=True),
    "an error event": Turned("POST", HEAD, (event({"error": {"message": "overloaded"}}), _PING, FINISH)),
    "204": Turned("GET", b"HTTP/1.1 204 No Content\r\n", (b"",), is_chunked=False),
    "304": Turned("GET", b'HTTP/1.1 304 Not Modified\r\netag: "1"\r\n', (b"",), is_chunked=False),
    **{
        f"{status[:3].decode()} to a {method}": Turned(method, _JSON.replace(b"200 OK", status), _LINES)
        for method in ("GET", "POST")
        for status in (b"400 Bad Request", b"404 Not Found", b"429 Too Many Requests", b"503 Service Unavailable")
    },
}
CONFIGS: Final[dict[str, HedgeConfig | None]] = {
    "plain": None,
    "alone": HedgeConfig(warmup_delay=3600.0),
    "raced": HedgeConfig(warmup_delay=0.0, min_delay=0.0, budget_percent=100.0),
}


def received_in_turns(site: Replicas, name: str, transport: str, how: str, read: str = "raw") -> Received:
    """Return an answer as its reader gets it, who reports each piece to the server."""
    turned, turns = ANSWERS[name], _Turns(ANSWERS[name])
    plan = ["late:turns", "turns"] if how == "raced" else ["turns"]
    replica = site.add(*plan, answers={"turns": turns.answer})
    send = TRANSPORTS[transport](read, turns.on_piece)
    received = send(turned.method, f"{replica.url}/chat/completions", CONFIGS[how])
    assert len(replica.seen) == len(plan)
    return received._replace(error=received.error.replace(str(replica.port), "PORT"))


class _Turns:
    """A server for HTTP that waits for its reader."""

    def __init__(self, turned: Turned) -> None:
        self._turned = turned
        self._got = -1  # bytes; -1 before the response
        self._changed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def on_piece(self, piece: bytes) -> None:
        """Count what the reader has got; called in any thread."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._count, len(piece))

    def _count(self, count: int) -> None:
        self._got = max(self._got, 0) + count
        self._changed.set()
        self._changed = asyncio.Event()

    async def answer(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _headers: bytes) -> None:
        """Answer one attempt."""
        turned, sent = self._turned, 0
        self._loop = asyncio.get_running_loop()
        pack = None if turned.wbits is None else zlib.compressobj(wbits=turned.wbits)
        writer.write(turned.head + b"\r\n")
        async with asyncio.timeout(_WAIT_S_MAX):
            for piece in turned.pieces:
                if piece:
                    data = piece if pack is None else pack.compress(piece) + pack.flush(zlib.Z_SYNC_FLUSH)
                    writer.write(chunk(data) if turned.is_chunked else data)
                    sent += len(piece)
                while self._got < sent:
                    await self._changed.wait()
        if turned.is_chunked:
            writer.write((chunk(pack.flush()) if pack is not None else b"") + turned.end)
            await writer.drain()
        if turned.is_cut or (b"transfer" not in turned.head and b"length" not in turned.head):
            raise ConnectionError
