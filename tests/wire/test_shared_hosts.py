"""Two gateways with two workers each, over a real Redis server: processes over real sockets."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path

import pytest

import simulated_sockets
from host_scenarios import WORKERS, all_count_all, host, shared_config, two_hosts
from redis_server import redis_server
from running import run_real
from spawned import until
from unused_ports import unused_port
from worker_site import site_before

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="several workers need Linux")
_LIMIT = 600
_NUMBERS = range(1, WORKERS + 1)  # of the workers
_HEDGING_ON = 'ttft_gateway_hedging_on{gen_ai_request_model="m",pool="m"}'


def test_a_killed_server_costs_neither_limit_nor_quota(tmp_path: Path) -> None:
    """Twice a key's limit and a provider's quota: neither is exceeded by more than 1 %, and no request fails."""
    seen = run_real(two_hosts(tmp_path, "killed", _LIMIT, part_s=1.0))
    assert seen.over <= 0.01 * _LIMIT
    assert seen.provider_429s <= 0.01 * _LIMIT
    assert seen.errors == 0


def test_a_switch_reaches_every_process_of_every_host(tmp_path: Path) -> None:
    """The response counts them; the other host reports the switch once; a worker that is replaced has it."""

    async def main() -> None:
        async with contextlib.AsyncExitStack() as stack:
            server = stack.enter_context(redis_server(tmp_path))
            replica = await stack.enter_async_context(simulated_sockets.serving(0, ttft="1ms"))
            file = tmp_path / "gateway.yaml"
            config = shared_config({"m": replica.url, "q": replica.url}, server, _LIMIT)
            file.write_text(json.dumps(config), encoding="utf-8")
            first, second = await asyncio.gather(host(stack, file), host(stack, file))
            await all_count_all([first, second], 2 * WORKERS)
            switched = await first.get("/admin/hedging", {"on": False})
            assert switched["of"] == 2 * WORKERS
            assert WORKERS <= switched["reached"] <= 2 * WORKERS  # all, on a machine that is not slow

            async def is_off() -> bool:
                return (await second.get("/admin/hedging"))["on"] is False

            await until(is_off)
            share = await first.get("/admin/share")
            assert (share["engine"], share["up"], share["fault"], share["processes"]) == (
                "redis",
                True,
                None,
                2 * WORKERS,
            )
            assert share["away_part"] == 0.9 / (2 * WORKERS)
            killed = await second.process(1)
            os.kill(killed, signal.SIGKILL)

            async def replaced() -> bool:
                return await second.process(1) not in (0, killed)

            await until(replaced)
            assert (await second.get("/admin/hedging"))["models"] == {"m": False, "q": False}
            for site in (first, second):
                site.gateway.process.send_signal(signal.SIGINT)
                code, output = await site.gateway.ended()
                assert code == 0, output
                assert (site.gateway.said + output).count(b'"hedging_switched"') == 1, output

    run_real(main())


def test_a_switch_reaches_every_worker_without_the_server(tmp_path: Path) -> None:
    """Hedging is off in an outage of the server, also at workers that start later."""

    async def main() -> None:
        share = {"share": {"url": f"redis://127.0.0.1:{unused_port()}", "fleet": "hosts"}}
        async with (
            simulated_sockets.serving(0, ttft="1ms") as replica,
            site_before(replica.url, tmp_path, WORKERS, **share) as home,
        ):
            switched = await home.get("/admin/hedging", {"on": False})
            assert switched == {"on": False, "models": {"m": False}, "reached": WORKERS, "of": WORKERS}
            assert await home.metric(_HEDGING_ON) == 0
            killed = {await home.process(number) for number in _NUMBERS}
            for process in killed:
                os.kill(process, signal.SIGKILL)

            async def replaced() -> bool:
                processes = {await home.process(number) for number in _NUMBERS}
                return len(processes) == WORKERS and not processes & {0, *killed}

            await until(replaced)
            assert await home.metric(_HEDGING_ON) == 0
            await home.get("/admin/hedging", {"on": True})
            assert await home.metric(_HEDGING_ON) == 1

    run_real(main())
