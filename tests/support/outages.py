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
MOVED_LIMIT: Final = 600  # of traffic that moves
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


class Move(NamedTuple):
    """An outage of a third of a window that begins when all traffic moves to other gateways.

    Attributes:
        gateways: number of gateways.
        load: offered traffic as a part of the limit.
        first: number of gateways that have the traffic before.
        first_s: time for which they have it.
        used_s: time from the last requests of the other ones to the outage; None if they had none.
    """

    gateways: int
    load: float
    first: int
    first_s: float
    used_s: float | None


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


def moves_of(gateways: Iterable[int]) -> list[Move]:
    """Return moves at five times the limit, after several times of traffic, in fleets of these sizes."""
    return [
        Move(size, 5.0, first, first_s, used_s)
        for size in gateways
        for first in sorted({1, size // 2})
        for first_s in (5.0, 12.0, 20.0)
        for used_s in (9.5, 25.0, None)
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
        loop = asyncio.get_running_loop()
        fleet = await _Fleet.begin(limit, outage.gateways, seed)
        start_s = loop.time() + BEFORE_S
        end_s = start_s + outage.windows * WINDOW_S
        for at_s, act in _script(outage, start_s, end_s):
            loop.call_at(at_s, act, fleet.host)
        parts = shares or [1 / outage.gateways] * outage.gateways
        await fleet.offer([part * outage.load for part in parts], end_s + AFTER_S)
        return fleet.outcome(start_s, end_s)

    return run_virtual(main())


def run_move(move: Move, limit: int, seed: int = 1) -> Outcome:
    """Let traffic move to other gateways when an outage begins."""

    async def main() -> Outcome:
        loop = asyncio.get_running_loop()
        fleet = await _Fleet.begin(limit, move.gateways, seed)
        start_s = loop.time() + max(move.first_s, move.used_s or 0.0) + 1.0
        end_s = start_s + WINDOW_S / 3
        for at_s, act in _script(Outage(1 / 3, True, move.gateways, move.load), start_s, end_s):
            loop.call_at(at_s, act, fleet.host)
        others = move.gateways - move.first
        for process in fleet.processes[move.first :] if move.used_s is not None else ():
            loop.call_at(start_s - (move.used_s or 0.0), process.request, fleet.meter)
        await asyncio.sleep(start_s - move.first_s - loop.time())
        await fleet.offer([move.load / move.first] * move.first + [0.0] * others, start_s)
        await fleet.offer([0.0] * move.first + [move.load / others] * others, end_s + AFTER_S)
        return fleet.outcome(start_s, end_s)

    return run_virtual(main())


class _Fleet:
    """A fleet with one limit, and the true bucket."""

    def __init__(self, limit: int, gateways: int, seed: int) -> None:
        self._loop, self._limit, self._seed = asyncio.get_running_loop(), limit, seed
        rand = random.Random(seed)
        self.host = EngineHost(self._loop)
        self.processes = [
            WatchedProcess(HostedEngine(self.host, f"h{n}"), CallerLimits(limit), self._loop, rand)
            for n in range(gateways)
        ]
        self.meter = Meter(limit, self._loop.time())
        for process in self.processes:
            process.watch(self.meter, 1 + over_max(limit, gateways))

    @classmethod
    async def begin(cls, limit: int, gateways: int, seed: int) -> "_Fleet":
        """Return a fleet that has reached its engine."""
        fleet = cls(limit, gateways, seed)
        for process in fleet.processes:
            await process.asker.start()
        return fleet

    async def offer(self, loads: Sequence[float], until_s: float) -> None:
        """Offer parts of the limit to the gateways."""
        busy = [(process, load) for process, load in zip(self.processes, loads, strict=True) if load]
        rates = [load * self._limit / WINDOW_S for _, load in busy]
        await offer([process for process, _ in busy], rates, until_s - self._loop.time(), self.meter, self._seed)

    def outcome(self, start_s: float, end_s: float) -> Outcome:
        """End the fleet, and return what came of the limit."""
        for process in self.processes:
            process.asker.close()
            assert not process.errors, process.errors
        wrong = [at_s for process in self.processes for at_s in process.wrong_s if at_s >= start_s]
        away = sum(at_s < end_s + SETTLE_S for at_s in wrong)
        return Outcome(self.meter.over, away, len(wrong) - away, len(self.meter.admitted))


def _script(outage: Outage, start_s: float, end_s: float) -> Sequence[tuple[float, Callable[[EngineHost], None]]]:
    if outage.cut is not None:
        names = {f"h{n}" for n in range(outage.cut)}
        return ((start_s, lambda host: host.cut_off(names)), (end_s, lambda host: host.cut_off(set())))
    if outage.keeps:
        return ((start_s, EngineHost.hang), (end_s, EngineHost.go_on))
    return ((start_s, EngineHost.kill), (end_s, EngineHost.start))
