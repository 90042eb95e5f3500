"""Composes gateway/share for one process: limits that it leases, and pools, quotas and switches that it exchanges.

Works over any engine: the hub of the host, or a server for many hosts (redis_share.py). Part of the composition root.
Units: seconds of the loop's clock.
"""

import asyncio
import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Final, Protocol, get_args

from gateway.observe.instruments import Instruments
from gateway.observe.process import ProcessValue
from gateway.observe.state import LeaseState, MismatchState, ShareState
from gateway.process_events import ShareAway, ShareBack
from gateway.race.context import Model, Runtime
from gateway.server.fleet_size import FleetSize
from gateway.share.asker import Asker, AskResult
from gateway.share.fleet import ASK_S_MAX
from gateway.share.leases import Leases
from gateway.share.messages import NamedEngine
from gateway.share.pools import Former
from gateway.share.sync import Exchange, Reach, SwitchExchange, Sync
from ttft_gateway.limits.ledger import Ledger
from ttft_gateway.pool.learned import Drop

_COMPONENT: Final = "share"
_NO_REPLY: Final = f"no reply within {1000 * ASK_S_MAX:g} ms, three times in a row"
_HEDGING: Final = "hedging"  # name of its switch; a model's follows after a space
_REACH_S: Final = 2.0  # longest wait for the other processes to have a switch
_LOOK_S: Final = 0.05


class FollowSwitch(Protocol):
    """Switches hedging of a model, or of every model if None, as another host did."""

    def __call__(self, model: str | None, /, *, on: bool) -> None: ...


class Sharing:
    """The part of one process in a fleet.

    Args:
        engine: connection to the engine.
        size: the size of the fleet as it is known without the engine.
        runtime: clock, random numbers and receiver of events.
        drop: receives what other processes have sent and is out of range.

    Attributes:
        limits: makes limits that the fleet shares.
        sync: the timer of the exchange.
    """

    def __init__(self, engine: NamedEngine, size: FleetSize, runtime: Runtime, drop: Drop) -> None:
        engine.drop = drop
        self._engine = engine
        self._runtime = runtime
        self._follow_switch: FollowSwitch | None = None
        self._drop = drop
        self._reason = ""
        self._away_since_s = 0.0
        self._size, self._fleet = size, size.fleet
        self._fleet.is_rejected = lambda: engine.is_rejected
        self.limits = Leases(self._fleet, drop)
        loop = runtime.loop
        self._asker = Asker(engine, self._fleet, loop, runtime.rand, self._on_away, self._on_back, self._on_error)
        self._asker.ticks.append(self.limits.tick)
        self._switches = SwitchExchange(self._apply)
        self._quotas: list[Exchange] = []
        self._of_models: dict[str, tuple[Model, list[Exchange]]] = {}  # by name
        self.sync = Sync(
            engine, loop.time, loop.call_later, runtime.rand, engine.batch_exchanges, on_error=self._on_error
        )

    def use(self, models: Iterable[Model], ledgers: Mapping[str, Ledger]) -> None:
        """Exchange these models and quotas from now on, after a start or a reload."""
        self._quotas = Former(self._quotas).of_quotas(ledgers, self._drop)
        before, self._of_models, new = self._of_models, {}, []
        for model in models:
            if (known := before.get(model.name)) is not None and known[0] is model:
                self._of_models[model.name] = before.pop(model.name)
            else:
                new.append(model)
        former = Former([each for _, exchanges in before.values() for each in exchanges])
        for model in new:
            self._of_models[model.name] = model, former.of_model(model.pools, model.retries, self._drop)
        switches: list[Exchange] = [self._switches] if self.carries_switches else []
        of_models = chain.from_iterable(exchanges for _, exchanges in self._of_models.values())
        self.sync.exchanges = [*switches, self.limits.low, *self._quotas, *of_models]

    async def start(self, follow_switch: FollowSwitch) -> None:
        """Ask for the first time, begin to exchange, and return after the reply, at most 100 ms later."""
        self._follow_switch = follow_switch
        self._size.start()
        await self._asker.start()
        self.sync.start()

    def close(self) -> None:
        """Stop asking and exchanging."""
        self._size.close()
        self._asker.close()
        self.sync.stop()

    @property
    def carries_switches(self) -> bool:
        """True if the fleet has processes on other hosts, which get switches in the exchange."""
        return self._engine.carries_switches

    async def publish(self, model: str | None, *, on: bool) -> Reach:
        """Send a switch of hedging to the other processes; return the number of processes that have it within 2 s."""
        switches, sync = self._switches, self.sync
        switches.publish(_HEDGING if model is None else f"{_HEDGING} {model}", "on" if on else "off")
        for _ in range(round(_REACH_S / _LOOK_S)):
            await asyncio.sleep(_LOOK_S)
            if switches.is_sent and switches.reached >= sync.processes:
                break
        return Reach(switches.reached if switches.is_sent else 1, sync.processes)

    @property
    def is_up(self) -> bool:
        """False while the engine is away."""
        return self._asker.is_up

    @property
    def processes(self) -> int:
        """Number of processes that share the limits, at the last reply."""
        return max(1, self._fleet.processes)

    def state(self) -> ShareState:
        """Return a snapshot."""
        now_s, asker, exchanged_s = self._runtime.loop.time(), self._asker, self.sync.answered_s
        return ShareState(
            self._engine.kind,
            self.is_up,
            round(now_s - asker.since_s, 3),
            None if self.is_up else self._engine.fault or self._reason,
            None if asker.replied_s is None else round(now_s - asker.replied_s, 3),
            None if exchanged_s == -math.inf else round(now_s - exchanged_s, 3),
            self.processes,
            self._fleet.expected,
            self._fleet.when_away.value,
            self._fleet.part,
            tuple(LeaseState(lease.key, round(lease.unspent, 3), round(lease.owed, 3)) for lease in self.limits.held),
            tuple(MismatchState(key, *amounts) for key, amounts in self.limits.mismatches.items()),
        )

    def count_in(self, instruments: Instruments) -> None:
        """Count replies there from now on."""
        seconds = instruments.share_ask.at()
        instruments.share_aways.at()
        results = {result: instruments.share_asks.at(result) for result in get_args(AskResult)}

        def on_result(result: AskResult, took_s: float | None) -> None:
            results[result].value += 1
            if took_s is not None:
                seconds.observe(took_s)

        self._asker.on_result = on_result

    def values(self) -> Iterator[ProcessValue]:
        """Return the values for a scrape."""
        owed = max((lease.owed / lease.size for lease in self.limits.held), default=0.0)
        return share_values(is_up=self.is_up, processes=self.processes, owed=owed)

    def _apply(self, name: str, value: str) -> None:
        kind, _, model = name.partition(" ")
        if kind == _HEDGING and value in ("on", "off") and self._follow_switch is not None:
            self._follow_switch(model or None, on=value == "on")

    def _on_away(self) -> None:
        self._away_since_s = self._runtime.loop.time()
        self._reason = self._engine.fault or _NO_REPLY
        fleet = self._fleet
        self._runtime.emit(
            ShareAway(self._away_since_s, self.processes, fleet.when_away.value, round(fleet.part, 6), self._reason)
        )

    def _on_back(self) -> None:
        now_s = self._runtime.loop.time()
        self._runtime.emit(ShareBack(now_s, self.processes, now_s - self._away_since_s))

    def _on_error(self, error: Exception) -> None:
        self._runtime.report(_COMPONENT, error)


def share_values(*, is_up: bool, processes: int, owed: float) -> Iterator[ProcessValue]:
    """Return the values for a scrape."""
    yield ProcessValue("ttft_gateway_share_up", "1 if the engine answers", "gauge", float(is_up))
    yield ProcessValue("ttft_gateway_share_processes", "Processes that share limits", "gauge", processes)
    yield ProcessValue(
        "ttft_gateway_share_owed", "Largest debt of a shared limit, as a part of the limit", "gauge", owed
    )
