"""Batches of asks, their time limit, and when the engine counts as away; in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from gateway.share.asker import BATCH_MAX, Asker, AskResult
from gateway.share.fleet import ASK_S_MAX, Fleet
from gateway.share.messages import Answer, Answered, Ask, BucketAnswer, BucketAsk, Reply
from running import run_virtual
from shared_engine import EngineHost, HostedEngine
from streaming_bench.simulation.virtual_loop import VirtualLoop


class Requester:
    """Asks for one token, and notes what came."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.granted: list[float] = []
        self.lost_s: list[float] = []

    def ask(self, now_s: float) -> Ask | None:
        assert now_s == self._loop.time()
        return BucketAsk("k", 1_000.0, 60.0, 1.0)

    def answered(self, answer: Answer, now_s: float) -> None:
        assert isinstance(answer, BucketAnswer)
        self.granted.append(now_s)

    def lost(self, now_s: float) -> None:
        self.lost_s.append(now_s)


class Running:
    """An asker with its engine."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.host = EngineHost(self.loop)
        self.fleet = Fleet()
        self.changes: list[bool] = []
        self.errors: list[Exception] = []
        self.expected: list[type[Exception]] = []
        self.asker = Asker(
            HostedEngine(self.host, "me"),
            self.fleet,
            self.loop,
            lambda: 0.5,
            lambda: self.changes.append(False),
            lambda: self.changes.append(True),
            self.errors.append,
        )
        self.results = {"ok": 0, "late": 0, "lost": 0}
        self.asker.on_result = self._count
        self.ticks: list[float] = []
        self.asker.ticks.append(self.ticks.append)

    def _count(self, result: AskResult, _took_s: float | None) -> None:
        self.results[result] += 1

    def want(self) -> Requester:
        requester = Requester(self.loop)
        self.fleet.want(requester)
        return requester


def virtually(test: Callable[[Running], Awaitable[None]]) -> None:
    """Run a test on a virtual loop."""

    async def main() -> None:
        running = Running()
        await test(running)
        running.asker.close()
        assert [type(error) for error in running.errors] == running.expected

    run_virtual(main())


def test_asks_of_one_turn_are_one_batch() -> None:
    """Every requester gets its answer after one exchange."""

    async def test(running: Running) -> None:
        await running.asker.start()
        start_s = running.loop.time()
        requesters = [running.want() for _ in range(3)]
        await asyncio.sleep(0.01)
        assert [requester.granted for requester in requesters] == [[pytest.approx(start_s + 0.0005)]] * 3
        assert running.results == {"ok": 2, "late": 0, "lost": 0}

    virtually(test)


def test_a_batch_is_bounded() -> None:
    """What does not fit goes with the next one."""

    async def test(running: Running) -> None:
        await running.asker.start()
        requesters = [running.want() for _ in range(BATCH_MAX + 1)]
        await asyncio.sleep(0.01)
        assert all(len(requester.granted) == 1 for requester in requesters)
        assert running.results["ok"] == 3

    virtually(test)


@pytest.mark.parametrize(("break_engine", "ready_s"), [(None, 0.0005), ("kill", ASK_S_MAX), ("hang", ASK_S_MAX)])
def test_the_start_waits_100_ms_at_most(break_engine: str | None, ready_s: float) -> None:
    """A process is ready with its first reply, or if none comes."""

    async def test(running: Running) -> None:
        if break_engine is not None:
            getattr(running.host, break_engine)()
        await running.asker.start()
        assert running.loop.time() == pytest.approx(ready_s)
        assert running.fleet.is_alone is (break_engine is not None)

    virtually(test)


def test_late_answers_count_but_nobody_waits_for_them() -> None:
    """A process is alone from the first late reply; three of them mean away, and only a reply in time means back."""

    async def test(running: Running) -> None:
        await running.asker.start()
        running.host.delay_s = 0.2
        requester = running.want()
        await asyncio.sleep(0.11)
        assert (running.fleet.is_alone, running.asker.is_up, requester.granted) == (True, True, [])
        await asyncio.sleep(0.1)
        assert len(requester.granted) == 1
        await asyncio.sleep(1.0)
        assert (running.asker.is_up, running.fleet.is_alone) == (False, True)
        running.host.delay_s = 0.0005
        await asyncio.sleep(0.5)
        assert (running.asker.is_up, running.fleet.is_alone) == (True, False)
        assert running.changes == [False, True]

    virtually(test)


@pytest.mark.parametrize(("stop", "start"), [("kill", "start"), ("hang", "go_on")])
def test_an_engine_that_was_away_is_used_at_once(stop: str, start: str) -> None:
    """While it is away, asks are given up immediately; leases settle their debts in the turn in which it is back."""

    async def test(running: Running) -> None:
        await running.asker.start()
        getattr(running.host, stop)()
        await asyncio.sleep(8.0)
        assert running.changes == [False]
        requester = running.want()
        await asyncio.sleep(0.001)
        assert len(requester.lost_s) == 1
        ticks = len(running.ticks)
        getattr(running.host, start)()
        asked_s = running.loop.time()
        while running.fleet.is_alone:
            await asyncio.sleep(0.01)
        assert running.loop.time() - asked_s < 0.6
        assert len(running.ticks) == ticks + 1
        assert running.changes == [False, True]

    virtually(test)


def test_a_hung_engine_gets_few_batches() -> None:
    """However long it hangs, what it has to do later is bounded."""

    async def test(running: Running) -> None:
        await running.asker.start()
        running.host.hang()
        await asyncio.sleep(600.0)
        late = running.results["late"]
        assert late <= 5
        running.host.go_on()
        await asyncio.sleep(1.0)
        assert running.asker.is_up

    virtually(test)


def test_an_idle_process_is_counted() -> None:
    """Without anything to ask it asks once a second, so that the engine counts it."""

    async def test(running: Running) -> None:
        await running.asker.start()
        running.host.hub.answer(running.loop.time(), "other", [])
        await asyncio.sleep(3.0)
        assert running.fleet.processes == 2
        await asyncio.sleep(60.0)
        assert running.fleet.processes == 1
        assert running.host.hub.processes(running.loop.time())["me"] <= 1.2

    virtually(test)


def test_an_engine_without_data_has_yet_to_count_the_processes() -> None:
    """Its first number is not used while the others may not have asked yet."""

    async def test(running: Running) -> None:
        await running.asker.start()
        running.host.hub.answer(running.loop.time(), "other", [])
        await asyncio.sleep(2.0)
        assert running.fleet.processes == 2
        running.host.kill()
        running.host.start()
        await asyncio.sleep(4.0)
        assert running.fleet.processes == 2
        await asyncio.sleep(4.0)
        assert running.fleet.processes == 1

    virtually(test)


def test_nothing_is_asked_after_the_end() -> None:
    """A lease gets the switches of a request that ends later."""

    async def test(running: Running) -> None:
        await running.asker.start()
        running.asker.close()
        assert len(running.want().lost_s) == 1
        assert running.fleet.is_alone

    virtually(test)


@pytest.mark.parametrize("method", ["ask", "answered", "tick"])
def test_a_bug_in_one_holder_costs_the_others_nothing(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is reported, and the others get their answers."""

    async def test(running: Running) -> None:
        await running.asker.start()
        running.expected = [ZeroDivisionError]
        broken, other = running.want(), running.want()
        ticks = running.asker.ticks

        def fail(_: float) -> None:
            ticks.remove(fail)
            raise ZeroDivisionError

        if method == "tick":
            ticks.insert(0, fail)
        else:
            monkeypatch.setattr(broken, method, lambda *_: 1 / 0)
        ticked = len(running.ticks)
        await asyncio.sleep(0.15)
        assert len(other.granted) == 1
        if method != "tick":
            assert len(running.ticks) > ticked

    virtually(test)


class Short:
    """An engine that omits an answer in its replies."""

    def ask(self, asks: Sequence[Ask], answered: Answered) -> None:
        asyncio.get_running_loop().call_soon(answered, Reply([], 3) if asks else Reply([]))

    def close(self) -> None: ...


def test_a_reply_without_all_answers_is_lost() -> None:
    """Nothing is used from it."""

    async def main() -> None:
        loop, fleet = asyncio.get_running_loop(), Fleet()
        asker = Asker(Short(), fleet, loop, lambda: 0.5, bool, bool, lambda _: None)
        await asker.start()
        requester = Requester(loop)
        fleet.want(requester)
        await asyncio.sleep(0.01)
        assert (len(requester.lost_s), fleet.processes) == (1, 1)
        asker.close()

    run_virtual(main())


@pytest.mark.parametrize(
    ("pause_s", "delay_s"), [(0.1, 0.012), (0.06, 0.3)], ids=["after one pause", "after five: the engine pauses, too"]
)
def test_pauses_of_the_process_are_no_delay_of_the_engine(pause_s: float, delay_s: float) -> None:
    """On a busy machine, the process runs for a moment now and then: a reply after a few such moments is in time."""

    async def main() -> None:
        running = Running()
        loop = running.loop
        assert isinstance(loop, VirtualLoop)
        await running.asker.start()
        running.host.delay_s = delay_s

        def pause() -> None:
            loop._move_clock(loop.time() + pause_s)
            loop.call_later(0.001, pause)

        pause()
        await asyncio.sleep(20.0)
        assert running.results["ok"] > 10
        assert (running.results["late"], running.changes, running.fleet.times_alone) == (0, [], 1)
        running.asker.close()

    run_virtual(main())
