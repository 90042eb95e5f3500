"""The admin address: listens from the start, and serves its application with uvicorn from the first connection on.

FastAPI and uvicorn are imported on a thread then, so that a start does not wait for them; the connection waits in the
queue of the system. Part of the composition root, for a process alone and for a supervisor. Units: seconds.
"""

import asyncio
import gc
import importlib
import logging
import socket
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, Any, Final

from gateway.observe.hub import Hub
from gateway.race.context import Runtime

if TYPE_CHECKING:
    from gateway.server.admin import Admin
    from gateway.server.admin_server import AdminServer

_FRAMEWORK: Final = (
    "gateway.server.admin",
    "gateway.server.admin_server",
    "uvicorn.lifespan.off",
    "uvicorn.protocols.http.h11_impl",
    "anyio.to_thread",
    "anyio._backends._asyncio",
)
_RETRY_S: Final = 1.0
_END_S_MAX: Final = 1.0  # for responses under way when everything ends
_HEALTH: Final = {"type": "http", "method": "GET", "path": "/healthz", "root_path": "", "query_string": b""}


def import_framework() -> None:
    """Import the modules of the admin address, before the event loop runs."""
    for module in _FRAMEWORK:
        importlib.import_module(module)


class AdminAddress:
    """The admin address of a process.

    Args:
        sock: its listening socket, closed by `stop_listening`.
        build: returns the application; called on a thread.
        tasks: owner of the server's task.
        runtime: the loop, and the receiver of bugs.
        hub: hub of the events for the feeds.
    """

    def __init__(
        self,
        sock: socket.socket,
        build: "Callable[[], Admin]",
        tasks: asyncio.TaskGroup,
        runtime: Runtime,
        hub: Hub,
    ) -> None:
        self._sock = sock
        self._build = build
        self._tasks = tasks
        self._runtime = runtime
        self._hub = hub
        self._admin: Admin | None = None
        self._server: AdminServer | None = None
        self._serving: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Serve from now on, beginning with the first connection."""
        if self._serving is None:
            self._runtime.loop.add_reader(self._sock, self.serve)

    def serve(self) -> None:
        """Load the framework and serve now: while many files are open, none may be left to load it later."""
        if self._serving is None and self._sock.fileno() >= 0:
            self._runtime.loop.remove_reader(self._sock)
            self._serving = self._tasks.create_task(self._serve())

    def stop_listening(self) -> None:
        """Accept no more connections, and let another process listen on the address; open connections go on."""
        if self._server is not None:
            self._server.stop_listening()
        elif self._sock.fileno() >= 0:
            self._runtime.loop.remove_reader(self._sock)
            self._sock.close()

    async def close(self) -> None:
        """End all feeds and connections."""
        self.stop_listening()
        if self._admin is not None and self._server is not None and self._serving is not None:
            self._admin.close()
            self._server.should_exit = True
            await asyncio.wait({self._serving}, timeout=_END_S_MAX)
            self._server.abort()
            await asyncio.wait({self._serving}, timeout=_END_S_MAX)
        if self._serving is not None:
            self._serving.cancel()

    async def load(self) -> None:
        """Build the application and its server; try again after a failure, most likely because of too many files."""
        is_failing = False
        while (built := await self._loaded(is_reported=is_failing)) is None:
            is_failing = True
            await asyncio.sleep(_RETRY_S)
        admin, server = built
        self._hub.listeners.append(admin.on_event)
        gc.freeze()  # a collection would go through all modules of the framework
        if self._sock.fileno() >= 0:  # else it was closed since
            self._admin, self._server = admin, server

    async def _loaded(self, *, is_reported: bool) -> "tuple[Admin, AdminServer] | None":
        """Return the application and its server; None after a failure, which is logged unless it was before."""
        try:
            admin, server = await asyncio.to_thread(self._built)
            await _answer_first(admin)
        except Exception as error:
            if not is_reported:
                text = "the admin routes are not loaded (%s); they are tried again every %g s"
                logging.getLogger(__name__).warning(text, error, _RETRY_S)
            return None
        return admin, server

    async def _serve(self) -> None:
        await self.load()
        try:
            if self._server is not None:
                await self._server.serve([self._sock])
        except Exception as error:  # a bug must not end the gateway
            self._runtime.report("admin", error)
            logging.getLogger(__name__).exception("the admin address has failed")

    def _built(self) -> "tuple[Admin, AdminServer]":
        import_framework()
        from gateway.server.admin_server import AdminServer

        admin = self._build()
        return admin, AdminServer(admin.app, self._sock, lambda error: self._runtime.report("admin", error))


async def _answer_first(admin: "Admin") -> None:
    """Answer a first request, and start the first thread of the framework: then no file is left to read."""
    from anyio import to_thread

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(_: MutableMapping[str, Any]) -> None:
        pass

    await admin.app({**_HEALTH, "headers": []}, receive, send)
    await to_thread.run_sync(int)
