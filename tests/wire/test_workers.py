"""A gateway with several workers, as processes over real sockets: spread, failures, signals and the admin address."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import simulated_sockets
from gateway.cli.parser import ExitCode
from running import run_real
from spawned import WAIT_S, Gateway, refuses, rest, started, stream, until

linux = pytest.mark.skipif(sys.platform != "linux", reason="several workers need Linux")
pytestmark = linux
_DONE = b"data: [DONE]\n\n\r\n0\r\n\r\n"


class Site:
    """A running gateway with workers.

    Attributes:
        gateway: its top process.
        admin: port of its admin address.
        file: its configuration.
    """

    def __init__(self, gateway: Gateway, admin: int, file: Path) -> None:
        self.gateway = gateway
        self.admin = admin
        self.file = file

    @property
    def port(self) -> int:
        """Port of the public address."""
        return self.gateway.port

    async def get(self, path: str, body: object = None) -> Any:
        """Return the JSON of an admin route."""
        return json.loads(await self.text(path, body))

    async def text(self, path: str, body: object = None) -> str:
        """Return the text of an admin route."""
        sent = b"" if body is None else json.dumps(body).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.admin)
        head = "GET" if body is None else "POST"
        writer.write(
            f"{head} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
            f"content-length: {len(sent)}\r\n\r\n".encode()
            + sent
        )
        async with asyncio.timeout(WAIT_S):
            received = await reader.read()
        writer.close()
        return received.partition(b"\r\n\r\n")[2].decode()

    async def connections(self) -> list[int]:
        """Return the open connections of the workers."""
        return [worker["connections"] for worker in (await self.get("/admin/workers"))["workers"]]

    async def process(self, worker: int) -> int:
        """Return the process id of a worker that serves; 0 if there is none."""
        rows = (await self.get("/admin/workers"))["workers"]
        return next((row["process"] for row in rows if row["worker"] == worker and row["ready"]), 0)

    async def metric(self, line: str) -> float:
        """Return the value of a series; 0 if it does not exist."""
        found = [row for row in (await self.text("/metrics")).splitlines() if row.startswith(f"{line} ")]
        return float(found[0].rpartition(" ")[2]) if found else 0.0


@contextlib.asynccontextmanager
async def site(folder: Path, workers: int = 2, **profile: Any) -> AsyncIterator[Site]:
    """A gateway with workers before one simulated replica."""
    async with simulated_sockets.serving(0, **profile) as replica:
        file = folder / "gateway.yaml"
        write(file, replica.url, workers)
        async with started("serve", "--config", str(file)) as gateway:
            await gateway.ready(gateway.process.stderr, b"admin at ")
            admin = gateway.said.partition(b"admin at http://127.0.0.1:")[2].partition(b" ")[0]
            yield Site(gateway, int(admin), file)


async def ended(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Wait for the end of a stream; return True if it is complete."""
    try:
        async with asyncio.timeout(WAIT_S):
            await reader.readuntil(_DONE)
    except (asyncio.IncompleteReadError, ConnectionResetError):
        return False
    finally:
        writer.close()
    return True


def write(file: Path, url: str, workers: int, **more: Any) -> None:
    """Write a configuration."""
    replicas = [{"name": "a", "kind": "simulated", "base_url": url}]
    config = {
        "listen": "127.0.0.1:0",
        "admin_listen": "127.0.0.1:0",
        "workers": workers,
        "models": [{"name": "m", "replicas": replicas, "recovery": "off"}],
        **more,
    }
    file.write_text(json.dumps(config), encoding="utf-8")


def test_a_killed_worker_breaks_its_own_streams_only(tmp_path: Path) -> None:
    """Streams are spread evenly; SIGKILL of a worker breaks its half; it is replaced, and no count goes back."""

    async def main() -> None:
        async with site(tmp_path, ttft="10ms", gap="10ms", tokens=150) as home:
            streams = [await stream(home.port) for _ in range(8)]
            assert await home.connections() == [4, 4]
            killed = await home.process(1)
            requests = 'ttft_gateway_key_requests_total{key="anonymous",status_class="2xx"}'
            assert await home.metric(requests) == 0.0
            ending = asyncio.gather(*(ended(*each) for each in streams))
            os.kill(killed, signal.SIGKILL)
            during = [await stream(home.port) for _ in range(4)]  # none is refused

            async def replaced() -> bool:
                return await home.process(1) not in (0, killed)

            await until(replaced)
            during.append(await stream(home.port))  # it has the fewest connections
            assert sum(await ending) == 4
            assert all(await asyncio.gather(*(ended(*each) for each in during)))
            assert await home.metric(requests) == 9
            assert await home.metric("ttft_gateway_worker_restarts_total") == 1
            home.gateway.process.send_signal(signal.SIGTERM)
            code, output = await home.gateway.ended()
            assert code == ExitCode.OK, output.decode()
            lines = [json.loads(line) for line in output.splitlines() if line.startswith(b"{")]
            assert {line["worker"] for line in lines if line["event"] == "request"} == {1, 2}
            reasons = [line["reason"] for line in lines if line["event"] == "worker_changed" and not line["ready"]]
            assert reasons == ["was ended by SIGKILL"]

    run_real(main())


def test_signals_and_switches_reach_every_worker(tmp_path: Path) -> None:
    """A reload, a switch and SIGTERM break no stream of any worker; a bad configuration changes none."""

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
            assert (await home.get("/admin/reload", {}))["replicas"] == {"kept": 1, "new": 0}
            for _ in range(2):  # one for each worker
                assert await ended(*await stream(home.port, "n", 2))
            home.file.write_text("models: []", encoding="utf-8")
            refused = await home.get("/admin/reload", {})
            assert refused["error"]["code"] == "config_refused"
            assert (await home.get("/admin/hedging"))["on"] is False
            assert await home.metric('ttft_gateway_config_reloads_total{result="applied"}') == 1
            home.gateway.process.send_signal(signal.SIGTERM)
            await until(lambda: refuses(home.port))
            assert all(await ending)
            code, output = await home.gateway.ended()
            assert code == ExitCode.OK, output.decode()
            assert output.count(b"stopping: ") == 1

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
            "import os, sys, gateway.cli.workers as workers; from gateway.__main__ import main; "
            "workers.work = lambda *_: os._exit(7); sys.exit(main(sys.argv[1:]))"
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, "serve", "--config", str(file), stderr=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(WAIT_S):
            _, output = await process.communicate()
        assert process.returncode == ExitCode.FAILED
        assert b"error: a worker has ended before it was ready: has ended with exit code 7" in output

    run_real(main())
