"""Sends a body over HTTP with one deadline for all of it, and reads an answer of bounded size. Blocks its thread.

A time limit of each read does not suffice: a server that sends a byte a second would hold the thread for ever. So each
operation on the socket is limited to the remaining time of the request. Units: seconds, bytes.
"""

import ssl
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import httpcore

_ANSWER_BYTES_MAX: Final = 65_536  # an answer to an export has some 100; httpcore bounds its headers
_PIECE_BYTES: Final = 4_096  # of a write; a server that takes it byte by byte has the time limit for each


class PostFailed(Exception):
    """There is no usable answer; the text is the reason.

    Attributes:
        is_retried: True if another try may help.
    """

    def __init__(self, reason: str, *, is_retried: bool) -> None:
        super().__init__(reason)
        self.is_retried = is_retried


class BoundedPost:
    """Sends to one server, over connections that are reused.

    Args:
        headers: headers of each request.
        tls: context of connections with TLS.
        timeout_s: time limit of a request, from the connect to the end of the answer.
        now_s: returns the time, from any thread.
    """

    def __init__(
        self, headers: Mapping[str, str], tls: ssl.SSLContext, timeout_s: float, now_s: Callable[[], float]
    ) -> None:
        self._headers = [(name.encode(), value.encode()) for name, value in headers.items()]
        self._timeout_s = timeout_s
        self._deadline = _Deadline(now_s)
        self._pool = httpcore.ConnectionPool(ssl_context=tls, network_backend=_Backend(self._deadline))

    def post(self, url: str, body: bytes) -> int:
        """Return the status code of the answer.

        Raises:
            PostFailed: there is none, or the answer is too large or too slow.
        """
        self._deadline.set(self._timeout_s)
        size = 0
        try:
            with self._pool.stream("POST", url, headers=self._headers, content=body) as response:
                for part in response.iter_stream():
                    size += len(part)
                    if size > _ANSWER_BYTES_MAX:
                        reason = f"its answer is larger than {_ANSWER_BYTES_MAX} bytes"
                        raise PostFailed(reason, is_retried=False)
                return response.status
        except httpcore.TimeoutException:
            raise PostFailed(f"no whole answer within {self._timeout_s:g} s", is_retried=True) from None
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.UnsupportedProtocol) as error:
            raise PostFailed(str(error) or type(error).__name__, is_retried=True) from error

    def close(self) -> None:
        """End the connections."""
        self._pool.close()


class _Deadline:
    """The end of the request under way."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._end_s = 0.0

    def set(self, timeout_s: float) -> None:
        self._end_s = self._now_s() + timeout_s

    def left_s(self) -> float:
        """Return the remaining time.

        Raises:
            httpcore.ReadTimeout: there is none.
        """
        left_s = self._end_s - self._now_s()
        if left_s <= 0:
            raise httpcore.ReadTimeout
        return left_s


class _Backend(httpcore.NetworkBackend):
    """Connects like httpcore's default backend, within the deadline."""

    def __init__(self, deadline: _Deadline) -> None:
        self._backend = httpcore.SyncBackend()
        self._deadline = deadline

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        left_s = self._deadline.left_s()
        stream = self._backend.connect_tcp(host, port, left_s, local_address, socket_options)
        return _Stream(stream, self._deadline)


class _Stream(httpcore.NetworkStream):
    """A connection of which each operation is limited to the remaining time."""

    def __init__(self, stream: httpcore.NetworkStream, deadline: _Deadline) -> None:
        self._stream = stream
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._deadline.left_s())

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Write in pieces, because a write of httpcore has its whole time limit for each part that the server takes."""
        for start in range(0, len(buffer), _PIECE_BYTES):
            self._stream.write(buffer[start : start + _PIECE_BYTES], self._deadline.left_s())

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, self._deadline.left_s()), self._deadline)

    def get_extra_info(self, info: str) -> object:
        return self._stream.get_extra_info(info)
