"""A killed supervisor and a hung worker: streams and new connections go on. Real processes and sockets."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from gateway.cli.parser import ExitCode
from running import run_real
from spawned import children, stream, until
from worker_site import Site, ended, site

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="several workers need Linux")


def lives(process: int) -> bool:
    """Return True if there is such a process."""
    return Path(f"/proc/{process}").exists()


async def processes(home: Site) -> list[int]:
    """Return the process ids of the workers that serve."""
    return [row["process"] for row in (await home.get("/admin/workers"))["workers"] if row["ready"]]


def test_a_killed_supervisor_is_replaced_under_the_same_workers(tmp_path: Path) -> None:
    """No stream breaks, no connection waits for the next supervisor, which has the settings, switches and counts."""

    async def main() -> None:
        async with site(tmp_path, ttft="10ms", gap="20ms", tokens=150) as home:
            workers = await processes(home)
            config = json.loads(home.file.read_text(encoding="utf-8"))
            config["models"][0]["aliases"] = ["n"]
            home.file.write_text(json.dumps(config), encoding="utf-8")
            await home.get("/admin/reload", {})
            home.file.write_text("models: []", encoding="utf-8")  # the next supervisor reads no file
            assert (await home.get("/admin/hedging", {"on": False}))["reached"] == 2
            streams = [await stream(home.port) for _ in range(6)]
            ending = asyncio.gather(*(ended(*each) for each in streams))
            top = home.gateway.process.pid
            [supervisor] = children(top) - set(workers)
            os.kill(supervisor, signal.SIGSTOP)  # so that no connection can be the work of the next one
            for _ in range(4):
                assert await ended(*await stream(home.port, "n", 2))
            os.kill(supervisor, signal.SIGKILL)
            for _ in range(4):
                assert await ended(*await stream(home.port, "n", 2))

            async def replaced() -> bool:
                return supervisor not in children(top) and await processes(home) == workers

            await until(replaced)
            assert (await home.get("/admin/hedging"))["on"] is False
            assert all(await ending)

            async def counted() -> bool:
                requests = 'ttft_gateway_key_requests_total{key="anonymous",status_class="2xx"}'
                return sum(await home.connections()) == 0 and await home.metric(requests) == 14

            await until(counted)
            config["models"][0]["aliases"] = ["o"]
            home.file.write_text(json.dumps(config), encoding="utf-8")
            assert (await home.get("/admin/reload", {}))["replicas"] == {"kept": 1, "new": 0, "rekeyed": 0}
            for _ in range(2):  # one for each worker
                assert await ended(*await stream(home.port, "o", 2))
            home.gateway.process.send_signal(signal.SIGTERM)
            code, output = await home.gateway.ended()
            assert code == ExitCode.OK, output.decode()
            assert b"the supervisor was ended by SIGKILL and is replaced" in output

    run_real(main())


def test_a_hung_worker_holds_up_no_new_connection(tmp_path: Path) -> None:
    """The other one accepts all, before anything has found the hang; afterwards both serve."""

    async def main() -> None:
        async with site(tmp_path, ttft="10ms", gap="10ms", tokens=20) as home:
            first, _ = await processes(home)
            kept = [await stream(home.port, tokens=2) for _ in range(3)]
            os.kill(first, signal.SIGSTOP)
            answered = await asyncio.gather(*(stream(home.port, tokens=2) for _ in range(8)))
            assert all(await asyncio.gather(*(ended(*each) for each in answered)))
            os.kill(first, signal.SIGCONT)
            assert all(await asyncio.gather(*(ended(*each) for each in kept)))
            assert await processes(home)

    run_real(main())


def test_workers_end_with_the_top_process(tmp_path: Path) -> None:
    """After SIGKILL of the top process nothing listens, so that a service manager can start the gateway again."""

    async def main() -> None:
        async with site(tmp_path, ttft="10ms", gap="20ms", tokens=50) as home:
            top = home.gateway.process.pid
            left = children(top)
            streams = [await stream(home.port) for _ in range(4)]
            home.gateway.process.kill()
            assert all(await asyncio.gather(*(ended(*each) for each in streams)))

            async def gone() -> bool:
                return not any(map(lives, left))

            await until(gone)

    run_real(main())
