"""The state of a gateway as the admin address shows it: of one process, or added over several.

Owns the contract between the admin routes and the owner of the state, and its implementation for one process.
Units: seconds, as in the parts.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from gateway.observe.metrics import Metrics, Scrape
from gateway.observe.state import AdmissionSource, AdmissionState, PoolState, ShareState, StateSource, read_pools
from gateway.observe.usage import UsageReport
from gateway.proof.blocks import Block
from gateway.proof.tally import Tally

Describe = Callable[[str, Sequence[float]], Mapping[str, object] | None]
"""Returns the state of a model as JSON-ready values, with estimates at the given quantiles (none given: the default
ones); None if the model does not exist."""

UsageSource = Callable[[str | None, str | None], UsageReport]
"""Returns the usage of a key, None for all, and of a model, None for all."""

ProofSource = Callable[[int | None], Mapping[str, Tally]]
BlockSource = Callable[[str], list[Block]]


class View(Protocol):
    """The state of a gateway."""

    async def scrape(self) -> Scrape:
        """Return the values of all metrics."""

    async def pools(self) -> list[PoolState]:
        """Return the state of every pool, the pools of a model in a row."""

    async def admission(self) -> AdmissionState:
        """Return the state of queues, key limits and body memory."""

    async def usage(self, key: str | None, model: str | None) -> UsageReport:
        """Return the usage of a key, None for all, and of a model, None for all."""

    async def proof(self, hours: int | None) -> Mapping[str, Tally]:
        """Return the counts of each measured model, on the last hours, None for all."""

    async def share(self) -> ShareState | None:
        """Return the state of the exchange with others; None if there is no exchange."""

    async def blocks(self, begin: str) -> list[Block]:
        """Begin a block of an experiment, unless it has begun; return the counts of the last ones."""

    async def describe(self, model: str, quantiles: Sequence[float]) -> Mapping[str, object] | None:
        """Return the state of a model, as `Describe` does."""

    def serves(self, model: str) -> bool:
        """Return True if a model has this name."""


class OwnView:
    """The state of one process.

    Args:
        metrics: counters and histograms.
        state: source of the state of every pool.
        describe: returns the state of a model.
        usage: source of the usage.
        admission: source of the state of queues, key limits and body memory.
        proof: source of the counts of what hedging saves, on the last hours, None for all.
        share: source of the state of the exchange with others, None if there is no exchange.
        blocks: begins a block of an experiment and returns the last ones.
    """

    def __init__(
        self,
        metrics: Metrics,
        state: StateSource,
        describe: Describe,
        usage: UsageSource,
        admission: AdmissionSource = AdmissionState,
        proof: ProofSource = lambda _hours: {},
        share: Callable[[], ShareState | None] = lambda: None,
        blocks: BlockSource = lambda _begin: [],
    ) -> None:
        self._metrics = metrics
        self._state = state
        self._describe = describe
        self._usage = usage
        self._admission = admission
        self._proof = proof
        self._share = share
        self._blocks = blocks

    async def scrape(self) -> Scrape:
        return await self._metrics.scrape()

    async def pools(self) -> list[PoolState]:
        return await read_pools(self._state)

    async def admission(self) -> AdmissionState:
        return self._admission()

    async def usage(self, key: str | None, model: str | None) -> UsageReport:
        return self._usage(key, model)

    async def proof(self, hours: int | None) -> Mapping[str, Tally]:
        return self._proof(hours)

    async def share(self) -> ShareState | None:
        return self._share()

    async def blocks(self, begin: str) -> list[Block]:
        return self._blocks(begin)

    async def describe(self, model: str, quantiles: Sequence[float]) -> Mapping[str, object] | None:
        return self._describe(model, quantiles)

    def serves(self, model: str) -> bool:
        return self._describe(model, ()) is not None
