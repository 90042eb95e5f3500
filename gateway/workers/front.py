"""The two addresses of a gateway with workers: the public one accepts connections while a worker can take them.

The supervisor itself serves the admin address. Units: seconds.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable

from gateway.api.acceptor import Acceptor
from gateway.api.asgi import AsgiRequests
from gateway.api.connections import WaitingConnections
from gateway.api.web_pages import HostCheck
from gateway.config.settings import Settings
from gateway.events import Event
from gateway.process_events import AcceptingChanged
from gateway.race.context import Runtime
from gateway.server.admin import Admin
from gateway.server.http_server import HttpServer, accept_from, name_of, waiting_connections
from gateway.server.process import LAST_S
from gateway.workers.group import WorkerGroup

Emit = Callable[[Event], object]


class Front:
    """The public address.

    Args:
        sock: its listening socket.
        group: takes the connections.
        emit: receives events.

    Attributes:
        waiting: bounds of the connections without a request, at both addresses.
    """

    def __init__(self, sock: socket.socket, group: WorkerGroup, emit: Emit) -> None:
        self._sock = sock
        self._group = group
        self.waiting = waiting_connections()
        self._is_open = False
        self._is_accepting = False
        self._acceptor = Acceptor(
            sock, self._take, self.waiting.accepted_max, lambda: None, reporter(emit, name_of(sock))
        )

    def open(self) -> None:
        """Accept from now on."""
        self._is_open = True
        self.update()

    def update(self) -> None:
        """Accept while a worker can take connections; until then the system queues them."""
        wanted = self._is_open and self._group.has_room
        if wanted is not self._is_accepting:
            self._is_accepting = wanted
            if wanted:
                self._acceptor.start()
            else:
                self._acceptor.close()

    def check(self) -> None:
        """Report changes, also while nothing is accepted; must be called every second."""
        self._acceptor.check()
        self.update()

    def close(self) -> None:
        """Stop listening."""
        self._is_open = self._is_accepting = False
        if self._sock.fileno() >= 0:
            self._acceptor.close()
            self._sock.close()

    def _take(self, connection: socket.socket) -> None:
        self._group.take(connection)
        self.update()


def reporter(emit: Emit, address: object) -> Callable[[OSError | None], None]:
    """Return a function that reports that accepting at an address fails, or with None that it works again."""
    loop = asyncio.get_running_loop()

    def changed(error: OSError | None) -> None:
        reason = None if error is None else error.strerror or type(error).__name__
        emit(AcceptingChanged(loop.time(), str(address), error is None, reason))

    return changed


class AdminAddress:
    """The admin address.

    Args:
        sock: its listening socket.
        admin: its application.
        settings: returns the settings in force.
        waiting: bounds of the connections without a request.
        tasks: owner of the tasks of its requests.
        runtime: the loop, and the receiver of events.
    """

    def __init__(
        self,
        sock: socket.socket,
        admin: Admin,
        settings: Callable[[], Settings],
        waiting: WaitingConnections,
        tasks: asyncio.TaskGroup,
        runtime: Runtime,
    ) -> None:
        self._admin = admin
        self._settings = settings
        self._server = HttpServer(
            waiting,
            lambda: settings().timeouts.client_idle_s,
            AsgiRequests(admin.app, runtime, tasks).open,
            accept_from(sock, waiting, lambda address, error: reporter(runtime.emit, address)(error)),
            sock,
        )
        self.set_access()

    def set_access(self) -> None:
        """Use the key and the hosts of the settings in force."""
        settings = self._settings()
        self._admin.key = None if settings.admin_key is None else settings.admin_key.get_secret_value()
        self._admin.hosts = HostCheck(settings.own_hosts)

    def start(self) -> None:
        """Accept connections."""
        self._server.acceptor.start()

    def check(self) -> None:
        """Check the connections for timeouts; must be called every second."""
        self._server.check()

    def stop_listening(self) -> None:
        """Accept no more connections; a new gateway may listen on the address."""
        self._server.stop_listening()

    async def close(self) -> None:
        """End all feeds and connections."""
        self._admin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_S):
                await self._server.finish()
        await self._server.abort()
