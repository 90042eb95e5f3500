"""The running process: listen, serve, drain on a signal, exit.

    SIGTERM        /readyz returns 503; after READINESS_LEAD_S listening stops, on the admin address, too; running
                   streams have drain_timeout to finish, then end with an error event. SIGINT (Ctrl-C) does the same
                   without the delay.
    second signal  everything ends immediately.
    SIGHUP         the configuration is read again; running streams continue.
    SIGUSR2        a new process takes the addresses, then this one drains (hot_restart.py).

Owns sockets and signals; the object graph belongs to app.py. Units: seconds.
"""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator

import msgspec

from gateway.api.plain_routes import load_documents
from gateway.config.settings import Settings
from gateway.config.values import Address
from gateway.errors import ReloadFailed
from gateway.server.admin_address import AdminAddress
from gateway.server.app import Gateway
from gateway.server.hot_restart import HotRestart, Predecessor
from gateway.server.http_server import (
    HttpServer,
    accept_from,
    cannot_listen,
    freeze_startup_objects,
    give_memory_back,
    name_of,
    waiting_connections,
)
from gateway.server.key_watch import FirstKeys, first_keys
from gateway.server.model_parts import Tune
from gateway.server.notify import READY, STOPPING, Watchdog, notify, reloading
from gateway.server.redis_share import open_redis, wait_for_redis
from gateway.server.reloads import Reread
from gateway.server.sockets import Inherited

FIRST_REQUEST_S = 5.0  # of a new connection, after listening has stopped: its client may be short of CPU
READINESS_LEAD_S = 1.0  # from /readyz returning 503 to the end of accepting: load balancers poll about every second
DRAIN_ERROR_FLUSH_S = 1.0  # for the error events of streams that did not finish in time
LAST_S = 0.3  # for the remaining connections when everything ends immediately
_SWEEP_S = 1.0


class Addresses(msgspec.Struct, frozen=True):
    """Addresses of the gateway, with their actual ports; `admin` is None if it is off."""

    public: Address
    admin: Address | None


class ExitReport(msgspec.Struct, frozen=True):
    """Result of `run`.

    Attributes:
        cut: number of requests that were ended with an error because they did not finish in time.
        second: signal that ended the drain immediately; None without a second signal.
    """

    cut: int
    second: signal.Signals | None


async def run(
    settings: Settings,
    on_ready: Callable[[Addresses], None],
    meanwhile: Callable[[Addresses], Coroutine[object, object, None]] | None = None,
    reread: Reread | None = None,
    tune: Tune | None = None,
    before: Predecessor | None = None,
) -> ExitReport:
    """Serve until a signal stops the gateway.

    Args:
        on_ready: called once when clients can connect and signals are handled, just before the first connection is
            accepted. Only the framework of the admin routes is read after that, for the first request for them, or
            before many files are open.
        meanwhile: started after on_ready, and cancelled by the first signal; None for nothing.
        reread: reads the settings again for a reload; None if there is no file.
        tune: see `gateway.server.model_parts.Tune`.
        before: sockets and process that this one inherits; None for none.

    Raises:
        ListenError: an address is in use or not local.
        ConfigError: the list of keys cannot be used.
    """
    give_memory_back()
    with contextlib.ExitStack() as opened:
        configured = [address for address in (settings.listen, settings.admin_listen) if address is not None]
        before = before or Predecessor()
        sockets = [opened.enter_context(await _bind(address, before.inherited)) for address in configured]
        before.inherited.close_rest()
        addresses = Addresses(name_of(sockets[0]), name_of(sockets[1]) if len(sockets) > 1 else None)
        listed = None if settings.keys_from is None else await asyncio.to_thread(first_keys, settings)
        async with asyncio.TaskGroup() as tasks:
            engine = None if settings.share is None else open_redis(settings.share, tasks)
            gateway = Gateway(settings, tasks, reread, tune, engine=engine)
            await _prepare(gateway, listed)
            asyncio.get_running_loop().set_exception_handler(gateway.on_loop_error)
            admin = None
            if len(sockets) > 1:
                admin = AdminAddress(sockets[1], gateway.build_admin, tasks, gateway.runtime, gateway.hub)
            server = _public_server(gateway, sockets[0], admin)
            sweeping = tasks.create_task(sweep(server, gateway))
            lasting = (gateway.learned.keep(), gateway.watch.run(), Watchdog(0.0).keep_beating())
            background = [tasks.create_task(each) for each in lasting]
            await asyncio.to_thread(load_documents)  # the first thread opens files, too
            if engine is not None:
                await wait_for_redis(engine)
                await gateway.start_sharing()
            freeze_startup_objects()
            with _signals() as signals, _reload_on_sighup(gateway, tasks):
                restart = HotRestart(tasks, sockets, gateway.learned.save, signals.put_nowait)
                restart.start()
                on_ready(addresses)
                notify(READY)
                server.acceptor.start()
                if admin is not None:
                    admin.start()
                before.report_ready()
                beside = tasks.create_task(meanwhile(addresses)) if meanwhile is not None else None
                first = await signals.get()
                restart.close()
                if beside is not None:
                    beside.cancel()
                draining = tasks.create_task(_drain(gateway, server, admin, settings.drain_timeout_s, first))
                report = await _drained_or_second(draining, tasks.create_task(signals.get()), gateway)
                for task in background:
                    task.cancel()
                await end(gateway, server, admin)
            sweeping.cancel()
    return report


async def _prepare(gateway: Gateway, listed: FirstKeys | None) -> None:
    """Fetch what the first request may need: keys, replicas, tokens, and what was learned."""
    await gateway.start_keys(listed)
    await gateway.reloads.discover()
    await gateway.start_tokens()
    await gateway.learned.restore()


async def _drain(
    gateway: Gateway, server: HttpServer, admin: AdminAddress | None, timeout_s: float, first: signal.Signals
) -> int:
    """Stop accepting, then wait for running requests; return the number of requests ended with an error."""
    if first is signal.SIGUSR2:  # a new process has the addresses, and is ready
        gateway.learned.stop()
        server.stop_listening()
    else:
        notify(STOPPING)
        gateway.public.draining = True
    server.drain()
    if first is not signal.SIGINT:
        await asyncio.sleep(READINESS_LEAD_S)
    server.stop_listening()
    if admin is not None:
        admin.stop_listening()  # a new process needs the address
    return await finish(gateway, server, timeout_s)


async def finish(gateway: Gateway, server: HttpServer, timeout_s: float) -> int:
    """Close idle connections, and wait for running requests; return the number of requests ended with an error."""
    if await _finished(server, timeout_s, FIRST_REQUEST_S):
        return 0
    cut = gateway.public.active
    gateway.public.end_streams()
    await _finished(server, DRAIN_ERROR_FLUSH_S)
    return cut


async def _finished(server: HttpServer, timeout_s: float, first_request_s: float = 0.0) -> bool:
    """Wait for the last response; return False if it is not complete in time."""
    try:
        async with asyncio.timeout(timeout_s):
            await server.finish(first_request_s)
    except TimeoutError:
        return False
    return True


async def _drained_or_second(
    draining: asyncio.Task[int], second: asyncio.Task[signal.Signals], gateway: Gateway
) -> ExitReport:
    """Wait for the end of the drain or a second signal, and cancel the other one."""
    await asyncio.wait([draining, second], return_when=asyncio.FIRST_COMPLETED)
    if draining.done():
        second.cancel()
        return ExitReport(draining.result(), None)
    draining.cancel()
    return ExitReport(gateway.public.active, second.result())


async def end(gateway: Gateway, server: HttpServer, admin: AdminAddress | None = None) -> None:
    """End all running requests with an error event, then close the connections."""
    gateway.public.end_streams()
    async with asyncio.TaskGroup() as closing:
        if admin is not None:
            closing.create_task(admin.close())
        if not await _finished(server, LAST_S):
            await server.abort()
    await gateway.learned.save()
    gateway.close()


async def sweep(server: HttpServer, gateway: Gateway) -> None:
    """Check client connections for timeouts, and keep spare connections to the replicas in use."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(_SWEEP_S)
        loop.call_soon(gateway.keep_warm)  # not called here: an exception would end the process
        loop.call_soon(server.check)


def _public_server(gateway: Gateway, sock: socket.socket, admin: AdminAddress | None) -> HttpServer:
    waiting = waiting_connections()
    on_many_files = (lambda: None) if admin is None else admin.serve
    accept_with = accept_from(sock, waiting, gateway.on_accepting, on_many_files)
    return HttpServer(waiting, gateway.client_idle_s, gateway.public.open, accept_with, sock)


async def _bind(address: Address, inherited: Inherited) -> socket.socket:
    """Return a listening socket, an inherited one if there is one.

    Raises:
        ListenError: the address is in use or not local.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(*address, type=socket.SOCK_STREAM)
    except OSError as error:
        raise cannot_listen(address, error) from error
    return inherited.bound(address, found)


@contextlib.contextmanager
def _reload_on_sighup(gateway: Gateway, tasks: asyncio.TaskGroup) -> Iterator[None]:
    loop = asyncio.get_running_loop()

    async def reload() -> None:
        notify(reloading())
        with contextlib.suppress(ReloadFailed):  # the log contains the reason
            await gateway.reloads.reload()
        notify(READY)

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
