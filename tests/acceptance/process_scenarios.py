"""Processes of a gateway that are killed, stopped, replaced and reloaded, under streams and requests; Linux.

Real processes and sockets. A service manager is played: it holds both listening sockets, passes them as systemd does,
follows `MAINPID`, and starts the gateway again when it ends. Units: seconds.
"""

import asyncio
import contextlib
import json
import math
import os
import re
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import simulated_sockets
from checkout import ROOT
from passed_sockets import passing
from spawned import children, is_running, request, until
from worker_site import ended

STREAMS: Final = 40
STOPPED_S: Final = 45.0
RESTARTS: Final = 10
RELOADS: Final = 8
LATE_START_S: Final = 20.0  # of the next gateway, as on a busy machine
_CONNECTS_PER_S: Final = 40
_KEPT: Final = 12  # connections that are kept
_KEPT_PER_S: Final = 10  # requests on each
_LATE_S: Final = 1.0
_SETTLE_S: Final = 3.0
_HIGH: Final = 100  # descriptors that a new process certainly does not use itself


class Seen(NamedTuple):
    """Results of one scenario.

    Attributes:
        own: streams of the process that was hit; 0 if it serves none.
        broken: streams that broke, of all.
        tried: new connections, each with a request.
        failed: new connections that were refused, or without an answer.
        late: new connections with an answer after more than a second.
        slowest_s: longest time of an answer on a new connection.
        kept: requests on kept connections.
        kept_failed: requests on kept connections without an answer.
        admin_refused: connections to the admin address that were refused.
    """

    own: int
    broken: int
    tried: int
    failed: int
    late: int
    slowest_s: float
    kept: int
    kept_failed: int
    admin_refused: int

    @property
    def holds(self) -> bool:
        """True if only streams and kept connections of the process itself were lost."""
        is_own = self.own > 0
        return self.failed == self.late == self.admin_refused == 0 and (is_own or self.broken == self.kept_failed == 0)

    def __str__(self) -> str:
        new = f"new: {self.failed} of {self.tried} failed, {self.late} late, slowest {1000 * self.slowest_s:.0f}"
        kept = f"kept: {self.kept_failed} of {self.kept} failed"
        return f"streams: {self.broken} broken, {self.own} its own; {new}; {kept}; admin: {self.admin_refused} refused"


class Manager:
    """A service manager with one gateway.

    Attributes:
        port: port of the public address.
        admin: port of the admin address.
        file: configuration.
        main: main process of the gateway.
        ready: number of times that a process was ready.
        delay_s: time from the end of a process to the next start.
    """

    def __init__(self, folder: Path, workers: int, url: str) -> None:
        self._sockets = [socket.create_server(("127.0.0.1", 0), backlog=4096) for _ in range(2)]
        self.port, self.admin = (sock.getsockname()[1] for sock in self._sockets)
        self.file = folder / "gateway.yaml"
        model = {"name": "m", "replicas": [{"name": "a", "kind": "simulated", "base_url": url}], "recovery": "off"}
        listen = {"listen": f"127.0.0.1:{self.port}", "admin_listen": f"127.0.0.1:{self.admin}"}
        self.file.write_text(json.dumps({**listen, "workers": workers, "models": [model]}), encoding="utf-8")
        self._notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notified.bind(str(folder / "notify"))
        self._notified.setblocking(False)
        self._env = {**os.environ, "NOTIFY_SOCKET": str(folder / "notify")}
        self._log = (folder / "log").open("wb")
        self.log = folder / "log"
        self.main = 0
        self.ready = 0
        self.delay_s = 0.0

    async def keep(self) -> None:
        """Start the gateway, and again whenever its main process has ended; runs until it is cancelled."""
        asyncio.get_running_loop().add_reader(self._notified, self._on_notify)
        try:
            while True:
                process = await self._start()
                self.main = process.pid
                while is_running(self.main):
                    await asyncio.sleep(0.02)
                await asyncio.sleep(self.delay_s)
        finally:
            asyncio.get_running_loop().remove_reader(self._notified)

    async def _start(self) -> asyncio.subprocess.Process:
        high = range(_HIGH, _HIGH + len(self._sockets))
        for sock, descriptor in zip(self._sockets, high, strict=True):
            os.dup2(sock.fileno(), descriptor)
        argv = passing(high, "-m", "gateway", "serve", "--config", str(self.file))
        return await asyncio.create_subprocess_exec(
            *argv, cwd=ROOT, env=self._env, pass_fds=high, stdout=self._log, stderr=self._log
        )

    def _on_notify(self) -> None:
        state = self._notified.recv(200).decode()
        self.ready += state == "READY=1"
        if found := re.match(r"MAINPID=(\d+)", state):
            self.main = int(found[1])

    async def close(self) -> None:
        """End the gateway."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.main, signal.SIGTERM)

        async def over() -> bool:
            return not is_running(self.main)

        await until(over)
        for sock in (*self._sockets, self._notified):
            sock.close()
        self._log.close()

    async def workers(self) -> list[int]:
        """Return the process ids of the workers."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.admin)
        writer.write(b"GET /admin/workers HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        body = (await reader.read()).partition(b"\r\n\r\n")[2]
        writer.close()
        return [row["process"] for row in json.loads(body)["workers"]]

    async def supervisor(self) -> int:
        """Return the process id of the supervisor."""
        return (children(self.main) - set(await self.workers())).pop()


class _Load:
    """Requests while a scenario runs."""

    def __init__(self, manager: Manager) -> None:
        self._loop = asyncio.get_running_loop()
        self._manager = manager
        self._over = False
        self.hit_s = math.inf  # time at which a worker was hit
        self.times_s: list[tuple[float, float | None]] = []
        self.kept = 0
        self.kept_failed = 0
        self.admin_refused = 0

    async def run(self, hit: Callable[[], Awaitable[object]]) -> None:
        """Send requests until a scenario is over."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._connects(tasks))
            tasks.create_task(self._asks_admin())
            for number in range(_KEPT):
                tasks.create_task(self._keeps(number))
            await hit()
            await asyncio.sleep(_SETTLE_S)
            self._over = True

    async def _connects(self, tasks: asyncio.TaskGroup) -> None:
        while not self._over:
            tasks.create_task(self._connect())
            await asyncio.sleep(1 / _CONNECTS_PER_S)

    async def _connect(self) -> None:
        begin_s = self._loop.time()
        took_s = None
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection("127.0.0.1", self._manager.port)
            writer.write(request("m", 2))
            head = await reader.readuntil(b"\r\n\r\n")
            took_s = self._loop.time() - begin_s if b" 200 " in head else None
            writer.close()
        self.times_s.append((begin_s, took_s))

    async def _keeps(self, number: int) -> None:
        await asyncio.sleep(number / _KEPT / _KEPT_PER_S)
        reader, writer = await asyncio.open_connection("127.0.0.1", self._manager.port)
        while not self._over:
            try:
                writer.write(request("m", 2))
                head = await reader.readuntil(b"\r\n\r\n")
                if b" 200 " not in head:
                    raise ConnectionError(head)
                await reader.readuntil(b"data: [DONE]\n\n\r\n0\r\n\r\n")
                is_closed = b"connection: close" in head.lower()
            except (OSError, asyncio.IncompleteReadError):
                self.kept_failed += 1
                is_closed = True
            self.kept += 1
            if is_closed:
                writer.close()
                reader, writer = await asyncio.open_connection("127.0.0.1", self._manager.port)
            await asyncio.sleep(1 / _KEPT_PER_S)
        writer.close()

    async def _asks_admin(self) -> None:
        while not self._over:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self._manager.admin)
                writer.close()
            except OSError:
                self.admin_refused += 1
            await asyncio.sleep(0.1)

    def judged(self) -> list[tuple[float, float | None]]:
        """Return the new connections that count: a worker that is hit may have accepted those under way."""
        return [
            (begin_s, took_s)
            for begin_s, took_s in self.times_s
            if not begin_s < self.hit_s < begin_s + (math.inf if took_s is None else took_s)
        ]


Hit = Callable[[Manager, _Load], Awaitable[int]]
"""Does what a scenario is about; returns the number of streams that the process that is hit has."""


async def _on_supervisor(manager: Manager, number: signal.Signals, wait_s: float) -> int:
    os.kill(await manager.supervisor(), number)
    await asyncio.sleep(wait_s)
    return 0


async def _on_worker(manager: Manager, load: _Load, number: signal.Signals) -> int:
    process = (await manager.workers())[0]
    os.kill(process, number)
    load.hit_s = asyncio.get_running_loop().time()
    await asyncio.sleep(15.0)  # it is ended after ten seconds
    return STREAMS


async def _on_main(manager: Manager, delay_s: float = 0.0) -> int:
    before, manager.delay_s = manager.ready, delay_s
    os.kill(manager.main, signal.SIGKILL)
    await _until_ready(manager, before)
    return 0


async def _restarts(manager: Manager) -> int:
    for _ in range(RESTARTS):
        before, main = manager.ready, manager.main
        os.kill(main, signal.SIGUSR2)
        await _until_ready(manager, before)

        async def replaced(main: int = main) -> bool:
            return manager.main != main

        await until(replaced)
    return 0


async def _reloads(manager: Manager) -> int:
    for _ in range(RELOADS):
        before = manager.ready
        os.kill(manager.main, signal.SIGHUP)
        await _until_ready(manager, before)
    return 0


async def _until_ready(manager: Manager, before: int) -> None:
    async def ready() -> bool:
        return manager.ready > before

    await until(ready)


SCENARIOS: Final[Mapping[str, Hit]] = {
    "supervisor SIGKILL": lambda manager, _: _on_supervisor(manager, signal.SIGKILL, 5.0),
    "supervisor SIGSTOP": lambda manager, _: _on_supervisor(manager, signal.SIGSTOP, STOPPED_S),
    "worker SIGKILL": lambda manager, load: _on_worker(manager, load, signal.SIGKILL),
    "worker SIGSTOP": lambda manager, load: _on_worker(manager, load, signal.SIGSTOP),
    "top SIGKILL, socket activation": lambda manager, _: _on_main(manager),
    "top SIGKILL, late start": lambda manager, _: _on_main(manager, LATE_START_S),
    "hot restart": lambda manager, _: _restarts(manager),
    "reload": lambda manager, _: _reloads(manager),
}


@contextlib.asynccontextmanager
async def managed(workers: int) -> AsyncIterator[Manager]:
    """A gateway of a service manager before a simulated replica with streams of 20 s."""
    with tempfile.TemporaryDirectory() as folder:
        async with simulated_sockets.serving(0, ttft="20ms", gap="100ms", tokens=200) as replica:
            manager = Manager(Path(folder), workers, replica.url)
            async with asyncio.TaskGroup() as tasks:
                keeping = tasks.create_task(manager.keep())
                try:
                    await _until_ready(manager, 0)
                    yield manager
                finally:
                    keeping.cancel()
                    await manager.close()


async def hit(name: str, workers: int = 2) -> Seen:
    """Play a scenario under streams, kept connections and new ones."""
    async with managed(workers) as manager:
        load, own = _Load(manager), 0

        async def scenario() -> None:
            nonlocal own
            own = await SCENARIOS[name](manager, load)

        streams = [await _stream(manager.port) for _ in range(STREAMS)]
        ending = asyncio.gather(*(ended(*each) for each in streams))
        await load.run(scenario)
        whole = await ending
        judged = load.judged()
        times_s = [took_s for _, took_s in judged if took_s is not None]
        return Seen(
            own,
            whole.count(False),
            len(judged),
            len(judged) - len(times_s),
            sum(took_s > _LATE_S for took_s in times_s),
            max(times_s),
            load.kept,
            load.kept_failed,
            load.admin_refused,
        )


async def _stream(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request("m"))
    await reader.readuntil(b"\n\n")
    return reader, writer
