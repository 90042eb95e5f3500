"""The running process: listen, serve, drain on a signal, exit.

    SIGTERM        /readyz returns 503; after READINESS_LEAD_S accepting stops; running streams have drain_timeout to
                   finish, then end with an error event. SIGINT (Ctrl-C) does the same without the delay.
    second signal  everything ends at once.
    SIGHUP         the configuration is read again; running streams continue.

Owns sockets and signals; the object graph belongs to app.py. Units: seconds.
"""

import asyncio
import contextlib
import ctypes
import gc
import math
import resource
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass

import uvicorn

from gateway.api.acceptor import Acceptor
from gateway.api.asgi import Application
from gateway.api.connections import WaitingConnections
from gateway.api.http_protocol import BoundedHttpProtocol, OpenExchange
from gateway.app import Gateway, Reread
from gateway.config.settings import Settings
from gateway.config.values import Address
from gateway.errors import ReloadFailed
from gateway.topology import Tune

READINESS_LEAD_S = 1.0  # from /readyz returning 503 to the end of accepting: load balancers poll about every second
DRAIN_ERROR_FLUSH_S = 1.0  # for the error events of streams that did not finish in time
_LAST_S = 0.3  # for the remaining connections when everything ends at once; uvicorn polls ten times a second
_SWEEP_S = 1.0
_FRAMEWORK_S = 0.3  # after listening; a request that needs the framework does not wait for this
_BACKLOG = 4096
_CLOSED_FOR_FILES = 16  # waiting connections that are closed when no file is left for a new one
_UNSENT_BYTES_MAX = 128 * 1024  # per client, in the kernel; the default is megabytes if a client does not read
_M_MMAP_THRESHOLD = -3  # malloc.h
_MAPPED_BYTES_MIN = 256 * 1024  # blocks of this size get pages of their own: some 60 us for each MB
_YOUNG_MAX = 20_000  # new objects before a garbage collection; requests create no cycles


class ListenError(Exception):
    """Listening failed; the message contains the address and the reason."""


class _Server(uvicorn.Server):
    """uvicorn without its signal handling and its accepting of connections, which this package replaces.

    Args:
        waiting: connections without an admitted request, of all servers.
        idle_s_max: returns the time after which an idle connection is closed; a reload may change it.
        open_exchange: see `BoundedHttpProtocol`; None if every request is for the ASGI application.
        on_accepting: receives the server's address and an error when accepting begins to fail, None when it works.

    Attributes:
        prepared: set when `accept` may be called.
        acceptor: accepts the connections; exists once `prepared` is set.
    """

    acceptor: Acceptor

    def __init__(
        self,
        config: uvicorn.Config,
        waiting: WaitingConnections,
        on_accepting: Callable[[str, OSError | None], None],
        idle_s_max: Callable[[], float],
        open_exchange: OpenExchange | None,
    ) -> None:
        super().__init__(config)
        self._waiting = waiting
        self._on_accepting = on_accepting
        self._idle_s_max = idle_s_max
        self._open_exchange = open_exchange
        self.prepared = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        [sock] = sockets or []
        address = str(_name(sock))
        self.servers = []
        self.acceptor = Acceptor(
            sock,
            self._protocol,
            self._waiting.accepted_max,
            lambda: self._waiting.make_room(_CLOSED_FOR_FILES),
            lambda error: self._on_accepting(address, error),
        )
        self.started = True
        self.prepared.set()

    def _protocol(self) -> BoundedHttpProtocol:
        loop = asyncio.get_running_loop()
        return BoundedHttpProtocol(
            self.config, self.server_state, self.lifespan.state, loop, self._waiting, self._open_exchange
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.acceptor.close()
        await super().shutdown(sockets)

    def drain(self) -> None:
        """End each connection after its next response, which announces it."""
        self._waiting.draining = True
        for connection in tuple(self.server_state.connections):
            if isinstance(connection, BoundedHttpProtocol):
                connection.drain()

    def check(self) -> None:
        """Close connections that are late, and those above the bounds; must be called every second."""
        now_s = asyncio.get_running_loop().time()
        self._waiting.idle_s_max = self._idle_s_max()
        for connection in tuple(self.server_state.connections):
            if isinstance(connection, BoundedHttpProtocol):
                connection.check(now_s)
        self._waiting.trim()
        self.acceptor.check()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass(frozen=True, slots=True)
class Addresses:
    """Addresses of the gateway, with their actual ports; `admin` is None if it is off."""

    public: Address
    admin: Address | None


@dataclass(frozen=True, slots=True)
class ExitReport:
    """Result of `run`.

    Attributes:
        cut: number of requests that were ended with an error because they did not finish in time.
        second: signal that ended the drain at once; None without a second signal.
    """

    cut: int
    second: signal.Signals | None


async def run(
    settings: Settings,
    on_ready: Callable[[Addresses], None],
    meanwhile: Callable[[Addresses], Coroutine[object, object, None]] | None = None,
    reread: Reread | None = None,
    tune: Tune | None = None,
) -> ExitReport:
    """Serve until a signal stops the gateway.

    Args:
        on_ready: called once when clients can connect and signals are handled, just before the first connection is
            accepted. Only the framework of the plain and admin routes is read after that, within a second, because the
            open files may later all be in use.
        meanwhile: started after on_ready, and cancelled by the first signal; None for nothing.
        reread: reads the settings again for a reload; None if there is no file.
        tune: see `gateway.topology.Tune`.

    Raises:
        ListenError: an address is in use or not local.
    """
    _give_memory_back()
    with contextlib.ExitStack() as opened:
        configured = [address for address in (settings.listen, settings.admin_listen) if address is not None]
        sockets = [opened.enter_context(await _bind(address)) for address in configured]
        addresses = Addresses(_name(sockets[0]), _name(sockets[1]) if len(sockets) > 1 else None)
        async with asyncio.TaskGroup() as tasks:
            gateway = Gateway(settings, tasks, reread, tune)
            await gateway.learned.restore()
            asyncio.get_running_loop().set_exception_handler(gateway.on_loop_error)
            servers = _servers(gateway)[: len(sockets)]
            running = [tasks.create_task(server.serve([sock])) for server, sock in zip(servers, sockets, strict=True)]
            sweeping = tasks.create_task(_sweep(servers, gateway))
            keeping = tasks.create_task(gateway.learned.keep())
            for server in servers:
                await server.prepared.wait()
            await asyncio.to_thread(int)  # the first thread opens files
            _freeze_startup_objects()
            with _signals() as signals, _reload_on_sighup(gateway, tasks):
                on_ready(addresses)
                for server in servers:
                    server.acceptor.start()
                loading = tasks.create_task(_load_framework(gateway))
                background = tasks.create_task(meanwhile(addresses)) if meanwhile is not None else None
                patient = await signals.get() is signal.SIGTERM
                loading.cancel()
                if background is not None:
                    background.cancel()
                draining = tasks.create_task(
                    _drain(gateway, servers[0], running[0], settings.drain_timeout_s, patient=patient)
                )
                report = await _drained_or_second(draining, tasks.create_task(signals.get()), gateway)
                keeping.cancel()
                await _end(gateway, servers, running)
            sweeping.cancel()
    return report


def _give_memory_back() -> None:
    """Let glibc return the memory of each large request body when it is freed; other allocators do so by themselves.

    By default glibc raises its threshold for memory of its own to the largest block that was freed, and keeps the rest.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES_MIN)


def _freeze_startup_objects() -> None:
    """Exclude the objects of the start from garbage collection, which would use 5% of the CPU for them."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_MAX)


async def _load_framework(gateway: Gateway) -> None:
    """Load what the start left out, after the first requests, and exclude it from garbage collection, too."""
    await asyncio.sleep(_FRAMEWORK_S)
    await gateway.load_framework()
    gc.freeze()


async def _drain(
    gateway: Gateway, server: _Server, running: asyncio.Task[None], timeout_s: float, *, patient: bool
) -> int:
    """Stop accepting, then wait for running requests; return the number of those ended with an error."""
    gateway.draining = True
    server.drain()
    if patient:
        await asyncio.sleep(READINESS_LEAD_S)
    server.should_exit = True  # uvicorn closes idle connections, and ends after the last response
    done, _ = await asyncio.wait({running}, timeout=timeout_s)
    if done:
        return 0
    cut = gateway.active
    gateway.end_streams()
    await asyncio.wait({running}, timeout=DRAIN_ERROR_FLUSH_S)
    return cut


async def _drained_or_second(
    draining: asyncio.Task[int], second: asyncio.Task[signal.Signals], gateway: Gateway
) -> ExitReport:
    """Wait for the end of the drain or a second signal, and cancel the other one."""
    await asyncio.wait([draining, second], return_when=asyncio.FIRST_COMPLETED)
    if draining.done():
        second.cancel()
        return ExitReport(draining.result(), None)
    draining.cancel()
    return ExitReport(gateway.active, second.result())


async def _end(gateway: Gateway, servers: list[_Server], running: list[asyncio.Task[None]]) -> None:
    """End all running requests with an error event, then close the connections."""
    for server in servers:
        server.should_exit = server.force_exit = True
    gateway.end_streams()
    await asyncio.wait(running, timeout=_LAST_S)
    for server in servers:
        for connection in tuple(server.server_state.connections):
            connection.transport.abort()
    await asyncio.wait(running)
    await gateway.learned.save()
    gateway.close()


async def _sweep(servers: Sequence[_Server], gateway: Gateway) -> None:
    """Check client connections for timeouts, and keep spare connections to the replicas in use."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(_SWEEP_S)
        loop.call_soon(gateway.keep_warm)  # not called here: an exception would end the process
        for server in servers:
            loop.call_soon(server.check)


def _servers(gateway: Gateway) -> list[_Server]:
    """Return the servers of the public and of the admin address."""
    files_max = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    waiting = WaitingConnections(math.inf if files_max == resource.RLIM_INFINITY else files_max)
    served = ((gateway.application, gateway.exchange), (gateway.admin, None))
    return [
        _Server(_config(application), waiting, gateway.on_accepting, gateway.client_idle_s, open_exchange)
        for application, open_exchange in served
    ]


def _config(application: Application) -> uvicorn.Config:
    return uvicorn.Config(
        application,
        http=BoundedHttpProtocol,
        interface="asgi3",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        proxy_headers=False,
    )


async def _bind(address: Address) -> socket.socket:
    """Return a listening socket.

    Raises:
        ListenError: the address is in use or not local.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(*address, type=socket.SOCK_STREAM)
        family, kind, proto, _, where = found[0]
        sock = socket.socket(family, kind, proto)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # connections inherit it
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES_MAX)
            sock.bind(where)
            sock.listen(_BACKLOG)
        except OSError:
            sock.close()
            raise
    except OSError as error:
        raise ListenError(f"cannot listen on {address}: {error.strerror or error}") from error
    return sock


def _name(sock: socket.socket) -> Address:
    host, port = sock.getsockname()[:2]
    return Address(host, port)


@contextlib.contextmanager
def _reload_on_sighup(gateway: Gateway, tasks: asyncio.TaskGroup) -> Iterator[None]:
    loop = asyncio.get_running_loop()

    async def reload() -> None:
        with contextlib.suppress(ReloadFailed):  # the log contains the reason
            await gateway.reload()

    loop.add_signal_handler(signal.SIGHUP, lambda: tasks.create_task(reload()))
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


@contextlib.contextmanager
def _signals() -> Iterator["asyncio.Queue[signal.Signals]"]:
    """Yield a queue of received SIGINT and SIGTERM."""
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
