"""The part of a process in a fleet: its limits, pools and switches, a reload, and what is reported of the engine."""

import asyncio
import random
from collections.abc import Sequence

import pytest

from defaults import default_timeouts
from gateway.events import ComponentFailed, Event
from gateway.observe.instruments import Instruments
from gateway.observe.state import LeaseState, MismatchState, ShareState
from gateway.process_events import ShareAway, ShareBack
from gateway.race.context import Model, Runtime
from gateway.race.deadlines import TimerQueue
from gateway.server.fleet_size import FleetSize
from gateway.server.sharing import Sharing
from gateway.share.fleet import ASK_WAIT_S, Fleet
from gateway.share.leases import Lease
from gateway.share.messages import Answered, Ask, BucketAsk, SwitchesAsk, keep_silent
from pooled import pool, send
from running import run_virtual
from shared_engine import EngineHost, HostedEngine
from switching_hub import SwitchingHub
from ttft_gateway.pool.learned import Drop
from ttft_gateway.pool.pool import Pool

_NO_REPLY = "no reply within 90 ms, three times in a row"


def _size() -> FleetSize:
    """Return the size of a fleet of one process."""
    return FleetSize(1, 1, Fleet(), asyncio.TaskGroup())


def test_the_state_of_sharing() -> None:
    """Unspent amounts, a lower limit elsewhere, and one event each for the engine's absence and return."""

    async def main() -> None:
        loop, events = asyncio.get_running_loop(), list[Event]()
        host = EngineHost(loop)
        runtime = Runtime(loop, events.append, random.Random(1).random, TimerQueue(loop))
        shared = Sharing(HostedEngine(host, "me"), _size(), runtime, keep_silent)
        instruments = Instruments()
        shared.count_in(instruments)
        await shared.start(_ignore)
        host.hub.answer(loop.time(), "other", [BucketAsk("key:a:requests", 500.0, 60.0)])
        rate = shared.limits.rate("key:a:requests", 600)
        assert rate.wait_s(1.0, loop.time()) == ASK_WAIT_S
        await asyncio.sleep(0.01)
        rate.take(1.0, loop.time())
        await asyncio.sleep(0.05)
        state = shared.state()
        assert state == ShareState(
            engine="hub",
            up=True,
            since_s=0.061,
            fault=None,
            reply_age_s=0.06,
            exchange_age_s=None,
            processes=2,
            expected=1,
            when_away="share",
            away_part=0.45,
            leases=(LeaseState("key:a:requests", 6.0),),
            mismatches=(MismatchState("key:a:requests", 600, 500.0),),
        )
        host.kill()
        await asyncio.sleep(5.0)
        state = shared.state()
        assert (state.up, state.fault) == (False, _NO_REPLY)
        host.start()
        await asyncio.sleep(1.0)
        state = shared.state()
        assert (state.up, state.fault, state.exchange_age_s) == (True, None, None)
        away, back = events
        assert isinstance(away, ShareAway)
        assert (away.processes, away.when_away, away.part, away.reason) == (2, "share", 0.45, _NO_REPLY)
        assert isinstance(back, ShareBack)
        assert 3.5 < back.away_s < 5.5
        rows = {name: value for family in instruments.families() for name, _, value in filter(None, family.lines())}
        assert rows["ttft_gateway_share_ask_seconds_count"] > 2
        assert rows["ttft_gateway_share_ask_seconds_sum"] == pytest.approx(
            0.0005 * rows["ttft_gateway_share_ask_seconds_count"]
        )
        shared.close()

    run_virtual(main())


def test_a_bug_in_a_lease_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine of a lease that raises is reported like any other failed part."""

    async def main() -> None:
        loop, events = asyncio.get_running_loop(), list[Event]()
        runtime = Runtime(loop, events.append, random.Random(1).random, TimerQueue(loop))
        shared = Sharing(HostedEngine(EngineHost(loop), "me"), _size(), runtime, keep_silent)
        await shared.start(_ignore)
        monkeypatch.setattr(Lease, "ask", lambda *_: 1 / 0)
        shared.limits.rate("key:a:requests", 600).wait_s(1.0, loop.time())
        await asyncio.sleep(0.1)
        [event] = events
        assert isinstance(event, ComponentFailed)
        assert (event.component, event.error) == ("share", "ZeroDivisionError")
        shared.close()

    run_virtual(main())


class Engine:
    """The engine of several hosts, in the process."""

    kind = "redis"
    fault = ""
    is_rejected = False
    carries_switches = True
    batch_exchanges = 240

    def __init__(self, hub: SwitchingHub, process: str) -> None:
        self._hub = hub
        self._process = process
        self.drop: Drop = keep_silent
        self.asked: set[type[Ask]] = set()

    def ask(self, asks: Sequence[Ask], answered: Answered) -> None:
        self.asked |= {type(ask) for ask in asks}
        loop = asyncio.get_running_loop()
        loop.call_later(0.001, answered, self._hub.answer(loop.time(), self._process, asks))

    def close(self) -> None:
        """Nothing is open."""


def _ignore(_model: str | None, /, *, on: bool) -> None:
    """Switch nothing."""


class Process:
    """A process with one model."""

    def __init__(self, hub: SwitchingHub, process: str) -> None:
        loop = asyncio.get_running_loop()
        self.events: list[Event] = []
        self.switched: list[tuple[str | None, bool]] = []
        self.pool: Pool = pool(None, None)
        self.engine = Engine(hub, process)
        runtime = Runtime(loop, self.events.append, random.Random(1).random, TimerQueue(loop))
        self.shared = Sharing(
            self.engine,
            _size(),
            runtime,
            keep_silent,
        )
        self.use(self.pool)

    def follow_switch(self, model: str | None, /, *, on: bool) -> None:
        """Note a switch of another process."""
        self.switched.append((model, on))

    def use(self, pool: Pool) -> None:
        """Exchange another pool of the same model."""
        self.pool = pool
        self.shared.use([Model("m", [pool], default_timeouts())], {})


async def started(hub: SwitchingHub, *names: str) -> list[Process]:
    """Return processes that exchange."""
    processes = [Process(hub, name) for name in names]
    for process in processes:
        await process.shared.start(process.follow_switch)
    return processes


def test_a_reload_keeps_the_exchanges_of_what_stays() -> None:
    """Exchanges of a model that stays, and of a pool that stays in another model object, go on; others end."""

    async def main() -> None:
        process = Process(SwitchingHub(), "a")
        kept, moved = (Model(name, [pool(None, None)], default_timeouts()) for name in ("kept", "moved"))
        process.shared.use([kept, moved, Model("gone", [pool(None, None)], default_timeouts())], {})
        before = list(process.shared.sync.exchanges)
        process.shared.use([kept, Model("moved", moved.pools, default_timeouts())], {})
        after = process.shared.sync.exchanges
        assert len(before) == len(after) + 2
        assert set(map(id, after)) <= set(map(id, before))

    run_virtual(main())


def test_processes_share_loads_and_switches() -> None:
    """Within a second; a process that starts later has the switches, too."""

    async def main() -> None:
        hub = SwitchingHub()
        first, second = await started(hub, "1", "2")
        send(first.pool, 0, 0.0)
        reached = await asyncio.gather(first.shared.publish(None, on=False), second.shared.publish("m", on=True))
        assert second.pool.replicas[0].in_flight == 1
        assert second.switched == [(None, False)]
        assert first.switched == [("m", True)]
        assert [tuple(each) for each in reached] == [(2, 2), (2, 2)]
        assert asyncio.get_running_loop().time() < 1.5
        [third] = await started(hub, "3")
        await asyncio.sleep(1.0)
        assert sorted(third.switched, key=str) == [("m", True), (None, False)]
        for process in (first, second, third):
            process.shared.close()

    run_virtual(main())


def test_workers_of_one_host_do_not_exchange_switches() -> None:
    """The supervisor switches them; loads are exchanged."""

    async def main() -> None:
        hub = SwitchingHub()
        first, second = await started(hub, "1", "2")
        for process in (first, second):
            process.engine.carries_switches = False
            process.use(process.pool)
        send(first.pool, 0, 0.0)
        first.engine.asked.clear()
        await asyncio.sleep(1.0)
        assert second.pool.replicas[0].in_flight == 1
        assert first.engine.asked
        assert SwitchesAsk not in first.engine.asked
        for process in (first, second):
            process.shared.close()

    run_virtual(main())


def test_a_reload_goes_on() -> None:
    """The new pools take over, and the loads of the old ones go."""

    async def main() -> None:
        hub = SwitchingHub()
        first, second = await started(hub, "1", "2")
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
        hub = SwitchingHub()
        first, second = await started(hub, "1", "2")
        parts = first.shared.sync.exchanges

        class Broken:
            def asks(self, now_s: float, period_s: float) -> Sequence[Ask]:
                raise RuntimeError

            def answered(self, answers: object, now_s: float) -> None:
                raise RuntimeError

        first.shared.sync.exchanges = [Broken(), *parts]
        send(second.pool, 0, 0.0)
        await asyncio.sleep(1.0)
        assert first.pool.replicas[0].in_flight == 1
        assert {type(event) for event in first.events} == {ComponentFailed}
        for process in (first, second):
            process.shared.close()

    run_virtual(main())
