"""Admission with limits that the fleet shares: every way in which a request leaves while the engine is asked."""

import asyncio
import contextlib
import math
import random
from collections.abc import Awaitable, Callable

import pytest

from gateway.admission.admission import Entry, Permit, RequestSize
from gateway.admission.caller_limits import CallerLimits
from gateway.errors import GatewayError
from gateway.events import ComponentFailed, RequestRejected
from gateway.race.context import Caller
from gateway.share.fleet import ASK_WAIT_S
from leased_fleet import FleetProcess, Meter
from outages import over_max
from running import run_virtual
from shared_engine import EngineHost, HostedEngine

LIMITS = CallerLimits(requests_per_min=60, tokens_per_min=6_000, concurrency=2)


class Asking:
    """One process, and a request that waits for its engine's answer."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.host = EngineHost(loop, 0.01)
        self.process = FleetProcess(HostedEngine(self.host, "me"), LIMITS, loop, random.Random(1))
        self.meter = Meter(60, loop.time())
        self.errors: list[GatewayError] = []

    def arrive(self, tokens: float = 100.0) -> tuple[Entry, Permit]:
        """Let a request arrive, and be admitted as far as is possible immediately."""
        entry = self.process.admission.enter("k")
        assert entry is not None
        caller = Caller("id", "k", self.process.loop.time())
        permit = self.process.admission.admit(caller, "m", RequestSize(tokens, 0.0), entry)
        return entry, permit

    def run(self, permit: Permit) -> "Started":
        started = Started()
        permit.run(started, self.errors.append)
        return started

    async def left(self) -> list[int]:
        """Return the requests and tokens left in the engine after a while, and the requests under way."""
        await asyncio.sleep(70)
        states = self.process.limiter.status(self.process.loop.time())
        return [*(state.remaining for state in states), self.process.limiter.in_flight]


class Started:
    """A request that notes its start."""

    def __init__(self) -> None:
        self.starts = 0

    def start(self) -> None:
        self.starts += 1

    def client_gone(self) -> None: ...

    def shut_down(self) -> None: ...


def virtually(test: Callable[[Asking], Awaitable[None]]) -> None:
    """Run a test on a virtual loop."""

    async def main() -> None:
        asking = Asking()
        await asking.process.asker.start()
        await test(asking)
        asking.process.asker.close()
        assert not any(asking.process.limiter.waiting.values())
        assert not [event for event in asking.process.events if isinstance(event, ComponentFailed)]

    run_virtual(main())


def test_a_request_waits_for_its_leases_and_starts() -> None:
    """A slot, a request and tokens: three asks, and then it counts in each."""

    async def test(asking: Asking) -> None:
        entry, permit = asking.arrive()
        assert entry.ticket is None
        started = asking.run(permit)
        await asyncio.sleep(0)
        assert started.starts == 0
        await asyncio.sleep(0.05)
        assert started.starts == 1
        assert asking.process.limiter.in_flight == 1
        permit.close()
        assert await asking.left() == [60, 6_000, 0]

    virtually(test)


@pytest.mark.parametrize("after_s", [0.0, 0.005, 0.015, 0.025])
@pytest.mark.parametrize("leave", ["client_gone", "shut_down", "close"])
def test_a_request_that_leaves_meanwhile_takes_nothing(leave: str, after_s: float) -> None:
    """Neither a slot nor a request nor tokens, and it is never started."""

    async def test(asking: Asking) -> None:
        _, permit = asking.arrive()
        started = asking.run(permit)
        await asyncio.sleep(after_s)
        getattr(permit, leave)()
        await asyncio.sleep(0.2)
        assert started.starts == 0
        rejected = [event.status for event in asking.process.events if isinstance(event, RequestRejected)]
        assert rejected == {"client_gone": [499], "shut_down": [503], "close": []}[leave]
        assert len(asking.errors) == (leave == "shut_down")
        assert await asking.left() == [60, 6_000, 0]

    virtually(test)


def test_a_body_that_is_rejected_meanwhile_takes_nothing() -> None:
    """Nothing was taken for it yet."""

    async def test(asking: Asking) -> None:
        entry = asking.process.admission.enter("k")
        assert entry is not None
        entry.reject(400)
        entry.close(None)
        assert await asking.left() == [60, 6_000, 0]

    virtually(test)


def test_a_refusal_comes_with_the_wait_and_the_headers() -> None:
    """A request without enough tokens counts as a request, as it does without a fleet."""

    async def test(asking: Asking) -> None:
        _, first = asking.arrive(5_000.0)
        asking.run(first)
        await asyncio.sleep(0.1)
        _, second = asking.arrive(4_000.0)
        started = asking.run(second)
        await asyncio.sleep(0.1)
        assert started.starts == 0
        [error] = asking.errors
        assert (error.status, error.code) == (429, "rate_limit_exceeded")
        assert error.retry_after_s == pytest.approx(30, abs=0.5)
        assert (b"x-ratelimit-limit-tokens", b"6000") in error.extra_headers
        [requests, _] = asking.process.limiter.status(asking.process.loop.time())
        assert requests.remaining == 58
        assert asking.process.limiter.in_flight == 1

    virtually(test)


def test_a_key_at_its_concurrency_is_refused() -> None:
    """The third request gets a 429 with a wait."""

    async def test(asking: Asking) -> None:
        for _ in range(3):
            asking.run(asking.arrive()[1])
        await asyncio.sleep(0.2)
        assert asking.process.limiter.in_flight == 2
        [error] = asking.errors
        assert "at its concurrency limit (2)" in error.message

    virtually(test)


def test_requests_without_tokens_wait_for_their_leases() -> None:
    """Each counts once; one that leaves meanwhile takes nothing, and one more than the limit is refused."""

    async def admitted(entry: Entry) -> bool:
        try:
            while not entry.admit(None):
                await asyncio.sleep(ASK_WAIT_S)
        except GatewayError as error:
            entry.reject(error.status)
            return False
        return True

    async def test(asking: Asking) -> None:
        entries = [entry for _ in range(4) if (entry := asking.process.admission.enter("k")) is not None]
        assert not entries[0].admit(None)
        entries.pop(0).close(0.0)
        assert sorted(await asyncio.gather(*map(admitted, entries))) == [False, True, True]
        for entry in entries:
            entry.close(0.0)
        [requests, _] = asking.process.limiter.status(asking.process.loop.time())
        assert requests.remaining == 58
        assert await asking.left() == [60, 6_000, 0]

    virtually(test)


@pytest.mark.parametrize("limits", [CallerLimits(requests_per_min=60), CallerLimits(concurrency=4)], ids=str)
def test_requests_without_tokens_keep_to_the_limits(limits: CallerLimits) -> None:
    """Requests of two seconds, at ten times a limit that two processes share."""

    async def main() -> tuple[float, int]:
        loop, rand = asyncio.get_running_loop(), random.Random(1)
        host, running = EngineHost(loop), list[Entry]()
        processes = [FleetProcess(HostedEngine(host, name), limits, loop, rand) for name in "ab"]
        for process in processes:
            await process.asker.start()
        meter, most = Meter(60 if limits.requests_per_min else math.inf, loop.time()), 0

        def go_on(entry: Entry) -> None:
            nonlocal most
            try:
                if not entry.admit(None):
                    loop.call_later(ASK_WAIT_S, go_on, entry)
                    return
            except GatewayError as error:
                entry.reject(error.status)
                return
            meter.charge(loop.time())
            running.append(entry)
            most = max(most, len(running))
            loop.call_later(2.0, lambda: running.pop(0).close(0.0))

        for _ in range(600):
            await asyncio.sleep(rand.expovariate(20.0))
            with contextlib.suppress(GatewayError):
                entry = rand.choice(processes).admission.enter("k")
                assert entry is not None
                go_on(entry)
        for process in processes:
            process.asker.close()
        return meter.over, most if limits.concurrency else 0

    over, most = run_virtual(main())
    assert over <= over_max(60, 2)
    assert most <= 4
