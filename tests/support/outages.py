"""A fleet that shares a limit while its engine is away, in virtual time: what is admitted and refused in error.

One true bucket is charged for everything that is admitted. A refusal counts as wrong if that bucket has room for the
request, and for 1 % and one request of each gateway, which gateways have leased and not spent: during the outage each
gateway has its part only, afterwards nothing excuses it. Units: seconds.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from gateway.admission.caller_limits import CallerLimits
from leased_fleet import FleetProcess, Meter, offer
from running import run_virtual
from shared_engine import EngineHost, HostedEngine

WINDOW_S: Final = 60.0
BEFORE_S: Final = 70.0
AFTER_S: Final = 90.0
SETTLE_S: Final = 1.0  # after the return, until every gateway has settled


class Outage(NamedTuple):
    """An outage.

    Attributes:
        windows: its length, in windows of the limit.
        keeps: True if the engine keeps its data, as after a hang; False for a restart without data.
        gateways: number of gateways.
        load: offered traffic as a part of the limit.
        cut: number of gateways that are cut off; None for all.
    """

    windows: float
    keeps: bool
    gateways: int
    load: float
    cut: int | None = None


class Outcome(NamedTuple):
    """What came of the limit.

    Attributes:
        over: deepest debt of the true bucket.
        refused_away: refusals during the outage while the true bucket had room.
        refused_back: such refusals after the return.
        admitted: number of admitted requests.
    """

    over: float
    refused_away: int
    refused_back: int
    admitted: int


def outages_of(windows: Iterable[float], gateways: Iterable[int]) -> list[Outage]:
    """Return the outages of these lengths, kept and lost, for fleets of these sizes, at half and at twice the limit."""
    sizes = tuple(gateways)
    return [
        Outage(length, keeps, size, load)
        for length in windows
        for keeps in (True, False)
        for size in sizes
        for load in (0.5, 2.0)
    ]


def over_max(limit: int, gateways: int) -> float:
    """Return the amount by which a fleet may exceed a limit: 1 %, and one request of each gateway."""
    return 0.01 * limit + gateways


def keeps_to(limit: int, outage: Outage, outcome: Outcome) -> bool:
    """Return True if the limit held, half of it was never refused, and nothing was refused without need afterwards."""
    needless = outcome.refused_back + (outcome.refused_away if outage.load < 1 else 0)
    return outcome.over <= over_max(limit, outage.gateways) and not needless


class WatchedProcess(FleetProcess):
    """A gateway that notes when it refuses a request for which the true bucket has room."""

    def watch(self, meter: Meter, room: float) -> None:
        """Compare refusals with a true bucket from now on."""
        self.meter, self.room = meter, room
        self.wrong_s: list[float] = []

    def _refuse(self, error: Exception) -> None:
        super()._refuse(error)  # type: ignore[arg-type]
        now_s = self.loop.time()
        if self.meter.left(now_s) >= self.room:
            self.wrong_s.append(now_s)


def run(outage: Outage, limit: int, shares: Sequence[float] | None = None, seed: int = 1) -> Outcome:
    """Offer traffic before, during and after an outage."""

    async def main() -> Outcome:
        loop, rand = asyncio.get_running_loop(), random.Random(seed)
        host = EngineHost(loop)
        processes = [
            WatchedProcess(HostedEngine(host, f"h{n}"), CallerLimits(limit), loop, rand) for n in range(outage.gateways)
        ]
        for process in processes:
            await process.asker.start()
        meter = Meter(limit, loop.time())
        for process in processes:
            process.watch(meter, 1 + over_max(limit, outage.gateways))
        start_s = loop.time() + BEFORE_S
        end_s = start_s + outage.windows * WINDOW_S
        for at_s, act in _script(outage, start_s, end_s):
            loop.call_at(at_s, act, host)
        parts = shares or [1 / outage.gateways] * outage.gateways
        per_s = outage.load * limit / WINDOW_S
        await offer(processes, [part * per_s for part in parts], end_s + AFTER_S - loop.time(), meter, seed)
        for process in processes:
            process.asker.close()
            assert not process.errors, process.errors
        wrong = [at_s for process in processes for at_s in process.wrong_s if at_s >= start_s]
        away = sum(at_s < end_s + SETTLE_S for at_s in wrong)
        return Outcome(meter.over, away, len(wrong) - away, len(meter.admitted))

    return run_virtual(main())


def _script(outage: Outage, start_s: float, end_s: float) -> Sequence[tuple[float, Callable[[EngineHost], None]]]:
    if outage.cut is not None:
        names = {f"h{n}" for n in range(outage.cut)}
        return ((start_s, lambda host: host.cut_off(names)), (end_s, lambda host: host.cut_off(set())))
    if outage.keeps:
        return ((start_s, EngineHost.hang), (end_s, EngineHost.go_on))
    return ((start_s, EngineHost.kill), (end_s, EngineHost.start))
