"""A raced answer reaches its reader when the plain client would return it: no piece waits for a later one.

Time is an order here: a server sends each piece after the reader has got all before it, so a piece that is held stops
the answer. What is held by design is the beginning: the response is returned with the event that ends its race.
"""

import asyncio
from typing import Final

import pytest

import client_fixtures
from client_replicas import FINISH, HEAD, ROLE, Replicas, chunk, delta
from http_endings import TRANSPORTS
from ttft_gateway import HedgeConfig

site = client_fixtures.shared_site

_CONFIGS: Final[dict[str, HedgeConfig | None]] = {
    "plain": None,
    "alone": HedgeConfig(warmup_delay=3600.0),
    "raced": HedgeConfig(warmup_delay=0.0, min_delay=0.0, budget_percent=100.0),
}
_PIECES: Final = {
    "POST": (ROLE + delta(content="Hel"), delta(content="lo"), b": ping\n\n", FINISH),
    "GET": (b"one", b"two", b"three"),
}
_WAIT_S_MAX: Final = 20.0  # for a reader, which gets an error then


class _Turns:
    """A server for HTTP that waits for its reader after the headers of a GET, and after each piece."""

    def __init__(self, method: str) -> None:
        self._method = method
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
        self._loop = asyncio.get_running_loop()
        writer.write(HEAD + b"\r\n")
        sent = 0
        async with asyncio.timeout(_WAIT_S_MAX):
            for piece in (b"", *_PIECES[self._method]) if self._method == "GET" else _PIECES[self._method]:
                if piece:
                    writer.write(chunk(piece))
                    sent += len(piece)
                while self._got < sent:
                    await self._changed.wait()
        writer.write(b"0\r\n\r\n")


@pytest.mark.parametrize("how", _CONFIGS)
@pytest.mark.parametrize("method", _PIECES)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_no_piece_of_an_http_answer_waits_for_a_later_one(
    site: Replicas, transport: str, method: str, how: str
) -> None:
    """The headers of a GET, and each piece from the first content on, are returned before the server sends more."""
    turns = _Turns(method)
    plan = ["late:turns", "turns"] if how == "raced" else ["turns"]
    replica = site.add(*plan, answers={"turns": turns.answer})
    send = TRANSPORTS[transport]("raw", turns.on_piece)
    received = send(method, f"{replica.url}/chat/completions", _CONFIGS[how])
    assert (received.status, received.error, received.body) == (200, "", b"".join(_PIECES[method]))
    assert len(replica.seen) == len(plan)
