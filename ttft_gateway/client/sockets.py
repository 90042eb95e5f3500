"""Sockets of httpcore with waits that can be interrupted: a thread that waits for a server also waits for its race.

A blocking read cannot be raced from outside: no other thread may close the socket under it, because the number of the
closed file may by then belong to another connection. So the waiting thread itself waits for three things: its socket,
the time of the next decision on a backup, and a byte from another thread. No thread is needed before a request is late,
and every connection is closed by the thread that uses it. Until then no other thread can interrupt, and the timeout of
the socket itself ends a wait at the time of the decision, at the cost of any read.

`raced(pool, library)` puts these sockets into a connection pool of httpcore or httpcore2. Outside of a race they pass
each call on; in a race, `current.watch` is the watch of the thread that works for it. HTTP/1.1 only: the end of an
HTTP/2 connection would end its other requests, too. Times are read from the watch's clock, timeouts are seconds.
"""

import errno
import importlib
import math
import os
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, Self, TypeVar

from ttft_gateway.client.race import Overtaken

_T = TypeVar("_T")
SocketOption = tuple[int, int, int] | tuple[int, int, bytes | bytearray] | tuple[int, int, None, int]
_READ: Final = select.POLLIN if hasattr(select, "poll") else 1
_WRITE: Final = select.POLLOUT if hasattr(select, "poll") else 4
_WAIT_S_MAX: Final = 3600.0
_LARGE: Final = 16 * 1024  # bytes that a socket's buffer takes without waiting; a longer write may wait for the server
_PENDING: Final = frozenset({errno.EINPROGRESS, errno.EWOULDBLOCK, getattr(errno, "WSAEWOULDBLOCK", errno.EWOULDBLOCK)})


class Watch:
    """The wait of one thread for its attempt and its race.

    Args:
        clock: the clock of `due_s`.

    Attributes:
        due_s: time of the next call of `on_due`, infinite for none.
        is_over: True after `stop`.
    """

    due_s = math.inf
    is_over = False
    _wakers: tuple[socket.socket, socket.socket] | None = None

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock

    def on_due(self) -> None:
        """Decide what is due; called in the waiting thread when `due_s` has come. Sets the next time."""

    def listen(self) -> None:
        """Become interruptible by other threads; until then only `due_s` can interrupt."""
        if self._wakers is None:
            self._lock = threading.Lock()
            self._wakers = socket.socketpair()

    def stop(self) -> None:
        """End the wait with `Overtaken`; for other threads."""
        self.is_over = True
        if self._wakers is None:
            return
        with self._lock:
            if self._wakers is not None:
                self._wakers[1].send(b"x")

    def close(self) -> None:
        """Release the sockets of the watch."""
        if self._wakers is None:
            return
        with self._lock:
            wakers, self._wakers = self._wakers, None
        for waker in wakers:
            waker.close()

    def alone_s(self, timeout: float | None) -> float:
        """Return the time for which a wait needs no interruption, at most the timeout; 0 if it may need one now."""
        if self._wakers is not None:
            return 0.0
        left_s = self.due_s - self._clock()
        most_s = _WAIT_S_MAX if timeout is None else timeout
        return left_s if left_s < most_s else most_s

    def wait(self, sock: socket.socket | None, event: int, timeout: float | None) -> bool:
        """Wait for the socket; without a socket, for the end of the watch.

        Returns:
            False if the timeout has passed.

        Raises:
            Overtaken: another attempt has won.
        """
        now_s = self._clock()
        end_s = math.inf if timeout is None else now_s + timeout
        while True:
            if self.is_over:
                raise Overtaken
            if now_s >= self.due_s:
                self.on_due()
            waker = None if self._wakers is None else self._wakers[0]
            left_s = min(max(0.0, min(end_s, self.due_s) - self._clock()), _WAIT_S_MAX)
            if _ready(sock, event, waker, left_s):
                return True
            now_s = self._clock()
            if now_s >= end_s and not self.is_over:
                return False


def _ready(sock: socket.socket | None, event: int, waker: socket.socket | None, wait_s: float) -> bool:
    """Return True if the socket is ready; False after the time, or after a byte from another thread."""
    if not hasattr(select, "poll"):  # Windows
        read = [each for each in (sock if event == _READ else None, waker) if each is not None]
        write = [sock] if sock is not None and event == _WRITE else []
        readable, writable, broken = select.select(read, write, write, wait_s)
        return bool(writable or broken) or sock in readable
    poll = select.poll()
    if sock is not None:
        poll.register(sock, event)
    if waker is not None:
        poll.register(waker, _READ)
    ready = poll.poll(wait_s * 1000.0 + 0.5)
    return sock is not None and any(number == sock.fileno() for number, _ in ready)


class _Current(threading.local):
    """The watch of this thread; None outside of a race."""

    watch: Watch | None = None


current: Final = _Current()


class _Process:
    """This process: the number of forks from the first one to it."""

    forks = 0


def _after_fork() -> None:
    _Process.forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _Stream(Protocol):
    """A connection of httpcore: its `NetworkStream`."""

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes: ...
    def write(self, buffer: bytes, timeout: float | None = None) -> None: ...
    def close(self) -> None: ...
    def start_tls(self, ssl_context: ssl.SSLContext, server_hostname: str | None, timeout: float | None) -> Self: ...
    def get_extra_info(self, info: str) -> Any: ...


class _Library(NamedTuple):
    """The names of httpcore or httpcore2 that are used here."""

    stream: Callable[[socket.socket], _Stream]  # a class
    connect_error: type[Exception]
    connect_timeout: type[Exception]
    read_error: type[Exception]
    read_timeout: type[Exception]
    write_error: type[Exception]
    write_timeout: type[Exception]


class RacedStream:
    """A connection of httpcore: its `NetworkStream`.

    Args:
        inner: the stream of httpcore that it stands for.
    """

    def __init__(self, inner: _Stream, library: _Library) -> None:
        self._inner = inner
        self._library = library
        self._is_foreign = type(inner) is not library.stream  # TLS inside of TLS: its waits cannot be interrupted
        self._sock: socket.socket = inner.get_extra_info("socket")
        self._forks = _Process.forks

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        watch = current.watch
        if watch is None or self._is_foreign:
            return self._receive(max_bytes, timeout)
        alone_s, library = watch.alone_s(timeout), self._library
        if alone_s > 0.0:
            try:
                return self._receive(max_bytes, alone_s)
            except library.read_timeout:
                if timeout is not None:
                    timeout -= alone_s
                    if timeout <= 0.0:
                        raise
        sock = self._sock
        if isinstance(sock, ssl.SSLSocket):
            receive = partial(sock.recv, max_bytes)
            return self._tls(watch, receive, timeout, library.read_timeout, library.read_error)
        if not watch.wait(sock, _READ, timeout):
            raise library.read_timeout("timed out")
        return self._receive(max_bytes, timeout)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if self._is_foreign:
            self._inner.write(buffer, timeout)
            return
        sock, library = self._sock, self._library
        if len(buffer) < _LARGE or (watch := current.watch) is None:
            try:
                while buffer:
                    if sock.gettimeout() != timeout:
                        sock.settimeout(timeout)
                    buffer = buffer[sock.send(buffer) :]
            except TimeoutError as error:
                raise library.write_timeout(error) from error
            except OSError as error:
                raise library.write_error(error) from error
            return
        view = memoryview(buffer)
        while view:
            if isinstance(sock, ssl.SSLSocket):
                part = partial(sock.send, bytes(view[:_LARGE]))
                sent = self._tls(watch, part, timeout, library.write_timeout, library.write_error)
            else:
                if not watch.wait(sock, _WRITE, timeout):
                    raise library.write_timeout("timed out")
                sent = self._send(sock, view)
            view = view[sent:]

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> "RacedStream":
        watch, sock, library = current.watch, self._sock, self._library
        if watch is None or isinstance(sock, ssl.SSLSocket):
            return RacedStream(self._inner.start_tls(ssl_context, server_hostname, timeout), library)
        try:
            tls = ssl_context.wrap_socket(sock, server_hostname=server_hostname, do_handshake_on_connect=False)
        except OSError as error:
            sock.close()
            raise library.connect_error(str(error)) from error
        stream = RacedStream(library.stream(tls), library)
        try:
            stream._tls(watch, tls.do_handshake, timeout, library.connect_timeout, library.connect_error)
        except BaseException:
            tls.close()
            raise
        return stream

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable" and self._forks != _Process.forks:
            return True  # after a fork the connection belongs to the parent; an idle readable one is not used again
        return self._inner.get_extra_info(info)

    # inside

    def _receive(self, max_bytes: int, timeout: float | None) -> bytes:
        """Read as httpcore does, with a third of its instructions; its context manager for errors takes the others."""
        if self._is_foreign:
            return self._inner.read(max_bytes, timeout)
        sock, library = self._sock, self._library
        try:
            if sock.gettimeout() != timeout:  # setting it is a call of the kernel
                sock.settimeout(timeout)
            return sock.recv(max_bytes)
        except TimeoutError as error:
            raise library.read_timeout(error) from error
        except OSError as error:
            raise library.read_error(error) from error

    def _tls(
        self,
        watch: Watch,
        step: Callable[[], _T],
        timeout: float | None,
        timed_out: type[Exception],
        failed: type[Exception],
    ) -> _T:
        """Do one step of TLS without blocking: a readable socket may have no data for it, but a ticket."""
        sock = self._sock
        while True:
            try:
                sock.settimeout(0)
                return step()
            except ssl.SSLWantReadError:
                event = _READ
            except ssl.SSLWantWriteError:
                event = _WRITE
            except OSError as error:
                raise failed(str(error)) from error
            if not watch.wait(sock, event, timeout):
                raise timed_out("timed out")

    def _send(self, sock: socket.socket, view: memoryview) -> int:
        try:
            sock.settimeout(0)
            return sock.send(view)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._library.write_error(str(error)) from error


class RacedBackend:
    """The `NetworkBackend` of a connection pool of httpcore.

    Args:
        inner: the backend that it stands for.
    """

    def __init__(self, inner: Any, library: _Library) -> None:
        self._inner = inner
        self._library = library

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[SocketOption] | None = None,
    ) -> RacedStream:
        watch = current.watch
        if watch is None:
            inner = self._inner.connect_tcp(host, port, timeout, local_address, socket_options)
            return RacedStream(inner, self._library)
        sock = self._connect(watch, host, port, timeout, local_address)
        for option in socket_options or ():
            sock.setsockopt(*option)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return RacedStream(self._library.stream(sock), self._library)

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[SocketOption] | None = None
    ) -> RacedStream:
        return RacedStream(self._inner.connect_unix_socket(path, timeout, socket_options), self._library)

    def sleep(self, seconds: float) -> None:
        self._inner.sleep(seconds)

    def _connect(
        self, watch: Watch, host: str, port: int, timeout: float | None, local_address: str | None
    ) -> socket.socket:
        """Connect to the first address of a host that accepts; the look-up of the name itself blocks."""
        library = self._library
        failure: OSError | None = None
        try:
            addresses = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)
        except OSError as error:
            raise library.connect_error(str(error)) from error
        for family, kind, protocol, _, address in addresses:
            sock = None
            try:
                sock = socket.socket(family, kind, protocol)
                sock.settimeout(0)
                if local_address is not None:
                    sock.bind((local_address, 0))
                number = sock.connect_ex(address)
                if number in _PENDING:
                    if not watch.wait(sock, _WRITE, timeout):
                        raise library.connect_timeout("timed out")
                    number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if not number:
                    return sock
                failure = OSError(number, os.strerror(number))
            except OSError as error:
                failure = error
            except BaseException:
                if sock is not None:
                    sock.close()
                raise
            if sock is not None:
                sock.close()
        raise library.connect_error(str(failure or "no address was found")) from failure


def raced(pool: Any, library: str) -> None:
    """Make the waits of a connection pool interruptible; idle connections, which are not, are closed.

    Args:
        library: "httpcore" or "httpcore2".

    Raises:
        TypeError: the pool is none of this library, or uses HTTP/2.
    """
    core = importlib.import_module(library)
    backend = getattr(pool, "_network_backend", None)
    if not isinstance(pool, core.ConnectionPool) or backend is None:
        raise TypeError(f"the inner transport has no connection pool of {library}; use an HTTPTransport")
    if getattr(pool, "_http2", False):
        raise TypeError("the inner transport uses HTTP/2; create it with http2=False, or use the asynchronous client")
    if isinstance(backend, RacedBackend):
        return
    names = _Library(
        importlib.import_module(f"{library}._backends.sync").SyncStream,
        core.ConnectError,
        core.ConnectTimeout,
        core.ReadError,
        core.ReadTimeout,
        core.WriteError,
        core.WriteTimeout,
    )
    pool._network_backend = RacedBackend(backend, names)
    for connection in pool.connections:
        if connection.is_idle():
            connection.close()
