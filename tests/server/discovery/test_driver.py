"""Sources that are asked in virtual time: what is put in force, and what is reported."""

import asyncio
import socket
from collections.abc import Sequence
from typing import Any

from gateway.config.settings import Settings
from gateway.events import ComponentFailed, Event
from gateway.process_events import DiscoveryChanged, ReplicasFound
from gateway.race.context import Runtime
from gateway.race.deadlines import TimerQueue
from gateway.server.discovery.driver import Discovery
from running import run_virtual

Answer = Sequence[str] | Exception | None
"""Addresses, an error, or None for no answer at all."""

DOWN = socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def settings(**source: object) -> Settings:
    """One model with a source, and one without."""
    discover = {"dns": "vllm.svc", "port": 8000, "kind": "vllm", "every": "1s", **source}
    fixed = [{"name": "a", "kind": "vllm", "base_url": "http://h:1/v1"}]
    return Settings.model_validate({"models": [{"name": "m", "discover": discover}, {"name": "n", "replicas": fixed}]})


class World:
    """A resolver with answers for each second, and what the sources have put in force.

    Attributes:
        applied: names of the replicas, with the time of the change.
    """

    def __init__(self, *answers: Answer) -> None:
        self.answers = answers
        self.asked = 0
        self.loop = asyncio.get_running_loop()
        vars(self.loop)["getaddrinfo"] = self.addresses
        self.applied: list[tuple[int, list[str]]] = []
        self.events: list[Event] = []
        self.settings: Settings | None = None
        self.fails = False

    async def addresses(self, host: str, port: int, **_options: int) -> list[Any]:
        """As `asyncio.loop.getaddrinfo`; the last answer repeats."""
        assert (host, port) == ("vllm.svc", 8000)
        answer = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        if answer is None:
            await asyncio.sleep(1000)
        if isinstance(answer, Exception):
            raise answer
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in answer or ()]

    async def apply(self, new: Settings, _model: str) -> None:
        """Record settings that are put in force."""
        if self.fails:
            raise ValueError
        self.settings = new
        self.applied.append((round(self.loop.time()), [row.name.partition(":")[0] for row in new.models[0].replicas]))

    def discovery(self, tasks: asyncio.TaskGroup) -> Discovery:
        """The sources; their interval has no jitter."""
        runtime = Runtime(self.loop, self.events.append, lambda: 0.5, TimerQueue(self.loop))
        return Discovery(tasks, runtime, self.apply, {})

    async def run(self, base: Settings, duration_s: float) -> Discovery:
        """Start as a process does, and go on for a time."""
        async with asyncio.TaskGroup() as tasks:
            discovery = self.discovery(tasks)
            prepared = await discovery.prepare(base)
            await self.apply(prepared.settings, "m")
            discovery.commit(prepared)
            await asyncio.sleep(duration_s)
            discovery.close()
        return discovery


def run(*answers: Answer, duration_s: float = 5.5) -> World:
    """A source with these answers, second by second."""

    async def main() -> World:
        world = World(*answers)
        await world.run(settings(), duration_s)
        return world

    return run_virtual(main())


def test_replicas_come_and_go() -> None:
    """A change is put in force within an interval, once; the other model stays the same object."""
    world = run(["1.1.1.1"], ["1.1.1.1", "1.1.1.2"], ["1.1.1.1", "1.1.1.2"], ["1.1.1.2"])
    assert world.applied == [(0, ["1.1.1.1"]), (1, ["1.1.1.1", "1.1.1.2"]), (3, ["1.1.1.2"])]
    found = [(event.added, event.removed, event.replicas) for event in world.events if isinstance(event, ReplicasFound)]
    assert found == [(("1.1.1.2:8000",), (), 2), ((), ("1.1.1.1:8000",), 1)]


def test_unusable_answers_change_nothing_and_are_reported_once() -> None:
    """While the name fails or has no address, the last replicas stay; one event at the beginning, one at the end."""
    world = run(["1.1.1.1"], DOWN, [], DOWN, ["1.1.1.1"])
    assert world.applied == [(0, ["1.1.1.1"])]
    changes = [event for event in world.events if isinstance(event, DiscoveryChanged)]
    assert [(event.error, event.replicas) for event in changes] == [("Name or service not known", 1), (None, 1)]


def test_more_than_half_must_be_missing_three_times() -> None:
    """A halved answer is not believed immediately."""
    four = ["1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4"]
    world = run(four, four[:1])
    assert world.applied == [(0, four), (3, four[:1])]


def test_a_start_without_an_answer() -> None:
    """The start waits 3 s at most; the first answer is used as soon as it is there."""
    world = run(None, DOWN, ["1.1.1.1"], duration_s=9.5)
    assert world.applied == [(3, []), (4, ["1.1.1.1"])]


def test_a_resolver_that_hangs() -> None:
    """A look-up is given up after 10 s, and the next one follows."""
    world = run(["1.1.1.1"], None, ["1.1.1.2", "1.1.1.1"], duration_s=13.5)
    assert world.applied == [(0, ["1.1.1.1"]), (12, ["1.1.1.1", "1.1.1.2"])]
    [event] = [event for event in world.events if isinstance(event, DiscoveryChanged) and event.error]
    assert event.error == "no answer within 10 s"


def test_a_bug_in_applying_is_reported_and_tried_again() -> None:
    """Replicas that could not be put in force are, with the next answer."""

    async def main() -> World:
        world = World(["1.1.1.1"], ["1.1.1.1", "1.1.1.2"])
        world.loop.call_later(0.5, setattr, world, "fails", True)
        world.loop.call_later(2.5, setattr, world, "fails", False)
        await world.run(settings(), 4.5)
        return world

    world = run_virtual(main())
    assert world.applied == [(0, ["1.1.1.1"]), (3, ["1.1.1.1", "1.1.1.2"])]
    assert [event.component for event in world.events if isinstance(event, ComponentFailed)] == ["discovery"] * 2


def test_a_reload_keeps_what_was_found() -> None:
    """With DNS down, a reload with another interval keeps the replicas; one with another name waits for its answer."""

    async def main() -> list[list[str]]:
        world = World(["1.1.1.1", "1.1.1.2"], DOWN, DOWN, ["1.1.1.3"])
        named = []
        async with asyncio.TaskGroup() as tasks:
            discovery = world.discovery(tasks)
            for changes in ({}, {"every": "20s"}, {"every": "30s", "api_key": "k"}, {"every": "40s"}):
                prepared = await discovery.prepare(settings(**changes))
                discovery.commit(prepared)
                named.append([row.name for row in prepared.settings.models[0].replicas])
            discovery.close()
        return named

    two = ["1.1.1.1:8000", "1.1.1.2:8000"]
    assert run_virtual(main()) == [two, two, two, ["1.1.1.3:8000", *two]]


def test_the_state_of_a_source() -> None:
    """The admin address shows the age of the last answer in use, and why the last one is not."""

    async def main() -> object:
        world = World(["1.1.1.1"], ["1.1.1.1"], DOWN)
        async with asyncio.TaskGroup() as tasks:
            discovery = world.discovery(tasks)
            discovery.commit(await discovery.prepare(settings()))
            await asyncio.sleep(2.5)
            [state] = discovery.states()
            discovery.close()
        return state.source, state.pool, state.replicas, state.answer_age_s, state.fault

    assert run_virtual(main()) == ("dns vllm.svc:8000", "m", 1, 1.5, "Name or service not known")


def test_changes_have_a_turn_each() -> None:
    """Fifty sources that change at the same time are put in force in fifty turns of the loop, each for one model."""

    async def main() -> int:
        world = World(["1.1.1.1"], *[["1.1.1.1"]] * 49, ["1.1.1.1", "1.1.1.2"])
        turns: list[int] = []
        turn = 0

        async def apply(_: Settings, _model: str) -> None:
            if not turns:
                world.loop.call_soon(count)
            turns.append(turn)

        def count() -> None:
            nonlocal turn
            turn += 1
            if len(turns) < 50:
                world.loop.call_soon(count)

        source = {"dns": "vllm.svc", "port": 8000, "kind": "vllm", "every": "1s"}
        base = Settings.model_validate({"models": [{"name": f"m{i}", "discover": source} for i in range(50)]})
        async with asyncio.TaskGroup() as tasks:
            discovery = world.discovery(tasks)
            discovery.commit(await discovery.prepare(base))
            discovery._apply = apply
            await asyncio.sleep(1.1)
            discovery.close()
        assert len(turns) == 50
        return len(set(turns))

    assert run_virtual(main()) == 50
