"""A gateway with several workers as processes of its own, and its admin address; for tests over real sockets.

Units: seconds.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import simulated_sockets
from spawned import WAIT_S, Gateway, started

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
    async with simulated_sockets.serving(0, **profile) as replica, site_before(replica.url, folder, workers) as home:
        yield home


@contextlib.asynccontextmanager
async def site_before(url: str, folder: Path, workers: int = 2, **more: Any) -> AsyncIterator[Site]:
    """A gateway with workers before a replica, with further settings."""
    file = folder / "gateway.yaml"
    write(file, url, workers, **more)
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
