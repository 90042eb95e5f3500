"""The admin address of a gateway with workers: its server and its access control. Units: seconds."""

import asyncio
import contextlib
import socket
from collections.abc import Callable

from gateway.admin import Admin
from gateway.api.asgi import AsgiRequests
from gateway.api.connections import WaitingConnections
from gateway.api.web_pages import HostCheck
from gateway.config.settings import Settings
from gateway.http_server import HttpServer, accept_from
from gateway.race.context import Runtime
from gateway.server import LAST_S
from gateway.workers.front import reporter


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
