"""A fleet that shares the limits of a key, in virtual time: what it admits while its engine works and fails."""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from gateway.admission.caller_limits import CallerLimits
from gateway.share.fleet import ASK_WAIT_S, WaitAllowance, WhenAway
from leased_fleet import FleetProcess, Meter, offer
from leased_queues import Queues
from outages import WatchedProcess, over_max
from running import run_virtual
from shared_engine import EngineHost, HostedEngine
from streaming_bench.simulation.virtual_loop import VirtualLoop
from ttft_gateway.apis.base import Resource
from ttft_gateway.limits.bucket import Limit, Spend
from ttft_gateway.limits.ledger import Ledger

PROCESSES = 4
LIMIT = 600  # a minute
FOR_S = 36.0

EVEN = (0.25, 0.25, 0.25, 0.25)
SKEWED = (0.9, 0.04, 0.03, 0.03)
Script = Sequence[tuple[float, Callable[[EngineHost], None]]]


def _delay(delay_s: float) -> Callable[[EngineHost], None]:
    def change(host: EngineHost) -> None:
        host.delay_s = delay_s

    return change


WORKS: Script = ()
KILLED: Script = ((20.0, EngineHost.kill), (28.0, EngineHost.start))
BLINKS: Script = ((20.0, EngineHost.kill), (20.01, EngineHost.start))
HUNG: Script = ((20.0, EngineHost.hang), (28.0, EngineHost.go_on))
SLOW: Script = ((20.0, _delay(0.2)), (28.0, _delay(0.0005)))


class Burst(NamedTuple):
    """What came of a burst.

    Attributes:
        meter: what was admitted.
        running: requests under way at the end.
        refused_in_vain: refusals while the true bucket had room.
    """

    meter: Meter
    running: int
    refused_in_vain: int


@dataclass
class Result:
    """What a fleet did."""

    meter: Meter
    processes: list[FleetProcess]
    allowed: float
    asks: int

    @property
    def share(self) -> float:
        """What was admitted of what is allowed."""
        return len(self.meter.admitted) / self.allowed

    @property
    def longest_wait_s(self) -> float:
        """The longest wait of an admitted request."""
        return max(wait_s for process in self.processes for wait_s in process.waits)


def run_fleet(
    load: float,
    shares: Sequence[float] = EVEN,
    script: Script = WORKS,
    when_away: WhenAway = WhenAway.SHARE,
    limit: int = LIMIT,
) -> Result:
    """Offer a multiple of the limit to a fleet with an engine that follows the script."""

    async def main() -> Result:
        loop, rand = asyncio.get_running_loop(), random.Random(1)
        host = EngineHost(loop)
        limits = CallerLimits(requests_per_min=limit)
        processes = [
            FleetProcess(HostedEngine(host, f"h{n}"), limits, loop, rand, when_away) for n in range(len(shares))
        ]
        for process in processes:
            await process.asker.start()
        start_s = loop.time()
        for at_s, act in script:
            loop.call_at(start_s + at_s, act, host)
        meter = Meter(limit, start_s)
        await offer(processes, [share * load * limit / 60 for share in shares], FOR_S, meter, 1)
        for process in processes:
            process.asker.close()
        return Result(meter, processes, meter.allowed(start_s + FOR_S), host.asks)

    return run_virtual(main())


@pytest.mark.parametrize("shares", [EVEN, SKEWED], ids=["even", "skewed"])
@pytest.mark.parametrize(
    "script", [WORKS, KILLED, BLINKS, HUNG, SLOW], ids=["works", "killed", "blinks", "hung", "slow"]
)
def test_a_fleet_admits_what_is_allowed_and_no_more(shares: Sequence[float], script: Script) -> None:
    """At four times the limit: over by at most 1 % of it, 0.98 of what is allowed, no error, no wait of 100 ms.

    A skewed fleet without its engine uses less, because each process has an equal part.
    """
    result = run_fleet(4.0, shares, script)
    assert result.meter.over <= (3 if script is WORKS else 0.01 * LIMIT)
    assert result.share >= (0.95 if script is KILLED else 0.98)
    assert result.longest_wait_s <= 0.1
    assert {code for process in result.processes for code in process.refused} == {"rate_limit_exceeded"}
    changes = [[is_up for _, is_up in process.changes] for process in result.processes]
    assert changes == ([[]] if script in (WORKS, BLINKS) else [[False, True]]) * PROCESSES
    for process in result.processes:
        assert [at_s for at_s, is_up in process.changes if is_up] == [pytest.approx(28.3, abs=0.5)] * bool(
            process.changes
        )


@pytest.mark.parametrize("script", [WORKS, KILLED, HUNG, SLOW], ids=["works", "killed", "hung", "slow"])
def test_a_fleet_under_its_limit_refuses_nothing(script: Script) -> None:
    """Also while the engine is away, and after it has lost its data."""
    result = run_fleet(0.8, EVEN, script)
    assert [process.refused for process in result.processes] == [{}] * PROCESSES
    assert result.longest_wait_s <= 0.1


def test_a_fleet_that_refuses_while_the_engine_is_away() -> None:
    """Limited keys get a 503 as soon as the leased amount is spent."""
    result = run_fleet(4.0, script=KILLED, when_away=WhenAway.REFUSE)
    assert result.meter.over == 0
    assert all(process.refused["limits_unavailable"] > 50 for process in result.processes)


def test_a_pause_of_a_process_admits_no_more_than_there_is() -> None:
    """A reply that came during the pause is read after the timers that the pause has made late; it still decides."""

    async def main() -> None:
        loop, rand = asyncio.get_running_loop(), random.Random(1)
        assert isinstance(loop, VirtualLoop)
        host = EngineHost(loop)
        process, other = (FleetProcess(HostedEngine(host, name), CallerLimits(LIMIT), loop, rand) for name in "ab")
        await asyncio.gather(process.asker.start(), other.asker.start())
        meter = Meter(LIMIT, loop.time())
        for _ in range(2 * LIMIT):
            other.request(meter)
        await asyncio.sleep(0.01)
        host.delay_s = 0.144
        for _ in range(10):
            process.request(meter)
        await asyncio.sleep(0.0005)
        loop._move_clock(loop.time() + 0.142)
        await asyncio.sleep(0.1)
        assert meter.over == 0
        assert process.refused["rate_limit_exceeded"] >= 9  # one fits again by then
        for each in (process, other):
            each.asker.close()

    run_virtual(main())


def run_burst(limits: CallerLimits, shares: Sequence[float], number: int, over_s: float, delay_s: float) -> Burst:
    """Send requests at random times to processes with an engine that replies after a delay."""

    async def main() -> Burst:
        loop, rand = asyncio.get_running_loop(), random.Random(1)
        host, size = EngineHost(loop, delay_s), len(shares)
        processes = [WatchedProcess(HostedEngine(host, f"h{n}"), limits, loop, rand) for n in range(size)]
        for process in processes:
            await process.asker.start()
        await asyncio.sleep(1.0)  # until each has counted all
        meter = Meter(limits.requests_per_min or number, loop.time())
        for process in processes:
            process.watch(meter, 1 + over_max(int(meter.limit), size))
        for process in rand.choices(processes, shares, k=number):
            loop.call_later(over_s * rand.random(), process.request, meter)
        await asyncio.sleep(over_s + 0.5)
        for process in processes:
            process.asker.close()
        running = sum(process.limiter.in_flight for process in processes)
        return Burst(meter, running, sum(len(process.wrong_s) for process in processes))

    return run_virtual(main())


@pytest.mark.parametrize(("shares", "over_s"), [((0.8, 0.2), 3.0), ((0.7, 0.1, 0.1, 0.1), 8.0)], ids=["two", "four"])
def test_no_process_refuses_what_another_one_holds(shares: Sequence[float], over_s: float) -> None:
    """At twice the limit, each lacks requests at another time."""
    burst = run_burst(CallerLimits(LIMIT), shares, 2 * LIMIT, over_s, 0.001)
    assert burst.meter.over <= over_max(LIMIT, len(shares))
    assert burst.refused_in_vain == 0


@pytest.mark.parametrize("delay_s", [0.005, 0.05])
def test_a_burst_in_an_instant_exceeds_no_limit(delay_s: float) -> None:
    """An answer decides about all requests that wait, while they wait, neither more nor fewer than the limit."""
    shares = (0.4, 0.3, 0.2, 0.1)
    burst = run_burst(CallerLimits(LIMIT), shares, 2 * LIMIT, 0.02, delay_s)
    assert burst.meter.over <= over_max(LIMIT, len(shares))
    assert len(burst.meter.admitted) >= 0.99 * LIMIT
    slots = run_burst(CallerLimits(concurrency=40), shares, 100, 0.02, delay_s)
    assert 0.9 * 40 <= slots.running <= 40 + len(shares)


def test_a_burst_of_attempts_finds_the_room_of_a_quota() -> None:
    """An enforced quota does not know how many attempts wait: each answer that was used up at once is tripled."""

    async def main() -> int:
        loop, rand = asyncio.get_running_loop(), random.Random(1)
        host = EngineHost(loop, 0.02)
        processes = [FleetProcess(HostedEngine(host, name), CallerLimits(), loop, rand) for name in "ab"]
        for process in processes:
            await process.asker.start()
        limit, spend, sent = Limit(Resource.REQUESTS, 600, enforce=True), Spend(1, 1), 0
        ledger = Ledger([limit], lambda each: processes[0].limits.bucket("quota", each))

        def attempt(allowance: WaitAllowance) -> None:
            nonlocal sent
            now_s = loop.time()
            if ledger.wait_s(spend, now_s) == 0:
                ledger.reserve(spend, now_s)
                sent += 1
            elif allowance.lasts(now_s):
                loop.call_later(ASK_WAIT_S, attempt, allowance)

        for _ in range(300):
            loop.call_later(0.02 * rand.random(), attempt, WaitAllowance())
        await asyncio.sleep(0.5)
        for process in processes:
            process.asker.close()
        return sent

    assert run_virtual(main()) == 300


def test_asks_are_few_where_the_limit_is_large_for_the_fleet() -> None:
    """Under 0.2 asks a request at 10,000 a minute."""
    result = run_fleet(0.9, limit=10_000)
    assert result.asks < 0.2 * len(result.meter.admitted)


# concurrency


ALL_BUSY = (6.0, 6.0, 6.0, 6.0)
ONE_BUSY = (21.0, 1.0, 1.0, 1.0)


def run_queues(rates: Sequence[float], script: Script = WORKS, slots: int = 8) -> Queues:
    """Queue requests of 0.5 s for 8 slots."""

    async def main() -> Queues:
        loop, rand = asyncio.get_running_loop(), random.Random(1)
        host = EngineHost(loop)
        processes = [FleetProcess(HostedEngine(host, f"h{n}"), CallerLimits(), loop, rand) for n in range(len(rates))]
        for process in processes:
            await process.asker.start()
        queues = Queues(processes, slots)
        for at_s, act in script:
            loop.call_later(at_s, act, host)
        async with asyncio.TaskGroup() as tasks:
            for n, (admission, per_s) in enumerate(zip(queues.admissions, rates, strict=True)):
                tasks.create_task(queues.traffic(admission, per_s, 0.5, loop.time() + FOR_S, f"{n}"))
        for process in processes:
            process.asker.close()
        return queues

    return run_virtual(main())


@pytest.mark.parametrize(
    ("rates", "script"),
    [(ALL_BUSY, WORKS), (ONE_BUSY, WORKS), (ONE_BUSY, KILLED), (ALL_BUSY, HUNG)],
    ids=["even", "skewed", "skewed and killed", "even and hung"],
)
def test_slots_of_a_fleet_are_used_and_never_exceeded(rates: Sequence[float], script: Script) -> None:
    """At half as much again as 8 slots can carry, the fleet runs 8 requests at a time, and nearly always.

    While the engine is away, a process that has no slot gets one.
    """
    queues = run_queues(rates, script)
    assert queues.most <= 8 + (PROCESSES - 1 if script is not WORKS and rates[0] > rates[1] else 0)
    assert queues.slot_s >= (0.9 if script is WORKS else 0.75) * 8 * FOR_S
    assert queues.rejected == 0
