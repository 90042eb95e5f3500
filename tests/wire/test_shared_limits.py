"""Workers share the limits of a key: real processes over real sockets."""

import asyncio
import json
import sys
from collections import Counter
from pathlib import Path

import pytest

import simulated_sockets
from running import run_real
from simulated_sockets import send
from spawned import started
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
                statuses = Counter[int]()
                for _ in range(10):
                    answers = await asyncio.gather(*(send(gateway.port, request) for _ in range(8)))
                    statuses.update(answer.status for answer in answers)
                site = Site(gateway, int(admin), file)
                assert await site.metric("ttft_gateway_share_up") == 1
                assert await site.metric("ttft_gateway_share_processes") == 2
                assert await site.metric('ttft_gateway_share_asks_total{result="ok"}') > 0
                share = await site.get("/admin/share")
                assert (share["engine"], share["up"], share["processes"]) == ("hub", True, 2)
                assert [lease["limit"] for lease in share["leases"]] == ["key:team:requests"]
                assert statuses[429] > 0
                assert 0.9 * _LIMIT <= statuses[200] < 1.5 * _LIMIT  # and what is refilled meanwhile

    run_real(main())
