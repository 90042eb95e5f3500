"""Gateways that share over a real Redis server: processes over real sockets."""

import asyncio
import contextlib
import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import simulated_sockets
from redis_server import RedisServer, redis_server
from running import run_real
from simulated_sockets import send
from spawned import started, until
from unused_ports import unused_port
from worker_site import Site, write

_KEY = "sk-shared-0123456789abcdef"
_PASSWORD = "s3cret-of-the-server"
_LIMIT = 40


def _share(port: int) -> dict[str, Any]:
    return {"url": f"redis://127.0.0.1:{port}", "password": _PASSWORD, "fleet": "test"}


async def _site(stack: contextlib.AsyncExitStack, file: Path) -> Site:
    gateway = await stack.enter_async_context(started("serve", "--config", str(file)))
    await gateway.ready(gateway.process.stderr, b"admin at ")
    admin = gateway.said.partition(b"admin at http://127.0.0.1:")[2].partition(b" ")[0]
    return Site(gateway, int(admin), file)


def _request() -> bytes:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi"}]}).encode()
    return simulated_sockets.request_of("POST", "/v1/chat/completions", body, authorization=f"Bearer {_KEY}")


async def _two_gateways(server: RedisServer, file: Path) -> None:
    async with simulated_sockets.serving(0, ttft="1ms") as replica, contextlib.AsyncExitStack() as stack:
        key = {"name": "team", "key": _KEY, "requests_per_min": _LIMIT}
        write(file, replica.url, 1, keys=[key], share=_share(server.port))
        first, second = sites = await asyncio.gather(_site(stack, file), _site(stack, file))

        async def both_count_both() -> bool:
            return [await site.metric("ttft_gateway_share_processes") for site in sites] == [2, 2]

        await until(both_count_both)
        statuses = Counter[int]()
        for _ in range(_LIMIT // 4):
            answers = await asyncio.gather(*(send(site.port, _request()) for site in sites * 4))
            statuses.update(answer.status for answer in answers)
        assert 0.9 * _LIMIT <= statuses[200] < 1.5 * _LIMIT, statuses  # and what is refilled meanwhile
        assert statuses[200] + statuses[429] == 2 * _LIMIT

        assert (await first.get("/admin/hedging", {"on": False}))["on"] is False

        async def is_off() -> bool:
            return (await second.get("/admin/hedging"))["on"] is False

        await until(is_off)
        for site in sites:
            site.gateway.process.send_signal(signal.SIGINT)
        for site in sites:
            code, output = await site.gateway.ended()
            assert code == 0, output
            switches = [line for line in output.splitlines() if b'"hedging_switched"' in line]
            assert len(switches) == 1, output
            assert _PASSWORD.encode() not in site.gateway.said + output


def test_two_gateways_admit_one_limit_and_switch_together(tmp_path: Path) -> None:
    """Twice the limit over both is admitted once, and a switch of hedging at one reaches the other."""
    with redis_server(tmp_path, "--requirepass", _PASSWORD) as server:
        run_real(_two_gateways(server, tmp_path / "gateway.yaml"))


def test_a_gateway_starts_without_the_server(tmp_path: Path) -> None:
    """It reports the reason, without the password, and serves."""

    async def main() -> None:
        async with simulated_sockets.serving(0, ttft="1ms") as replica, contextlib.AsyncExitStack() as stack:
            file = tmp_path / "gateway.yaml"
            key = {"name": "team", "key": _KEY, "requests_per_min": 1500 * _LIMIT}  # alone, it begins empty
            write(file, replica.url, 1, keys=[key], share={**_share(unused_port()), "when_away": "alone"})
            site = await _site(stack, file)
            assert (await send(site.port, _request())).status == 200

            async def is_away() -> bool:
                return await site.metric("ttft_gateway_share_away_total") == 1

            await until(is_away)
            share = await site.get("/admin/share")
            assert (share["engine"], share["up"], share["when_away"], share["away_part"]) == (
                "redis",
                False,
                "alone",
                1,
            )
            assert "refused" in share["fault"] or "Connect" in share["fault"]
            site.gateway.process.send_signal(signal.SIGINT)
            code, output = await site.gateway.ended()
            assert code == 0, output
            said = site.gateway.said + output
            assert b"the server of `share` is not connected (" in said
            assert _PASSWORD.encode() not in said
            events = [json.loads(line) for line in said.splitlines() if line.startswith(b"{")]
            [away] = [event for event in events if event["event"] == "share_away"]
            assert (away["when_away"], away["part"]) == ("alone", 1.0)
            assert "refused" in away["reason"] or "Connect" in away["reason"]

    run_real(main())
