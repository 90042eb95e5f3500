"""Connections of httpcore on asyncio that are read without anyio, at a lower cost.

For each read, anyio opens a scope, adds the socket to the selector of the event loop, and removes it again. A stream
has as many reads as tokens, and that was a quarter of httpx's CPU time. Here the socket stays in the selector, data
waits in a short queue, and a timer of the loop bounds a wait.

anyio still connects: `quick(pool)` takes over the connections that it has made, and keeps the errors that it raises. A
connection that is none of asyncio's transports, as with trio or a Unix domain socket, stays anyio's.
"""

import asyncio
import importlib
import ssl
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

_T = TypeVar("_T")
_QUEUE_BYTES: Final = 64 * 1024  # from which on nothing more is read from the socket


class _Errors(NamedTuple):
    """The errors of httpcore or httpcore2 that a connection raises."""

    connect_error: type[Exception]
    connect_timeout: type[Exception]
    read_error: type[Exception]
    read_timeout: type[Exception]
    write_error: type[Exception]
    write_timeout: type[Exception]
    unavailable: type[Exception]  # of a connection: httpcore takes another one


class QuickStream(asyncio.Protocol):
    """A connection as asyncio and as httpcore see it: a protocol and an `AsyncNetworkStream`."""

    def __init__(self, inner: Any, transport: asyncio.Transport, errors: _Errors) -> None:
        self._inner = inner  # anyio's, in its form for httpcore
        self._transport = transport
        self._errors = errors
        self._loop = asyncio.get_running_loop()
        self._queue: deque[bytes] = deque()
        self._queued = 0  # bytes
        self._is_paused = False  # reading
        self._is_full = False  # the buffer of what is written
        self._is_over = False  # no more data will arrive
        self._is_closed = False  # here
        self._is_chosen = False  # found alive when it was idle
        self._unpaused = 0  # bytes that were written since the last wait
        self._error: Exception | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None

    # asyncio's side

    def data_received(self, data: bytes) -> None:
        self._queue.append(data)
        self._queued += len(data)
        if self._queued > _QUEUE_BYTES and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        _wake(self._reader)

    def eof_received(self) -> bool:
        """Note the end; the rest of a request is still sent."""
        self._is_over = True
        _wake(self._reader)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over = True
        self._error = exc
        _wake(self._reader)
        _wake(self._writer)

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        _wake(self._writer)

    # httpcore's side

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Return the next bytes, b"" at the end."""
        if not self._queue and not self._is_over:
            self._reader = self._loop.create_future()
            await _wait(self._reader, timeout, self._errors.read_timeout)
        if not self._queue:
            if self._is_closed or self._error is not None:
                raise self._errors.read_error from self._error
            return b""
        piece = self._queue.popleft()
        if len(piece) > max_bytes:
            self._queue.appendleft(piece[max_bytes:])
            piece = piece[:max_bytes]
        self._queued -= len(piece)
        if self._is_paused and self._queued <= _QUEUE_BYTES and not self._is_over:
            self._is_paused = False
            self._transport.resume_reading()
        return piece

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Write; return when the buffer has room again.

        If the server has closed the idle connection since it was chosen, nothing of the request is sent, and httpcore
        takes another one: with many tasks, the loop does much between the two. So this is when the socket is polled.
        """
        if not buffer:
            return
        if self._is_chosen:
            self._is_chosen = False
            if self._is_readable() or self._inner.get_extra_info("is_readable"):
                raise self._errors.unavailable
        self._check_open()
        self._transport.write(buffer)
        self._unpaused += len(buffer)
        if self._is_full:
            self._unpaused = 0
            self._writer = self._loop.create_future()
            await _wait(self._writer, timeout, self._errors.write_timeout)
            self._check_open()
        elif self._unpaused > _QUEUE_BYTES:  # the network is fast: let other tasks run, too
            self._unpaused = 0
            await asyncio.sleep(0)

    def _is_readable(self) -> bool:
        return bool(self._queue) or self._is_over

    def _check_open(self) -> None:
        if self._is_closed or self._error is not None or self._transport.is_closing():
            raise self._errors.write_error from self._error

    async def aclose(self) -> None:
        """Close at once; what is not sent yet is lost."""
        self._is_closed = self._is_over = True
        self._transport.abort()
        _wake(self._reader)
        _wake(self._writer)

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> "QuickTls":
        """Encrypt the connection from here on; close it if that fails."""
        return await _encrypt(self, self._errors, ssl_context, server_hostname, timeout)

    def get_extra_info(self, info: str) -> Any:
        """Return what httpcore and its users ask about a connection."""
        if info == "is_readable":
            is_readable = self._is_readable()
            self._is_chosen = not is_readable
            return is_readable
        return self._inner.get_extra_info(info)


class QuickTls:
    """TLS in a connection, which may have TLS itself: an `AsyncNetworkStream`.

    asyncio's and uvloop's TLS lose what a slow reader has not read yet when the connection ends, and read what came
    before the handshake as if it were encrypted. Here records wait in the connection until they are read.
    """

    def __init__(
        self, below: "QuickStream | QuickTls", errors: _Errors, context: ssl.SSLContext, name: str | None
    ) -> None:
        self._below = below
        self._errors = errors
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=name)

    async def handshake(self, timeout: float | None) -> None:
        """Begin."""
        await self._call(timeout, self._object.do_handshake)

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Return the next bytes, b"" at the end, also if the server has not announced it."""
        try:
            return await self._call(timeout, self._object.read, max_bytes)
        except ssl.SSLEOFError:
            return b""

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Write; return when the buffer has room again."""
        if buffer:
            await self._call(timeout, self._object.write, buffer)

    async def _call(self, timeout: float | None, work: Callable[..., _T], *args: object) -> _T:
        """Do work of OpenSSL, and exchange the records that it needs."""
        end_s = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                result = work(*args)
            except ssl.SSLWantReadError:
                if self._outgoing.pending:
                    await self._flush(end_s)
                data = await self._below.read(_QUEUE_BYTES, _left_s(end_s))
                self._incoming.write(data) if data else self._incoming.write_eof()
            else:
                if self._outgoing.pending:
                    await self._flush(end_s)
                return result

    async def _flush(self, end_s: float | None) -> None:
        await self._below.write(self._outgoing.read(), _left_s(end_s))

    async def aclose(self) -> None:
        """Close at once; what is not sent yet is lost."""
        await self._below.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> "QuickTls":
        """Encrypt what is within from here on; close the connection if that fails."""
        return await _encrypt(self, self._errors, ssl_context, server_hostname, timeout)

    def get_extra_info(self, info: str) -> Any:
        """Return what httpcore and its users ask about a connection."""
        if info == "is_readable" and self._incoming.pending:  # such as the end, if it came with an answer
            return True
        return self._object if info == "ssl_object" else self._below.get_extra_info(info)


async def _encrypt(
    below: QuickStream | QuickTls,
    errors: _Errors,
    context: ssl.SSLContext,
    hostname: str | None,
    timeout: float | None,
) -> QuickTls:
    try:
        stream = QuickTls(below, errors, context, hostname)
        await stream.handshake(timeout)
    except BaseException as error:
        await below.aclose()
        if isinstance(error, errors.read_timeout | errors.write_timeout):
            raise errors.connect_timeout from None
        if isinstance(error, errors.read_error | errors.write_error | ssl.SSLEOFError):
            raise errors.connect_error from error
        if isinstance(error, ssl.SSLError):
            raise errors.connect_error(str(error)) from error
        raise
    return stream


class QuickBackend:
    """The `AsyncNetworkBackend` of a connection pool of httpcore.

    Args:
        inner: the backend that connects.
    """

    def __init__(self, inner: Any, errors: _Errors) -> None:
        self._inner = inner
        self._errors = errors

    async def connect_tcp(self, *args: Any, **settings: Any) -> Any:
        inner = await self._inner.connect_tcp(*args, **settings)
        below = getattr(inner, "_stream", None)
        transport: Any = getattr(below, "_transport", None)
        protocol: Any = getattr(below, "_protocol", None)
        if transport is None or not hasattr(protocol, "read_queue") or protocol.is_at_eof or transport.is_closing():
            return inner
        stream = QuickStream(inner, transport, self._errors)
        for piece in protocol.read_queue:  # arrived before anyio paused
            stream.data_received(piece)
        transport.set_protocol(stream)
        transport.resume_reading()
        return stream

    async def connect_unix_socket(self, *args: Any, **settings: Any) -> Any:
        return await self._inner.connect_unix_socket(*args, **settings)

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


def quick(pool: Any) -> None:
    """Take over the connections that a pool makes from now on.

    Args:
        pool: asynchronous pool of httpcore or httpcore2 with its own backend; any other object is left alone.
    """
    backend = getattr(pool, "_network_backend", None)
    library, _, name = type(backend).__module__.partition(".")
    if name != "_backends.auto":
        return
    core = importlib.import_module(library)
    names = (
        "ConnectError",
        "ConnectTimeout",
        "ReadError",
        "ReadTimeout",
        "WriteError",
        "WriteTimeout",
        "ConnectionNotAvailable",
    )
    pool._network_backend = QuickBackend(backend, _Errors(*(getattr(core, each) for each in names)))


def _left_s(end_s: float | None) -> float | None:
    return None if end_s is None else max(0.0, end_s - time.monotonic())


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


async def _wait(waiter: asyncio.Future[None], timeout: float | None, late: type[Exception]) -> None:
    """Wait; raise an error if the timeout passes first."""
    if timeout is None:
        await waiter
        return
    timer = waiter.get_loop().call_later(timeout, _expire, waiter, late)
    try:
        await waiter
    finally:
        timer.cancel()


def _expire(waiter: asyncio.Future[None], late: type[Exception]) -> None:
    if not waiter.done():
        waiter.set_exception(late)
