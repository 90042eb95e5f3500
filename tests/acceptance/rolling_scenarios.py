"""Streams through HAProxy while two gateways are reloaded and restarted one after the other; real processes.

HAProxy runs with examples/haproxy.cfg, in which only the addresses are replaced. Units: seconds.
"""

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import NamedTuple

import simulated_sockets
from checkout import ROOT
from raw_http import Cut, asking, connect, head
from spawned import Gateway, started, until
from unused_ports import unused_port

_SBIN = "/usr/sbin:/usr/local/sbin"  # Debian's folder of haproxy, which is not in every PATH
_BETWEEN_S = 3.0  # between two restarts: some checks of HAProxy, and streams at both gateways
_REST_S = 60.0  # for the last answers


class Rolled(NamedTuple):
    """Results of requests during a rolling restart.

    Attributes:
        results: number of answers by "whole", "cut" and "refused".
        under_way: streams that a gateway had when it was stopped, for each restart.
        codes: exit code of each gateway that was stopped.
    """

    results: Counter[str]
    under_way: list[int]
    codes: list[int]

    def lines(self) -> list[tuple[str, str, str, bool]]:
        """Return the lines of the table."""
        whole, cut, refused = (self.results[kind] for kind in ("whole", "cut", "refused"))
        measured = f"{cut} cut, {refused} refused of {self.results.total()}, {whole} whole"
        under_way = ", ".join(map(str, self.under_way))
        fine = cut == refused == 0 and whole > 0
        return [
            (f"streams during {len(self.codes)} restarts behind HAProxy", "0 cut, 0 refused", measured, fine),
            ("streams at a gateway when it was stopped", "> 0", under_way, min(self.under_way) > 0),
            ("exit codes", "0", ", ".join(map(str, self.codes)), not any(self.codes)),
        ]


def haproxy_program() -> str | None:
    """Return the path of HAProxy; None if it is not installed."""
    return shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:{_SBIN}")


def haproxy_config(port: int, gateways: Sequence[int]) -> str:
    """Return the example with addresses of this machine."""
    text = (ROOT / "examples" / "haproxy.cfg").read_text(encoding="utf-8")
    text, count = re.subn(r"bind :8080", f"bind 127.0.0.1:{port}", text)
    for number, gateway in enumerate(gateways, 1):
        text, found = re.subn(rf"server g{number} \S+", f"server g{number} 127.0.0.1:{gateway}", text)
        count += found
    assert count == 1 + len(gateways)
    return text


async def rolled(clients: int = 60, rounds: int = 2) -> Rolled:
    """Reload and restart each of two gateways in turn, under streams of 4 s."""
    if haproxy_program() is None:
        sys.exit("HAProxy is not installed: apt-get install haproxy")
    ports = [unused_port() for _ in range(3)]
    results, under_way, codes = Counter[str](), list[int](), list[int]()
    stopping = asyncio.Event()
    with tempfile.TemporaryDirectory() as folder:
        async with contextlib.AsyncExitStack() as opened:
            enter = opened.enter_async_context
            replicas = [await enter(simulated_sockets.serving(n, ttft="50ms", gap="40ms", tokens=100)) for n in (1, 2)]
            admins, urls = [unused_port(), unused_port()], [each.url for each in replicas]
            listens = zip(ports[1:], admins, strict=True)
            files = [_written(Path(folder), port, admin, urls) for port, admin in listens]
            gateways = [await enter(_gateway(file)) for file in files]
            await enter(_haproxy(Path(folder), ports))
            async with asyncio.TaskGroup() as tasks:
                for number in range(clients):
                    tasks.create_task(_ask_until(stopping, ports[0], results, number))
                for number in (0, 1) * rounds:
                    await asyncio.sleep(_BETWEEN_S)
                    stopped = gateways[number]
                    stopped.process.send_signal(signal.SIGHUP)
                    await stopped.says(stopped.process.stdout, b"config_reloaded")
                    under_way.append(await _streams(admins[number]))
                    stopped.process.send_signal(signal.SIGTERM)
                    code, _ = await stopped.ended()
                    codes.append(code)
                    gateways[number] = await enter(_gateway(files[number]))
                await asyncio.sleep(_BETWEEN_S)
                stopping.set()
    return Rolled(results, under_way, codes)


async def _ask_until(stopping: asyncio.Event, port: int, results: Counter[str], number: int) -> None:
    """Send one streaming request after another over a kept-alive connection, and count the answers."""
    await asyncio.sleep(number / 20)  # apart: every phase of an answer meets every phase of a restart
    connection = None
    while not stopping.is_set():
        if connection is None:
            connection = await connect(port)
        reader, writer = connection
        result, ended, began_s = "refused", True, asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(_REST_S):
                writer.write(asking())
                answer = await head(reader, writer, began_s)
                ended = answer.headers.get("connection", "") == "close"
                if answer.status == 200:
                    result = "cut"
                    result = "whole" if (await answer.body()).endswith(b"data: [DONE]\n\n") else "cut"
                else:
                    ended = True
        except (Cut, OSError, TimeoutError):
            ended = True
        results[result] += 1
        if ended:
            writer.close()
            connection = None
        if result == "refused":
            await asyncio.sleep(0.1)


def _written(folder: Path, port: int, admin: int, urls: Sequence[str]) -> Path:
    """Write the configuration of a gateway."""
    replicas = [{"name": f"r{number}", "kind": "simulated", "base_url": url} for number, url in enumerate(urls)]
    models = [{"name": "m", "replicas": replicas, "recovery": "off"}]
    config = {"listen": f"127.0.0.1:{port}", "admin_listen": f"127.0.0.1:{admin}", "models": models}
    file = folder / f"gateway-{port}.yaml"
    file.write_text(json.dumps(config), encoding="utf-8")
    return file


@contextlib.asynccontextmanager
async def _gateway(file: Path) -> AsyncIterator[Gateway]:
    async with started("serve", "--config", str(file)) as gateway:
        await gateway.ready(gateway.process.stderr, b"admin at ")
        yield gateway


async def _streams(port: int) -> int:
    """Return the number of attempts under way at the gateway with this admin port."""
    reader, writer = await connect(port)
    writer.write(b"GET /admin/replicas HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    body = (await reader.read()).decode()
    writer.close()
    return sum(map(int, re.findall(r'"in_flight":(\d+)', body)))


@contextlib.asynccontextmanager
async def _haproxy(folder: Path, ports: Sequence[int]) -> AsyncIterator[None]:
    """Run HAProxy while inside; it has found both gateways ready."""
    file = folder / "haproxy.cfg"
    file.write_text(haproxy_config(ports[0], ports[1:]), encoding="utf-8")
    program = haproxy_program() or "haproxy"
    process = await asyncio.create_subprocess_exec(program, "-db", "-q", "-f", str(file))

    async def listens() -> bool:
        assert process.returncode is None, "HAProxy has ended"
        try:
            _, writer = await connect(ports[0])
        except OSError:
            return False
        writer.close()
        return True

    try:
        await until(listens)
        await asyncio.sleep(1.0)
        yield
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
