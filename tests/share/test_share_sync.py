"""The timer of the exchange: one batch at a time, lost ones given up, a longer period for a large fleet."""

import asyncio
from collections.abc import Sequence
from itertools import groupby

import pytest

from gateway.share.messages import Answer, Answered, Ask, Reply, SwitchesAsk
from gateway.share.sync import BATCH_S, BYTE_S, CORE_SHARE, TURN_EXCHANGES, Sync
from streaming_bench.simulation.virtual_loop import VirtualLoop
from switching_hub import SwitchingHub

BATCH_EXCHANGES = 4 * TURN_EXCHANGES


class Scripted:
    """An engine that answers when it is told to; keeps batches."""

    def __init__(self, processes: int = 1) -> None:
        self.processes = processes
        self.size_bytes = 0
        self.batches: list[tuple[float, Sequence[Ask], Answered]] = []
        self.answers = True
        self.delay_s = 0.001
        self.pauses_s: dict[int, float] = {}  # delay of a batch, by its number

    def ask(self, asks: Sequence[Ask], answered: Answered) -> None:
        loop = asyncio.get_running_loop()
        self.batches.append((loop.time(), asks, answered))
        if self.answers:
            number = len(self.batches) - 1
            loop.call_later(self.pauses_s.get(number, self.delay_s), self.answer, number)

    def answer(self, index: int) -> None:
        """Answer a batch."""
        _, asks, answered = self.batches[index]
        answered(Reply(SwitchingHub().answer(0.0, "a", asks).answers, self.processes, 0.0, self.size_bytes))

    def close(self) -> None:
        """Nothing is open."""


class Part:
    """Asks for switches, or something else."""

    def __init__(self, *asks: Ask) -> None:
        self.got: list[Answer] = []
        self._asks = asks or (SwitchesAsk(),)

    def asks(self, now_s: float, period_s: float) -> Sequence[Ask]:
        return self._asks

    def answered(self, answers: Sequence[Answer], now_s: float) -> None:
        self.got += answers


def run(engine: Scripted, lasts_s: float, *parts: Part) -> list[float]:
    """Exchange for a while; return the times of the batches."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        sync = Sync(engine, loop.time, loop.call_later, lambda: 0.5, BATCH_EXCHANGES)
        sync.exchanges = parts or [Part()]
        sync.start()
        await asyncio.sleep(lasts_s)
        sync.stop()
        await asyncio.sleep(1.0)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())
    return [at_s for at_s, *_ in engine.batches]


@pytest.mark.parametrize(("parts", "batches"), [(1, 21), (30, 14), (50, 11)])
def test_twenty_times_a_second_with_few_pools(parts: int, batches: int) -> None:
    """Each period has one batch, and each answer reaches its part; nothing is asked after the end."""
    each = [Part() for _ in range(parts)]
    assert len(run(Scripted(), 1.02, *each)) == batches
    assert {len(part.got) for part in each} == {batches}


@pytest.mark.parametrize(
    ("processes", "size_bytes", "fewest", "most"),
    [(8, 2_400, 90, 101), (48, 5_000, 44, 50), (48, 90_000, 16, 36), (2_000, 1_000, 20, 30)],
)
def test_a_large_fleet_and_large_batches_ask_less_often(
    processes: int, size_bytes: int, fewest: int, most: int
) -> None:
    """Together they use half of a core of the engine at most, and each of them 30 kB/s, but asks thrice a second."""
    engine = Scripted(processes)
    engine.size_bytes = size_bytes
    later = [at_s for at_s in run(engine, 16.0) if at_s >= 6.0]  # from a mean over some batches
    assert fewest <= len(later) <= most
    assert processes * len(later) * (BATCH_S + BYTE_S * size_bytes) <= 1.1 * CORE_SHARE * 10.0


def test_a_slow_engine_is_asked_less_often() -> None:
    """A reply takes at most a twentieth of a period; one late reply among many is a pause of this process."""
    slow, once = Scripted(), Scripted()
    slow.delay_s = 0.02
    assert 10 <= len(run(slow, 4.0)) <= 14
    once.pauses_s = {5: 0.3}
    assert len(run(once, 4.0)) >= 37


def test_the_period_is_bounded() -> None:
    """However slow the engine is, a gateway is not silent for so long that it counts as gone."""
    slow = Scripted(processes=4_096)
    slow.delay_s, slow.size_bytes = 0.4, 50_000
    assert len(run(slow, 60.0)) >= 28


def test_an_engine_that_does_not_answer_is_asked_twice_a_second() -> None:
    """There is one batch at a time; late answers to those that were given up are ignored."""
    part, engine = Part(), Scripted()
    engine.answers = False
    times_s = run(engine, 2.05, part)
    assert 4 <= len(times_s) <= 5
    engine.answer(0)
    assert part.got == []


def test_many_exchanges_go_in_several_batches() -> None:
    """Each batch has a turn and an answer of its own; the loss of one costs the others nothing."""
    count = BATCH_EXCHANGES
    engine, parts = Scripted(), [Part() for _ in range(2 * count + 5)]
    turns: list[int] = []
    asked = engine.ask

    def ask(asks: Sequence[Ask], answered: Answered) -> None:
        turns.append(len(asks))
        asyncio.get_running_loop().call_soon(turns.append, -1)
        engine.answers = len(engine.batches) != 1  # the second one is lost
        asked(asks, answered)

    engine.ask = ask  # type: ignore[method-assign]

    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        sync = Sync(engine, loop.time, loop.call_later, lambda: 0.5, BATCH_EXCHANGES)
        sync.exchanges = parts
        sync.start()
        await asyncio.sleep(0.05)
        first = [len(part.got) for part in parts]
        await asyncio.sleep(0.4)  # nothing is asked while a reply is awaited
        assert len(engine.batches) == 3
        await asyncio.sleep(0.2)
        sync.stop()
        return first

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(main()) == [1] * count + [0] * count + [1] * 5
    assert turns[:6] == [count, -1, count, -1, 5, -1]
    assert all(part.got for part in parts)


def test_a_batch_is_made_and_taken_in_over_several_turns() -> None:
    """In one turn of the loop, few exchanges ask or are answered, also if several replies arrive together."""
    log: list[str] = []

    class Logged(Part):
        def asks(self, now_s: float, period_s: float) -> Sequence[Ask]:
            log.append("asked")
            return super().asks(now_s, period_s)

        def answered(self, answers: Sequence[Answer], now_s: float) -> None:
            log.append("answered")
            super().answered(answers, now_s)

    async def main() -> list[int]:
        loop, engine = asyncio.get_running_loop(), Scripted()
        engine.delay_s = 0.0
        sync = Sync(engine, loop.time, loop.call_later, lambda: 0.5, BATCH_EXCHANGES)
        sync.exchanges = parts = [Logged() for _ in range(3 * BATCH_EXCHANGES)]
        sync.start()
        for _ in range(60):
            log.append("turn")
            await asyncio.sleep(0)
        sync.stop()
        assert [len(batch[1]) for batch in engine.batches] == [BATCH_EXCHANGES] * 3
        return [len(part.got) for part in parts]

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(main()) == [1] * 3 * BATCH_EXCHANGES
    each = [list(group) for is_turn, group in groupby(log, "turn".__eq__) if not is_turn]
    assert max(map(len, each)) == TURN_EXCHANGES


def test_an_exchange_that_ends_sends_no_further_batch() -> None:
    """`stop` between two batches is the end."""
    engine = Scripted()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        sync = Sync(engine, loop.time, loop.call_later, lambda: 0.5, BATCH_EXCHANGES)
        sync.exchanges = [Part() for _ in range(2 * BATCH_EXCHANGES + 5)]
        sync.start()
        while not engine.batches:
            await asyncio.sleep(0)
        sync.stop()
        await asyncio.sleep(1.0)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())
    assert [len(asks) for _, asks, _ in engine.batches] == [BATCH_EXCHANGES]
