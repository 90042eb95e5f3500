"""Fleets that share limits over a real Redis or Valkey server, which is away for parts of a window to several windows.

Every outage has a server of its own, and the outages of a call run at the same time, as long as the longest takes. On
each server there are fleets of several sizes, at half and at twice a limit. A hung server keeps its data, a killed one
loses them. All gateways are in this process, with a connection each. Units: seconds.
"""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from gateway.admission.caller_limits import CallerLimits
from gateway.share.address import read_address
from gateway.share.redis import Login, RedisEngine
from leased_fleet import Meter, offer
from leased_queues import Queues
from outages import WINDOW_S, Outage, Outcome, WatchedProcess, over_max
from redis_server import RedisServer, redis_server

OUTAGE_LIMIT: Final = 300  # requests a minute
SLOTS: Final = 8
_BURST_S: Final = 3.0  # in which the burst is used up at twice the limit
_BEFORE_S: Final = 12.0
_AFTER_S: Final = 30.0
_SETTLE_S: Final = 2.0  # on a loaded machine
_HELD_S: Final = 4.0  # by a queued request
_QUEUED: Final = 1.5  # requests for each slot


class SeenOutage(NamedTuple):
    """What came of one fleet.

    Attributes:
        outage: the outage.
        outcome: what came of its limit.
        slots: most requests that ran at a time.
        errors: bugs, and refusals for another reason than the limit.
    """

    outage: Outage
    outcome: Outcome
    slots: int
    errors: int

    @property
    def holds(self) -> bool:
        """True if the limits held, and nothing was refused without need."""
        most = over_max(OUTAGE_LIMIT, self.outage.gateways)
        needless = self.outcome.refused_back + (self.outcome.refused_away if self.outage.load < 1 else 0)
        return (
            self.outcome.over <= most
            and needless <= most
            and self.slots <= SLOTS + self.outage.gateways
            and not self.errors
        )


async def seen_outages(folder: Path, outages: Sequence[Outage]) -> list[SeenOutage]:
    """Run all outages at the same time; outages of the same length share a server."""
    by_server: dict[tuple[float, bool], list[Outage]] = {}
    for outage in outages:
        by_server.setdefault((outage.windows, outage.keeps), []).append(outage)
    servers = [
        _server(folder / f"{number}", length * WINDOW_S, keeps, fleets)
        for number, ((length, keeps), fleets) in enumerate(by_server.items())
    ]
    return [seen for found in await asyncio.gather(*servers) for seen in found]


async def _server(folder: Path, away_s: float, keeps: bool, outages: Sequence[Outage]) -> list[SeenOutage]:
    """Run the outage of one server, and all its fleets."""
    loop = asyncio.get_running_loop()
    with redis_server(folder) as server:
        start_s = loop.time() + _BEFORE_S + _BURST_S
        end_s = start_s + away_s
        async with asyncio.TaskGroup() as group:
            fleets = [group.create_task(_fleet(server, outage, start_s, end_s)) for outage in outages]
            await asyncio.sleep(start_s - loop.time())
            (server.hang if keeps else server.kill)()
            await asyncio.sleep(end_s - loop.time())
            if keeps:
                server.go_on()
            else:
                await asyncio.to_thread(server.start)
        return [fleet.result() for fleet in fleets]


async def _fleet(server: RedisServer, outage: Outage, start_s: float, end_s: float) -> SeenOutage:
    loop, rand, size = asyncio.get_running_loop(), random.Random(f"{outage}"), outage.gateways
    address = read_address(f"redis://127.0.0.1:{server.port}")
    name = f"{size}-{outage.load:g}"
    engines = [RedisEngine(address, Login(), name, f"gateway-{place}", rand.random) for place in range(size)]
    processes = [WatchedProcess(engine, CallerLimits(OUTAGE_LIMIT), loop, rand) for engine in engines]
    async with asyncio.TaskGroup() as group:
        for engine in engines:
            group.create_task(engine.run())
        await asyncio.gather(*(engine.wait_connected() for engine in engines))
        await asyncio.gather(*(process.asker.start() for process in processes))
        meter = Meter(OUTAGE_LIMIT, loop.time())
        for process in processes:
            process.watch(meter, 1 + over_max(OUTAGE_LIMIT, size))
        queues = Queues(processes, SLOTS)
        until_s = end_s + _AFTER_S
        for place, admission in enumerate(queues.admissions):
            per_s = _QUEUED * SLOTS / _HELD_S / size
            group.create_task(queues.traffic(admission, per_s, _HELD_S, until_s, f"{outage} {place}"))
        if outage.load > 1:
            await offer(processes, [1.2 * OUTAGE_LIMIT / _BURST_S / size] * size, _BURST_S, meter, 0)
        rates = [outage.load * OUTAGE_LIMIT / WINDOW_S / size] * size
        await offer(processes, rates, until_s - loop.time(), meter, 1)
        for process in processes:
            process.asker.close()
    wrong = [at_s for process in processes for at_s in process.wrong_s if at_s >= start_s]
    away = sum(at_s < end_s + _SETTLE_S for at_s in wrong)
    refused = [(code, number) for process in processes for code, number in process.refused.items()]
    errors = sum(number for code, number in refused if code != "rate_limit_exceeded")
    return SeenOutage(
        outage,
        Outcome(meter.over, away, len(wrong) - away, len(meter.admitted)),
        queues.most,
        errors + sum(len(process.errors) for process in processes),
    )
