"""Request bodies: counted before they are read and until their request ends, whatever comes in between."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.api.body_reader import BodyReader, ClientDisconnected
from gateway.errors import BodyTooLarge, GatewayError, Overloaded, RequestTimeout
from gateway.limits.body_memory import BodyMemory
from gateway.race.context import Runtime
from gateway.race.timers import TimerQueue
from providers.base import Headers
from running import run_virtual

Piece = tuple[float, bytes, bool]
"""Seconds after the one before, bytes, whether more will come."""


class Sender:
    """ASGI's `receive`: pieces at their times, then silence or a disconnect."""

    def __init__(self, pieces: list[Piece], *, leaves: bool = False, held: BodyMemory | None = None) -> None:
        self.pieces = list(pieces)
        self.leaves = leaves
        self.asked = 0
        self.held = held
        self.held_when_read: list[int] = []

    async def receive(self) -> Any:
        self.asked += 1
        if self.held is not None:
            self.held_when_read.append(self.held.held)
        if not self.pieces:
            if self.leaves:
                return {"type": "http.disconnect"}
            await asyncio.Event().wait()
        gap_s, body, more = self.pieces.pop(0)
        if gap_s:
            await asyncio.sleep(gap_s)
        return {"type": "http.request", "body": body, "more_body": more}


def reader(body_bytes_max: int, body_s: float, memory: BodyMemory) -> BodyReader:
    """Return a reader of the running loop."""
    loop = asyncio.get_running_loop()
    runtime = Runtime(loop, lambda _event: None, lambda: 0.0, TimerQueue(loop))
    return BodyReader(body_bytes_max, body_s, memory, runtime)


def announced(size: int) -> Headers:
    """Headers that announce a body."""
    return [(b"content-length", b"%d" % size)]


def run(main: Callable[[], Awaitable[None]]) -> None:
    """Run a test in virtual time."""

    async def awaited() -> None:
        await main()

    run_virtual(awaited())


def test_a_body_in_one_piece_is_held_until_its_request_ends() -> None:
    """Its bytes are taken before it is read, stay while the request runs, and are given back once."""

    async def main() -> None:
        held = BodyMemory(100)
        bodies, sender = reader(50, 1.0, held), Sender([(0.0, b"12345", False)], held=held)
        assert await bodies.receive(announced(5), sender.receive) == b"12345"
        assert (sender.held_when_read, held.held) == ([5], 5)
        held.ended(5, 1.0)
        assert held.held == 0

    run(main)


@pytest.mark.parametrize("headers", [announced(40), []], ids=["announced", "in chunks"])
def test_what_does_not_fit_is_not_read(headers: Headers) -> None:
    """With the memory used up a new body is rejected before `receive` is called."""

    async def main() -> None:
        held = BodyMemory(100)
        assert held.try_reserve(100)
        sender = Sender([(0.0, b"x" * 40, False)])
        with pytest.raises(Overloaded) as refused:
            await reader(50, 1.0, held).receive(headers, sender.receive)
        assert (sender.asked, held.held) == (0, 100)
        assert refused.value.closes
        assert refused.value.retry_after_s == 5.0

    run(main)


def test_chunks_are_counted_as_they_come() -> None:
    """A body of unknown length takes its bytes piece by piece, and is refused at the piece that does not fit."""

    async def main() -> None:
        held = BodyMemory(100)
        assert held.try_reserve(70)
        sender = Sender([(0.1, b"x" * 20, True)] * 9, held=held)
        with pytest.raises(Overloaded):
            await reader(500, 10.0, held).receive([], sender.receive)
        assert (sender.held_when_read, held.held, held.arriving) == ([70, 90], 70, 0)

    run(main)


def test_how_long_to_wait_is_how_long_bodies_are_held() -> None:
    """With bodies held for 20 s, a tenth of all the room is back in 2 s."""

    async def main() -> None:
        held = BodyMemory(1_000)
        assert held.try_reserve(500)
        held.ended(500, 20.0)
        assert held.try_reserve(1_000)
        with pytest.raises(Overloaded) as refused:
            await reader(500, 1.0, held).receive(announced(100), Sender([]).receive)
        assert refused.value.retry_after_s == pytest.approx(2.0)

    run(main)


def test_bodies_waited_for_are_bounded() -> None:
    """At most N bodies may be arriving; one more is rejected unless it is complete with its headers."""

    async def main() -> None:
        held = BodyMemory(10_000, arriving_max=2)
        bodies = reader(50, 1.0, held)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(2):
                tasks.create_task(_refused(bodies, RequestTimeout))
            await asyncio.sleep(0.5)
            assert held.arriving == 2
            with pytest.raises(Overloaded):
                await bodies.receive(announced(9), Sender([(0.1, b"123456789", False)]).receive)
            assert await bodies.receive(announced(3), Sender([(0.0, b"123", False)]).receive) == b"123"
        assert (held.arriving, held.held) == (0, 3)

    run(main)


async def _refused(bodies: BodyReader, kind: type[GatewayError]) -> None:
    with pytest.raises(kind):
        await bodies.receive(announced(9), Sender([(0.1, b"1", True)]).receive)


PIECES = st.lists(st.tuples(st.sampled_from([0.0, 0.1, 2.0]), st.binary(max_size=40), st.booleans()), max_size=5)


@settings(max_examples=150)
@given(st.lists(st.tuples(PIECES, st.one_of(st.none(), st.integers(0, 120)), st.booleans()), max_size=6))
def test_nothing_is_ever_held_for_nobody(senders: list[tuple[list[Piece], int | None, bool]]) -> None:
    """For any announced, late, too large or incomplete body: exactly the received bodies are held."""

    async def one(bodies: BodyReader, pieces: list[Piece], size: int | None, *, leaves: bool) -> int:
        headers = [] if size is None else announced(size)
        try:
            body = await bodies.receive(headers, Sender(pieces, leaves=leaves).receive)
        except (BodyTooLarge, Overloaded, RequestTimeout, ClientDisconnected):
            return 0
        return len(body)

    async def main() -> None:
        held = BodyMemory(150, arriving_max=3)
        bodies = reader(100, 3.0, held)
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(one(bodies, pieces, size, leaves=leaves)) for pieces, size, leaves in senders]
        assert held.held == sum(task.result() for task in running) <= held.bytes_max
        assert held.arriving == 0

    run(main)


def test_a_length_that_is_no_length_is_refused() -> None:
    """More digits than any body has are too large, and cost nothing to read."""

    async def main() -> None:
        held = BodyMemory(100)
        with pytest.raises(BodyTooLarge):
            await reader(50, 1.0, held).receive([(b"content-length", b"9" * 5_000)], Sender([]).receive)
        assert held.held == 0

    run(main)
