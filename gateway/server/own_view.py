"""The state of one process, read from the topology in force, for the admin address and the metrics.

Units: seconds.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Final

from msgspec.structs import replace

from gateway.admission.listed_limiters import Listed
from gateway.health.facts import Collected, ProcessFacts
from gateway.health.history import ModelHistory
from gateway.health.watch import Watch, totals_of
from gateway.health.windows import WindowCounts
from gateway.observe.describe import describe, key_admission, pool_state, queues_state
from gateway.observe.hub import Observers
from gateway.observe.instruments import Dump, Instruments
from gateway.observe.metrics import Scrape
from gateway.observe.state import AdmissionState, PoolState, ShareState, pool_parts, read_pools
from gateway.observe.usage import UsageDump, UsageReport, UsageTable
from gateway.proof.blocks import Block
from gateway.proof.tally import Tally
from gateway.race.context import Runtime
from gateway.server.discovery.driver import Discovery
from gateway.server.learned_file import LearnedFile
from gateway.server.sharing import Sharing
from gateway.server.topology import InForce

_SLICE_TALLIES: Final = 20
_SLICE_KEYS: Final = 200  # that are described in one iteration of the event loop, about 1 ms


CountPart = tuple[Dump, UsageDump, dict[str, Tally]]
"""A part of what the metrics, a usage table and the measurement of hedging have counted."""


def count_parts(instruments: Instruments, usage: UsageTable, tallies: Mapping[str, Tally]) -> Iterator[CountPart]:
    """Yield counts in parts of which none takes long."""
    nothing = UsageDump([], [])
    for dump in instruments.dump_parts():
        yield dump, nothing, {}
    for rows in usage.dump_parts():
        yield {}, rows, {}
    rest = iter(tallies.items())
    while part := dict(islice(rest, _SLICE_TALLIES)):
        yield {}, nothing, part


class OwnView:
    """The `gateway.server.admin.View` of one process.

    Args:
        in_force: the topology in force.
        observers: metrics, usage table and measurements of the process.
        discovery: sources of replicas.
        learned: file of the learned state.
        sharing: the part of the process in a fleet; None for a process alone.
        windows: counts of the last minutes.
        listed: keys from a list; None without a list.

    Attributes:
        metrics: counters and histograms.
        watch: verdict and history, of a process that has an admin address.
    """

    def __init__(
        self,
        in_force: InForce,
        runtime: Runtime,
        observers: Observers,
        discovery: Discovery,
        learned: LearnedFile,
        sharing: Sharing | None,
        windows: WindowCounts,
        listed: Listed | None = None,
    ) -> None:
        self._listed = listed
        self._in_force = in_force
        self._runtime = runtime
        self._observers = observers
        self._discovery = discovery
        self._learned = learned
        self._sharing = sharing
        self._windows = windows
        self._collected = 0  # number of the last slot
        self.watch: Watch
        self._leave_out = partial(observers.dropped.leaving_out, "pool")
        self.metrics = observers.metrics(self._pools, self._queues, discovery.states)

    def counts(self) -> Iterator[CountPart]:
        """Return what the metrics, the usage table and the measurement of hedging have counted, in parts."""
        self._observers.hub.flush()
        return count_parts(self.metrics.instruments, self._observers.usage, self._observers.proof(None))

    async def scrape(self) -> Scrape:
        return await self.metrics.scrape()

    async def pools(self) -> list[PoolState]:
        return await read_pools(self._pools)

    def pool_parts(self) -> AsyncIterator[list[PoolState]]:
        """Yield the same in lists."""
        return pool_parts(self._pools)

    async def facts(self, after: int) -> ProcessFacts:
        """Return the part of this process for the verdict, with the slots after a number and without pools."""
        self._observers.hub.flush()
        instruments = self.metrics.instruments
        instruments.before_read()
        failures = [
            ("component_failures", name, counts[0]) for (name,), counts in instruments.component_failures.dump()
        ]
        return ProcessFacts(
            self._windows.closed_after(after),
            self._windows.last_attempts(),
            totals=[*totals_of(self._observers.process_values()), *failures],
            share=await self.share(),
        )

    async def collect(self) -> Collected:
        """Return the facts of this process alone."""
        pools = await self.pools()
        facts = await self.facts(self._collected)
        if facts.slots:
            self._collected = facts.slots[-1].number
        values = [*self._observers.process_values(), *self.metrics.reload_values()]
        facts.totals = [each for each in facts.totals if each[0] == "component_failures"]  # the rest is in the values
        return Collected([facts], pools, facts.share, values, list(self._discovery.states()))

    async def health(self) -> Mapping[str, object]:
        return await self.watch.health()

    async def history(self, model: str) -> ModelHistory:
        return await self.watch.history(model)

    async def admission(self) -> AdmissionState:
        topology, now_s = self._in_force.topology, self._runtime.loop.time()
        limiters = dict(topology.key_limiters)
        if self._listed is not None:
            limiters.update(self._listed.limiters.in_use)
        keys = []
        for number, (name, limiter) in enumerate(limiters.items(), 1):
            keys.append(key_admission(name, limiter, now_s))
            if number % _SLICE_KEYS == 0:
                await asyncio.sleep(0)
        return replace(self._queues(), keys=tuple(keys))

    async def usage(self, key: str | None, model: str | None) -> UsageReport:
        self._observers.hub.flush()
        return self._observers.usage.report(key, model)

    async def proof(self, hours: int | None) -> Mapping[str, Tally]:
        return self._observers.proof(hours)

    async def share(self) -> ShareState | None:
        return None if self._sharing is None else self._sharing.state()

    async def blocks(self, begin: str) -> list[Block]:
        return self._observers.blocks(begin)

    async def describe(self, model: str, quantiles: Sequence[float]) -> Mapping[str, object] | None:
        found = self._in_force.topology.models.get(model)
        if found is None:
            return None
        described = describe(found, self._runtime.loop.time(), quantiles, self._leave_out)
        sources = [source for source in self._discovery.states() if source.model == model]
        return {**described, "discovery": sources, "learned_file": self._learned.describe()}

    def serves(self, model: str) -> bool:
        return model in self._in_force.topology.models

    def _pools(self) -> Iterator[PoolState | None]:
        self._observers.hub.flush()  # what was emitted before is in the metrics beside this state
        now_s, draining = self._runtime.loop.time(), self._in_force.topology.draining()
        for model in self._in_force.models():
            for pool in model.pools:
                with self._leave_out(pool.name):
                    yield from pool_state(model.name, pool, now_s, draining.get((model.name, pool.name), ()))

    def _queues(self) -> AdmissionState:
        topology = self._in_force.topology
        return queues_state({name: queue.fair_queue for name, queue in topology.model_queues.items()}, topology.memory)
