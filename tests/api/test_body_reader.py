"""Request bodies: counted from their arrival to the end of their request, and shared fairly between keys."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.admission.body_memory import BodyMemory, HeldBody
from gateway.api.body_reader import Arrival, BodyLimits
from gateway.api.turns import Turns
from gateway.errors import BodyTooLarge, GatewayError, Overloaded, RequestTimeout
from gateway.race.context import Runtime
from gateway.race.deadlines import TimerQueue
from running import run_virtual
from ttft_gateway.apis.base import Headers

Piece = tuple[float, bytes, bool]
"""Seconds after the one before, bytes, whether more will come."""


class ClientDisconnected(Exception):
    """The client disconnected before its request was complete."""


class Sender:
    """A client: pieces at their times, then silence or a disconnect."""

    def __init__(self, pieces: list[Piece], *, leaves: bool = False, held: BodyMemory | None = None) -> None:
        self.pieces = list(pieces)
        self.leaves = leaves
        self.asked = 0
        self.held = held
        self.held_when_read: list[int] = []

    async def receive(self, failed: "asyncio.Future[GatewayError]", *, at_once: bool = False) -> tuple[bytes, bool]:
        """Return the next piece, and whether more will come; with `at_once` nothing if it comes later."""
        if at_once and (not self.pieces or self.pieces[0][0]):
            return b"", True
        self.asked += 1
        if self.held is not None:
            self.held_when_read.append(self.held.held)
        if not self.pieces and self.leaves:
            raise ClientDisconnected
        gap_s, body, more = self.pieces.pop(0) if self.pieces else (None, b"", True)
        if gap_s != 0.0:
            await asyncio.wait({failed}, timeout=gap_s)
        return body, more


def reader(body_bytes_max: int, body_s: float, memory: BodyMemory) -> BodyLimits:
    """Return a reader of the running loop."""
    loop = asyncio.get_running_loop()
    runtime = Runtime(loop, lambda _event: None, lambda: 0.0, TimerQueue(loop))
    return BodyLimits(body_bytes_max, body_s, memory, runtime, Turns(runtime.loop))


async def receive(bodies: BodyLimits, headers: Headers, sender: Sender, key_name: str = "a") -> bytes:
    """Receive a body of a request that ends immediately if it is rejected, and never otherwise."""
    return (await opened(bodies, headers, sender, key_name))[0]


async def opened(
    bodies: BodyLimits, headers: Headers, sender: Sender, key_name: str = "a"
) -> tuple[bytes, HeldBody | None]:
    """Do the same, and return the memory of the body, which the caller releases."""
    failed: asyncio.Future[GatewayError] = asyncio.get_running_loop().create_future()
    by_name = dict(headers)
    bodies.check(by_name)
    piece, more = await sender.receive(failed, at_once=True)
    if not more:
        return piece, bodies.hold(key_name, len(piece), by_name)
    arrival = Arrival(bodies, key_name, by_name, failed.set_result)
    try:
        while True:
            arrival.receive([piece] if piece else [])
            if not more:
                return arrival.whole()
            piece, more = await sender.receive(failed)
            if failed.done():
                raise failed.result()
    except BaseException:
        arrival.close()
        raise


def filled(memory: BodyMemory, size: int, key_name: str = "a") -> HeldBody:
    """Hold a complete body."""
    body = memory.open(key_name)
    assert memory.grow(body, size)
    return body


def announced(size: int) -> Headers:
    """Headers that announce a body."""
    return [(b"content-length", b"%d" % size)]


def run(main: Callable[[], Awaitable[None]]) -> None:
    """Run a test in virtual time."""

    async def awaited() -> None:
        await main()

    run_virtual(awaited())


def test_a_body_in_one_piece_is_held_until_its_request_ends() -> None:
    """Its bytes are reserved when they have arrived, stay while the request runs, and are released once."""

    async def main() -> None:
        held = BodyMemory(100)
        sender = Sender([(0.0, b"12345", False)], held=held)
        bodies = reader(50, 1.0, held)
        body, memory = await opened(bodies, announced(5), sender)
        assert body == b"12345"
        assert (sender.held_when_read, held.held) == ([0], 5)
        assert memory is not None
        bodies.release(memory, 1.0)
        assert held.held == 0

    run(main)


@pytest.mark.parametrize("headers", [announced(40), []], ids=["announced", "in chunks"])
def test_with_no_room_left_nothing_is_read(headers: Headers) -> None:
    """With the memory taken by complete bodies a new body is rejected before `receive` is called."""

    async def main() -> None:
        held = BodyMemory(100)
        filled(held, 100)
        sender = Sender([(0.0, b"x" * 40, False)])
        with pytest.raises(Overloaded) as refused:
            await receive(reader(50, 1.0, held), headers, sender)
        assert (sender.asked, held.held) == (0, 100)
        assert refused.value.closes
        assert refused.value.retry_after_s == 5.0

    run(main)


@pytest.mark.parametrize("headers", [announced(180), []], ids=["announced", "in chunks"])
def test_bytes_are_counted_as_they_arrive(headers: Headers) -> None:
    """A body takes its bytes piece by piece, whatever it announces, and is rejected at the piece that does not fit."""

    async def main() -> None:
        held = BodyMemory(100)
        filled(held, 70)
        sender = Sender([(0.1, b"x" * 20, True)] * 9, held=held)
        with pytest.raises(Overloaded):
            await receive(reader(500, 10.0, held), headers, sender)
        assert (sender.held_when_read, held.held, held.arriving) == ([70, 90], 70, 0)

    run(main)


def test_the_wait_is_the_time_for_which_bodies_are_held() -> None:
    """With bodies held for 20 s, a tenth of all the room is free after 2 s."""

    async def main() -> None:
        held = BodyMemory(1_000)
        held.close(filled(held, 500), 20.0)
        filled(held, 1_000)
        with pytest.raises(Overloaded) as refused:
            await receive(reader(500, 1.0, held), announced(100), Sender([(0.0, b"x" * 100, False)]))
        assert refused.value.retry_after_s == pytest.approx(0.1)

    run(main)


def test_of_incomplete_bodies_the_youngest_is_refused() -> None:
    """Bodies that together exceed the memory do not block each other: the older ones become complete."""

    async def main() -> None:
        held = BodyMemory(100)
        bodies = reader(50, 30.0, held)

        async def one(number: int) -> str:
            await asyncio.sleep(0.01 * number)
            try:
                await receive(bodies, announced(50), Sender([(0.1, b"x" * 10, step < 4) for step in range(5)]))
            except Overloaded:
                return "refused"
            return "whole"

        assert await asyncio.gather(*map(one, range(6))) == ["whole"] * 2 + ["refused"] * 4
        assert (held.held, held.arriving) == (100, 0)

    run(main)


def test_a_refused_body_is_dropped_at_once() -> None:
    """A body is refused without waiting for its sender, which has stopped, when an older body needs its room."""

    async def main() -> None:
        held = BodyMemory(100)
        bodies, loop = reader(80, 30.0, held), asyncio.get_running_loop()

        async def silent() -> float:
            with pytest.raises(Overloaded):
                await receive(bodies, announced(80), Sender([(0.1, b"x" * 60, True)]))
            return loop.time() - began_s

        began_s = loop.time()
        async with asyncio.TaskGroup() as tasks:
            old = tasks.create_task(
                receive(bodies, announced(80), Sender([(0.05, b"x" * 30, True), (1.0, b"x" * 50, False)]))
            )
            young = tasks.create_task(silent())
        assert young.result() == pytest.approx(1.05)
        assert (len(old.result()), held.held) == (80, 80)

    run(main)


def test_one_key_leaves_room_for_another() -> None:
    """Of several keys, one that sends as much as it can holds half of the room, and the next key is never refused."""

    async def main() -> None:
        held = BodyMemory(1_000, is_shared=True)
        bodies = reader(100, 30.0, held)
        async with asyncio.TaskGroup() as tasks:
            flood = [
                tasks.create_task(_outcome(bodies, Sender([(0.1, b"x" * 99, True)]), "hostile")) for _ in range(50)
            ]
            await asyncio.sleep(1.0)
            assert held.held == 5 * 99
            served = [
                len(await receive(bodies, announced(80), Sender([(0.1, b"x" * 80, False)]), "other")) for _ in range(3)
            ]
            assert served == [80] * 3
            for task in flood:
                task.cancel()
        assert held.held == 240

    run(main)


async def _outcome(bodies: BodyLimits, sender: Sender, key_name: str) -> str:
    try:
        await receive(bodies, announced(50), sender, key_name)
    except GatewayError as error:
        return error.code or ""
    return "whole"


def test_a_key_with_one_body_may_use_all_the_room() -> None:
    """A body up to the configured size is possible, however small the half of the room is."""

    async def main() -> None:
        held = BodyMemory(100, is_shared=True)
        bodies = reader(100, 30.0, held)
        body, first = await opened(bodies, [], Sender([(0.0, b"x" * 90, False)]))
        assert len(body) == 90
        with pytest.raises(Overloaded, match="share"):
            await receive(bodies, [], Sender([(0.0, b"x" * 9, False)]))
        assert first is not None
        bodies.release(first, 1.0)

    run(main)


def test_bodies_being_received_are_bounded() -> None:
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
                await receive(bodies, announced(9), Sender([(0.1, b"123456789", False)]))
            assert await receive(bodies, announced(3), Sender([(0.0, b"123", False)])) == b"123"
        assert (held.arriving, held.held) == (0, 3)

    run(main)


def test_one_key_leaves_slots_for_another() -> None:
    """Of several keys, one that begins as many bodies as it can leaves half of the slots to the others."""

    async def main() -> None:
        held = BodyMemory(10_000, arriving_max=8, is_shared=True)
        bodies = reader(50, 30.0, held)
        async with asyncio.TaskGroup() as tasks:
            flood = [tasks.create_task(_outcome(bodies, Sender([(0.1, b"1", True)]), "hostile")) for _ in range(20)]
            await asyncio.sleep(1.0)
            assert held.arriving == 4
            slow = Sender([(0.1, b"12345", True), (0.1, b"6789", False)])
            assert await receive(bodies, announced(9), slow, "other") == b"123456789"
            for task in flood:
                task.cancel()

    run(main)


async def _refused(bodies: BodyLimits, kind: type[GatewayError]) -> None:
    with pytest.raises(kind):
        await receive(bodies, announced(9), Sender([(0.1, b"1", True)]))


PIECES = st.lists(st.tuples(st.sampled_from([0.0, 0.1, 2.0]), st.binary(max_size=40), st.booleans()), max_size=5)


@settings(max_examples=150)
@given(st.lists(st.tuples(PIECES, st.one_of(st.none(), st.integers(0, 120)), st.booleans()), max_size=6))
def test_only_received_bodies_are_held(senders: list[tuple[list[Piece], int | None, bool]]) -> None:
    """For any announced, late, too large or incomplete bodies of two keys: exactly the received bodies are held."""

    async def one(bodies: BodyLimits, pieces: list[Piece], size: int | None, *, leaves: bool) -> int:
        headers = [] if size is None else announced(size)
        try:
            body = await receive(bodies, headers, Sender(pieces, leaves=leaves), "a" if leaves else "b")
        except (BodyTooLarge, Overloaded, RequestTimeout, ClientDisconnected):
            return 0
        return len(body)

    async def main() -> None:
        held = BodyMemory(150, arriving_max=3, is_shared=True)
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
            await receive(reader(50, 1.0, held), [(b"content-length", b"9" * 5_000)], Sender([]))
        assert held.held == 0

    run(main)


@pytest.mark.parametrize(("headers", "message"), [(announced(51), "is 51 bytes"), ([], "is over 50 bytes")])
def test_a_whole_body_over_the_limit_is_rejected(headers: Headers, message: str) -> None:
    """The error of a body that came with its headers has the announced length, and nothing of the body is held."""

    async def main() -> None:
        held = BodyMemory(100)
        with pytest.raises(BodyTooLarge, match=message):
            reader(50, 1.0, held).hold("a", 51, dict(headers))
        assert held.held == 0

    run(main)
