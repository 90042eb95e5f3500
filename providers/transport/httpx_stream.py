"""A network stream for httpcore that reads while it writes, so that an early response is received.

A server may reject a request before it has read all of it, and close (RFC 9112, 9.5). httpcore reads only after it has
written everything or writing has failed, and by then a reset has discarded the response. Units: bytes.
"""

import asyncio
import ssl
from collections.abc import Iterable
from typing import Final

import httpcore

_LISTEN_FROM_BYTES: Final = 65_536  # shorter requests most likely fit into the socket's buffer
_RECEIVED_MAX: Final = 65_536
_HTTP2: Final = b"PRI * HTTP/2"  # in HTTP/2 the directions are independent, and httpcore reads while it writes
_INFORMATIONAL: Final = b"HTTP/1.1 1"  # an informational response, before the final one


class ListeningBackend(httpcore.AsyncNetworkBackend):
    """Connects like httpcore's default backend, and wraps the stream."""

    def __init__(self) -> None:
        self._backend = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        return _Listening(await self._backend.connect_tcp(host, port, timeout, local_address, socket_options))

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None
    ) -> httpcore.AsyncNetworkStream:
        return _Listening(await self._backend.connect_unix_socket(path, timeout, socket_options))


class _Listening(httpcore.AsyncNetworkStream):
    """One connection that reads while it writes a large buffer."""

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream
        self._received = b""
        self._http2 = False

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self._received:
            received, self._received = self._received[:max_bytes], self._received[max_bytes:]
            return received
        return await self._stream.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Write; stop if a response arrives before the end.

        Raises:
            httpcore.WriteError: not everything was written; httpcore then reads the response.
        """
        self._http2 |= buffer.startswith(_HTTP2)
        if self._http2 or len(buffer) < _LISTEN_FROM_BYTES:
            await self._stream.write(buffer, timeout)
            return
        async with asyncio.TaskGroup() as tasks:
            listening = tasks.create_task(self._listen())
            writing = tasks.create_task(self._written(buffer, timeout))
            await asyncio.wait((listening, writing), return_when=asyncio.FIRST_COMPLETED)
            listening.cancel()
            writing.cancel()
        if writing.cancelled() or not writing.result():
            raise httpcore.WriteError("the connection ended or the server responded before the request was sent")

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        return _Listening(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> object:
        return self._stream.get_extra_info(info)

    async def _listen(self) -> None:
        """Read until there is a final response or the end; cancelling loses no data."""
        while not self._received or (self._received.startswith(_INFORMATIONAL) and len(self._received) < _RECEIVED_MAX):
            try:
                data = await self._stream.read(_RECEIVED_MAX)
            except httpcore.ReadError:
                return
            if not data:
                return
            self._received += data

    async def _written(self, buffer: bytes, timeout: float | None) -> bool:
        try:
            await self._stream.write(buffer, timeout)
        except httpcore.WriteError:
            return False
        return True
