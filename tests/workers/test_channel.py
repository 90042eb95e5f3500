"""The channel between two processes: order, answers, deadlines, bounds and its end."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Callable, Mapping

import msgspec
import pytest

from gateway.server.hot_restart import READY_S_MAX
from gateway.workers import channel as channel_module
from gateway.workers.channel import Channel, Control, Handler, connect
from gateway.workers.messages import ToWorker
from running import run_real, run_virtual


async def channel_over(
    sock: socket.socket, tasks: asyncio.TaskGroup, handlers: Mapping[str, Handler], on_end: Callable[[], object] = bool
) -> Channel:
    """Return a channel over a connected socket."""
    channel = Channel(tasks, handlers, on_end)
    await connect(channel, sock)
    return channel


@contextlib.asynccontextmanager
async def two_ends(
    handlers: dict[str, Handler], ended: list[str] | None = None
) -> AsyncIterator[tuple[Channel, Channel]]:
    """Both ends of a channel; the second one has the methods."""
    ends = [] if ended is None else ended
    async with asyncio.TaskGroup() as tasks:
        first, second = socket.socketpair()
        ours = await channel_over(first, tasks, {}, lambda: ends.append("ours"))
        theirs = await channel_over(second, tasks, handlers, lambda: ends.append("theirs"))
        try:
            yield ours, theirs
        finally:
            ours.close()
            theirs.close()
            await asyncio.sleep(0.01)


def decoded(answer: bytes | None) -> object:
    """Decode an answer."""
    return None if answer is None else msgspec.msgpack.decode(answer)


def test_calls_and_notices_arrive_in_order() -> None:
    """Each call gets its own answer, a waiting method holds up none behind it, and large frames arrive whole."""
    received: list[object] = []
    release: asyncio.Event

    async def slow(payload: bytes) -> object:
        await release.wait()
        return [msgspec.msgpack.decode(payload), "slow"]

    async def main() -> None:
        nonlocal release
        release = asyncio.Event()
        handlers: dict[str, Handler] = {
            "slow": slow,
            "size": lambda payload: len(msgspec.msgpack.decode(payload, type=bytes)),
            "note": lambda payload: received.append(msgspec.msgpack.decode(payload)),
        }
        async with two_ends(handlers) as (ours, _):
            for number in range(3):
                assert ours.send("note", number)
            answers = asyncio.gather(*(ours.ask("slow", number) for number in range(3)))
            assert decoded(await ours.ask("size", bytes(3_000_000))) == 3_000_000
            release.set()
            assert [decoded(answer) for answer in await answers] == [[n, "slow"] for n in range(3)]
        assert received == [0, 1, 2]

    run_real(main())


def test_an_answer_that_cannot_be_used_ends_no_channel(caplog: pytest.LogCaptureFixture) -> None:
    """A receiver that fails is logged, and the next call is answered."""

    def fail(answer: bytes | None) -> None:
        msgspec.msgpack.decode(answer or b"", type=int)

    async def main() -> None:
        async with two_ends({"text": lambda _: "text"}) as (ours, _):
            ours.call("text", None, fail, 5.0)
            assert decoded(await ours.ask("text")) == "text"

    run_real(main())
    assert [record.getMessage() for record in caplog.records] == ["an answer of a worker channel was not used"]


def test_a_call_without_an_answer_ends(caplog: pytest.LogCaptureFixture) -> None:
    """A deadline, an unknown method, a failing method, and an answer that cannot be encoded all give None, once."""

    async def fail(_: bytes) -> object:
        raise ValueError("a bug")

    async def never(_: bytes) -> object:
        return await asyncio.Event().wait()

    async def main() -> None:
        async with two_ends({"fail": fail, "never": never, "odd": lambda _: object()}) as (ours, _):
            asked = [
                ours.ask(method, None, 0.05 if method == "never" else 5.0) for method in ("fail", "odd", "no", "never")
            ]
            assert await asyncio.gather(*asked) == [None] * 4

    run_real(main())
    assert len(caplog.records) == 2


def test_the_end_is_seen_by_both() -> None:
    """When one side ends, calls of the other one end too, and nothing more is sent."""
    ended: list[str] = []

    async def main() -> None:
        async with two_ends({"never": lambda _: asyncio.Event().wait()}, ended) as (ours, theirs):
            async with asyncio.TaskGroup() as tasks:
                asking = tasks.create_task(ours.ask("never"))
                await asyncio.sleep(0)
                theirs.close()
            assert asking.result() is None
            assert not ours.is_open
            assert not ours.send("note")
            assert await ours.ask("never") is None

    run_real(main())
    assert sorted(ended) == ["ours", "theirs"]


def test_a_side_that_reads_nothing_costs_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the bound of unsent bytes, notices are dropped and calls fail immediately."""
    monkeypatch.setattr(channel_module, "UNSENT_BYTES_MAX", 1_000_000)

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            first, second = socket.socketpair()
            with second:
                ours = await channel_over(first, tasks, {})
                while ours.send("note", bytes(100_000)):
                    pass
                assert await ours.ask("note", bytes(100_000), 60.0) is None
                ours.abort()
                await asyncio.sleep(0.01)

    run_real(main())


def test_an_invalid_frame_ends_the_channel() -> None:
    """Bytes that are no frame, or announce one that is too large, end the channel."""

    async def main() -> None:
        for sent in (b"\x05\x00\x00\x00hello", b"\xff\xff\xff\xff"):
            async with asyncio.TaskGroup() as tasks:
                first, second = socket.socketpair()
                with second:
                    over = asyncio.Event()
                    await channel_over(first, tasks, {}, over.set)
                    second.send(sent)
                    await over.wait()

    run_real(main())


@pytest.mark.parametrize(
    ("ready_s", "closed_s", "expected"),
    [
        (None, 600.0, (0.0, None)),
        (0.0, 600.0, (0.0, signal.SIGUSR2)),
        (60.0, 600.0, (60.0, signal.SIGUSR2)),
        (300.0, 600.0, (READY_S_MAX, None)),
        (60.0, 30.0, None),
    ],
)
def test_a_process_goes_on_until_the_next_gateway_is_ready(
    ready_s: float | None, closed_s: float, expected: tuple[float, signal.Signals | None] | None
) -> None:
    """The call after the end of the top process waits for a late start, at most two minutes; none comes after `close`.

    Args:
        ready_s: time at which the next gateway is ready; None if no service manager holds the sockets.
        expected: time and argument of the call; None for no call.
    """

    async def main() -> list[tuple[float, signal.Signals | None]]:
        loop = asyncio.get_running_loop()
        begin_s, called = loop.time(), list[tuple[float, signal.Signals | None]]()
        has_next = None if ready_s is None else lambda: loop.time() >= begin_s + ready_s
        with socket.socket() as closed:
            control = Control(
                closed, ToWorker, lambda *_: None, lambda given: called.append((loop.time() - begin_s, given)), has_next
            )
        control.outlive(begin_s + READY_S_MAX)
        await asyncio.sleep(closed_s)
        control.close()
        await asyncio.sleep(600.0)
        return called

    found = [(round(at_s), given) for at_s, given in run_virtual(main())]
    assert found == ([] if expected is None else [expected])


def test_an_answer_in_parts_arrives_whole_and_in_turns() -> None:
    """All parts arrive in order, small, large and single ones, and other work goes on between two of them."""
    turns: list[int] = []

    async def parts(payload: bytes) -> AsyncIterator[object]:
        for number in range(msgspec.msgpack.decode(payload, type=int)):
            turns.append(number)
            asyncio.get_running_loop().call_soon(turns.append, -1)
            yield "x" * (number * 40_000)

    async def main() -> list[list[int] | None]:
        async with two_ends({"parts": parts}) as (ours, _):
            answers = [await ours.ask_parts("parts", count) for count in (1, 9, 0)]
            assert decoded(await ours.ask("parts", 3)) == "x" * 80_000  # the last part
            return [None if parts is None else [len(str(decoded(part))) for part in parts] for parts in answers]

    one, nine, none = run_real(main())
    assert (one, nine) == ([0], [number * 40_000 for number in range(9)])
    assert none == [len("None")]
    assert all(turns[at + 1] == -1 for at, number in enumerate(turns[:-1]) if number >= 0)


def test_an_answer_of_which_a_part_is_missing_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method that fails after a part, that stops for too long, or that sends too much, has not answered."""

    async def fails(_: bytes) -> AsyncIterator[object]:
        yield 1
        raise ValueError

    async def hangs(_: bytes) -> AsyncIterator[object]:
        yield 1
        yield 2
        await asyncio.Event().wait()

    async def floods(_: bytes) -> AsyncIterator[object]:
        for number in range(9):
            yield str(number) * 200

    monkeypatch.setattr(channel_module, "ANSWER_BYTES_MAX", 1000)

    async def main() -> list[list[bytes] | None]:
        async with two_ends({"fails": fails, "hangs": hangs, "floods": floods}) as (ours, _):
            return [await ours.ask_parts(method, None, 0.05) for method in ("fails", "hangs", "floods")]

    assert run_real(main()) == [None, None, None]


def test_an_end_in_the_middle_of_an_answer_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    """A side that ends while an answer in parts is sent to it leaves nothing in the log of the other side."""

    async def main() -> None:
        ended = asyncio.Event()

        async def parts(_: bytes) -> AsyncIterator[object]:
            yield 1
            theirs.abort()
            ended.set()
            yield 2
            yield 3

        async with two_ends({"parts": parts}) as (ours, theirs):
            assert await ours.ask_parts("parts") is None
            await ended.wait()

    run_real(main())
    assert caplog.records == []


def test_frames_that_arrive_together_are_handled_in_several_turns_of_the_loop() -> None:
    """A turn takes `SLICE_BYTES` and the frame that exceeds them; all arrive in order, also before the end."""
    turns: list[int] = [0]
    turn_of: list[int] = []
    count, frame_bytes = 40, channel_module.SLICE_BYTES // 4

    async def main() -> None:
        async def turning() -> None:
            while len(turn_of) < count:
                turns[0] += 1
                await asyncio.sleep(0)

        handlers: dict[str, Handler] = {"note": lambda _: turn_of.append(turns[0])}
        async with two_ends(handlers) as (ours, _):
            for _ in range(count):
                assert ours.send("note", bytes(frame_bytes))
            ours.close()
            await turning()

    run_real(main())
    assert len(turn_of) == count
    assert max(turn_of.count(turn) for turn in turn_of) <= 4


def test_frames_of_a_side_that_has_ended_are_handled() -> None:
    """The last message of a process that ends arrives although many came before it."""
    received: list[object] = []

    async def main() -> None:
        ended: list[str] = []
        handlers: dict[str, Handler] = {"note": lambda payload: received.append(msgspec.msgpack.decode(payload)[0])}
        async with two_ends(handlers, ended) as (ours, theirs):
            for number in range(100):
                assert ours.send("note", (number, bytes(channel_module.SLICE_BYTES)))
            while not received:
                await asyncio.sleep(0)
            theirs.abort()
            while "theirs" not in ended:
                await asyncio.sleep(0)
            seen = len(received)
            await asyncio.sleep(0.01)
            assert len(received) == seen

    run_real(main())
    assert received == list(range(len(received)))
