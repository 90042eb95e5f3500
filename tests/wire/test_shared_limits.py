"""Workers share the limits of a key: real processes over real sockets."""

import asyncio
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import simulated_sockets
from running import run_real
from simulated_sockets import send
from spawned import WAIT_S, started
from worker_site import Site, write

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="several workers need Linux")
_KEY = "sk-shared-0123456789abcdef"
_LIMIT = 40


def test_two_workers_admit_one_limit(tmp_path: Path) -> None:
    """Twice the limit over many connections: the limit is admitted once, and both workers have served."""

    async def main() -> None:
        key = {"name": "team", "key": _KEY, "requests_per_min": _LIMIT}
        async with simulated_sockets.serving(0, ttft="1ms") as replica:
            file = tmp_path / "gateway.yaml"
            write(file, replica.url, 2, keys=[key])
            async with started("serve", "--config", str(file)) as gateway:
                await gateway.ready(gateway.process.stderr, b"admin at ")
                admin = gateway.said.partition(b"admin at http://127.0.0.1:")[2].partition(b" ")[0]
                body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi"}]}).encode()
                request = simulated_sockets.request_of(
                    "POST", "/v1/chat/completions", body, authorization=f"Bearer {_KEY}", connection="close"
                )
                statuses, loop = Counter[int](), asyncio.get_running_loop()
                start_s = loop.time()
                for _ in range(10):
                    answers = await asyncio.gather(*(send(gateway.port, request) for _ in range(8)))
                    statuses.update(answer.status for answer in answers)
                refilled = _LIMIT * (loop.time() - start_s) / 60
                site = Site(gateway, int(admin), file)
                share = await _share_in_use(site, request)
                assert (share["engine"], share["up"], share["processes"]) == ("hub", True, 2)
                assert [lease["limit"] for lease in share["leases"]] == ["key:team:requests"]
                assert await site.metric("ttft_gateway_share_up") == 1
                assert await site.metric("ttft_gateway_share_processes") == 2
                assert await site.metric('ttft_gateway_share_asks_total{result="ok"}') > 0
                assert statuses[429] > 0
                assert 0.9 * _LIMIT <= statuses[200] <= 1.1 * _LIMIT + refilled

    run_real(main())


async def _share_in_use(site: Site, request: bytes) -> Any:
    """Return the state of sharing while the key is in use: an unused lease is given back after 2 s."""
    async with asyncio.timeout(WAIT_S):
        while True:
            await send(site.port, request)
            share = await site.get("/admin/share")
            if share["leases"]:
                return share
