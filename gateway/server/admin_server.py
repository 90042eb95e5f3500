"""uvicorn's server for the admin application, with bounds on its connections and without signal handlers.

Imported with the framework of the admin routes, when the address is used for the first time. Documented parts of
uvicorn only. Units: seconds, connections.
"""

import asyncio
import contextlib
import logging
import math
import socket
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Final

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS_MAX: Final = 128  # 16 feeds, and some for scrapers, pages and people
IDLE_S_MAX: Final = 60  # without a request under way, also while a head is incomplete; scrapers connect again
_ACCEPTED_MAX: Final = 32  # in one turn of the event loop, as at the public address


class AdminServer(uvicorn.Server):
    """The server of the admin address; what it logs about clients' mistakes is dropped.

    uvicorn stops idle connections after a response only, and counts connections only when a request has arrived, so
    `on_tick`, which uvicorn calls ten times a second, checks all of them.

    Args:
        app: ASGI application.
        sock: listening socket, closed by `stop_listening`.
        report: receives exceptions of the application.
    """

    def __init__(self, app: ASGIApp, sock: socket.socket, report: Callable[[Exception], object]) -> None:
        self._app = app
        self._sock = sock
        self._report = report
        self._is_closed = False
        self._active: dict[object, int] = {}  # number of requests under way, by address of the client
        self._idle_since_s: dict[H11Protocol, float] = {}  # time of the first tick without a request
        config = uvicorn.Config(
            self._answer,
            http="h11",  # bounds the bytes of a head
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level=logging.ERROR,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            workers=1,  # else a variable of the environment is read
            backlog=_ACCEPTED_MAX,
            timeout_keep_alive=IDLE_S_MAX,
        )
        config.load()
        super().__init__(config)

    def stop_listening(self) -> None:
        """Accept no more connections, and let another process listen on the address; open connections go on."""
        self._is_closed = True
        if self.started:
            for server in self.servers:
                server.close()
            self._sock.close()

    def abort(self) -> None:
        """Close all connections immediately."""
        self.force_exit = True
        for connection in tuple(self.server_state.connections):
            connection.transport.abort()

    # what uvicorn calls

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no handlers: signals belong to the process."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._is_closed:  # since the call
            self.stop_listening()

    async def on_tick(self, counter: int) -> bool:
        """Close connections without a request for too long, and the oldest above the bound, idle ones first."""
        now_s, before = asyncio.get_running_loop().time(), self._idle_since_s
        connections = [each for each in self.server_state.connections if isinstance(each, H11Protocol)]
        self._idle_since_s = {each: before.get(each, now_s) for each in connections if each.client not in self._active}
        oldest_first = sorted(self._idle_since_s.items(), key=itemgetter(1))
        active = [(each, math.inf) for each in connections if each not in self._idle_since_s]
        for number, (each, since_s) in enumerate([*oldest_first, *active]):
            if number < len(connections) - CONNECTIONS_MAX or now_s > since_s + IDLE_S_MAX:
                each.transport.abort()
        return await super().on_tick(counter)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = scope["client"]
        self._active[client] = self._active.get(client, 0) + 1
        try:
            await self._app(scope, receive, send)
        except Exception as error:  # a bug in the application, which uvicorn logs
            self._report(error)
            raise
        finally:
            self._active[client] -= 1
            if not self._active[client]:
                del self._active[client]
