"""Changes of the settings in force: a reload (read, prepare, commit, emit), and replicas that come and go.

A topology is prepared beside the one in force. It is then committed, or given up without an effect. Running requests
keep their old objects. Part of the composition root. Units: seconds of the loop's clock.
"""

import asyncio
import gc
import logging
import os
from collections.abc import Awaitable, Callable, Collection

from gateway.config.errors import ConfigError
from gateway.config.settings import Settings
from gateway.errors import ReloadFailed
from gateway.events import Event
from gateway.process_events import ConfigReloaded, ReplicaSwitched
from gateway.server.credentials.board import token_sources
from gateway.server.discovery.driver import Discovery
from gateway.server.extras import missing_extra
from gateway.server.key_watch import check_names
from gateway.server.model_parts import Foundation, ModelParts
from gateway.server.switches import Switches
from gateway.server.topology import InForce, Topology, build_in_steps, build_topology
from ttft_gateway.credentials.sources import Source

_FREED_MODELS = 8  # in one turn of the loop, less than 1 ms
_FIXED = (
    "listen",
    "admin_listen",
    "keys_from",
    "learned_file",
    "share",
    "workers",
)  # what the start opens, reads and forks once

Reread = Callable[[], Settings]
"""Reads the settings again, in a thread; raises `ConfigError`."""


class Reloads:
    """Replaces the topology in force.

    Args:
        in_force: the topology to replace.
        foundation: objects on which topologies are built.
        reread: reads the settings again; None if there is no file.
        switches: take a model's replicas in if no other replica is left.
        use_new: called when another topology is in force.
        emit: receives events.

    Attributes:
        discovery: sources of replicas.
        prepare_tokens: fetches tokens that settings need.
    """

    def __init__(
        self,
        in_force: InForce,
        foundation: Foundation,
        reread: Reread | None,
        switches: Switches,
        use_new: Callable[[], None],
        emit: Callable[[Event], None],
    ) -> None:
        self._in_force = in_force
        self._foundation = foundation
        self._reread = reread
        self._switches = switches
        self._use_new = use_new
        self._emit = emit
        self._loop = foundation.runtime.loop
        self._lock = asyncio.Lock()
        self._changing = asyncio.Lock()  # held while a topology is prepared and committed
        self.prepare_tokens: Callable[[Collection[Source]], Awaitable[None]] = _no_tokens
        self.discovery = Discovery(foundation.tasks, foundation.runtime, self._apply_rows, os.environ)

    async def discover(self) -> None:
        """Find the replicas of models with a source, once before the first request; then follow the sources."""
        found = await self.discovery.prepare(self._in_force.topology.settings)
        if found.followed:
            await self._apply_rows(found.settings)
            self.discovery.commit(found)

    async def _apply_rows(self, settings: Settings, _model: str = "") -> None:
        """Put settings in force that differ only in replicas that were found at run time."""
        await self.prepare_tokens(token_sources(settings))
        async with self._changing:
            for each in self._replace(self.prepare(settings, rows_only=True)):
                self._emit(each)

    async def reload(self) -> ConfigReloaded:
        """Read the settings again and apply them to new requests; running requests keep the old ones.

        Raises:
            ReloadFailed: the settings are invalid or need a restart; the old ones remain in force.
        """
        reread = reader_of(self._reread)
        async with self._lock:
            try:
                base = self.discovery.base or self._in_force.topology.settings
                found = await self.discovery.prepare(await read_again(reread, base))
                await asyncio.sleep(0)
                await self.prepare_tokens(token_sources(found.settings))
                async with self._changing:
                    topology = await self.prepare_in_steps(found.settings)
                    await asyncio.sleep(0)
                    event, switched = self.commit(topology)
                    self.discovery.commit(found)
                await asyncio.sleep(0)
            except Exception as error:
                text, old = reload_fault(error), self._in_force.topology
                self._emit(ConfigReloaded(self._loop.time(), len(old.models), len(old.replicas), 0, text))
                raise ReloadFailed(text) from error
            for each in switched:
                self._emit(each)
            self._emit(event)
            return event

    def prepare(self, settings: Settings, *, rows_only: bool = False) -> Topology:
        """Return a new topology, which is then used with `commit` or given up with `abandon`.

        Args:
            rows_only: True if the settings differ only in replicas that were found at run time.

        Raises:
            ReloadFailed: the settings need a restart.
        """
        self._check(settings)
        old = self._in_force.topology
        try:
            return build_topology(settings, self._foundation, old, rows_only=rows_only)
        except BaseException:
            old.set_kept()
            raise

    async def prepare_in_steps(self, settings: Settings) -> Topology:
        """Do the same for a reload, in steps that do not hold the event loop for long.

        Raises:
            ReloadFailed: the settings need a restart.
        """
        await asyncio.sleep(0)
        self._check(settings)
        await asyncio.sleep(0)
        old = self._in_force.topology
        steps = build_in_steps(settings, self._foundation, old)
        try:
            while True:
                try:
                    next(steps)
                except StopIteration as built:
                    topology: Topology = built.value
                    return topology
                await asyncio.sleep(0)
        except BaseException:
            old.set_kept()
            raise

    def _check(self, settings: Settings) -> None:
        """Check that settings can be used without a restart.

        Raises:
            ReloadFailed: they cannot.
        """
        check_reload(self._in_force.topology.settings, settings)
        if self._foundation.listed is not None:
            check_names(settings, self._foundation.listed.keys.by_name)
        if fault := missing_extra(settings):
            raise ReloadFailed(fault)

    def abandon(self, topology: Topology) -> None:
        """Give up a new topology."""
        self._in_force.topology.set_kept()
        topology.close(keep=self._in_force.topology)

    def commit(self, topology: Topology) -> tuple[ConfigReloaded, list[ReplicaSwitched]]:
        """Use a new topology for new requests; return the events to emit."""
        switched = self._replace(topology)
        new, rekeyed = len(topology.replicas) - topology.kept, len(topology.new_keys)
        return ConfigReloaded(self._loop.time(), len(topology.models), topology.kept, new, rekeyed=rekeyed), switched

    def _replace(self, topology: Topology) -> list[ReplicaSwitched]:
        """Replace the topology; return an event for each replica that was taken in."""
        old, self._in_force.topology = self._in_force.topology, topology
        switched = []
        for model in topology.take_over(old, self._loop.time()):
            if all(replica.taken_out for replica in model.replicas):
                switched += self._switches.take_in(model)  # the rest is gone
        self._use_new()
        old.close(keep=topology)
        self._free(list(old.parts.values()))
        return switched

    def _free(self, held: list[ModelParts]) -> None:
        """Let go of a few parts in each turn of the loop: to free all parts of many models would hold it for long."""
        del held[-_FREED_MODELS:]
        if held:
            self._loop.call_soon(self._free, held)


async def _no_tokens(_sources: Collection[Source]) -> None:
    """Fetch nothing: another process has the tokens."""


def reader_of(reread: Reread | None) -> Reread:
    """Return the function that reads the settings again.

    Raises:
        ReloadFailed: there is nothing to read; no configuration was rejected.
    """
    if reread is None:
        text = "there is no configuration file: the gateway was started with options; restart it"
        logging.getLogger(__name__).warning("no reload: %s", text)
        raise ReloadFailed(text)
    return reread


async def read_again(reread: Reread, old: Settings) -> Settings:
    """Read the settings again; models that are the same have the old objects.

    Raises:
        ConfigError: they are invalid.
    """
    return await asyncio.to_thread(_read, reread, old)


def _read(reread: Reread, old: Settings) -> Settings:
    """Read the settings on a thread, without a step that keeps the interpreter's lock, and so the loop, for long.

    Reading leaves no garbage, but a collection would go through all that is read. The new objects of models that
    are the same are freed one by one.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        read = reread()
        models, kept = list(read.models), read.keeping(old)
        del read
        while models:
            models.pop()
        return kept
    finally:
        if collects:
            gc.enable()


def check_reload(old: Settings, new: Settings) -> None:
    """Check that a reload can apply all changes.

    Raises:
        ReloadFailed: a change needs a restart.
    """
    fixed = [name for name in _FIXED if getattr(new, name) != getattr(old, name)]
    if fixed:
        raise ReloadFailed(
            f"{' and '.join(fixed)} changed; restart the gateway to apply this file (no setting was changed)"
        )


def reload_fault(error: Exception) -> str:
    """Return the text of a failed reload; a bug must not stop the running gateway."""
    if isinstance(error, ConfigError | ReloadFailed):
        return str(error)
    logging.getLogger(__name__).error("the new configuration could not be applied", exc_info=error)
    return f"the reload failed with an internal error ({type(error).__name__}); see the gateway's log"
