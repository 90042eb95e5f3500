"""The counters and histograms of one process, and all values of a scrape. docs/metrics.md describes each metric.

The text of a scrape belongs to exposition.py. Units: seconds.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from gateway.observe.instruments import Instruments
from gateway.observe.process import ProcessValue
from gateway.observe.recorder import Recorder
from gateway.observe.state import (
    AdmissionSource,
    AdmissionState,
    DiscoverySource,
    DiscoveryState,
    PoolState,
    StateSource,
    read_pools,
)
from gateway.observe.usage import UsageTable


class Scrape(NamedTuple):
    """All values of one scrape.

    Attributes:
        others_in_flight: attempts under way at replicas that are not among the pools, by names of model and replica.
        is_sum: True if the instruments are of this scrape only, which adds up several processes.
    """

    instruments: Instruments
    pools: Sequence[PoolState]
    admission: AdmissionState
    process: Sequence[ProcessValue]
    discovery: Sequence[DiscoveryState] = ()
    others_in_flight: Mapping[tuple[str, str], float] = MappingProxyType({})
    is_sum: bool = False

    async def discard(self) -> None:
        """Free a scrape that is not used any more, in slices; the instruments of a process stay."""
        if self.is_sum:
            for _ in self.instruments.drop_parts():
                await asyncio.sleep(0)


class Metrics:
    """Counts events, and reads the values of a scrape.

    Args:
        state: source of the pools' state, read at each scrape.
        admission: source of the admission state, read at each scrape.
        process: source of the values of the process, read at each scrape.
        discovery: source of the state of discovery, read at each scrape.
        usage: usage table, which the same events feed; None for none.

    Attributes:
        instruments: counters and histograms.
        on_events: counts the events of a batch (a `gateway.observe.hub.Collector`).
        forget: drops the series of a replica, given the names of model and replica; None for the series of no replica.
    """

    def __init__(
        self,
        state: StateSource,
        admission: AdmissionSource = AdmissionState,
        process: Callable[[], Iterable[ProcessValue]] = tuple,
        discovery: DiscoverySource = tuple,
        usage: UsageTable | None = None,
    ) -> None:
        self._state = state
        self._process = process
        self._admission = admission
        self._discovery = discovery
        self.instruments = Instruments()
        self._recorder = recorder = Recorder(self.instruments, usage or UsageTable())
        self.on_events, self.forget = recorder.on_events, recorder.forget

    async def scrape(self) -> Scrape:
        """Read all values."""
        self.instruments.before_read()
        await asyncio.sleep(0)  # one slice: series are made
        return self.scrape_with(await read_pools(self._state))

    def scrape_with(self, pools: Sequence[PoolState]) -> Scrape:
        """Read all values but the states of the pools."""
        process = (*self._process(), *self.reload_values())
        return Scrape(self.instruments, pools, self._admission(), process, tuple(self._discovery()))

    def reload_values(self) -> Iterator[ProcessValue]:
        """Yield the result of the last reload."""
        name, text = "ttft_gateway_config_last_reload_successful", "0 if the last reload was rejected"
        yield ProcessValue(name, text, "gauge", float(self._recorder.last_reload_successful))
