"""The settings and the switches of all workers, also of workers that start later.

A reload, and replicas that come and go, are prepared by all workers, then used by all. The sources of replicas are
asked here, once for all workers. A switch of hedging or of a replica is a call to all workers, so that it is in force
in milliseconds, also while the server of `share` is away. One worker passes a switch of hedging on to the other hosts,
in the exchange (gateway/share/sync.py).

A revision counts the changes: a worker that has begun before a change and is ready after it is replaced.

Units: seconds.
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from gateway import errors
from gateway.config.settings import Settings
from gateway.errors import ReloadFailed
from gateway.events import Event
from gateway.observe.state import DiscoveryState
from gateway.process_events import ConfigReloaded, HedgingSwitched, ReplicaSwitched
from gateway.race.context import Runtime
from gateway.server.credentials.board import token_sources
from gateway.server.discovery.driver import Discovery
from gateway.server.key_watch import KeyWatch, check_names
from gateway.server.reloads import Reread, check_reload, read_again, reader_of, reload_fault
from gateway.share.sync import Reach
from gateway.workers.group import CALL_S_MAX, Worker, WorkerGroup
from gateway.workers.messages import (
    Committed,
    Prepared,
    SwitchHedging,
    SwitchReplica,
    SwitchReplicaDone,
)
from gateway.workers.packing import PackedSettings, Packer, Prepare, change_to, packed
from gateway.workers.tokens import GroupTokens

_PREPARE_S_MAX: Final = 10.0  # for building what the settings describe
_SWITCH_S_MAX: Final = 4.0  # for switching hedging, and for passing it on to other hosts, which takes up to 2 s


class GroupSwitches:
    """The switches of all workers.

    Args:
        group: the workers.
        models: returns the names of all models.
        emit: receives events.
        on_change: called after each change.

    Attributes:
        revision: number of changes; a worker that begins during one would miss it.
    """

    def __init__(
        self,
        group: WorkerGroup,
        models: Callable[[], Iterable[str]],
        emit: Callable[[Event], object],
        on_change: Callable[[], object],
    ) -> None:
        self._on_change = on_change
        self._group = group
        self._models = models
        self._emit = emit
        self._loop = asyncio.get_running_loop()
        self._hedging: dict[str, bool] = {}  # of models that were switched
        self._out: set[tuple[str, str]] = set()  # models and replicas
        self.revision = 0

    @property
    def hedging(self) -> dict[str, bool]:
        """Models that were switched, and whether hedging is on."""
        return dict(self._hedging)

    def restore(self, hedging: Mapping[str, bool], out: Iterable[tuple[str, str]]) -> None:
        """Carry on with the switches of an earlier supervisor."""
        self._hedging = dict(hedging)
        self._out = set(out)

    def repeat(self, worker: Worker) -> None:
        """Send all switches to a worker that may have missed some."""
        for model, on in self._hedging.items():
            worker.channel.send("switch_hedging", SwitchHedging(model, on))
        for model, replica in sorted(self._out):
            worker.channel.send("switch_replica", SwitchReplica(replica, model, out=True))

    @property
    def off(self) -> list[str]:
        """Models with hedging switched off."""
        return [model for model, on in self._hedging.items() if not on]

    @property
    def out(self) -> list[tuple[str, str]]:
        """Models and names of the replicas that are taken out."""
        return sorted(self._out)

    async def switch_hedging(self, model: str | None, /, *, on: bool) -> Reach:
        """Switch hedging at every worker and at the other hosts; see `gateway.server.admin.Switch`."""
        self._set_hedging(model, on=on)
        self.revision += 1
        self._emit(HedgingSwitched(self._loop.time(), model, on))
        workers = self._group.ready
        publisher = workers[0].number if workers else 0
        answers = await self._group.change(
            "switch_hedging", SwitchHedging(model, on, publisher), _SWITCH_S_MAX, workers
        )
        reach = _reached(answers)
        for _, answer in answers:
            published = None if answer is None else msgspec.msgpack.decode(answer, type=Reach | None)
            if published is not None:
                reach = Reach(max(reach.reached, published.reached), max(reach.of, published.of))
        return reach

    def on_switch(self, switch: SwitchHedging) -> None:
        """Record and report a switch of another host, once; every worker reports it."""
        if self._set_hedging(switch.model, on=switch.on):
            self._emit(HedgingSwitched(self._loop.time(), switch.model, switch.on))

    def _set_hedging(self, model: str | None, *, on: bool) -> bool:
        """Record a switch; return True if it changes anything."""
        names = self._models() if model is None else [model]
        changed = {name: on for name in names if self._hedging.get(name, True) is not on}
        self._hedging |= changed
        self._on_change()
        return bool(changed)

    async def switch_replica(self, replica: str, model: str | None, /, *, out: bool) -> Reach:
        """Take a replica out or in at every worker; see `gateway.server.admin.ReplicaSwitch`."""
        answers = await self._group.change("switch_replica", SwitchReplica(replica, model, out))
        done = [msgspec.msgpack.decode(answer, type=SwitchReplicaDone) for _, answer in answers if answer is not None]
        for each in done:
            if each.error == errors.UnknownReplica.__name__:
                raise errors.UnknownReplica(each.message, param="replica")
            if each.error:
                raise errors.LastReplica(each.message, param="replica")
        if done:
            self.on_switched(done[0].switched)
        return _reached(answers)

    def on_switched(self, switched: list[ReplicaSwitched]) -> None:
        """Record and report the replicas that all workers have taken out or in."""
        self.revision += bool(switched)
        for each in switched:
            (self._out.add if each.out else self._out.discard)((each.model, each.replica))
            self._emit(ReplicaSwitched(self._loop.time(), each.model, each.replica, each.out))
        self._on_change()


class SettingsInForce:
    """The settings of all workers.

    Args:
        base: settings without replicas found at run time.
        reread: reads them again for a reload; None if there is no file.
        group: the workers.
        switches: receive replicas that a reload takes in again.
        tokens: tokens of the replicas.
        runtime: clock, random numbers and receiver of events.
        tasks: owner of the tasks that ask sources.
        on_change: called before other settings are used.

    Attributes:
        settings: settings in force, with the replicas found at run time.
        revision: number of changes; a worker that begins during one would miss it.
        keys: list of keys; None without a list.
    """

    def __init__(
        self,
        base: Settings,
        reread: Reread | None,
        group: WorkerGroup,
        switches: GroupSwitches,
        tokens: GroupTokens,
        runtime: Runtime,
        tasks: asyncio.TaskGroup,
        on_change: Callable[[], object],
    ) -> None:
        self._on_change = on_change
        self.settings = base
        self.revision = 0
        self.keys: KeyWatch | None = None
        self._reread = reread
        self._group = group
        self._switches = switches
        self._tokens = tokens
        self._runtime = runtime
        self._discovery = Discovery(tasks, runtime, self._use_model, os.environ)
        self._found = self._discovery.keep(base)
        self._change_lock = asyncio.Lock()
        self._packer = Packer()

    async def discover(self) -> None:
        """Find the replicas of models with a source, before the first worker begins."""
        self._found = await self._discovery.prepare(self.settings)
        self.settings = self._found.settings
        await self._tokens.keepers.prepare(token_sources(self.settings))

    def carry_on(self, base: Settings, settings: Settings) -> None:
        """Carry on with the settings of an earlier supervisor."""
        self._found = self._discovery.carry_on(base, settings)
        self.settings = settings
        self._tokens.follow(token_sources(settings))

    async def fetch_tokens(self) -> None:
        """Fetch all tokens anew; until then the workers have the earlier ones."""
        await self._tokens.keepers.prepare(token_sources(self.settings))

    @property
    def base(self) -> Settings:
        """The settings in force without replicas found at run time."""
        return self._found.base

    @property
    def packed(self) -> PackedSettings:
        """The settings without replicas found at run time, and the settings in force, for another process."""
        return self._packer.of(self.base, self.settings)

    async def renew(self, worker: Worker) -> bool:
        """Let a worker that may have other settings use the settings and switches in force; return False on a failure.

        The worker serves from then on.
        """
        async with self._change_lock:
            change = await change_to(self.settings)
            [(_, answer)] = await self._group.ask("prepare", change, _PREPARE_S_MAX, [worker])
            if answer is None or msgspec.msgpack.decode(answer, type=Prepared).fault is not None:
                return False
            [(_, answer)] = await self._group.ask("commit", None, CALL_S_MAX, [worker])
            if answer is None:
                return False
            self._group.serve(worker)
            self._switches.repeat(worker)  # later switches follow in the same channel
            return True

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
        reread = reader_of(self._reread)
        async with self._change_lock:
            try:
                base = await read_again(reread, self.base)
                check_reload(self.settings, base)
                if self.keys is not None:
                    check_names(base, self.keys.keys)
                found = await self._discovery.prepare(base)
                for _ in self._packer.add(found.base, found.settings):
                    await asyncio.sleep(0)
                event = await self._use(found.settings, await change_to(found.settings, self.settings))
                self._discovery.commit(found)
                self._found = found
                self._on_change()
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
        async with self._change_lock:
            model = next(each for each in settings.models if each.name == name)
            await self._use(settings, Prepare(model=packed(model)))

    async def _use(self, settings: Settings, prepare: Prepare) -> ConfigReloaded | None:
        """Let every worker use the settings; return the result, None if no worker serves.

        Raises:
            ReloadFailed: a worker cannot use them; none does.
        """
        await self._tokens.keepers.prepare(token_sources(settings))
        workers = self._group.ready
        for worker, answer in await self._group.ask("prepare", prepare, _PREPARE_S_MAX, workers):
            fault = "it did not answer" if answer is None else msgspec.msgpack.decode(answer, type=Prepared).fault
            if fault is not None and worker.channel.is_open:
                self._group.notify("abandon")
                raise ReloadFailed(f"worker {worker.number} cannot use the configuration: {fault}")
        self.revision += 1
        self.settings = settings  # also for workers that begin from now on
        self._on_change()
        self._tokens.follow(token_sources(settings))
        for _, answer in await self._group.change("commit", None, CALL_S_MAX, workers):
            if answer is not None:
                committed = msgspec.msgpack.decode(answer, type=Committed)
                self._switches.on_switched(committed.switched)
                done = committed.reloaded
                return msgspec.structs.replace(done, at_s=self._runtime.loop.time())
        return None


def _reached(answers: list[tuple[Worker, bytes | None]]) -> Reach:
    """Return the workers that have answered, and the number of all."""
    return Reach(sum(answer is not None for _, answer in answers), len(answers))
