"""uvloop's event loop with what the gateway needs of asyncio's: its clock, its timers, and bounded name lookups.

The only importer of uvloop. Units: seconds.
"""

import asyncio
import math
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from contextvars import Context
from functools import partial
from typing import Final, TypeVar, cast

import uvloop

from gateway.cli.name_lookups import Infos, NameLookups

_DELAY_S_MAX: Final = 86_400.0 * 365  # asyncio allows infinite ones

Protocol = TypeVar("Protocol", bound=asyncio.BaseProtocol)


class UvLoop(uvloop.Loop):
    """uvloop's loop with a clock finer than its milliseconds, and bounded threads for name lookups."""

    time = staticmethod(time.monotonic)

    def __init__(self) -> None:
        super().__init__()
        self._lookups = NameLookups(self)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call at this time or up to 1 ms after it, as asyncio does; uvloop counts from the last whole millisecond."""
        now = self.time()
        delay_ms = math.ceil(min(when, now + _DELAY_S_MAX) * 1000) - math.floor(now * 1000)
        return super().call_later(max(delay_ms, 0) / 1000, callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> asyncio.TimerHandle:
        if delay <= 0.0:  # in the next turn of the loop, as asyncio does
            return super().call_later(0.0, callback, *args, context=context)
        return self.call_at(self.time() + delay, callback, *args, context=context)

    async def getaddrinfo(self, host: bytes | str | None, port: bytes | str | int | None, **options: int) -> Infos:
        if host is None or not isinstance(port, int):  # to listen on all addresses, or to look up a service
            return await super().getaddrinfo(host, port, **options)
        return await self._lookups.addresses(host, port, options)

    async def create_connection(
        self,
        protocol_factory: Callable[[], Protocol],
        host: str | None = None,
        port: int | None = None,
        *,
        ssl: ssl.SSLContext | bool | None = None,
        server_hostname: str | None = None,
        **options: object,
    ) -> tuple[asyncio.BaseTransport, Protocol]:
        """Connect as asyncio does, to each address of the name in turn; uvloop would look it up on its own threads."""
        connect = cast(
            Callable[..., Awaitable[tuple[asyncio.BaseTransport, Protocol]]],
            partial(super().create_connection, protocol_factory, ssl=ssl, **options),
        )
        if host is None or _is_address(host):
            return await connect(host, port, server_hostname=server_hostname)
        if ssl and server_hostname is None:
            server_hostname = host
        errors: list[OSError] = []
        for *_, address in await self.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            try:
                return await connect(address[0], port, server_hostname=server_hostname)
            except OSError as error:
                errors.append(error)
        try:
            if len({str(error) for error in errors}) == 1:
                raise errors[0]
            raise OSError(f"no address of the name can be reached: {', '.join(map(str, errors))}")
        finally:
            errors.clear()  # their tracebacks refer to this frame


def _is_address(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host.partition("%")[0])
        except (OSError, ValueError):
            continue
        return True
    return False
