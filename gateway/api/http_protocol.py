"""uvicorn's HTTP protocol with limits on headers, trailers, pipelined requests, and unread responses.

Everything else is uvicorn's. A rejected request never reaches the application, and still gets an OpenAI error body,
after the responses to earlier requests on the connection. Units: seconds, bytes.
"""

import asyncio
import contextlib
import fcntl
import logging
import struct
import sys
import termios
from typing import Any, cast

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from gateway.api.connections import SCOPE_KEY, ClientConnection, WaitingConnections
from gateway.errors import BadRequest, GatewayError
from providers.base import Headers

_LOG = logging.getLogger(__name__)
_LOG.setLevel(logging.ERROR)  # uvicorn warns of each bad request, so that any client could fill the log

HEAD_BYTES_MAX = 64 * 1024  # request line and headers; a key and a trace header take 1 kB
HEAD_S_MAX = 10.0
PIPELINED_MAX = 16  # requests sent in advance; each costs kilobytes, and one read may bring thousands
_BODIES = (b"content-length", b"transfer-encoding")
_SINGLE = (b"host", b"authorization", b"x-api-key", b"api-key")
UNREAD_S_MAX = 60.0  # a client that reads nothing of its response for this long is disconnected


class HeadersTooLarge(BadRequest):
    """The request line and headers are over the limit."""

    status = 431
    code = "headers_too_large"


class SlowHeaders(BadRequest):
    """The request line and headers arrived too late."""

    status = 408
    kind = "timeout_error"
    code = "request_timeout"


class _Rejected(Exception):  # httptools catches it
    """Stops the parser at a request that is rejected."""


class _AnyLength(int):
    """The length of a body that ends with the connection: no body is longer, and nothing remains of it."""

    def __lt__(self, other: int) -> bool:
        return False

    def __sub__(self, other: int) -> "_AnyLength":
        return self


class BoundedHttpProtocol(HttpToolsProtocol):
    """One client connection."""

    scope: Any  # that of ASGI, with the key SCOPE_KEY

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        waiting: WaitingConnections | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._waiting = WaitingConnections() if waiting is None else waiting
        self._connection: ClientConnection  # from connection_made on
        self.logger = _LOG
        self._head_bytes = 0
        self._data = b""  # what is being read
        self._read_bytes = 0
        self._unread_bytes = 0
        self._last_read_s = self.loop.time()  # time of the client's last read, or at which nothing was left to read
        self._bytes_since_body = 0  # since the last piece of a body: the parser keeps trailers, too
        self._rejection: GatewayError | None = None
        self._last_response: bytes | None = None  # the last response, sent after pending ones; if set, input is ignored
        self.head_since_s: float | None = self.loop.time()  # None while no head is awaited
        self._idle_since_s: float | None = None  # None before the first request and while one is served

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        self._connection = ClientConnection(self._waiting, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._connection.closed()

    def data_received(self, data: bytes) -> None:
        if self._last_response is not None:
            return
        self._data, self._read_bytes = data, len(data)
        self._bytes_since_body += len(data)
        super().data_received(data)
        self._data = b""
        if self.head_since_s is not None:  # the data belongs to a head that is still incomplete
            self._head_bytes += len(data)
        if max(self._head_bytes, self._bytes_since_body) > HEAD_BYTES_MAX and not self.transport.is_closing():
            self._rejection = _too_large()
            self.send_400_response("")

    def _unsupported_upgrade_warning(self) -> None:
        """Ignore an upgrade: parse on after that request, where the parser and uvicorn would stop."""
        error = sys.exception()
        remaining = self._data[error.args[0] :] if isinstance(error, httptools.HttpParserUpgrade) else b""
        if remaining:
            self._data = remaining
            super().data_received(remaining)

    def on_message_begin(self) -> None:
        self._idle_since_s = None
        self.head_since_s = self.loop.time()
        super().on_message_begin()
        self.scope[SCOPE_KEY] = self._connection

    def on_message_complete(self) -> None:
        if self.headers and _field_bytes(self.headers) > HEAD_BYTES_MAX:  # trailers
            self._rejection = _too_large()
            raise _Rejected
        super().on_message_complete()

    def drain(self) -> None:
        """Close the connection after the request under way, and announce that in its response if it has not begun."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_started:
            cycle.keep_alive = False

    def eof_received(self) -> None:
        """Return True, to keep the connection for the response, if the client has only stopped to send.

        An end of file of a client that requested an answer of a model is a disconnect: the two look the same, and the
        upstream request of a client that is gone would be billed. A proxy in front of the gateway does the same.
        """
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body or cycle.scope["method"] == "POST":
            return None
        cycle.keep_alive = False
        return cast("None", True)  # asyncio's protocols may return True; the type of uvicorn's does not allow it

    def on_body(self, body: bytes) -> None:
        self._bytes_since_body = 0
        super().on_body(body)

    def on_headers_complete(self) -> None:
        read_bytes = self._head_bytes + self._read_bytes  # the head, and perhaps more
        self._head_bytes = self._bytes_since_body = 0
        if read_bytes > HEAD_BYTES_MAX:
            head_bytes = len(self.url) + _field_bytes(self.headers)
            if head_bytes > HEAD_BYTES_MAX:
                self._rejection = _too_large()
                raise _Rejected  # httptools stops, and uvicorn calls send_400_response
        if self.parser.should_upgrade() and any(name in _BODIES and value != b"0" for name, value in self.headers):
            message = "a protocol upgrade is not supported for a request with a body; remove the `Upgrade` header"
            self._rejection = BadRequest(message, code="invalid_http")  # the parser would take the body for a request
            raise _Rejected
        version = self.parser.get_http_version()
        by_name = dict(self.headers)
        if version not in ("1.1", "1.0") or by_name.get(b"transfer-encoding", b"chunked").lower() != b"chunked":
            message = "the request is neither HTTP/1.1 nor HTTP/1.0, or has a transfer coding other than chunked"
            self._rejection = BadRequest(f"{message}; send HTTP/1.1 with a length or chunks", code="invalid_http")
            raise _Rejected
        if len(by_name) != len(self.headers) or b"host" not in by_name:
            self._rejection = _ambiguous(self.headers, needs_host=version != "1.0")
            if self._rejection is not None:
                raise _Rejected
        self.head_since_s = self._idle_since_s = None  # the previous response may have ended since this head began
        super().on_headers_complete()
        if version == "1.0":
            self.cycle.chunked_encoding = False  # HTTP/1.0 has no chunks: the end of the connection ends the body
            self.cycle.expected_content_length = _AnyLength()
        if self._waiting.draining:
            self.cycle.keep_alive = False
        self.headers = []  # trailers go here and are dropped: as headers they would evade the checks of a proxy
        if len(self.pipeline) > PIPELINED_MAX:
            message = f"over {PIPELINED_MAX} requests are pipelined on this connection; wait for responses first"
            self._rejection = BadRequest(message, code="invalid_http")
            raise _Rejected

    def on_response_complete(self) -> None:
        if self.pipeline:
            super().on_response_complete()
            return
        self.server_state.total_requests += 1  # as uvicorn does, but without a keep-alive timer for each response
        if not self.transport.is_closing():
            self.flow.resume_reading()
            self._idle_since_s = self.loop.time()
            self._connection.wait()
        self._send_last_response()

    def send_400_response(self, msg: str) -> None:
        """Reject input that is not a valid request, with an OpenAI error body, after the pending responses."""
        error = self._rejection or BadRequest(f"the request is not valid HTTP/1.1: {msg}", code="invalid_http")
        self._rejection = None
        if self._last_response is not None:
            return
        body = error.body()
        head = b"HTTP/1.1 %d Refused\r\ncontent-type: application/json\r\n" % error.status
        self._last_response = head + b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body) + body
        last: RequestResponseCycle | None = self.cycle
        if last is None or last.response_complete:
            self._send_last_response()
        elif last.more_body and self.pipeline:
            self.pipeline.popleft()  # this is the rejected request, and it has not started
        elif last.more_body:  # this is the rejected request, and its body is being read
            last.disconnected = True
            last.message_event.set()
            if last.response_started:
                self._last_response = b""  # it already has a response
            self._send_last_response()

    def _send_last_response(self) -> None:
        """Send the last response, if any, and close; all earlier requests have been answered."""
        if self._last_response is not None and not self.transport.is_closing():
            self.transport.write(self._last_response)
            self.transport.close()

    def check(self, now_s: float) -> None:
        """Close a connection that is idle, late with its headers, or reads nothing; called every second."""
        unread = self.transport.get_write_buffer_size()
        if unread:
            unread += _unacknowledged_bytes(self.transport)
        if not unread or unread < self._unread_bytes:
            self._last_read_s = now_s
        elif now_s > self._last_read_s + UNREAD_S_MAX:
            self.transport.abort()
        self._unread_bytes = unread
        if self._idle_since_s is not None and now_s > self._idle_since_s + self._waiting.idle_s_max:
            self.timeout_keep_alive_handler()
        if self.head_since_s is not None and now_s > self.head_since_s + HEAD_S_MAX and not self.transport.is_closing():
            self._rejection = SlowHeaders(
                f"the request's headers are incomplete after {HEAD_S_MAX:g} s; send them at once"
            )
            self.send_400_response("")


def _unacknowledged_bytes(transport: asyncio.Transport) -> int:
    """Return the bytes in the kernel's send buffer; without them a slow client would seem to read 86 kB or nothing."""
    with contextlib.suppress(OSError):  # not every system reports it
        return int(struct.unpack("i", fcntl.ioctl(transport.get_extra_info("socket"), termios.TIOCOUTQ, bytes(4)))[0])
    return 0


def _ambiguous(headers: Headers, *, needs_host: bool) -> BadRequest | None:
    """Return the error for headers that two servers could read differently, None if there are none.

    RFC 9112 requires one `Host` in HTTP/1.1 (3.2). Of two keys, a proxy could check one and the gateway the other.
    """
    names = [name for name, _ in headers]
    for single in _SINGLE:
        if names.count(single) > 1:
            name = single.decode()
            message = f"header `{name}` is sent {names.count(single)} times; send it once"
            return BadRequest(message, param=name, code="invalid_http")
    if needs_host and b"host" not in names:
        return BadRequest("header `host` is missing; send it", param="host", code="invalid_http")
    return None


def _field_bytes(fields: list[tuple[bytes, bytes]]) -> int:
    """Return the size of headers or trailers, with the four bytes around each name and value."""
    return sum(len(name) + len(value) + 4 for name, value in fields)


def _too_large() -> HeadersTooLarge:
    return HeadersTooLarge(f"the request's headers are over {HEAD_BYTES_MAX} bytes; send fewer or shorter headers")
