"""TLS of one upstream connection, between the transport of its socket and its HTTP protocol.

OpenSSL reads and writes memory (`ssl.MemoryBIO`); this class moves the bytes. asyncio's own TLS takes four times as
many instructions a record, and 256 kB a connection. The protocol below is connected after the handshake. The peer's
end without a `close_notify` is an error for it, because an answer could have been cut there (RFC 9112, 9.8).

Units: bytes.
"""

import asyncio
import contextlib
import ssl
from collections import deque
from typing import Final, cast

_RECORD_BYTES_MAX: Final = 16_384  # of plain text (RFC 8446, 5.1): one read takes a whole record
_ENCRYPTED_BYTES: Final = 4 * _RECORD_BYTES_MAX  # at a time: a MemoryBIO never frees the memory of its largest content


class TlsTransport(asyncio.Transport, asyncio.Protocol):
    """The protocol of a socket's transport, and the transport of a protocol.

    Args:
        protocol: receives the plain text.
        context: certificates and options.
        host: name or address that the certificate must have.

    Raises:
        ValueError: the host cannot be a name.
    """

    __slots__ = (
        "_backlog",
        "_closing",
        "_fault",
        "_full",
        "_incoming",
        "_is_open",
        "_is_whole",
        "_outgoing",
        "_paused",
        "_protocol",
        "_settled",
        "_socket",
        "_tls",
    )

    _socket: asyncio.Transport

    def __init__(self, protocol: asyncio.Protocol, context: ssl.SSLContext, host: str) -> None:
        super().__init__()
        self._protocol = protocol
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._settled = asyncio.Event()  # the handshake is over
        self._is_open = False  # it succeeded
        self._fault: Exception | None = None
        self._backlog: deque[memoryview] = deque()  # plain text to write after a renegotiation
        self._full = False  # the socket's transport buffers enough
        self._paused = False  # the protocol was paused, for either reason
        self._is_whole = False  # the peer's `close_notify` was received
        self._closing = False

    async def opened(self) -> None:
        """Wait for the end of the handshake.

        Raises:
            OSError: it failed.
        """
        await self._settled.wait()
        if not self._is_open:
            try:
                raise self._fault or ConnectionResetError
            finally:
                self._fault = None  # its traceback refers to this object

    # asyncio.Protocol, for the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast(asyncio.Transport, transport)
        self._shake_hands()

    def data_received(self, data: bytes) -> None:
        incoming = self._incoming
        incoming.write(data)
        if not self._is_open and not self._shake_hands():
            return
        records: list[bytes] = []
        try:
            while incoming.pending:  # an incomplete record raises
                record = self._tls.read(_RECORD_BYTES_MAX)
                if not record:
                    self._is_whole = True
                    break
                records.append(record)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._fault = error
        if self._outgoing.pending:  # the answer to a new key, or an alert
            self._flush()
        if self._backlog:
            self._encrypt()
        if records:
            self._protocol.data_received(b"".join(records))
        if self._fault is not None:
            self.abort()
        elif self._is_whole:
            self.close()

    def eof_received(self) -> bool:
        return False  # the socket is then closed

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None and not self._is_whole and not self._closing:
            exc = ConnectionResetError()
        self._fault = self._fault or exc
        self._closing = True
        self._backlog.clear()
        if self._is_open:
            self._protocol.connection_lost(self._fault)
        del self._protocol  # it refers to this object: no cycle outlives a connection
        self._settled.set()

    def pause_writing(self) -> None:
        self._full = True
        self._tell_flow()

    def resume_writing(self) -> None:
        self._full = False
        self._tell_flow()

    # asyncio.Transport, for the protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if data and not self._closing:
            self._backlog.append(memoryview(data))
            self._encrypt()

    def get_write_buffer_size(self) -> int:
        return self._socket.get_write_buffer_size() + sum(map(len, self._backlog))

    def pause_reading(self) -> None:
        self._socket.pause_reading()

    def resume_reading(self) -> None:
        self._socket.resume_reading()

    def close(self) -> None:
        """Send `close_notify` and close, without waiting for the peer's."""
        if self._closing:
            return
        self._closing = True
        with contextlib.suppress(ssl.SSLError):  # nearly always SSLWantReadError: the peer has not closed
            self._tls.unwrap()
        self._flush()
        self._socket.close()

    def abort(self) -> None:
        self._closing = True
        self._backlog.clear()
        self._socket.abort()

    def is_closing(self) -> bool:
        return self._closing

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self._tls if name == "ssl_object" else self._socket.get_extra_info(name, default)

    # Internals

    def _shake_hands(self) -> bool:
        """Take the next step of the handshake; return True when it has succeeded."""
        if self._closing:
            return False
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except ssl.SSLError as error:
            self._fault = error
            self._closing = True
            self._flush()  # the alert
            self._socket.close()
            self._settled.set()
            return False
        self._flush()
        self._is_open = True
        self._protocol.connection_made(self)
        self._settled.set()
        return True

    def _encrypt(self) -> None:
        """Write the backlog, as much as OpenSSL takes: nothing while a server with TLS 1.2 renegotiates."""
        backlog = self._backlog
        try:
            while backlog:
                written = self._tls.write(backlog[0][:_ENCRYPTED_BYTES])
                self._flush()
                if written < len(backlog[0]):
                    backlog[0] = backlog[0][written:]
                else:
                    backlog.popleft()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._fault = error
            self.abort()
            return
        self._tell_flow()

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._socket.write(self._outgoing.read())

    def _tell_flow(self) -> None:
        """Pause or resume the protocol's writing."""
        is_paused = self._full or bool(self._backlog)
        if self._is_open and is_paused != self._paused:
            self._paused = is_paused
            if is_paused:
                self._protocol.pause_writing()
            else:
                self._protocol.resume_writing()
