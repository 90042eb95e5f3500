"""Limits that this process shares with a fleet: the asker, its leases, and their state for the admin address.

Part of the composition root. Units: seconds of the loop's clock.
"""

from collections.abc import Iterator

from gateway.limits.leased_limits import LeasedLimits
from gateway.limits.leases import Leases
from gateway.observe.process import ProcessValue
from gateway.process_events import ShareAway, ShareBack
from gateway.race.context import Runtime
from gateway.share.asker import AskCounts, Asker
from gateway.share.fleet import Sharing, WhenAway
from gateway.share.words import Engine

_COMPONENT = "share"


class SharedLimits:
    """The part of one process in a fleet.

    Args:
        engine: connection to the engine.
        when_away: the part of each limit to use while the engine is away.
        runtime: clock, random numbers and receiver of events.

    Attributes:
        limits: makes limits that the fleet shares.
    """

    def __init__(self, engine: Engine, when_away: WhenAway, runtime: Runtime) -> None:
        self._runtime = runtime
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

    @property
    def counts(self) -> AskCounts:
        """Counters of replies."""
        return self._asker.counts

    def describe(self) -> dict[str, object]:
        """Return the state as JSON-ready values."""
        now_s = self._runtime.loop.time()
        return {
            "up": self.is_up,
            "since_s": round(now_s - self._asker.since_s, 3),
            "heads": self.heads,
            "when_away": self._fleet.when_away.value,
            "hands": {lease.key: round(lease.hand, 3) for lease in self._leases.held},
            "mismatches": {
                key: {"own": own, "counts": counts} for key, (own, counts) in self._leases.mismatches.items()
            },
        }

    def values(self) -> Iterator[ProcessValue]:
        """Return the values for a scrape."""
        return share_values(self._asker.counts, is_up=self.is_up, heads=self.heads)

    def _on_away(self) -> None:
        self._away_since_s = self._runtime.loop.time()
        self._runtime.emit(ShareAway(self._away_since_s, self.heads, self._fleet.when_away.value))

    def _on_back(self) -> None:
        now_s = self._runtime.loop.time()
        self._runtime.emit(ShareBack(now_s, self.heads, now_s - self._away_since_s))

    def _on_error(self, error: Exception) -> None:
        self._runtime.report(_COMPONENT, error)


def share_values(counts: AskCounts, *, is_up: bool, heads: int) -> Iterator[ProcessValue]:
    """Return the values for a scrape."""
    yield ProcessValue("ttft_gateway_share_up", "1 if the engine answers", "gauge", float(is_up))
    yield ProcessValue("ttft_gateway_share_heads", "Processes that share limits", "gauge", heads)
    text = "Batches of asks by result"
    for result, number in counts.results.items():
        yield ProcessValue("ttft_gateway_share_asks", text, "counter", number, {"result": result})
    text = "Time to the replies that came in time, together"
    yield ProcessValue("ttft_gateway_share_ask_seconds", text, "counter", counts.seconds_sum)
    text = "Times at which the engine was found to be away"
    yield ProcessValue("ttft_gateway_share_away", text, "counter", counts.aways)
