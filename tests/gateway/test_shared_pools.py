"""The exchange of processes over one engine: loads, switches, a reload, and a fault in a part."""

import asyncio
import random
from collections.abc import Sequence

from defaults import default_timeouts
from gateway.events import ComponentFailed, Event
from gateway.pool.pool import Pool
from gateway.race.context import Model, Runtime
from gateway.race.timers import TimerQueue
from gateway.share.hub import ShareHub
from gateway.share.messages import Answered, Ask, keep_silent
from gateway.shared_pools import SharedPools
from pooled import pool, send
from running import run_virtual


class Engine:
    """The hub in the process."""

    def __init__(self, hub: ShareHub, head: str) -> None:
        self._hub = hub
        self._head = head

    def ask(self, asks: Sequence[Ask], answered: Answered) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(0.001, answered, self._hub.answer(loop.time(), self._head, asks))

    def close(self) -> None:
        """Nothing is open."""


class Process:
    """A process with one model."""

    def __init__(self, hub: ShareHub, head: str) -> None:
        loop = asyncio.get_running_loop()
        self.events: list[Event] = []
        self.switched: list[tuple[str | None, bool]] = []
        self.pool: Pool = pool(None, None)
        runtime = Runtime(loop, self.events.append, random.Random(1).random, TimerQueue(loop))
        self.shared = SharedPools(
            Engine(hub, head), runtime, lambda name, on: self.switched.append((name, on)), keep_silent
        )
        self.use(self.pool)
        self.shared.start()

    def use(self, pool: Pool) -> None:
        """Exchange another pool of the same model."""
        self.pool = pool
        self.shared.use([Model("m", [pool], default_timeouts())], {})


def test_processes_share_loads_and_switches() -> None:
    """Within a second; a process that starts later has the switches, too."""

    async def main() -> None:
        hub = ShareHub()
        first, second = Process(hub, "1"), Process(hub, "2")
        send(first.pool, 0, 0.0)
        reached = await asyncio.gather(first.shared.switched(None, on=False), second.shared.switched("m", on=True))
        assert second.pool.replicas[0].in_flight == 1
        assert second.switched == [(None, False)]
        assert first.switched == [("m", True)]
        assert [tuple(each) for each in reached] == [(2, 2), (2, 2)]
        assert asyncio.get_running_loop().time() < 1.5
        third = Process(hub, "3")
        await asyncio.sleep(1.0)
        assert sorted(third.switched, key=str) == [("m", True), (None, False)]
        for process in (first, second, third):
            process.shared.close()

    run_virtual(main())


def test_a_reload_goes_on() -> None:
    """The new pools take over, and the loads of the old ones go."""

    async def main() -> None:
        hub = ShareHub()
        first, second = Process(hub, "1"), Process(hub, "2")
        send(first.pool, 0, 0.0)
        await asyncio.sleep(1.0)
        second.use(pool(None, None))
        await asyncio.sleep(1.0)
        assert second.pool.replicas[0].in_flight == 1
        first.use(pool(None, None))
        await asyncio.sleep(1.0)
        assert second.pool.replicas[0].in_flight == 0
        for process in (first, second):
            process.shared.close()

    run_virtual(main())


def test_a_fault_in_a_part_stops_nothing_else() -> None:
    """It is reported, and the other parts go on."""

    async def main() -> None:
        hub = ShareHub()
        first, second = Process(hub, "1"), Process(hub, "2")
        parts = first.shared.sync.parts

        class Broken:
            def asks(self, now_s: float, period_s: float) -> Sequence[Ask]:
                raise RuntimeError

            def answered(self, answers: object, now_s: float) -> None:
                raise RuntimeError

        first.shared.sync.parts = [Broken(), *parts]
        send(second.pool, 0, 0.0)
        await asyncio.sleep(1.0)
        assert first.pool.replicas[0].in_flight == 1
        assert {type(event) for event in first.events} == {ComponentFailed}
        for process in (first, second):
            process.shared.close()

    run_virtual(main())
