"""Attacks on the process: floods of connections, output that nothing reads, and web pages. Units: seconds."""

import asyncio
import contextlib
import json
import re
import signal
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

from attack_rows import Row, Scale
from floods import limited, open_files, reconnecting, stream
from gateway.simulated.profile import parse_profile
from gateway.simulated.server import SimulatedServer
from raw_http import ASK, CHAT, answer, request_bytes
from spawned import WAIT_S, full_pipe, refuses, rest, spawn, started, until
from spawned import stream as unkeyed
from unused_ports import unused_port

_FILES: Final = 1_024
_CLIENTS: Final = 1_500
_STARTS: Final = 4
_IDLE_S: Final = 10.0
_LINES_MAX: Final = 100
_STREAMS: Final = 20
_ADMIN: Final = re.compile(rb"admin at http://127\.0\.0\.1:([0-9]+)")
_PAGE: Final = {"host": "evil.example", "origin": "http://evil.example"}


@contextlib.asynccontextmanager
async def _replica() -> AsyncIterator[SimulatedServer]:
    server = SimulatedServer(parse_profile({"ttft": "1ms", "tokens": 2}))
    await server.start()
    try:
        yield server
    finally:
        await server.close()


async def floods(_scale: Scale) -> list[Row]:
    """Clients without a key, more than the gateway's open files, that reconnect while it starts and serves."""
    open_files(_CLIENTS + _FILES)
    codes, texts, answered = [], [], 0
    async with _replica() as replica:
        for number in range(_STARTS):
            port = unused_port()
            with tempfile.TemporaryDirectory() as folder:
                async with asyncio.TaskGroup() as tasks, limited(replica.url, port, Path(folder), _FILES) as gateway:
                    flood = [tasks.create_task(reconnecting(port)) for _ in range(_CLIENTS)]
                    await gateway.ready(gateway.process.stderr)
                    if number == _STARTS - 1:
                        await asyncio.sleep(_IDLE_S)
                    async with asyncio.timeout(WAIT_S):
                        reader, writer = await stream(port)
                        answered += b"[DONE]" in await reader.readuntil(b"[DONE]")
                    writer.transport.abort()
                    for task in flood:
                        task.cancel()
                    gateway.process.send_signal(signal.SIGINT)
                    code, output = await gateway.ended()
                    codes.append(code)
                    texts.append(gateway.said + output)
    lines = max(text.count(b"\n") for text in texts)
    started_well = sum(code == 0 for code in codes)
    flood_of = f"{_CLIENTS} reconnecting clients, {_FILES} files"
    return [
        Row(f"starts under {flood_of}", f"{_STARTS} of {_STARTS}", f"{started_well}", started_well == _STARTS),
        Row("a caller with a key, in the flood", f"{_STARTS} responses", f"{answered}", answered == _STARTS),
        Row(f"the flood for {_IDLE_S:g} s", f"< {_LINES_MAX} lines of output", f"{lines}", lines < _LINES_MAX),
    ]


async def output(_scale: Scale) -> list[Row]:
    """Standard output and error that block, from before the start on."""
    port = unused_port()
    async with _replica() as replica:
        with full_pipe() as pipe:
            listen = ["--listen", f"127.0.0.1:{port}", "--admin-listen", "off"]
            argv = ["serve", "--model", "m", "--replica", replica.url, *listen]
            process = await spawn("-m", "gateway", *argv, stdout=pipe, stderr=pipe)
            try:
                await until(lambda: _accepts(port))
                streams = [await unkeyed(port) for _ in range(_STREAMS)]
                process.send_signal(signal.SIGTERM)
                ends = await asyncio.gather(*(rest(*each) for each in streams))
                async with asyncio.timeout(WAIT_S):
                    code = await process.wait()
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
    whole = sum(b"[DONE]" in end for end in ends)
    return [
        Row("blocked stdout and stderr: responses", f"{_STREAMS} whole", f"{whole}", whole == _STREAMS),
        Row("the same: exit code after SIGTERM", "0", f"{code}", code == 0),
    ]


async def _accepts(port: int) -> bool:
    return not await refuses(port)


async def pages(_scale: Scale) -> list[Row]:
    """A web page under a name that points to the gateway, and an admin address with a key."""
    rows = []
    chat, switch = json.dumps(ASK).encode(), b'{"on": false}'
    async with _replica() as replica:
        async with _with_admin(replica.url) as (public, admin):
            for what, port, path, body, headers, status in (
                ("a page's name, a chat", public, CHAT, chat, _PAGE, 421),
                ("a page's name, the admin address", admin, "/admin/hedging", switch, _PAGE, 421),
                ("a page's origin", admin, "/admin/hedging", switch, {"origin": _PAGE["origin"]}, 403),
                ("neither", admin, "/admin/hedging", switch, {}, 200),
            ):
                rows.append(await _row(what, port, path, body, headers, status))
        reached = replica.stats.requests
        rows.append(Row("requests of the page that reached a replica", "0", f"{reached}", reached == 0))
        async with _with_admin(replica.url, admin_key="sk-admin") as (_, admin):
            for key, status in (("", 401), ("sk-other", 401), ("sk-admin", 200)):
                headers = {"authorization": f"Bearer {key}"} if key else {}
                what = f"the admin address with key {key or 'none'}"
                rows.append(await _row(what, admin, "/admin/hedging", switch, headers, status))
    return rows


async def _row(what: str, port: int, path: str, body: bytes, headers: Mapping[str, str], status: int) -> Row:
    async with asyncio.timeout(WAIT_S), answer(port, request_bytes(body, path, headers=headers)) as got:
        return Row(what, str(status), str(got.status), got.status == status)


@contextlib.asynccontextmanager
async def _with_admin(url: str, **settings: Any) -> AsyncIterator[tuple[int, int]]:
    """A gateway without keys while inside; yields the ports of both addresses."""
    models = [{"name": "m", "replicas": [{"name": "a", "kind": "simulated", "base_url": url}]}]
    config = {"listen": "127.0.0.1:0", "admin_listen": "127.0.0.1:0", "models": models, **settings}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "gateway.yaml"
        file.write_text(json.dumps(config), encoding="utf-8")
        async with started("serve", "--config", str(file)) as gateway:
            await gateway.ready(gateway.process.stderr, b"admin at ")
            found = _ADMIN.search(gateway.said)
            assert found is not None
            yield gateway.port, int(found[1])
