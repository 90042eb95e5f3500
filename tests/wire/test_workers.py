"""A gateway with several workers, as processes over real sockets: spread, failures, signals and the admin address."""

import asyncio
import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path

import pytest

import simulated_sockets
from gateway.cli.parser import ExitCode
from held import held_replica
from running import run_real
from spawned import WAIT_S, refuses, request, rest, started, stream, until
from unused_ports import unused_port
from worker_site import Site, ended, site, site_before, write

linux = pytest.mark.skipif(sys.platform != "linux", reason="several workers need Linux")
pytestmark = linux


def test_a_killed_worker_breaks_its_own_streams_only(tmp_path: Path) -> None:
    """SIGKILL of a worker breaks its streams alone; it is replaced, gets streams again, and no count goes back.

    A worker that has no CPU at the moment gets fewer connections, so the test opens streams until each worker has some.
    """

    async def main() -> None:
        with held_replica() as (url, released):
            async with site_before(url, tmp_path) as home:
                await check(home, released)

    async def check(home: Site, released: threading.Event) -> None:
        streams, during = [await stream(home.port)], []

        async def both_serve() -> bool:
            streams.append(await stream(home.port))
            return min(await home.connections()) >= 2

        await until(both_serve)
        own, others = await home.connections()
        assert own + others == len(streams)
        killed = await home.process(1)
        requests = 'ttft_gateway_key_requests_total{key="anonymous",status_class="2xx"}'
        assert await home.metric(requests) == 0.0
        ending = asyncio.gather(*(ended(*each) for each in streams))
        os.kill(killed, signal.SIGKILL)
        during += [await stream(home.port) for _ in range(4)]  # none is refused

        async def replaced() -> bool:
            return await home.process(1) not in (0, killed)

        async def serves_again() -> bool:
            during.append(await stream(home.port))
            return (await home.connections())[0] > 0

        await until(replaced)
        await until(serves_again)
        released.set()
        assert sum(await ending) == others
        assert all(await asyncio.gather(*(ended(*each) for each in during)))
        assert await home.metric(requests) == others + len(during)
        assert await home.metric("ttft_gateway_worker_restarts_total") == 1
        home.gateway.process.send_signal(signal.SIGTERM)
        code, output = await home.gateway.ended()
        assert code == ExitCode.OK, output.decode()
        lines = [json.loads(line) for line in output.splitlines() if line.startswith(b"{")]
        assert {line["worker"] for line in lines if line["event"] == "request"} == {1, 2}
        reasons = [line["reason"] for line in lines if line["event"] == "worker_changed" and not line["ready"]]
        assert reasons == ["was ended by SIGKILL"]

    run_real(main())


def test_counts_of_a_killed_worker_remain(tmp_path: Path) -> None:
    """Requests and what hedging saved, as of the last scrape."""

    async def main() -> None:
        async with simulated_sockets.serving(0, ttft="1ms", tokens=2) as replica:
            measured = {"measure": {"losers": "1%"}}
            async with site_before(replica.url, tmp_path, hedge=measured) as home:
                for _ in range(4):
                    assert await ended(*await stream(home.port))
                proof = 'ttft_gateway_proof_requests_total{gen_ai_request_model="m",group="same"}'
                assert await home.metric(proof) == 4
                killed = await home.process(1)
                os.kill(killed, signal.SIGKILL)

                async def replaced() -> bool:
                    return await home.process(1) not in (0, killed)

                await until(replaced)
                assert await home.metric(proof) == 4
                [model] = (await home.get("/admin/proof"))["models"]
                assert model["requests"] == 4
                [hour] = (await home.get("/admin/proof?hours=1"))["models"] or [{"requests": 0}]
                assert hour["requests"] < 4

    run_real(main())


def test_signals_and_switches_reach_every_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reload, a switch and SIGTERM break no stream of any worker; a bad configuration changes none.

    The service manager receives the states once, from the process that it has started.
    """
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    manager.settimeout(WAIT_S)

    async def main() -> None:
        async with site(tmp_path, ttft="10ms", gap="20ms", tokens=100) as home:
            streams = [await stream(home.port) for _ in range(6)]
            ending = asyncio.gather(*(ended(*each) for each in streams))
            assert await home.get("/admin/hedging", {"on": False}) == {
                "on": False,
                "models": {"m": False},
                "reached": 2,
                "of": 2,
            }
            config = json.loads(home.file.read_text(encoding="utf-8"))
            config["models"][0]["aliases"] = ["n"]
            home.file.write_text(json.dumps(config), encoding="utf-8")
            assert (await home.get("/admin/reload", {}))["replicas"] == {"kept": 1, "new": 0, "rekeyed": 0}
            for _ in range(2):  # one for each worker
                assert await ended(*await stream(home.port, "n", 2))
            home.file.write_text("models: []", encoding="utf-8")
            refused = await home.get("/admin/reload", {})
            assert refused["error"]["code"] == "config_refused"
            assert (await home.get("/admin/hedging"))["on"] is False
            assert await home.metric('ttft_gateway_config_reloads_total{result="applied"}') == 1
            assert await home.metric("ttft_gateway_config_last_reload_successful") == 0
            home.gateway.process.send_signal(signal.SIGHUP)
            states = [(await asyncio.to_thread(manager.recv, 100)).partition(b"\n")[0] for _ in range(3)]
            assert states == [b"READY=1", b"RELOADING=1", b"READY=1"]
            home.gateway.process.send_signal(signal.SIGTERM)
            await until(lambda: refuses(home.port))
            assert all(await ending)
            code, output = await home.gateway.ended()
            assert code == ExitCode.OK, output.decode()
            assert output.count(b"stopping: ") == 1
            assert manager.recv(100) == b"STOPPING=1"

    with manager:
        run_real(main())


def test_second_signal_ends_every_worker_at_once(tmp_path: Path) -> None:
    """A second signal ends the streams of all workers with an error; the exit code shows the signal."""

    async def main() -> None:
        async with site(tmp_path, ttft="10ms", gap="1s", tokens=600) as home:
            streams = [await stream(home.port) for _ in range(2)]
            home.gateway.process.send_signal(signal.SIGTERM)
            await home.gateway.says(home.gateway.process.stderr, b"stopping: ")
            home.gateway.process.send_signal(signal.SIGTERM)
            last = await asyncio.gather(*(rest(*each) for each in streams))
            code, output = await home.gateway.ended()
            assert code == ExitCode.SECOND_SIGTERM
            assert b"2 running requests were ended with an error" in output
            assert all(b'"error"' in got and b"[DONE]" not in got for got in last)

    run_real(main())


def test_a_worker_that_cannot_start_fails_the_start(tmp_path: Path) -> None:
    """The start ends with exit code 1 and names the worker's end."""

    async def main() -> None:
        file = tmp_path / "gateway.yaml"
        write(file, "http://127.0.0.1:9/v1", 2)
        code = (
            "import os, sys, gateway.workers.worker as worker; from gateway.__main__ import main; "
            "worker.work = lambda *_: os._exit(7); sys.exit(main(sys.argv[1:]))"
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, "serve", "--config", str(file), stderr=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(WAIT_S):
            _, output = await process.communicate()
        assert process.returncode == ExitCode.FAILED
        assert b"error: a worker has ended before it was ready: has ended with exit code 7" in output

    run_real(main())


def test_workers_find_a_failing_replica_together(tmp_path: Path) -> None:
    """Two failures at each worker open a breaker; alone, each waits for a third one."""

    async def main() -> None:
        file = tmp_path / "gateway.yaml"
        write(file, f"http://127.0.0.1:{unused_port()}/v1", 2)
        async with started("serve", "--config", str(file)) as gateway:
            await gateway.ready(gateway.process.stderr, b"admin at ")
            admin = gateway.said.partition(b"admin at http://127.0.0.1:")[2].partition(b" ")[0]
            home = Site(gateway, int(admin), file)
            writers = []
            for _ in range(2):  # one for each worker, with one retry
                reader, writer = await asyncio.open_connection("127.0.0.1", home.port)
                writer.write(request("m"))
                async with asyncio.timeout(WAIT_S):
                    assert b" 502 " in await reader.readuntil(b"\r\n\r\n")
                writers.append(writer)

            async def opened() -> bool:
                rows = (await home.text("/metrics")).splitlines()
                return any(row.startswith("ttft_gateway_breaker_state{") and row.endswith(" 2.0") for row in rows)

            await until(opened)
            for writer in writers:
                writer.close()

    run_real(main())
