"""Limits that this process shares with a fleet: the asker, its leases, and their state for the admin address.

Part of the composition root. Units: seconds of the loop's clock.
"""

import math
from collections.abc import Iterator
from typing import Final

from gateway.limits.leases import LeasedLimits, Leases
from gateway.observe.instruments import Instruments
from gateway.observe.process import ProcessValue
from gateway.observe.state import LeaseState, MismatchState, ShareState
from gateway.process_events import ShareAway, ShareBack
from gateway.race.context import Runtime
from gateway.share.asker import Asker
from gateway.share.fleet import ASK_S_MAX, Sharing, WhenAway
from gateway.share.messages import NamedEngine

_COMPONENT: Final = "share"
_NO_REPLY: Final = f"no reply within {1000 * ASK_S_MAX:g} ms, three times in a row"


class SharedLimits:
    """The part of one process in a fleet.

    Args:
        engine: connection to the engine.
        when_away: the part of each limit to use while the engine is away.
        runtime: clock, random numbers and receiver of events.

    Attributes:
        limits: makes limits that the fleet shares.
    """

    def __init__(self, engine: NamedEngine, when_away: WhenAway, runtime: Runtime) -> None:
        self._engine = engine
        self._runtime = runtime
        self._reason = ""
        self._away_since_s = 0.0
        self._fleet = Sharing(when_away)
        self._leases = Leases(self._fleet)
        self.limits = LeasedLimits(self._leases)
        self._asker = Asker(
            engine, self._fleet, runtime.loop, runtime.rand, self._on_away, self._on_back, self._on_error
        )
        self._asker.ticks.append(self._leases.tick)

    async def start(self) -> None:
        """Ask for the first time; return after the reply, at most 100 ms later."""
        await self._asker.start()

    def close(self) -> None:
        """Stop asking."""
        self._asker.close()

    @property
    def is_up(self) -> bool:
        """False while the engine is away."""
        return self._asker.is_up

    @property
    def heads(self) -> int:
        """Number of processes that share the limits, at the last reply."""
        return self._fleet.heads

    def state(self, exchanged_s: float) -> ShareState:
        """Return a snapshot.

        Args:
            exchanged_s: loop time of the last exchange of loads; -inf before the first.
        """
        now_s, asker = self._runtime.loop.time(), self._asker
        return ShareState(
            self._engine.kind,
            self.is_up,
            round(now_s - asker.since_s, 3),
            None if self.is_up else self._engine.fault or self._reason,
            None if asker.replied_s is None else round(now_s - asker.replied_s, 3),
            None if exchanged_s == -math.inf else round(now_s - exchanged_s, 3),
            self.heads,
            self._fleet.when_away.value,
            self._fleet.part,
            tuple(LeaseState(lease.key, round(lease.hand, 3)) for lease in self._leases.held),
            tuple(MismatchState(key, *amounts) for key, amounts in self._leases.mismatches.items()),
        )

    def count_in(self, instruments: Instruments) -> None:
        """Count replies there from now on."""
        seconds = instruments.share_ask.at()
        instruments.share_aways.at()
        results = {result: instruments.share_asks.at(result) for result in self._asker.counts.results}

        def on_result(result: str, took_s: float | None) -> None:
            results[result].value += 1
            if took_s is not None:
                seconds.observe(took_s)

        self._asker.counts.on_result = on_result

    def values(self) -> Iterator[ProcessValue]:
        """Return the values for a scrape."""
        return share_values(is_up=self.is_up, heads=self.heads)

    def _on_away(self) -> None:
        self._away_since_s = self._runtime.loop.time()
        self._reason = self._engine.fault or _NO_REPLY
        fleet = self._fleet
        self._runtime.emit(
            ShareAway(self._away_since_s, self.heads, fleet.when_away.value, round(fleet.part, 6), self._reason)
        )

    def _on_back(self) -> None:
        now_s = self._runtime.loop.time()
        self._runtime.emit(ShareBack(now_s, self.heads, now_s - self._away_since_s))

    def _on_error(self, error: Exception) -> None:
        self._runtime.report(_COMPONENT, error)


def share_values(*, is_up: bool, heads: int) -> Iterator[ProcessValue]:
    """Return the values for a scrape."""
    yield ProcessValue("ttft_gateway_share_up", "1 if the engine answers", "gauge", float(is_up))
    yield ProcessValue("ttft_gateway_share_heads", "Processes that share limits", "gauge", heads)
