"""The running process: listen, tell when ready, drain on a signal, end.

    SIGTERM  /readyz says 503; a moment later accepting stops; running streams finish up to drain_timeout; then they
             end with an error event. SIGINT (Ctrl-C) does the same without the moment: a person is waiting.
    again    everything ends at once.

Owns sockets and signals; the object graph is app.py's. Units: seconds.
"""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import uvicorn
from uvicorn._types import ASGIApplication

from gateway.app import Gateway, build
from gateway.http_protocol import BoundedHttpProtocol
from gateway.settings import Settings

NOTICE_S = 1.0  # between /readyz turning false and the end of accepting: load balancers look every second or so
GOODBYE_S = 1.0  # for the error events of streams that outlived the drain
_SWEEP_S = 1.0
_BACKLOG = 4096
_KEEP_ALIVE_S = 75  # idle client connections; longer than a load balancer's 60 s, so that it closes first


class ListenError(Exception):
    """An address cannot be listened on; the message says which and why."""


class _Server(uvicorn.Server):
    """uvicorn without its signal handling: this file has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the gateway listens, with the ports it really got."""

    public: tuple[str, int]
    admin: tuple[str, int] | None


async def run(settings: Settings, on_ready: Callable[[Addresses], None]) -> None:
    """Serve until a signal ends it.

    Args:
        settings: checked settings.
        on_ready: called once when requests are accepted.

    Raises:
        ListenError: an address is taken or not ours.
    """
    public_socket = _bind(settings.listen.host, settings.listen.port)
    admin = settings.admin_listen
    admin_socket = _bind(admin.host, admin.port) if admin is not None else None
    async with asyncio.TaskGroup() as tasks:
        gateway = build(settings, tasks)
        servers = [_server(gateway.application, public_socket)]
        sockets = [public_socket]
        if admin_socket is not None:
            servers.append(_server(gateway.admin, admin_socket))
            sockets.append(admin_socket)
        running = [tasks.create_task(server.serve([sock])) for server, sock in zip(servers, sockets, strict=True)]
        sweeping = tasks.create_task(_sweep(servers[0]))
        while not all(server.started for server in servers):
            await asyncio.sleep(0.005)
        on_ready(Addresses(_name(public_socket), _name(admin_socket) if admin_socket is not None else None))
        with _signals() as signals:
            patient = await signals.get() is signal.SIGTERM
            draining = tasks.create_task(_drain(gateway, servers, settings.drain_timeout_s, patient=patient))
            second = tasks.create_task(signals.get())
            await asyncio.wait([draining, second], return_when=asyncio.FIRST_COMPLETED)
            second.cancel()
            draining.cancel()
            for server in servers:
                server.should_exit = server.force_exit = True
            gateway.end_streams()
            await asyncio.wait(running)
        sweeping.cancel()
        gateway.close()


async def _drain(gateway: Gateway, servers: list[_Server], timeout_s: float, *, patient: bool) -> None:
    """Stop accepting, then wait for running streams; returns when they are done or have been told to end."""
    loop = asyncio.get_running_loop()
    gateway.draining = True
    if patient:
        await asyncio.sleep(NOTICE_S)
    servers[0].should_exit = True
    end_s = loop.time() + timeout_s
    while gateway.active and loop.time() < end_s:
        await asyncio.sleep(0.02)
    if gateway.active:
        gateway.end_streams()
        await asyncio.sleep(GOODBYE_S)


async def _sweep(server: _Server) -> None:
    """Look for connections whose headers take too long."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(_SWEEP_S)
        for connection in tuple(server.server_state.connections):
            if isinstance(connection, BoundedHttpProtocol):
                connection.check_head(loop.time())


def _server(application: ASGIApplication, sock: socket.socket) -> _Server:
    config = uvicorn.Config(
        application,
        http=BoundedHttpProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        backlog=_BACKLOG,
    )
    return _Server(config)


def _bind(host: str, port: int) -> socket.socket:
    """A listening address, or a sentence that says why not."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, proto)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.bind(address)
    except OSError as error:
        raise ListenError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    return sock


def _name(sock: socket.socket) -> tuple[str, int]:
    host, port = sock.getsockname()[:2]
    return str(host), int(port)


@contextlib.contextmanager
def _signals() -> Iterator["asyncio.Queue[signal.Signals]"]:
    """SIGINT and SIGTERM as a queue, while inside."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[signal.Signals] = asyncio.Queue(4)

    def put(number: signal.Signals) -> None:
        if not queue.full():
            queue.put_nowait(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, put, number)
    try:
        yield queue
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
