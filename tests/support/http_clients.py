"""The HTTP clients that one contract holds for, by name; for the tests that both must pass."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from providers.transport.http1 import WireClient
from providers.transport.httpx_client import HttpxClient
from providers.transport.origin import Origin
from scripted_http import Server

CLIENTS: Final[dict[str, Callable[[Origin, asyncio.TaskGroup], WireClient | HttpxClient]]] = {
    "wire": WireClient,
    "httpx": HttpxClient,
}
REUSES: Final = {"wire": True, "httpx": False}
"""Whether an HTTP/1.1 connection carries the next request, too: httpx is not trusted with what may follow an answer."""


@contextlib.asynccontextmanager
async def client_of(kind: str, server: Server, **origin: Any) -> AsyncIterator[WireClient | HttpxClient]:
    """A client of that server, closed at the end."""
    async with asyncio.TaskGroup() as tasks:
        client = CLIENTS[kind](Origin(**{"host": "127.0.0.1", "port": server.port, **origin}), tasks)
        yield client
        client.close()
