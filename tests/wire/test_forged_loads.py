"""Loads that were forged in a Redis server, by whoever can write to it: gateways keep serving, and can be observed."""

import asyncio
import contextlib
import json
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import redis as client

import simulated_sockets
from gateway.share.messages import GaugeAsk
from gateway.share.server_rows import ServerRows
from gateway.share.wire import pack, unpack
from redis_server import RedisServer, redis_server
from running import run_real
from simulated_sockets import send
from spawned import started, until
from worker_site import Site

FLEET: Final = "test"
SECRET: Final = "sk-shared-0123456789abcdef"
REQUESTS: Final = 40
FAR: Final = 2**53
PROCESSES: Final = f"ttft3:{{{FLEET}}}:processes"


def _row(level: int, *, in_flight: int = 0) -> list[int]:
    return [in_flight, 0, 0, 0, 0, level, *[0] * 8]


async def _site(stack: contextlib.AsyncExitStack, file: Path) -> Site:
    gateway = await stack.enter_async_context(started("serve", "--config", str(file)))
    await gateway.ready(gateway.process.stderr, b"admin at ")
    admin = gateway.said.partition(b"admin at http://127.0.0.1:")[2].partition(b" ")[0]
    return Site(gateway, int(admin), file)


def _config(urls: Mapping[str, str], server: RedisServer, file: Path, learned: str) -> None:
    replicas = [{"name": name, "kind": "simulated", "base_url": url} for name, url in urls.items()]
    config = {
        "listen": "127.0.0.1:0",
        "admin_listen": "127.0.0.1:0",
        "keys": [{"name": "team", "key": SECRET}],
        "models": [{"name": "m", "replicas": replicas, "recovery": "off"}],
        "share": {"url": f"redis://127.0.0.1:{server.port}", "fleet": FLEET},
        "learned_file": str(file.with_name(learned)),
    }
    file.write_text(json.dumps(config), encoding="utf-8")


async def _replicas_of(site: Site, count: int = REQUESTS) -> Counter[str]:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi"}]}).encode()
    request = simulated_sockets.request_of("POST", "/v1/chat/completions", body, authorization=f"Bearer {SECRET}")
    answers = await asyncio.gather(*(send(site.port, request) for _ in range(count)))
    assert [answer.status for answer in answers] == [200] * count
    return Counter(answer.headers["x-ttft-replica"] for answer in answers)


async def _all_get_requests(site: Site) -> None:
    """Send rounds of requests until each replica got one; a round after a real hiccup of one may spare it."""
    seen: set[str] = set()

    async def three() -> bool:
        seen.update(await _replicas_of(site))
        return len(seen) == 3

    await until(three)


async def _forge(server: RedisServer, rows: Mapping[str, Sequence[int]], sites: list[Site]) -> None:
    """Add rows as a gateway would, until each gateway has dropped some; then remove them."""

    async def dropped() -> bool:
        return all([await site.metric('ttft_gateway_state_dropped_total{source="share"}') for site in sites])

    forged = ServerRows()
    with client.Redis(port=server.port) as forger:
        for each in (rows, {}):
            [arguments] = pack([GaugeAsk("load3 m", each)], forged, 1.0)
            replied = forger.fcall("ttft3_ask", 1, PROCESSES, "forger", *arguments)
            unpack([GaugeAsk("load3 m", each)], [replied], forged)
            await until(dropped)


def test_forged_loads_cost_what_they_are_of(tmp_path: Path) -> None:
    """The admin routes answer, all replicas get requests, the log has a line for each row, and a restart is warm."""

    async def main(server: RedisServer) -> None:
        async with contextlib.AsyncExitStack() as stack:
            served = [await stack.enter_async_context(simulated_sockets.serving(0, ttft="5ms")) for _ in range(3)]
            urls = {f"f{number}": each.url for number, each in enumerate(served, 1)}
            sites = []
            for name in ("one", "two"):
                file = tmp_path / f"{name}.yaml"
                _config(urls, server, file, f"{name}.json")
                sites.append(await _site(stack, file))

            async def both_count_both() -> bool:
                return [await site.metric("ttft_gateway_share_processes") for site in sites] == [2, 2]

            await until(both_count_both)
            for site in sites:
                await _replicas_of(site)
            await _forge(server, {"f1": _row(-FAR), "f2": _row(FAR, in_flight=FAR), "f3": [-FAR] * 14}, sites)
            for site in sites:
                await _all_get_requests(site)
                [model] = (await site.get("/admin/models"))["models"]
                assert all(0.1 < replica["level"] < 10.0 for replica in model["pools"][0]["replicas"])
                assert len((await site.get("/admin/models/m"))["pools"]) == 1
                assert await site.metric("ttft_gateway_share_up") == 1
                site.gateway.process.send_signal(signal.SIGINT)
                code, output = await site.gateway.ended()
                assert code == 0, output
                events = [json.loads(line) for line in output.splitlines() if line.startswith(b"{")]
                names = Counter(event["name"] for event in events if event["event"] == "state_dropped")
                assert names, output
                assert set(names.values()) == {1}
                assert not [event for event in events if event["event"] == "component_failed"]
            later = await _site(stack, sites[0].file)
            assert await later.metric("ttft_gateway_learned_file_up") == 1
            assert await later.metric('ttft_gateway_state_dropped_total{source="learned_file"}') == 0
            later.gateway.process.send_signal(signal.SIGINT)
            _, output = await later.gateway.ended()
            assert b'"learned_restored"' in later.gateway.said + output

    with redis_server(tmp_path) as server:
        run_real(main(server))
