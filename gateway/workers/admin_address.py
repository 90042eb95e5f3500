"""The admin address of a gateway with workers: its server and its access control. Units: seconds."""

import asyncio
import socket
from collections.abc import Callable
from typing import Final

from gateway.admin import Admin
from gateway.api.connections import WaitingConnections
from gateway.api.hosts import HostCheck
from gateway.config.settings import Settings
from gateway.http_server import HttpServer, accept_from
from gateway.workers.front import Emit, reporter

_LAST_S: Final = 0.3  # for the last responses


class AdminAddress:
    """The admin address.

    Args:
        sock: its listening socket.
        admin: its application.
        settings: returns the settings in force.
        waiting: bounds of the connections without a request.
        tasks: owner of its task.
        emit: receives events.
    """

    def __init__(
        self,
        sock: socket.socket,
        admin: Admin,
        settings: Callable[[], Settings],
        waiting: WaitingConnections,
        tasks: asyncio.TaskGroup,
        emit: Emit,
    ) -> None:
        self._admin = admin
        self._settings = settings
        self._server = HttpServer(
            admin.app,
            waiting,
            lambda: settings().timeouts.client_idle_s,
            None,
            accept_from(sock, waiting, lambda address, error: reporter(emit, address)(error)),
        )
        self.set_access()
        self._running = tasks.create_task(self._server.serve([sock]))

    def set_access(self) -> None:
        """Use the key and the hosts of the settings in force."""
        settings = self._settings()
        self._admin.key = None if settings.admin_key is None else settings.admin_key.get_secret_value()
        self._admin.hosts = HostCheck(settings.own_hosts)

    async def prepare(self) -> None:
        """Wait until the server is ready."""
        await self._server.prepared.wait()

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
        self._server.should_exit = self._server.force_exit = True
        await asyncio.wait({self._running}, timeout=_LAST_S)
        self._server.abort()
        await asyncio.wait({self._running})
