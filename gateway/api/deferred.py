"""An ASGI application that is built on a thread when it is needed, so that the start does not wait for its framework.

Requests wait while it is built; after a failure, the next request builds it again. No units.
"""

import asyncio
import gc
from collections.abc import Callable

from gateway.api.asgi import Application, Receive, Scope, Send


class Deferred:
    """An application that is built at its first request or by `load`.

    Args:
        build: builds the application; called on a thread.
    """

    def __init__(self, build: Callable[[], Application]) -> None:
        self._build = build
        self._building = asyncio.Lock()
        self._application: Application | None = None

    async def load(self) -> Application:
        """Return the application, after it was built."""
        async with self._building:
            if self._application is None:
                self._application = await asyncio.to_thread(self._build)
                gc.freeze()  # a collection would go through all modules of the framework
        return self._application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self._application or await self.load())(scope, receive, send)
