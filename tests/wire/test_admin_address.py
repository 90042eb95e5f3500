"""The admin address: uvicorn is started by the first connection, bounded, and leaves signals alone. Real sockets."""

import asyncio
import contextlib
import math
import signal
import socket
from collections.abc import AsyncIterator, Callable

import pytest

import simulated_sockets
from admin_site import AdminUnderTest
from gateway.api.http_protocol import WaitingConnections
from gateway.cli.event_loop import new_loop
from gateway.observe.hub import Hub
from gateway.race.context import Runtime
from gateway.race.deadlines import TimerQueue
from gateway.server import admin_address, admin_server
from gateway.server.admin import Admin
from gateway.server.admin_address import AdminAddress
from gateway.server.http_server import accept_from
from running import run_on, run_real
from spawned import WAIT_S, started, stream
from unused_ports import unused_port

_GET = b"GET %b HTTP/1.1\r\nhost: localhost\r\n\r\n"
_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Site:
    """A listening admin address; the first builds fail."""

    def __init__(self, failures: int = 0) -> None:
        self.failures, self.built = failures, 0
        self.site = AdminUnderTest()
        self.events: list[object] = []
        self.sock = socket.create_server(("127.0.0.1", 0))
        self.sock.setblocking(False)
        self.name = self.sock.getsockname()

    def build(self) -> Admin:
        self.built += 1
        if self.built <= self.failures:
            raise OSError("too many open files")
        return self.site.admin

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[AdminAddress]:
        loop = asyncio.get_running_loop()
        runtime = Runtime(loop, self.events.append, lambda: 0.0, TimerQueue(loop))
        async with asyncio.TaskGroup() as tasks:
            address = AdminAddress(self.sock, self.build, tasks, runtime, Hub(loop))
            address.start()
            others = asyncio.all_tasks()
            yield address
            await address.close()
        for task in asyncio.all_tasks() - others:  # sse-starlette's, which ends with the loop
            task.cancel()
        await asyncio.sleep(0)

    async def connect(self) -> _Connection:
        return await asyncio.open_connection(*self.name)

    async def get(self, connection: _Connection, path: bytes = b"/healthz") -> bytes:
        """Return the head of the response to a GET."""
        connection[1].write(_GET % path)
        async with asyncio.timeout(WAIT_S):
            return await connection[0].readuntil(b"\r\n\r\n")


@pytest.mark.parametrize("failures", [0, 1])
def test_it_is_built_once_for_connections_that_come_together(
    failures: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Connections that arrive before the application is built wait for it, also if the first attempt fails."""
    monkeypatch.setattr(admin_address, "_RETRY_S", 0.001)
    site = _Site(failures)

    async def main() -> None:
        async with site.listening():
            connections = [await site.connect() for _ in range(3)]
            heads = await asyncio.gather(*map(site.get, connections))
            for _, writer in connections:
                writer.close()
        assert all(head.startswith(b"HTTP/1.1 200 ") and b"\r\nserver: " not in head for head in heads)

    run_real(main())
    assert site.built == 1 + failures
    assert len(caplog.records) == failures


def test_it_ends_without_a_connection() -> None:
    """An address without a connection is closed without being built."""
    site = _Site()

    async def main() -> None:
        async with site.listening():
            pass

    run_real(main())
    assert (site.built, site.sock.fileno()) == (0, -1)


@pytest.mark.parametrize("loop", [new_loop, asyncio.SelectorEventLoop], ids=["usual loop", "asyncio"])
def test_open_connections_go_on_after_it_stopped_listening(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Another process can listen, a feed and an idle connection go on, and both end when everything ends."""
    site = _Site()

    async def main() -> None:
        async with site.listening() as address:
            feed, idle = await site.connect(), await site.connect()
            await site.get(feed, b"/admin/events")
            await site.get(idle)
            address.stop_listening()
            await asyncio.sleep(0)
            with socket.create_server(site.name):
                assert b" 200 " in await site.get(idle)
                assert not feed[0].at_eof()
        assert (await feed[0].read()).endswith(b"0\r\n\r\n")
        for _, writer in (feed, idle):
            writer.close()

    run_on(loop, main())


def test_connections_without_a_request_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the bound, connections without a request are closed, and a feed and a new connection are served."""
    monkeypatch.setattr(admin_server, "CONNECTIONS_MAX", 3)
    site = _Site()

    async def main() -> None:
        async with site.listening():
            feed = await site.connect()
            await site.get(feed, b"/admin/events")
            silent = [await site.connect() for _ in range(3)]
            silent[0][1].write(b"GET / HTTP/1.1\r\n")
            async with asyncio.timeout(WAIT_S):
                while not any(reader.at_eof() or reader.exception() for reader, _ in silent):
                    await asyncio.sleep(0.002)
            fresh = await site.connect()
            assert b" 200 " in await site.get(fresh)
            assert not feed[0].at_eof()
            for _, writer in (feed, fresh, *silent):
                writer.close()

    run_real(main())


def test_a_connection_without_a_request_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """An incomplete head has the time of an idle connection; a feed has no limit."""
    site = _Site()

    async def main() -> None:
        async with site.listening():
            feed = await site.connect()
            await site.get(feed, b"/admin/events")
            monkeypatch.setattr(admin_server, "IDLE_S_MAX", 0)
            reader, writer = await site.connect()
            writer.write(b"GET / HTTP/1.1\r\n")
            async with asyncio.timeout(WAIT_S):
                while not (reader.at_eof() or reader.exception()):
                    await asyncio.sleep(0.002)
            assert not feed[0].at_eof()
            for each in (feed[1], writer):
                each.close()

    run_real(main())


def test_a_disconnect_within_a_body_is_no_bug(caplog: pytest.LogCaptureFixture) -> None:
    """A client that disconnects in the middle of a body ends its request: no failure is logged or counted."""
    site = _Site()

    async def main() -> None:
        async with site.listening():
            reader, writer = await site.connect()
            head = b"POST /admin/hedging HTTP/1.1\r\nhost: localhost\r\n"
            writer.write(head + b"expect: 100-continue\r\ncontent-length: 9\r\n\r\n{")
            async with asyncio.timeout(WAIT_S):
                assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"  # the body is awaited
            writer.close()
            _, other = connection = await site.connect()
            await site.get(connection)
            other.close()

    run_real(main())
    assert (site.events, caplog.records) == ([], [])


def test_a_second_ctrl_c_ends_a_drain_while_uvicorn_serves() -> None:
    """Uvicorn takes no signal: the first Ctrl-C drains, and the second one ends everything."""

    async def main() -> None:
        port = unused_port()
        listen = ["--listen", "127.0.0.1:0", "--admin-listen", f"127.0.0.1:{port}"]
        async with contextlib.AsyncExitStack() as opened:
            replica = await opened.enter_async_context(simulated_sockets.serving(0, gap="1s", tokens=600))
            gateway = await opened.enter_async_context(
                started("serve", "--model", "m", "--replica", replica.url, *listen)
            )
            await gateway.ready(gateway.process.stderr)
            admin = await asyncio.open_connection("127.0.0.1", port)
            admin[1].write(_GET % b"/admin/events")
            assert b" 200 " in await admin[0].readuntil(b"\r\n\r\n")
            _, writer = await stream(gateway.port)
            gateway.process.send_signal(signal.SIGINT)
            await gateway.says(gateway.process.stderr, b"stopping: ")
            assert not admin[0].at_eof()
            gateway.process.send_signal(signal.SIGINT)
            code, output = await gateway.ended()
            for each in (writer, admin[1]):
                each.close()
        assert (code, b"Traceback" in output) == (130, False)

    run_real(main())


@pytest.mark.parametrize(("files_max", "calls"), [(8.0, 1), (math.inf, 0)])
def test_connections_report_many_open_files(files_max: float, calls: int) -> None:
    """The framework is loaded while files are left: at the first connection with an eighth of the files open."""

    async def main() -> None:
        reports: list[None] = []
        taken: asyncio.Queue[socket.socket] = asyncio.Queue()
        with socket.create_server(("127.0.0.1", 0)) as listening:
            waiting = WaitingConnections(files_max)
            accept = accept_from(listening, waiting, lambda *_: None, lambda: reports.append(None))
            acceptor = accept(taken.put_nowait)
            acceptor.start()
            with socket.create_connection(listening.getsockname()):
                (await taken.get()).close()
            acceptor.close()
        assert len(reports) == calls

    run_real(main())
