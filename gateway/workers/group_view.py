"""The state of all workers together, for the admin address of the supervisor.

The classes of gateway/observe/state.py have the units.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from gateway.health.facts import Collected, ProcessFacts, WorkersState
from gateway.health.history import ModelHistory
from gateway.health.watch import Watch
from gateway.observe.instruments import Instruments
from gateway.observe.metrics import Metrics, Scrape
from gateway.observe.process import ProcessValue
from gateway.observe.proof import proof_values
from gateway.observe.state import AdmissionState, DiscoverySource, PoolState, ShareState, free
from gateway.observe.usage import UsageReport, UsageTable
from gateway.proof.blocks import Block, merged
from gateway.proof.tally import Tally, merged_tallies
from gateway.workers.group import WorkerGroup
from gateway.workers.merging import (
    merged_admission,
    merged_description,
    merged_pools,
    merged_process,
    merged_share,
)
from gateway.workers.messages import Describe, WorkerScrape
from gateway.workers.parts import joined_facts, joined_scrape

_SLICE_POOLS: Final = 32  # that are merged in one iteration of the event loop, about 1 ms


class GroupView:
    """The state of a gateway with workers.

    Args:
        group: the workers.
        own: counters of the supervisor itself.
        process: values of its process.
        models: returns the names of all models.
        learned_file: describes the file of learned state.
        discovery: returns the state of the sources of replicas.
        watch: makes the verdict and the history, given the function that collects the facts.
        configured: number of workers.

    Attributes:
        watch: verdict and history.
    """

    def __init__(
        self,
        group: WorkerGroup,
        own: Metrics,
        process: Callable[[], Iterable[ProcessValue]],
        models: Callable[[], Iterable[str]],
        learned_file: Callable[[], dict[str, object] | None],
        discovery: DiscoverySource,
        watch: Callable[[Callable[[], Awaitable[Collected]]], Watch],
        configured: int,
    ) -> None:
        self._group = group
        self._own = own
        self._process = process
        self._models = models
        self._learned_file = learned_file
        self._discovery = discovery
        self._configured = configured
        self._collected: dict[int, int] = {}  # number of the last slot by process
        self.watch = watch(self._collect)
        self._usage = UsageTable()  # for its time of start

    async def scrape(self) -> Scrape:
        group = self._group
        _, answers = await asyncio.gather(group.read_counts(), group.read_parts("scrape", WorkerScrape))
        scrapes = [joined_scrape(parts) for _, parts in answers]
        del answers
        instruments = Instruments()
        counted = (group.counts_of(part).instruments for part in group.counted())
        for dump in itertools.chain(self._own.instruments.dump_parts(), counted):
            for _ in instruments.add_parts(dump):
                await asyncio.sleep(0)
        own = [*self._process(), *self._own.reload_values()]
        gone = list(proof_values(group.dead_proof))
        process = merged_process([own, *(scrape.process for scrape in scrapes), gone])
        return Scrape(
            instruments,
            await _merged_pools([scrape.pools for scrape in scrapes]),
            merged_admission([scrape.admission for scrape in scrapes]),
            [*process, *self._worker_values()],
            tuple(self._discovery()),
            is_sum=True,
        )

    async def pools(self) -> list[PoolState]:
        answers = await self._group.read_parts("pools", list[PoolState])
        workers = [[pool for part in parts for pool in part] for _, parts in answers]
        del answers
        return await _merged_pools(workers)

    async def health(self) -> Mapping[str, object]:
        return await self.watch.health()

    async def history(self, model: str) -> ModelHistory:
        return await self.watch.history(model)

    async def _collect(self) -> Collected:
        """Return the facts of all workers."""
        group, before = self._group, self._collected
        workers = group.ready
        asked = [group.read_parts("facts", ProcessFacts, before.get(each.process, 0), [each]) for each in workers]
        answers = [(worker, joined_facts(parts)) for found in await asyncio.gather(*asked) for worker, parts in found]
        self._collected = {worker.process: before.get(worker.process, 0) for worker in workers}
        for worker, facts in answers:
            if facts.slots:
                self._collected[worker.process] = facts.slots[-1].number
        parts = [facts for _, facts in answers]
        return Collected(
            parts,
            await _merged_pools([part.pools for part in parts]),
            merged_share([part.share for part in parts if part.share is not None]),
            [*self._process(), *self._own.reload_values()],
            list(self._discovery()),
            WorkersState(self._configured, len(workers), group.late),
        )

    async def admission(self) -> AdmissionState:
        return merged_admission(await self._group.read("admission", AdmissionState))

    async def usage(self, key: str | None, model: str | None) -> UsageReport:
        await self._group.read_counts()
        table = UsageTable(lambda: self._usage.since)
        for part in self._group.counted():
            table.add(self._group.counts_of(part).usage)
            await asyncio.sleep(0)
        return table.report(key, model)

    async def proof(self, hours: int | None) -> Mapping[str, Tally]:
        tallies = await self._group.read("proof", dict[str, Tally], hours)
        return merged_tallies(tallies if hours else [*tallies, self._group.dead_proof])

    async def share(self) -> ShareState | None:
        return merged_share(await self._group.read("share", ShareState))

    async def blocks(self, begin: str) -> list[Block]:
        return merged(await self._group.read("blocks", list[Block], begin))

    async def describe(self, model: str, quantiles: Sequence[float]) -> Mapping[str, object] | None:
        asked = Describe(model, list(quantiles))
        answers = await self._group.read("describe", list[dict[str, Any]], asked)
        described = merged_description([each for answer in answers for each in answer])
        if described is None:
            return None
        found = [source for source in self._discovery() if source.model == model]
        return {**described, "discovery": found, "learned_file": self._learned_file()}

    def serves(self, model: str) -> bool:
        return model in self._models()

    def _worker_values(self) -> Iterable[ProcessValue]:
        ready = sorted(self._group.ready, key=lambda worker: worker.number)
        return worker_values({worker.number: worker.slot.open for worker in ready}, self._group.restarts)


async def _merged_pools(workers: Sequence[list[PoolState]]) -> list[PoolState]:
    """Return the states of the pools of all workers together; the lists are empty then."""
    pools: list[PoolState] = []
    for pool in merged_pools(workers):
        pools.append(pool)
        if len(pools) % _SLICE_POOLS == 0:
            await asyncio.sleep(0)
    held = [pool for worker in workers for pool in worker]
    for worker in workers:
        worker.clear()
    await free(held)
    return pools


def worker_values(connections: Mapping[int, float], restarts: int) -> Iterable[ProcessValue]:
    """Yield the metrics of the workers.

    Args:
        connections: open connections of the workers that serve, by number.
        restarts: number of processes that were replaced.
    """
    yield ProcessValue("ttft_gateway_workers", "Workers that serve requests", "gauge", len(connections))
    yield ProcessValue("ttft_gateway_worker_restarts", "Worker processes that were replaced", "counter", restarts)
    for number, count in connections.items():
        labels = {"worker": str(number)}
        yield ProcessValue("ttft_gateway_worker_connections", "Open client connections", "gauge", count, labels)
