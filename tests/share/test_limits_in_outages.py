"""A fleet over outages of every length, in virtual time: no limit is exceeded, and nothing is refused without need."""

import asyncio
import random
from typing import Final

import pytest

from gateway.admission.admission import Admission
from gateway.admission.caller_limits import CallerLimits, KeyLimiter
from gateway.share.messages import Answered, Ask
from leased_fleet import FleetProcess, Meter, offer
from outages import Move, Outage, keeps_to, outages_of, over_max, run, run_move
from running import run_virtual
from shared_engine import EngineHost, HostedEngine

LIMIT: Final = 120  # a minute
GATEWAYS: Final = 4


@pytest.mark.parametrize(
    "outage", [*outages_of([0.1, 1, 3], [1, 8]), Outage(20, True, 4, 0.5), Outage(20, False, 4, 2.0)]
)
def test_an_outage_exceeds_no_limit_and_locks_nobody_out(outage: Outage) -> None:
    """Over by 1 % and one request of each gateway; half of the limit is never refused, and nothing after the return.

    `scripts/acceptance outage_table` has more lengths and fleets.
    """
    outcome = run(outage, LIMIT)
    assert keeps_to(LIMIT, outage, outcome), outcome


@pytest.mark.parametrize("keeps", [True, False], ids=["kept", "lost"])
def test_traffic_at_one_gateway_uses_what_the_others_leave(keeps: bool) -> None:
    """After the return, the whole limit is there."""
    outcome = run(Outage(3, keeps, GATEWAYS, 2.0), LIMIT, (0.9, 0.04, 0.03, 0.03))
    assert outcome.over <= over_max(LIMIT, GATEWAYS)
    assert outcome.refused_back == 0


@pytest.mark.parametrize(
    "move", [Move(2, 5.0, 1, 20.0, 25.0), Move(4, 5.0, 1, 20.0, 25.0), Move(4, 5.0, 2, 16.0, None)], ids=str
)
def test_traffic_that_moves_when_an_outage_begins_exceeds_no_limit(move: Move) -> None:
    """The gateways to which it moves have reports of what the others have used; none refuses for long."""
    outcome = run_move(move, LIMIT)
    assert outcome.over <= over_max(LIMIT, move.gateways)
    assert outcome.refused_back == 0


@pytest.mark.parametrize("windows", [0.5, 10])
def test_one_gateway_that_is_cut_off_adds_its_part(windows: float) -> None:
    """At half of the limit no request is refused; at twice the limit, the others do not stop after its return."""
    half = run(Outage(windows, True, GATEWAYS, 0.5, cut=1), LIMIT)
    assert (half.over, half.refused_away, half.refused_back) == (0, 0, 0)
    outcome = run(Outage(windows, True, GATEWAYS, 2.0, cut=1), LIMIT)
    assert outcome.over <= 0.9 / GATEWAYS * LIMIT * windows + over_max(LIMIT, GATEWAYS)
    assert outcome.refused_back == 0


@pytest.mark.parametrize(("first_s", "gap_s", "second_s"), [(20.0, 1.0, 20.0), (120.0, 0.3, 20.0), (120.0, 0.1, 1.0)])
def test_a_server_that_is_killed_again_when_it_is_back_exceeds_no_limit(
    first_s: float, gap_s: float, second_s: float
) -> None:
    """Not all gateways have come back by then, and the answers to others did not count what those have spent."""

    async def main() -> Meter:
        loop = asyncio.get_running_loop()
        host = EngineHost(loop)
        processes = [_process(host, f"h{n}", expected=None) for n in range(GATEWAYS)]
        for process in processes:
            await process.asker.start()
        meter = Meter(LIMIT, loop.time())
        at_s = loop.time() + 70.0
        for part_s, act in ((first_s, host.kill), (gap_s, host.start), (second_s, host.kill), (0.0, host.start)):
            loop.call_at(at_s, act)
            at_s += part_s
        await offer(processes, [5 * LIMIT / 60 / GATEWAYS] * GATEWAYS, at_s + 20.0 - loop.time(), meter, 1)
        return meter

    assert run_virtual(main()).over <= over_max(LIMIT, GATEWAYS)


@pytest.mark.parametrize("keeps", [True, False], ids=["kept", "lost"])
@pytest.mark.parametrize("limit", [LIMIT + 1, 2 * LIMIT], ids=["higher", "twice"])
def test_a_reload_during_an_outage_fills_no_limit(limit: int, keeps: bool) -> None:
    """A limit that a reload changes goes on from what was left of it."""

    async def main() -> Meter:
        loop = asyncio.get_running_loop()
        host = EngineHost(loop)
        processes = [_process(host, f"h{n}", expected=None) for n in range(GATEWAYS)]
        for process in processes:
            await process.asker.start()
        meter = Meter(LIMIT, loop.time())
        per_s = 5 * LIMIT / 60 / GATEWAYS
        await offer(processes, [per_s] * GATEWAYS, 70.0, meter, 1)
        (host.hang if keeps else host.kill)()
        await offer(processes, [per_s] * GATEWAYS, 20.0, meter, 2)
        for process in processes:
            process.admission = Admission(
                {"k": KeyLimiter(CallerLimits(limit), "key:k", process.limits)}, {}, process.runtime
            )
        meter.charge(loop.time(), 0.0)
        meter.limit = limit
        await offer(processes, [per_s] * GATEWAYS, 20.0, meter, 3)
        (host.go_on if keeps else host.start)()
        await offer(processes, [per_s] * GATEWAYS, 20.0, meter, 4)
        return meter

    assert run_virtual(main()).over <= over_max(LIMIT, GATEWAYS)


class RejectedEngine(HostedEngine):
    """A connection with a wrong password."""

    is_rejected = True

    def ask(self, asks: list[Ask], answered: Answered) -> None:  # type: ignore[override]
        """Lose a batch."""
        asyncio.get_running_loop().call_soon(answered, None)


def _process(
    host: EngineHost, name: str, *, expected: int | None, kind: type[HostedEngine] = HostedEngine
) -> FleetProcess:
    loop = asyncio.get_running_loop()
    process = FleetProcess(kind(host, name), CallerLimits(LIMIT), loop, random.Random(name))
    process.fleet.expected = expected
    process.fleet.is_rejected = lambda: kind.is_rejected
    return process


@pytest.mark.parametrize("expected", [GATEWAYS, None], ids=["known", "unknown"])
def test_a_start_without_the_engine_exceeds_no_limit(expected: int | None) -> None:
    """Neither before the engine comes nor after; a fleet of unknown size uses less."""

    async def main() -> Meter:
        loop = asyncio.get_running_loop()
        host = EngineHost(loop)
        host.kill()
        processes = [_process(host, f"h{n}", expected=expected) for n in range(GATEWAYS)]
        await asyncio.gather(*(process.asker.start() for process in processes))
        meter = Meter(0.01, loop.time())  # nothing is left at the start
        meter.limit = LIMIT
        meter.charge(loop.time(), LIMIT)
        loop.call_later(60.0, host.start)
        await offer(processes, [2 * LIMIT / 60 / GATEWAYS] * GATEWAYS, 150.0, meter, 1)
        return meter

    meter = run_virtual(main())
    away = sum(at_s < meter.start_s + 60 for at_s in meter.admitted)
    assert meter.over <= 0.01 + over_max(LIMIT, GATEWAYS)
    assert away >= (0.85 if expected else 0.2) * LIMIT
    assert len(meter.admitted) - away >= 0.9 * LIMIT * 90 / 60


@pytest.mark.parametrize("keeps", [True, False], ids=["kept", "lost"])
def test_a_rolling_restart_during_an_outage_exceeds_no_limit(keeps: bool) -> None:
    """What the old processes have spent is not reported: the new ones suppose a used up limit."""

    async def main() -> Meter:
        loop = asyncio.get_running_loop()
        host = EngineHost(loop)
        processes = [_process(host, f"h{n}", expected=GATEWAYS) for n in range(GATEWAYS)]
        for process in processes:
            await process.asker.start()
        meter = Meter(LIMIT, loop.time())
        per_s = 2 * LIMIT / 60 / GATEWAYS
        await offer(processes, [per_s] * GATEWAYS, 70.0, meter, 1)
        (host.hang if keeps else host.kill)()
        await offer(processes, [per_s] * GATEWAYS, 20.0, meter, 2)
        for place in range(GATEWAYS):
            processes[place].asker.close()
            processes[place] = _process(host, f"new{place}", expected=GATEWAYS)
            await processes[place].asker.start()
            await offer(processes, [per_s] * GATEWAYS, 5.0, meter, 3 + place)
        (host.go_on if keeps else host.start)()
        await offer(processes, [per_s] * GATEWAYS, 60.0, meter, 9)
        return meter

    assert run_virtual(main()).over <= over_max(LIMIT, GATEWAYS)


def test_a_gateway_with_a_wrong_password_uses_nothing() -> None:
    """The others have the whole limit."""

    async def main() -> tuple[Meter, FleetProcess]:
        loop = asyncio.get_running_loop()
        host = EngineHost(loop)
        kinds = [RejectedEngine, HostedEngine, HostedEngine, HostedEngine]
        processes = [_process(host, f"h{n}", expected=GATEWAYS, kind=kind) for n, kind in enumerate(kinds)]
        for process in processes:
            await process.asker.start()
        meter = Meter(LIMIT, loop.time())
        await offer(processes, [2 * LIMIT / 60 / GATEWAYS] * GATEWAYS, 150.0, meter, 1)
        return meter, processes[0]

    meter, rejected = run_virtual(main())
    assert meter.over <= 0.01 * LIMIT + 1
    assert not rejected.waits
    assert set(rejected.refused) == {"limits_unavailable"}
