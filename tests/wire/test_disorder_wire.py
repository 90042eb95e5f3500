"""All faults together on real sockets: faulty replicas, hedges, failovers, impatient clients; nothing is left."""

import asyncio
import random
from collections import Counter

from gateway.events import ComponentFailed, RequestEnded
from gateway_fixture import Site, serving, until
from providers.transport.http1 import WireClient
from race_scenarios import Settings, spread
from raw_http import Cut, asking, connect, head
from running import run_real

_REQUESTS = 250
_FAULTS = (
    "500 5%",
    "429:50ms 5%",
    "reset 5%",
    "reset_accept 3%",
    "empty 5%",
    "done 3%",
    "cut_rst:3 10%",
    "error_frame:2 5%",
    "malformed 5%",
    "split:40 10%",
)
_REPLICA: Settings = {
    "ttft": "uniform:0ms,40ms",
    "gap": "uniform:0ms,3ms",
    "tokens": 12,
    "faults": list(_FAULTS),
}
_HEDGE: Settings = {
    "policy": "static",
    "delay": "8ms",
    "hedge_delay_min": "1ms",
    "budget": "100%",
    "max_hedges": 2,
}
_TIMEOUTS: Settings = {
    "ttft_failover": "60ms",
    "ttft_max": "5s",
    "stall": "5s",
    "commit_status_after": "25ms",
    "keepalive_interval": "10ms",
}


async def _ask(site: Site, rng: random.Random, seen: Counter[str]) -> None:
    """One request, given up at some moment or read to its end, and left properly or by a reset."""
    streaming = rng.random() < 0.5
    reader, writer = await connect(site.port)
    try:
        async with asyncio.timeout(rng.choice((rng.uniform(0, 0.08), 60))):
            writer.write(asking(stream=streaming))
            got = await head(reader, writer, 0.0)
            body = await got.body()
        whole = body.endswith(b"data: [DONE]\n\n") if streaming else got.status == 200
        seen["whole" if whole else "error"] += 1
        assert whole or b'"error"' in body
    except TimeoutError:
        seen["left"] += 1
    except Cut:
        seen["cut"] += 1
    if rng.random() < 0.5:
        writer.transport.abort()
    else:
        writer.close()


def test_every_request_ends_once_and_nothing_is_left_behind() -> None:
    """Each request is reported once, each stream ends as it should, and no attempt, socket or count outlives it."""

    async def main() -> None:
        rng, seen = random.Random(1), Counter[str]()
        profiles = dict.fromkeys("abc", _REPLICA)
        fallback = {"d": {"ttft": "5ms"}}
        async with serving(profiles, fallback=fallback, hedge=_HEDGE, timeouts=_TIMEOUTS) as site:
            await spread(_REQUESTS, 20, lambda _: _ask(site, rng, seen))
            await until(lambda: _is_idle(site))
            assert seen["cut"] == 0
            assert all(seen[kind] for kind in ("whole", "error", "left"))
            ended = [event.request_id for event in site.events if isinstance(event, RequestEnded)]
            assert len(ended) == len(set(ended)) <= _REQUESTS
            assert len(ended) >= seen["whole"] + seen["error"]
            assert not [event for event in site.events if isinstance(event, ComponentFailed)]

    run_real(main())


def _is_idle(site: Site) -> bool:
    """The gateway is as it was before its first request, but for idle connections."""
    gateway = site.gateway
    assert gateway is not None
    assert gateway.hub.failures == 0
    clients = [client for client in gateway.in_force.topology.clients.values() if isinstance(client, WireClient)]
    pools = [pool for model in gateway.in_force.topology.models.values() for pool in model.pools]
    return (
        gateway.public.active == 0
        and all(client.connections == len(client._idle) for client in clients)
        and not any(replica.in_flight for pool in pools for replica in pool.replicas)
        and not any(server.stats.in_flight for server in site.replicas.values())
    )
