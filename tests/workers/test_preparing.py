"""Changes of settings that a worker prepares."""

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec

from gateway.config.loader import from_replicas
from gateway.config.settings import Settings
from gateway.workers.messages import Prepared
from gateway.workers.packing import change_to
from gateway.workers.worker import _Worker
from running import run_virtual


class _Reloads:
    """Reloads that take long; a topology is the name of its model."""

    def __init__(self, times_s: list[float]) -> None:
        self.times_s = times_s
        self.abandoned: list[str] = []

    async def prepare_in_steps(self, settings: Settings) -> str:
        await asyncio.sleep(self.times_s.pop(0))
        return settings.models[0].name

    def abandon(self, topology: str) -> None:
        self.abandoned.append(topology)


def test_the_last_change_is_prepared_although_an_earlier_one_took_longer() -> None:
    """The earlier one is abandoned: its caller waits no more."""

    async def main() -> tuple[list[Prepared], str, list[str]]:
        worker: Any = object.__new__(_Worker)
        reloads = _Reloads([12.0, 1.0])
        settings = {name: from_replicas(name, ["http://127.0.0.1:9"]) for name in ("old", "one", "other")}
        in_force = SimpleNamespace(topology=SimpleNamespace(settings=settings["old"]))
        worker._gateway = SimpleNamespace(reloads=reloads, in_force=in_force)
        worker._workers, worker._prepared, worker._preparing = 2, None, asyncio.Lock()
        async with asyncio.TaskGroup() as tasks:
            changes = [msgspec.msgpack.encode(await change_to(settings[name])) for name in ("one", "other")]
            asked = [tasks.create_task(worker._prepare(change)) for change in changes]
        return [each.result() for each in asked], worker._prepared, reloads.abandoned

    answers, prepared, abandoned = run_virtual(main())
    assert answers == [Prepared(), Prepared()]
    assert (prepared, abandoned) == ("other", ["one"])
