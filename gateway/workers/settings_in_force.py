"""The settings that all workers use: a reload, and replicas that come and go, are prepared by all, then used by all.

The sources of replicas are asked here, once for all workers. Units: seconds.
"""

import asyncio
import os
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from gateway.config.settings import Settings
from gateway.discovery.driver import Discovery
from gateway.errors import ReloadFailed
from gateway.observe.state import DiscoveryState
from gateway.process_events import ConfigReloaded
from gateway.race.context import Runtime
from gateway.reloads import Reread, check_reload, read_again, reload_fault
from gateway.workers.group import CALL_S_MAX, WorkerGroup
from gateway.workers.messages import Committed, Prepare, Prepared, packed
from gateway.workers.switches import GroupSwitches

_PREPARE_S_MAX: Final = 10.0  # for building what the settings describe


class SettingsInForce:
    """The settings of all workers.

    Args:
        base: settings without replicas found at run time.
        reread: reads them again for a reload; None if there is no file.
        group: the workers.
        switches: receive replicas that a reload takes in again.
        runtime: clock, random numbers and receiver of events.
        tasks: owner of the tasks that ask sources.
        on_change: called after each change.

    Attributes:
        settings: settings in force, with the replicas found at run time.
        revision: number of changes; a worker that begins during one would miss it.
    """

    def __init__(
        self,
        base: Settings,
        reread: Reread | None,
        group: WorkerGroup,
        switches: GroupSwitches,
        runtime: Runtime,
        tasks: asyncio.TaskGroup,
        on_change: Callable[[], object],
    ) -> None:
        self.settings = base
        self.revision = 0
        self._reread = reread
        self._group = group
        self._switches = switches
        self._runtime = runtime
        self._on_change = on_change
        self._discovery = Discovery(tasks, runtime, self._use_model, os.environ)
        self._found = self._discovery.keep(base)
        self._turn = asyncio.Lock()  # of one change at a time

    async def discover(self) -> None:
        """Find the replicas of models with a source, before the first worker begins."""
        self._found = await self._discovery.prepare(self.settings)
        self.settings = self._found.settings

    def follow(self) -> None:
        """Follow the sources from now on; all workers serve."""
        self._discovery.commit(self._found)

    def close(self) -> None:
        """Ask sources no more."""
        self._discovery.close()

    def discovered(self) -> Iterator[DiscoveryState]:
        """Yield a snapshot of each source."""
        return self._discovery.states()

    async def reload(self) -> ConfigReloaded:
        """Read the settings again, and let every worker use them, or none.

        Raises:
            ReloadFailed: the settings are invalid or need a restart; the old ones remain in force.
        """
        async with self._turn:
            try:
                base = await read_again(self._reread)
                check_reload(self.settings, base)
                found = await self._discovery.prepare(base)
                event = await self._use(found.settings, Prepare(settings=packed(found.settings)))
                self._discovery.commit(found)
                if event is None:
                    raise ReloadFailed("no worker serves at the moment; the next one begins with the new configuration")
            except Exception as error:
                text = reload_fault(error)
                models = self.settings.models
                replicas = sum(
                    len(model.replicas) + sum(len(pool.replicas) for pool in model.fallbacks) for model in models
                )
                self._runtime.emit(ConfigReloaded(self._runtime.loop.time(), len(models), replicas, 0, text))
                raise ReloadFailed(text) from error
            self._runtime.emit(event)
            return event

    async def _use_model(self, settings: Settings, name: str) -> None:
        """Use settings in which only one model has other replicas.

        Raises:
            ReloadFailed: a worker cannot use them.
        """
        async with self._turn:
            model = next(each for each in settings.models if each.name == name)
            await self._use(settings, Prepare(model=packed(model)))

    async def _use(self, settings: Settings, prepare: Prepare) -> ConfigReloaded | None:
        """Let every worker use the settings; return the result, None if no worker serves.

        Raises:
            ReloadFailed: a worker cannot use them; none does.
        """
        workers = self._group.ready
        for worker, answer in await self._group.ask("prepare", prepare, _PREPARE_S_MAX, workers):
            fault = "it did not answer" if answer is None else msgspec.msgpack.decode(answer, type=Prepared).fault
            if fault is not None and worker.channel.is_open:
                self._group.notify("abandon")
                raise ReloadFailed(f"worker {worker.number} cannot use the configuration: {fault}")
        self.revision += 1
        self.settings = settings  # also for workers that begin from now on
        self._on_change()
        for _, answer in await self._group.ask("commit", None, CALL_S_MAX, workers):
            if answer is not None:
                committed = msgspec.msgpack.decode(answer, type=Committed)
                self._switches.on_switched(committed.switched)
                done = committed.reloaded
                return msgspec.structs.replace(done, at_s=self._runtime.loop.time())
        return None
