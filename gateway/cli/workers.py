"""Starts a gateway with several workers: the top process, and what its children run. No units."""

import importlib
import socket
from collections.abc import Callable, Coroutine

from gateway.cli.parser import ExitCode
from gateway.cli.process import run_until_end
from gateway.cli.terminal import fail
from gateway.config.settings import Settings
from gateway.observe.process import Member, shared_memory_reader
from gateway.server.admin_address import import_framework
from gateway.server.process import Addresses
from gateway.server.reloads import Reread
from gateway.workers.supervisor import Given, StartFailed, supervise
from gateway.workers.top import Children, Top, bind, lock_file
from gateway.workers.worker import Sockets, work


def serve_with_workers(
    count: int,
    settings: Settings,
    on_ready: Callable[[Addresses], None],
    meanwhile: Callable[[Addresses], Coroutine[object, object, None]],
    reread: Reread | None,
) -> ExitCode:
    """Run the gateway with several workers.

    Args:
        on_ready: called in the supervisor, when all workers serve.
        meanwhile: run in the supervisor.
        reread: run in the supervisor for a reload; None if there is no file.

    Raises:
        ListenError: an address is in use or not local.
    """
    import_framework()  # once here, instead of once in each process
    if settings.share is not None:
        importlib.import_module("gateway.share.redis")  # the same
    if settings.tracing is not None:
        importlib.import_module("gateway.observe.otlp")
    sockets = [bind(address) for address in (settings.listen, settings.admin_listen) if address is not None]
    lock = lock_file()

    def supervisor(control: socket.socket) -> int:
        member = Member(None, count, shared_memory_reader(), lock)
        given = Given(member, sockets[0], sockets[1] if len(sockets) > 1 else None, control)
        try:
            return run_until_end(supervise(settings, given, on_ready, meanwhile, reread), lock)
        except StartFailed as error:
            fail(str(error))
            return ExitCode.FAILED

    def worker(number: int, messages: socket.socket, connections: socket.socket) -> int:
        member = Member(number, count, shared_memory_reader(), lock)
        return run_until_end(work(member, Sockets(messages, connections)), lock)

    code = Top(count, Children(supervisor, worker), sockets, settings.drain_timeout_s).run()
    return ExitCode(code) if code in set(ExitCode) else ExitCode.FAILED
