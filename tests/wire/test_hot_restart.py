"""A new process takes the addresses of a running one, or of a service manager. Real processes and sockets."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

import simulated_sockets
from gateway.cli.parser import ExitCode
from passed_sockets import passing
from running import run_real
from spawned import WAIT_S, children, is_running, request, stream, until
from unused_ports import unused_port
from worker_site import ended

linux = pytest.mark.skipif(sys.platform != "linux", reason="several workers need Linux")
both = pytest.mark.parametrize("workers", [1, pytest.param(2, marks=linux)])


class Manager:
    """A service manager: starts a gateway, receives its states, and passes sockets if it has some."""

    def __init__(self, folder: Path, sockets: Sequence[socket.socket] = ()) -> None:
        self._sockets = sockets
        self._log = folder / "log"
        self._notify = folder / "notify"
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.bind(str(self._notify))
        self._sock.settimeout(WAIT_S)

    @contextlib.asynccontextmanager
    async def running(self, file: Path) -> AsyncIterator[asyncio.subprocess.Process]:
        """A gateway; all its processes, also later ones, end with it."""
        descriptors, argv = [sock.fileno() for sock in self._sockets], ["-m", "gateway", "serve", "--config", str(file)]
        with self._log.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *(passing(descriptors, *argv) if descriptors else [sys.executable, *argv]),
                env={**os.environ, "NOTIFY_SOCKET": str(self._notify)},
                pass_fds=descriptors,
                start_new_session=True,
                stdout=log,
                stderr=log,
            )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    async def state(self) -> str:
        """Return the next state."""
        return (await asyncio.to_thread(self._sock.recv, 200)).decode()

    async def main_process(self) -> int:
        """Return the next main process; it is ready."""
        states = {await self.state(), await self.state()}
        [process] = [int(state.partition("=")[2]) for state in states if state.startswith("MAINPID=")]
        assert states == {"READY=1", f"MAINPID={process}"}
        return process

    async def logged(self, text: str) -> bool:
        """Return True if the log has a text."""
        return text in await asyncio.to_thread(self._log.read_text, "utf-8")

    def close(self) -> None:
        """Receive nothing more."""
        self._sock.close()


def written(folder: Path, url: str, workers: int, ports: tuple[int, int], name: str = "m") -> Path:
    """Write a configuration."""
    row = {"name": "a", "kind": "simulated", "base_url": url}
    listen = {"listen": f"127.0.0.1:{ports[0]}", "admin_listen": f"127.0.0.1:{ports[1]}", "workers": workers}
    file = folder / "gateway.yaml"
    model = {"name": name, "replicas": [row], "recovery": "off"}
    file.write_text(json.dumps({**listen, "learned_file": "learned.json", "models": [model]}), encoding="utf-8")
    return file


async def serves(port: int, model: str) -> bool:
    """Return True if a request for a model is answered; the old process accepts for some milliseconds more."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request(model, 2))
    head = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    return b" 200 " in head


@both
def test_a_new_process_takes_over(workers: int, tmp_path: Path) -> None:
    """No connection is refused, the stream of the old process ends whole, and what it has learned is kept.

    The new process reads the file again; a setting that needs a restart may change.
    """
    ports = unused_port(), unused_port()

    async def connects(over: asyncio.Event) -> int:
        count = 0
        while not over.is_set():
            for port in ports:
                _, writer = await asyncio.open_connection("127.0.0.1", port)  # raises if it is refused
                writer.close()
                count += 1
            await asyncio.sleep(0.01)
        return count

    async def main() -> None:
        async with simulated_sockets.serving(0, ttft="1ms", gap="20ms", tokens=150) as replica:
            file = written(tmp_path, replica.url, workers, ports)
            async with manager.running(file) as old, asyncio.TaskGroup() as tasks:
                assert await manager.state() == "READY=1"
                assert await ended(*await stream(ports[0], tokens=2))
                long = tasks.create_task(ended(*await stream(ports[0])))
                written(tmp_path, replica.url, 3 - workers, ports, name="n")
                over = asyncio.Event()
                connecting = tasks.create_task(connects(over))
                old.send_signal(signal.SIGUSR2)
                new = await manager.main_process()
                await until(lambda: serves(ports[0], "n"))
                assert await long
                assert await old.wait() == ExitCode.OK
                over.set()
                assert await connecting > 0
                os.kill(new, signal.SIGTERM)
                assert await manager.state() == "STOPPING=1"
                assert await manager.logged('"event":"learned_restored"')

    with contextlib.closing(Manager(tmp_path)) as manager:
        run_real(main())


@both
def test_a_new_process_that_cannot_start_changes_nothing(workers: int, tmp_path: Path) -> None:
    """The old one goes on, reports the failure, and can be replaced later."""
    ports = unused_port(), unused_port()

    async def failed() -> bool:
        return await manager.logged("the new process has ended before it was ready; this one goes on")

    async def main() -> None:
        async with simulated_sockets.serving(0, ttft="1ms", tokens=2) as replica:
            file = written(tmp_path, replica.url, workers, ports)
            async with manager.running(file) as old:
                assert await manager.state() == "READY=1"
                file.write_text("models: []", encoding="utf-8")
                old.send_signal(signal.SIGUSR2)
                await until(failed)
                assert await ended(*await stream(ports[0]))
                written(tmp_path, replica.url, workers, ports)
                old.send_signal(signal.SIGUSR2)
                await manager.main_process()
                assert await old.wait() == ExitCode.OK
                assert await ended(*await stream(ports[0]))

    with contextlib.closing(Manager(tmp_path)) as manager:
        run_real(main())


@linux
def test_workers_accept_until_the_next_gateway(tmp_path: Path) -> None:
    """After SIGKILL of the top process new connections are served until another one is ready, and by that one then."""
    others = set[int]()

    async def ended_all() -> bool:
        return not any(map(is_running, others))

    async def main() -> None:
        async with simulated_sockets.serving(0, ttft="1ms", tokens=2) as replica:
            file = written(tmp_path, replica.url, 2, ports)
            async with manager.running(file) as process:
                assert await manager.state() == "READY=1"
                others.update(children(process.pid))
                process.kill()
                assert await process.wait() == -signal.SIGKILL
                for _ in range(4):
                    assert await ended(*await stream(ports[0]))
                assert all(map(is_running, others))
                async with manager.running(file):
                    assert await manager.state() == "READY=1"
                    await until(ended_all)
                    assert await ended(*await stream(ports[0]))

    with socket.create_server(("127.0.0.1", 0)) as public, socket.create_server(("127.0.0.1", 0)) as admin:
        ports = public.getsockname()[1], admin.getsockname()[1]
        with contextlib.closing(Manager(tmp_path, [public, admin])) as manager:
            run_real(main())


def test_sockets_of_a_service_manager_are_used(tmp_path: Path) -> None:
    """A connection that came before the start is answered; a socket for no address is an error."""

    async def main() -> None:
        async with simulated_sockets.serving(0, ttft="1ms", tokens=2) as replica, asyncio.TaskGroup() as tasks:
            file = written(tmp_path, replica.url, 1, ports)
            early = tasks.create_task(stream(ports[0]))
            async with manager.running(file) as process:
                assert await ended(*await early)
                process.terminate()
                assert await process.wait() == ExitCode.OK
            written(tmp_path, replica.url, 1, (ports[0], unused_port()))
            async with manager.running(file) as process:
                assert await process.wait() == ExitCode.CANNOT_LISTEN
                text = f"the service manager passes a socket at 127.0.0.1:{ports[1]}, which is neither `listen` nor"
                assert await manager.logged(text)

    with socket.create_server(("127.0.0.1", 0)) as public, socket.create_server(("127.0.0.1", 0)) as admin:
        ports = public.getsockname()[1], admin.getsockname()[1]
        with contextlib.closing(Manager(tmp_path, [public, admin])) as manager:
            run_real(main())
