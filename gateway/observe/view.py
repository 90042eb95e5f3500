"""The state of a gateway as the admin address shows it: of one process, or added over several.

The contract between the admin routes and the owner of the state.
Units: seconds, as in the parts.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from gateway.observe.metrics import Scrape
from gateway.observe.state import AdmissionState, PoolState, ShareState
from gateway.observe.usage import UsageReport
from gateway.proof.blocks import Block
from gateway.proof.tally import Tally


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
        """Return the state of a model as JSON-ready values; None if it does not exist.

        Args:
            quantiles: quantiles of the estimates; none for the default ones.
        """

    def serves(self, model: str) -> bool:
        """Return True if a model has this name."""
