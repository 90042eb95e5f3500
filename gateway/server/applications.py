"""The admin application, built on a thread when it is needed, so that the start does not wait for its framework.

Requests wait while it is built; after a failure, the next request builds it again. Part of the composition root.
No units.
"""

import asyncio
import gc
import importlib
import logging
from collections.abc import Callable
from typing import Protocol

from gateway.api.asgi import Application, Message, Receive, Scope, Send
from gateway.api.web_pages import HostCheck
from gateway.config.settings import Settings
from gateway.events import Event
from gateway.observe.hub import Hub

_FRAMEWORK = ("gateway.server.admin", "anyio.to_thread", "anyio._backends._asyncio")
_NO_BODY = {"root_path": "", "query_string": b"", "headers": []}
_HEALTH: Scope = {"type": "http", "method": "GET", "path": "/healthz", **_NO_BODY}


def import_framework() -> None:
    """Import the modules of the admin routes, before the event loop runs."""
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


class DeferredAdmin:
    """An ASGI application that builds the admin application at its first request or by `load`.

    Args:
        settings: settings of the start.
        tasks: owner of the task that loads the framework.
        hub: hub whose events the feeds get.
        build: builds the admin application; called on a thread.
    """

    def __init__(
        self, settings: Settings, tasks: asyncio.TaskGroup, hub: Hub, build: Callable[[], AdminApplication]
    ) -> None:
        self._settings = settings
        self._tasks = tasks
        self._hub = hub
        self._build = build
        self._building = asyncio.Lock()
        self._loading: asyncio.Task[None] | None = None
        self._built: AdminApplication | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        built = self._built or await self._load()
        await built.app(scope, receive, send)

    def use(self, settings: Settings) -> None:
        """Use the admin key and the hosts of these settings."""
        self._settings = settings
        if self._built is not None:
            self._built.key = None if settings.admin_key is None else settings.admin_key.get_secret_value()
            self._built.hosts = HostCheck(settings.own_hosts)

    def end_feeds(self) -> None:
        """End every event feed."""
        if self._built is not None:
            self._built.close()

    def load_soon(self) -> None:
        """Begin to build the application, while files are left to open."""
        if self._loading is None:
            self._loading = self._tasks.create_task(self.load())

    async def load(self) -> None:
        """Build the application, and answer a first request: then no file is left to read."""
        try:
            await self(_HEALTH, _no_body, _ignore)
            from anyio import to_thread

            await to_thread.run_sync(int)
        except Exception as error:  # most likely no file is left to open
            logging.getLogger(__name__).warning(
                "the admin routes are not loaded (%s); the next request for them tries again", error
            )

    async def _load(self) -> AdminApplication:
        async with self._building:
            if self._built is None:
                built = await asyncio.to_thread(self._build)
                self._built = built
                self.use(self._settings)
                self._hub.listeners.append(built.on_event)
                gc.freeze()  # a collection would go through all modules of the framework
            return self._built


async def _no_body() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _ignore(_: Message) -> None:
    pass
