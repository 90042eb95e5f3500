"""A server that sends each piece after its reader has got all before it, and the answers that it sends so.

Time is an order here: a piece that a client holds back stops the answer. What is held by design is the beginning: the
response is returned with the event that ends its race, so the pieces before that event are sent together.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from client_replicas import FINISH, HEAD, ROLE, Replicas, chunk, delta, event
from http_endings import TRANSPORTS, Received
from ttft_gateway import HedgeConfig

_WAIT_S_MAX: Final = 20.0  # for a reader, which gets an error then
_BEGIN, _PING = ROLE + delta(content="Hel"), b": ping\n\n"
_TEXT: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n"
_JSON: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n"


class Turned(NamedTuple):
    """An answer in pieces.

    Attributes:
        method: of its request.
        head: status line and headers.
        pieces: pieces of the body; an empty one waits until the reader has the response.
        is_chunked: True if each piece is a chunk of HTTP.
        is_cut: True if the connection ends before the end of the body.
        has_lines: True if each piece ends with a line.
    """

    method: str
    head: bytes
    pieces: Sequence[bytes]
    is_chunked: bool = True
    is_cut: bool = False
    has_lines: bool = True


ANSWERS: Final = {
    "content": Turned("POST", HEAD, (_BEGIN, delta(content="lo"), _PING, FINISH)),
    "headers": Turned("GET", HEAD, (b"", b"one", b"two", b"three"), has_lines=False),
    "half events": Turned("POST", HEAD, (_BEGIN, b'data: {"choi', b'ces": []}\n\n', FINISH), has_lines=False),
    "CR LF": Turned("POST", HEAD, (_BEGIN.replace(b"\n", b"\r\n"), _PING.replace(b"\n", b"\r\n")), has_lines=False),
    "an error after content": Turned("POST", HEAD, (_BEGIN, event({"error": {"message": "overloaded"}}), _PING)),
    "a cut": Turned("POST", HEAD, (_BEGIN, delta(content="lo")), is_cut=True),
    "a cut GET": Turned("GET", HEAD, (b"", b"one\n", b"two\n"), is_cut=True),
    "until close": Turned("POST", HEAD.partition(b"transfer")[0], (_BEGIN, _PING, FINISH), is_chunked=False),
    "a length": Turned("GET", _TEXT + b"content-length: 8\r\n", (b"", b"one\n", b"two\n"), is_chunked=False),
    "too short": Turned("GET", _TEXT + b"content-length: 9\r\n", (b"", b"one\n"), is_chunked=False, is_cut=True),
    "JSON": Turned("POST", _JSON, (b'{"a":\n', b"1}\n")),
    "an unknown coding": Turned("POST", HEAD + b"content-encoding: x-odd\r\n", (_PING, _BEGIN, FINISH)),
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
        writer.write(turned.head + b"\r\n")
        async with asyncio.timeout(_WAIT_S_MAX):
            for piece in turned.pieces:
                if piece:
                    writer.write(chunk(piece) if turned.is_chunked else piece)
                    sent += len(piece)
                while self._got < sent:
                    await self._changed.wait()
        if turned.is_cut or (b"transfer" not in turned.head and b"length" not in turned.head):
            raise ConnectionError
        if turned.is_chunked:
            writer.write(b"0\r\n\r\n")
