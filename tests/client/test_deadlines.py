"""The client's timeouts bound a race: an error comes when it would come without a backup."""

import asyncio
from typing import Any

import aiohttp
import httpx
import httpx2
import pytest

import client_fixtures
from client_kits import KITS, Kit, Session
from client_replicas import Replicas
from ttft_gateway import HedgeConfig, HedgingSession, Stats
from ttft_gateway.client.asked import Asked, Event
from ttft_gateway.client.hedger import Hedger
from ttft_gateway.client.sockets import current
from ttft_gateway.hedging.contract import RequestFacts

site = client_fixtures.site

_READ_S = 0.4
_LATE = HedgeConfig(warmup_delay=0.3, budget_percent=100.0)
_CALL = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True}


@pytest.mark.parametrize("kit", KITS.values(), ids=KITS)
@pytest.mark.parametrize("behaviour", ["late_headers", "headers"])
def test_a_read_timeout_is_reported_when_the_primary_has_it(kit: Kit, site: Replicas, behaviour: str) -> None:
    """The backup, which was sent in time, does not delay the error of the primary."""
    replica = site.add(behaviour)

    def work(session: Session) -> Any:
        timeout = (60.0, _READ_S, 60.0, 60.0)  # a busy machine connects slowly
        return session.send("POST", f"{replica.url}/chat/completions", json=_CALL, timeout=timeout)

    stats = Stats()
    with pytest.raises((httpx.ReadTimeout, httpx2.ReadTimeout)):
        kit.run(work, _LATE, stats=stats)
    counts = stats.snapshot()
    [target] = counts.targets.values()
    assert (counts.hedges, target.errors) == (1, 1)  # the backup had 0.3 s left when the error came
    assert all(seen.closed.wait() for seen in replica.seen)


@pytest.mark.parametrize("timeout", [{"total": _READ_S}, {"sock_read": _READ_S}], ids=["total", "sock_read"])
def test_a_timeout_of_aiohttp_is_reported_when_the_primary_has_it(site: Replicas, timeout: dict[str, float]) -> None:
    """Of the whole request or of one read."""
    replica, stats = site.add("late_headers"), Stats()

    async def main() -> None:
        async with HedgingSession(_LATE, stats=stats, timeout=aiohttp.ClientTimeout(**timeout)) as session:
            await session.get(replica.url)

    with pytest.raises(TimeoutError):
        asyncio.run(main())
    assert stats.snapshot().hedges == 1


@pytest.mark.parametrize("kit", [KITS["httpx"], KITS["httpx async"]], ids=["httpx", "httpx async"])
def test_a_backup_rescues_a_primary_that_cannot_connect_in_time(kit: Kit, site: Replicas) -> None:
    """A timeout of the connection leaves a backup under way the time of the read timeout."""
    replica = site.add("quick")

    def work(session: Session) -> Any:
        inner: Any = session.transport._inner
        real = inner.handle_async_request if kit.is_async else inner.handle_request
        requests = iter(range(2))

        async def first_fails_async(request: httpx.Request) -> Any:
            if next(requests) == 0:
                while not session.transport.stats.snapshot().hedges:
                    await asyncio.sleep(0.001)
                raise httpx.ConnectTimeout("cannot connect")
            return await real(request)

        def first_fails(request: httpx.Request) -> Any:
            if next(requests) == 0:
                assert current.watch is not None
                while not session.transport.stats.snapshot().hedges:
                    current.watch.wait(None, 0, 0.01)
                raise httpx.ConnectTimeout("cannot connect")
            return real(request)

        if kit.is_async:
            inner.handle_async_request = first_fails_async
        else:
            inner.handle_request = first_fails
        return session.send("GET", replica.url, timeout=30.0)

    response = kit.run(work, HedgeConfig(warmup_delay=0.01, min_delay=0.0, budget_percent=100.0))
    assert response.status_code == 200


def test_no_backup_is_sent_after_the_timeout(site: Replicas) -> None:
    """A backup that is due after the read timeout is not sent."""
    replica = site.add("late_headers")
    with pytest.raises(httpx.ReadTimeout):
        KITS["httpx"].run(lambda session: session.send("GET", replica.url, timeout=0.1), _LATE)
    assert len(replica.seen) == 1


@pytest.mark.parametrize("config", [HedgeConfig(policy="off"), HedgeConfig(max_hedges=0), HedgeConfig()])
def test_a_race_has_its_deadline_with_any_settings(config: HedgeConfig) -> None:
    """Also where no backup can be sent: an RPC gets its timeout from the race."""
    hedger = Hedger(config, clock=lambda: 5.0)
    race = hedger.race(Asked(("grpc://a:", "/p.S/M"), RequestFacts(), Event.HEADERS))
    race.begin(2.0)
    assert race.left_s() == 2.0
