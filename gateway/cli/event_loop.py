"""The gateway's event loop: uvloop's where it is installed, else asyncio's; both with bounded name lookups.

asyncio and anyio, and so all clients, look names up with the loop's `getaddrinfo`, and neither calls it for an IP
address or a unix socket. No units.
"""

import asyncio
import os
from collections.abc import Callable
from typing import Final

from gateway.cli.name_lookups import Infos, NameLookups

LOOP_VARIABLE: Final = "TTFT_GATEWAY_LOOP"  # "asyncio": do not use uvloop


class AsyncioLoop(asyncio.SelectorEventLoop):
    """asyncio's loop with bounded threads for name lookups."""

    def __init__(self) -> None:
        super().__init__()
        self._lookups = NameLookups(self)

    async def getaddrinfo(self, host: bytes | str | None, port: bytes | str | int | None, **options: int) -> Infos:
        if host is None or not isinstance(port, int):  # to listen on all addresses, or to look up a service
            return await super().getaddrinfo(host, port, **options)
        return await self._lookups.addresses(host, port, options)


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop."""
    return _loop_class()()


def loop_name() -> str:
    """Return the name of the library that provides the loop: uvloop or asyncio."""
    return "asyncio" if _loop_class() is AsyncioLoop else "uvloop"


def _loop_class() -> Callable[[], asyncio.AbstractEventLoop]:
    if os.environ.get(LOOP_VARIABLE) == "asyncio":
        return AsyncioLoop
    try:
        from gateway.cli.uv_loop import UvLoop
    except ImportError:  # Windows, PyPy, or a system without a build of it
        return AsyncioLoop
    return UvLoop
