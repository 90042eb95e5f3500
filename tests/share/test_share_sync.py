"""The timer of the exchange: one batch at a time, lost ones given up, a longer period for a large fleet."""

import asyncio
from collections.abc import Sequence

from gateway.share.messages import Answer, Answered, Ask, Reply, SwitchesAsk
from gateway.share.sync import Sync
from streaming_bench.simulation.virtual_loop import VirtualLoop
from switching_hub import SwitchingHub


class Scripted:
    """An engine that answers when it is told to; keeps batches."""

    def __init__(self, processes: int = 1) -> None:
        self.processes = processes
        self.batches: list[tuple[float, Sequence[Ask], Answered]] = []
        self.answers = True

    def ask(self, asks: Sequence[Ask], answered: Answered) -> None:
        loop = asyncio.get_running_loop()
        self.batches.append((loop.time(), asks, answered))
        if self.answers:
            loop.call_later(0.001, self.answer, -1)

    def answer(self, index: int) -> None:
        """Answer a batch."""
        _, asks, answered = self.batches[index]
        answered(Reply(SwitchingHub().answer(0.0, "a", asks).answers, self.processes))

    def close(self) -> None:
        """Nothing is open."""


class Part:
    """Asks for switches."""

    def __init__(self) -> None:
        self.got: list[Answer] = []

    def asks(self, now_s: float, period_s: float) -> Sequence[Ask]:
        return [SwitchesAsk()]

    def answered(self, answers: Sequence[Answer], now_s: float) -> None:
        self.got += answers


def run(engine: Scripted, lasts_s: float, part: Part | None = None) -> list[float]:
    """Exchange for a while; return the times of the batches."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        sync = Sync(engine, loop.time, loop.call_later, lambda: 0.5)
        sync.exchanges = [part or Part()]
        sync.start()
        await asyncio.sleep(lasts_s)
        sync.stop()
        await asyncio.sleep(1.0)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())
    return [at_s for at_s, *_ in engine.batches]


def test_ten_times_a_second() -> None:
    """Each period has one batch, and each answer reaches its part; nothing is asked after the end."""
    part = Part()
    assert len(run(Scripted(), 1.05, part)) == 11
    assert len(part.got) == 11


def test_a_large_fleet_asks_less_often() -> None:
    """A thousand gateways have a period of 220 ms."""
    times_s = run(Scripted(processes=1_000), 2.0)
    assert 9 <= len(times_s) <= 11


def test_an_engine_that_does_not_answer_is_asked_twice_a_second() -> None:
    """There is one batch at a time; late answers to those that were given up are ignored."""
    part, engine = Part(), Scripted()
    engine.answers = False
    times_s = run(engine, 2.05, part)
    assert 4 <= len(times_s) <= 5
    engine.answer(0)
    assert part.got == []
