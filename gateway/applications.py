"""The public and the admin ASGI application, for the requests that are no exchanges; part of the composition root.

Their framework is loaded for the first request that needs it, or before many files are open. No units.
"""

import asyncio
import importlib
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from gateway.api.asgi import Application, Message, Receive, Scope, Send
from gateway.api.cors import CrossOrigin
from gateway.api.deferred import Deferred
from gateway.api.health import answer_health, is_health_check
from gateway.api.hosts import HostCheck
from gateway.config.settings import Settings
from gateway.events import Event
from gateway.observe.hub import Hub

_FRAMEWORK = ("gateway.api.plain_routes", "gateway.admin", "anyio.to_thread", "anyio._backends._asyncio")
_NO_BODY = {"root_path": "", "query_string": b"", "headers": []}
_HEALTH: Scope = {"type": "http", "method": "GET", "path": "/healthz", **_NO_BODY}


def import_framework() -> None:
    """Import the modules of the plain and admin routes, before the event loop runs."""
    for module in _FRAMEWORK:
        importlib.import_module(module)


class AdminApplication(Protocol):
    """The admin application, whose module is imported after the start."""

    key: str | None
    hosts: HostCheck

    @property
    def app(self) -> Application:
        """ASGI application, for its own address."""

    def on_event(self, event: Event) -> None:
        """Pass an event to the feeds."""

    def close(self) -> None:
        """End all feeds."""


class Applications:
    """The applications of one process.

    Args:
        settings: settings of the start.
        tasks: owner of the task that loads the framework.
        hub: hub whose events the feeds get.
        plain: builds the plain routes; called on a thread.
        admin: builds the admin application; called on a thread.
        is_ready: returns False while the gateway stops; /readyz then returns 503.

    Attributes:
        admin: admin ASGI application.
        cors: headers for pages of other origins; None without such origins.
    """

    def __init__(
        self,
        settings: Settings,
        tasks: asyncio.TaskGroup,
        hub: Hub,
        plain: Callable[[], Application],
        admin: Callable[[], AdminApplication],
        is_ready: Callable[[], bool],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks = tasks
        self._hub = hub
        self._is_ready = is_ready
        self._loading: asyncio.Task[None] | None = None
        self._plain = Deferred(plain)
        self._make_admin = admin
        self._built: AdminApplication | None = None
        self.admin = Deferred(self._build_admin)
        self.use(settings)

    def use(self, settings: Settings) -> None:
        """Use the origins, the admin key and the hosts of these settings."""
        self._settings = settings
        self.cors = CrossOrigin(settings.cors_origins) if settings.cors_origins else None
        if self._built is not None:
            self._built.key = None if settings.admin_key is None else settings.admin_key.get_secret_value()
            self._built.hosts = HostCheck(settings.own_hosts)

    def public(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer a preflight request or a health check, or pass a request to the plain routes."""
        if self.cors is not None and scope["type"] == "http":
            if self.cors.is_preflight(scope["method"], scope["headers"]):
                return self.cors.answer(scope, send)
            send = self.cors.adding(scope, send)
        if is_health_check(scope):
            return answer_health(scope, send, ready=self._is_ready())
        return self._plain(scope, receive, send)

    def end_feeds(self) -> None:
        """End every event feed."""
        if self._built is not None:
            self._built.close()

    async def load_plain(self) -> None:
        """Load the framework of the plain routes."""
        await self._plain.load()

    def load_soon(self) -> None:
        """Begin to load the framework and the pages of the plain and admin routes, while files are left to open."""
        if self._loading is None:
            self._loading = self._tasks.create_task(self.load_framework())

    async def load_framework(self) -> None:
        """Load the framework and the pages of the plain and admin routes."""
        try:
            for application in (self._plain, self.admin):
                await application(_HEALTH, _no_body, _ignore)
            from anyio import to_thread

            from gateway.pages.files import load_pages

            await to_thread.run_sync(load_pages)
        except Exception as error:  # most likely no file is left to open
            logging.getLogger(__name__).warning(
                "the plain or the admin routes are not loaded (%s); the next request for them tries again", error
            )

    def _build_admin(self) -> Application:
        admin = self._make_admin()
        # On the loop, where a reload may change the access too, and before the thread's result gets there the same way.
        self._loop.call_soon_threadsafe(self._add_admin, admin)
        return admin.app

    def _add_admin(self, admin: AdminApplication) -> None:
        self._built = admin
        self.use(self._settings)
        self._hub.listeners.append(admin.on_event)


async def _no_body() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _ignore(_: Message) -> None:
    pass
