"""One client connection: uvicorn's HTTP protocol with exchanges, and with limits on everything but bodies.

A request for a raced route becomes a `ClientExchange`, without ASGI and without a task; uvicorn serves the others. A
rejected request reaches neither, and still gets an OpenAI error body, after the responses to earlier requests on the
connection. Units: seconds, bytes.
"""

import asyncio
import contextlib
import fcntl
import logging
import struct
import termios
from collections.abc import Callable
from typing import Any, Final, NoReturn, cast

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from gateway.api.connections import SCOPE_KEY, ClientConnection, WaitingConnections
from gateway.api.exchange import Admit, ClientExchange, Connection
from gateway.api.head_checks import SlowHeaders, TargetTooLong, field_bytes, head_error, too_large
from gateway.api.request_head import RequestHead
from gateway.errors import BadRequest, GatewayError
from providers.base import Headers

_LOG = logging.getLogger(__name__)
_LOG.setLevel(logging.ERROR)  # uvicorn warns of each bad request, so that any client could fill the log

HEAD_BYTES_MAX = 64 * 1024  # request line and headers; a key and a trace header take 1 kB
TARGET_BYTES_MAX = 8 * 1024  # a path and its query; RFC 9110 recommends 8,000 (4.1), Azure's clients send 200
HEAD_S_MAX = 10.0
PIPELINED_MAX = 16  # requests sent in advance; each costs kilobytes, and one read may bring thousands
UNREAD_S_MAX = 60.0  # a client that reads nothing of its response for this long is disconnected


OpenExchange = Callable[[Connection, RequestHead], ClientExchange | None]
"""Returns the exchange for a request, None if the request is for the ASGI application."""


_UNUSUAL: Final = frozenset({b"transfer-encoding", b"upgrade", b"expect"})


def _no_exchange(_connection: Connection, _head: RequestHead) -> None:
    """Open no exchange: every request is for the ASGI application."""


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
    cycle: Any  # the last one, None before it
    pipeline: Any  # the requests that wait for their turn, the oldest last, as uvicorn keeps them

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        waiting: WaitingConnections | None = None,
        open_exchange: OpenExchange | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._waiting = WaitingConnections() if waiting is None else waiting
        self._open_exchange = _no_exchange if open_exchange is None else open_exchange
        self._connection: ClientConnection  # from connection_made on
        self.admit: Admit  # the same
        self.is_stalled = False
        self.logger = _LOG
        self._under_way: RequestResponseCycle | ClientExchange | None = None  # its response is the next to be sent
        self._last: RequestResponseCycle | ClientExchange | None = None  # the request that was read last
        self._exchange: ClientExchange | None = None  # the same if it is an exchange
        self._in_head = False  # part of a head has arrived
        self._head_bytes = 0
        self._data: bytes | memoryview = b""  # what is being parsed
        self._unread_bytes = 0
        self._last_read_s = self.loop.time()  # time of the client's last read, or at which nothing was left to read
        self._bytes_since_body = 0  # since the last piece of a body: the parser keeps trailers, too
        self._rejection: GatewayError | None = None
        self._last_response: bytes | None = None  # the last response, sent after pending ones; if set, input is ignored
        self.head_since_s: float | None = self.loop.time()  # None while no head is awaited
        self._idle_since_s: float | None = None  # None before the first request and while one is served

    # the transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        connected = cast("asyncio.Transport", transport)  # uvloop's transports are no instances of asyncio's
        super().connection_made(connected)
        connected.set_write_buffer_limits(high=0)  # uvloop holds a whole write until its last byte is sent
        self._connection = ClientConnection(self._waiting, connected)
        self.admit = self._connection.admit

    def connection_lost(self, exc: Exception | None) -> None:
        under_way = self._under_way
        self._under_way = self._last = self._exchange = None
        self.pipeline.clear()
        if isinstance(under_way, ClientExchange):
            under_way.client_gone()
            self.cycle = None
        else:
            self.cycle = under_way  # uvicorn ends it
        super().connection_lost(exc)
        self._connection.closed()

    def data_received(self, data: bytes) -> None:
        if self._last_response is not None:
            return
        size = len(data)
        self._bytes_since_body += size
        rest: bytes | memoryview = data
        while rest:
            self._data = rest
            try:
                self.parser.feed_data(rest)
            except httptools.HttpParserUpgrade as upgrade:  # is ignored: the parser goes on after that request
                rest = memoryview(rest)[upgrade.args[0] :]
                continue
            except httptools.HttpParserError:
                self.send_400_response("Invalid HTTP request received.")
            break
        self._data = b""
        exchange = self._exchange
        if self._in_head or self.head_since_s is not None:  # the data belongs to a head that is still incomplete
            self._head_bytes += size
            if self.head_since_s is None:
                self.head_since_s = self.loop.time()
        elif exchange is not None and exchange.more_body:
            exchange.receive()
        if (
            self._bytes_since_body > HEAD_BYTES_MAX or self._head_bytes > HEAD_BYTES_MAX
        ) and not self.transport.is_closing():
            self._rejection = too_large(HEAD_BYTES_MAX)
            self.send_400_response("")

    def eof_received(self) -> None:
        """Return True, to keep the connection for the response, if the client has only stopped to send.

        An end of file of a client that requested an answer of a model is a disconnect: the two look the same, and the
        upstream request of a client that is gone would be billed. A proxy in front of the gateway does the same.
        """
        last = self._last
        if isinstance(last, RequestResponseCycle) and not (
            last.response_complete or last.more_body or last.scope["method"] == "POST"
        ):
            last.keep_alive = False
            return cast("None", True)  # asyncio's protocols may return True; the type of uvicorn's does not allow it
        if isinstance(self._under_way, ClientExchange):
            self._under_way.client_gone()  # now: the transport may still have bytes to send before it closes
        return None

    def pause_writing(self) -> None:
        super().pause_writing()
        self.is_stalled = True
        if isinstance(self._under_way, ClientExchange):
            self._under_way.stall()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.is_stalled = False
        if isinstance(self._under_way, ClientExchange):
            self._under_way.go_on()

    # the parser's calls

    def on_message_begin(self) -> None:
        self._idle_since_s = None
        self._in_head = True
        self.url = b""
        self.headers = []

    def on_url(self, url: bytes) -> None:
        self.url += url
        if self.url[TARGET_BYTES_MAX:]:  # before anything decodes it, which takes 40 ns a byte each time
            message = f"the request's path and query are over {TARGET_BYTES_MAX} bytes; send a shorter target"
            self._reject(TargetTooLong(message))

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        headers, parser = self.headers, self.parser
        read_bytes = self._head_bytes + len(self._data)  # the head, and perhaps more
        self._head_bytes = self._bytes_since_body = 0
        if read_bytes > HEAD_BYTES_MAX and len(self.url) + field_bytes(headers) > HEAD_BYTES_MAX:
            self._reject(too_large(HEAD_BYTES_MAX))
        version, by_name, expects_continue = parser.get_http_version(), dict(headers), False
        if (
            version != "1.1"
            or len(by_name) != len(headers)
            or b"host" not in by_name
            or not _UNUSUAL.isdisjoint(by_name)
        ):
            upgrades = b"upgrade" in by_name and parser.should_upgrade()
            error = head_error(version, headers, by_name, upgrades=upgrades)  # of other heads nothing is unusual
            if error is not None:
                self._reject(error)
            expected = by_name.get(b"expect", b"").strip(b" \t").lower()
            expects_continue = (
                expected == b"100-continue" and version != "1.0"
            )  # HTTP/1.0 has no 1xx (RFC 9110, 10.1.1)
        self._in_head = False
        self.head_since_s = self._idle_since_s = None  # the previous response may have ended since this head began
        method = parser.get_method()
        head = RequestHead(
            "POST" if method == b"POST" else method.decode(),
            self.url,
            version,
            headers,
            by_name,
            parser.should_keep_alive() and version != "1.0" and not self._waiting.draining,
            expects_continue,
        )
        exchange = self._open_exchange(self, head)
        self._exchange = exchange
        if exchange is None:
            self._start_cycle(version, expects_continue=expects_continue)
        else:
            self._last = exchange
            if self._under_way is None:
                self._under_way = exchange
                exchange.begin()
            else:
                self._queue(exchange)
        self.headers = []  # trailers go here and are dropped: as headers they would evade the checks of a proxy
        if self.pipeline and len(self.pipeline) > PIPELINED_MAX:
            message = f"over {PIPELINED_MAX} requests are pipelined on this connection; wait for responses first"
            self._reject(BadRequest(message, code="invalid_http"))

    def on_body(self, body: bytes) -> None:
        self._bytes_since_body = 0
        exchange = self._exchange
        if exchange is None:
            super().on_body(body)
        else:
            exchange.on_body(body)

    def on_message_complete(self) -> None:
        if self.headers and field_bytes(self.headers) > HEAD_BYTES_MAX:  # trailers
            self._reject(too_large(HEAD_BYTES_MAX))
        exchange = self._exchange
        if exchange is None:
            super().on_message_complete()
        else:
            exchange.more_body = False
            exchange.receive()

    # requests and responses, in order

    def _start_cycle(self, version: str, *, expects_continue: bool) -> None:
        """Pass a request to uvicorn, which calls the ASGI application."""
        url, headers = self.url, self.headers
        super().on_message_begin()
        self.url, self.headers, self.expect_100_continue = url, headers, expects_continue
        self.scope["headers"] = headers
        self.scope[SCOPE_KEY] = self._connection
        super().on_headers_complete()
        cycle: RequestResponseCycle = self.cycle
        self._last = cycle
        if version == "1.0":
            cycle.chunked_encoding = False  # HTTP/1.0 has no chunks: the end of the connection ends the body
            cycle.expected_content_length = _AnyLength()
        if self._waiting.draining:
            cycle.keep_alive = False

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        if self._under_way is None:
            self._under_way = cycle
            super()._start_asgi_task(cycle, app)
        else:
            self._queue(cycle)

    def _queue(self, request: "RequestResponseCycle | ClientExchange") -> None:
        """Keep a request until the responses to earlier ones are complete; nothing is read before."""
        self.flow.pause_reading()
        self.pipeline.appendleft((request, self.app))

    def on_response_complete(self) -> None:
        if self._data:  # during a read: requests after this one are queued, so that their number is bounded
            self.loop.call_soon(self.on_response_complete)
            return
        self._under_way = None  # unlike uvicorn, without a keep-alive timer for each response
        if self.transport.is_closing():
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self.pipeline:
            request, app = self.pipeline.pop()
            if isinstance(request, ClientExchange):
                self._under_way = request
                self.loop.call_soon(self._begin_queued, request)  # not on the stack of an upstream's read
            else:
                self._start_asgi_task(request, app)
            return
        self._idle_since_s = self.loop.time()
        self._connection.wait()
        if self._last_response is not None:
            self._send_last_response()

    def _begin_queued(self, exchange: ClientExchange) -> None:
        exchange.begin()
        exchange.receive()

    # the calls of exchanges

    @property
    def own_headers(self) -> Headers:
        """See `exchange.Connection`."""
        return self.server_state.default_headers

    # the server's calls

    def drain(self) -> None:
        """Close the connection after the request under way, and announce that in its response if it has not begun."""
        last = self._last
        if last is not None and not last.response_started:
            last.keep_alive = False

    def shutdown(self) -> None:
        """Close the connection now, or after the response under way."""
        last = self._last
        if last is None or last.response_complete:
            self.transport.close()
        else:
            last.keep_alive = False

    # rejections

    def _reject(self, error: GatewayError) -> NoReturn:
        """Stop the parser: the request is rejected with this error."""
        self._rejection = error
        raise _Rejected

    def send_400_response(self, msg: str) -> None:
        """Reject input that is not a valid request, with an OpenAI error body, after the pending responses."""
        error = self._rejection or BadRequest(f"the request is not valid HTTP/1.1: {msg}", code="invalid_http")
        self._rejection = None
        if self._last_response is not None:
            return
        body = error.body()
        head = b"HTTP/1.1 %d Refused\r\ncontent-type: application/json\r\n" % error.status
        self._last_response = head + b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body) + body
        last = self._last
        if self._under_way is None:
            self._send_last_response()
        elif last is not None and last.more_body and self.pipeline:
            self.pipeline.popleft()  # this is the rejected request, and it has not started
        elif last is not None and last.more_body:  # this is the rejected request, and its body is being read
            if last.response_started:
                self._last_response = b""  # it already has a response
            if isinstance(last, ClientExchange):
                last.client_gone()
            else:
                last.disconnected = True
                last.message_event.set()
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
