"""A network stream for httpcore that listens while it writes, so that an early answer is received.

A server may refuse before it has read the request, and close (RFC 9112, 9.5). httpcore reads only when all is written
or writing has failed, and by then a reset has taken the answer with it. Units: bytes.
"""

import asyncio
import ssl
from collections.abc import Iterable
from typing import Final

import httpcore

_LISTEN_FROM_BYTES: Final = 65_536  # what is less goes out at once, most likely
_RECEIVED_MAX: Final = 65_536
_HTTP2: Final = b"PRI * HTTP/2"  # there frames of both directions are apart from each other, and httpcore reads them
_INFORMATIONAL: Final = b"HTTP/1.1 1"  # informational: the answer is still to come


class ListeningBackend(httpcore.AsyncNetworkBackend):
    """Connects as httpcore does by itself."""

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
    """One connection."""

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
        """Write; where an answer comes meanwhile, stop.

        Raises:
            httpcore.WriteError: it was not all written; httpcore then reads the answer.
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
            raise httpcore.WriteError("the connection ended, or was answered, before the request was out")

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        return _Listening(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> object:
        return self._stream.get_extra_info(info)

    async def _listen(self) -> None:
        """Until there is an answer or an end; nothing is lost where this is cancelled."""
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
