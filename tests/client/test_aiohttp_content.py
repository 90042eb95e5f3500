"""The content of a raced response, compared with aiohttp's reader of the same body."""

import asyncio
import gc
import itertools
import random
from typing import Any

import pytest

pytest.importorskip("aiohttp")

import aiohttp
from aiohttp.http_exceptions import LineTooLong

from ttft_gateway.client.aiohttp_content import RacedContent
from ttft_gateway.client.racing import Ending
from ttft_gateway.hedging.outcomes import Outcome

LINES = b"".join(b"data: %d\r\n\r\n" % (number * 7919) for number in range(20))


class Protocol:
    """The protocol of a connection that needs no flow control."""

    connected = True

    def pause_reading(self) -> None: ...

    def resume_reading(self, *, resume_parser: bool = True) -> None: ...


class Recorded(Ending):
    """Records the end of an answer."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.pieces = 0

    def report(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    @property
    def is_reported(self) -> bool:
        return bool(self.outcomes)


def reader(*pieces: bytes, end: bool = True) -> Any:
    """Return a reader of aiohttp with a body in chunks of HTTP."""
    protocol: Any = Protocol()
    made = aiohttp.StreamReader(protocol, 2**16, loop=asyncio.get_running_loop())
    for piece in pieces:
        made.begin_http_chunk_receiving()
        made.feed_data(piece)
        made.end_http_chunk_receiving()
    if end:
        made.feed_eof()
    return made


async def held(made: Any, count: int) -> list[tuple[bytes, bool]]:
    """Read the pieces of a race."""
    return [await made.readchunk() for _ in range(count)]


def split(rand: random.Random) -> list[bytes]:
    """Return the lines in pieces of random sizes."""
    places = sorted({0, len(LINES), *(rand.randrange(1, len(LINES)) for _ in range(9))})
    return [LINES[start:end] for start, end in itertools.pairwise(places)]


async def operate(content: Any, rand: random.Random) -> list[bytes]:
    """Read a body by random operations, with results that do not depend on the pieces."""
    found: list[bytes] = []
    while not content.at_eof() and len(found) < 1_000:
        draw = rand.randrange(6)
        if draw == 0:
            found.append(await content.readline())
        elif draw == 1:
            found.append(await content.readuntil(b"\r\n\r\n"))
        elif draw == 2:
            try:
                found.append(await content.readexactly(rand.randrange(12)))
            except asyncio.IncompleteReadError as error:
                found.append(error.partial)
        elif draw == 3 and rand.random() < 0.1:
            found.append(await content.read())
        elif draw == 4 and rand.random() < 0.1:
            found.append(content.read_nowait())
        elif draw == 5:
            assert await content.read(0) == b""
    return found


@pytest.mark.parametrize("seed", range(40))
def test_each_read_returns_what_a_reader_returns(seed: int) -> None:
    """Lines, separators and exact sizes equal a plain reader's, wherever the race has ended."""

    async def main() -> None:
        pieces = split(random.Random(seed))
        for count in (0, 1, 3, len(pieces)):
            made = reader(*pieces)
            raced = RacedContent(made, await held(made, count), Recorded())
            plain = reader(*pieces)
            assert await operate(raced, random.Random(seed)) == await operate(plain, random.Random(seed))
            assert await raced.readany() == b""

    asyncio.run(main())


def test_chunks_are_those_of_the_server() -> None:
    """The pieces that were read in a race have the ends of their chunks."""

    async def main() -> None:
        made = reader(b"one", b"two", b"three")
        raced = RacedContent(made, await held(made, 2), Recorded())
        assert [each async for each in raced.iter_chunks()] == [(b"one", True), (b"two", True), (b"three", True)]

    asyncio.run(main())


def test_a_line_without_an_end_is_an_error() -> None:
    """A line across the end of a race has aiohttp's limit."""

    async def main() -> None:
        made = reader(*[b"x" * 1_000] * 200)
        raced = RacedContent(made, await held(made, 1), Recorded())
        with pytest.raises(LineTooLong):
            await raced.readline()
        with pytest.raises(LineTooLong):
            await raced.readline(max_line_length=10)
        with pytest.raises(ValueError, match="Separator"):
            await raced.readuntil(b"")

    asyncio.run(main())


def test_a_piece_may_be_put_back() -> None:
    """`unread_data` works without aiohttp's warning."""

    async def main() -> None:
        made = reader(b"b")
        raced = RacedContent(made, await held(made, 1), Recorded())
        raced.unread_data(b"a")
        assert await raced.read() == b"ab"

    asyncio.run(main())


def test_the_end_of_an_answer_is_reported() -> None:
    """An answer is finished, cut, or given up by its caller, also if the caller drops it."""

    async def main() -> None:
        finished, cut, closed, dropped, done = (Recorded() for _ in range(5))
        made = reader(b"a", end=False)
        RacedContent(made, await held(made, 1), finished)
        made.feed_eof()

        made = reader(b"a", end=False)
        raced = RacedContent(made, await held(made, 1), cut)
        made.set_exception(aiohttp.ClientPayloadError("cut"))
        assert await raced.readany() == b"a"
        with pytest.raises(aiohttp.ClientPayloadError):
            await raced.readany()

        made = reader(b"a", end=False)
        raced = RacedContent(made, await held(made, 1), closed)
        raced.set_exception(aiohttp.ClientConnectionError("closed"))
        with pytest.raises(aiohttp.ClientConnectionError):
            await raced.readany()

        made = reader(b"data: [DONE]\n\n", end=False)
        raced = RacedContent(made, await held(made, 1), done)
        raced.set_exception(aiohttp.ClientConnectionError("closed"))

        made = reader(b"a", end=False)
        RacedContent(made, await held(made, 1), dropped)
        del made, raced
        gc.collect()
        await asyncio.sleep(0)
        assert finished.outcomes[0] is Outcome.FINISHED
        assert cut.outcomes[0] is Outcome.CUT
        assert closed.outcomes[0] is Outcome.CLIENT_GONE
        assert dropped.outcomes == [Outcome.CLIENT_GONE]
        assert done.outcomes[0] is Outcome.FINISHED

    asyncio.run(main())
