"""One client connection over HTTP/1.1 and HTTP/1.0: reads requests, and answers them in order.

Owns the parser (httptools, by its documented callbacks), the queue of pipelined requests, and the limits on everything
but bodies: heads, trailers, targets, requests in advance, slow heads, unread responses, idle time. Each request is one
`ClientExchange`, on the public and on the admin address: no task is started for it here, and its response is the
exchange's. A rejected request becomes no exchange, and still gets an OpenAI error body, after the responses to earlier
requests on the connection.

    idle --head--> under way --response complete--> the next request of the queue, or idle
    any  --rejection--> the responses under way are completed, then the last response is sent --> closed

Owns also the bounds on connections on which no admitted request is under way. A connection costs its client next to
nothing and the gateway an open file, so connections without a key could use all files. There is a bound for callers
that have not sent a valid key and one for others; above it, the connection that has waited longest is closed. A
connection with an admitted request is never closed for room.

Must not know routes, keys or bodies. Units: seconds, bytes.
"""

import asyncio
import contextlib
import fcntl
import itertools
import math
import socket
import struct
import termios
from collections import deque
from collections.abc import Callable
from typing import Final, NoReturn, cast

import httptools

from gateway.api.exchange import Admit, ClientExchange, Connection
from gateway.api.request_head import (
    RequestHead,
    SlowHeaders,
    TargetTooLong,
    field_bytes,
    head_error,
    head_without_upgrade,
    too_large,
)
from gateway.errors import BadRequest, GatewayError
from ttft_gateway.apis.base import Headers

HEAD_BYTES_MAX = 64 * 1024  # request line and headers; a key and a trace header take 1 kB
TARGET_BYTES_MAX = 8 * 1024  # a path and its query; RFC 9110 recommends 8,000 (4.1), Azure's clients send 200
HEAD_S_MAX = 10.0
PIPELINED_MAX = 16  # requests sent in advance; each costs kilobytes, and one read may bring thousands
UNREAD_S_MAX = 60.0  # a client that reads nothing of its response for this long is disconnected

_UNKNOWN_MAX = 4_096  # at any limit of open files; a connection that waits takes about 10 kB
_KNOWN_MAX = 16_384
_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: on, for 0 s
_UNUSUAL: Final = frozenset({b"transfer-encoding", b"upgrade", b"expect"})

OpenExchange = Callable[[Connection, RequestHead], ClientExchange]
"""Returns the exchange for a request; may raise an error of httptools for a target that is none."""


class WaitingConnections:
    """Connections that wait for a request or have one that is not admitted, the oldest first.

    Args:
        files_max: maximum number of open files of the process. A quarter may be connections of unknown callers, a
            quarter idle ones of known callers. Half remains for admitted requests, which need two or three files each.
        processes: number of processes that share the memory; the bounds of each are its part.

    Attributes:
        accepted_max: connections to accept in one turn of the event loop. A request needs about five turns until its
            key is checked, and must not be closed for connections that are accepted in these turns.
        files_many: number of open files at which everything should have been read from files.
        unknown: connections of callers that have not sent a valid key.
        known: connections of other callers.
        idle_s_max: time after which an idle connection is closed.
        draining: True while the gateway stops: each response then ends its connection.
    """

    def __init__(self, files_max: float = math.inf, processes: int = 1) -> None:
        self._unknown_max = int(min(_UNKNOWN_MAX / processes, files_max / 4))
        self._known_max = int(min(_KNOWN_MAX / processes, files_max / 4))
        self.accepted_max = 1 + self._unknown_max // 10
        self.files_many = files_max / 8
        self.unknown: dict[ClientConnection, asyncio.Transport] = {}
        self.known: dict[ClientConnection, asyncio.Transport] = {}
        self.idle_s_max = math.inf  # until the first check
        self.draining = False

    def trim(self) -> None:
        """Close the oldest connections above the bounds."""
        _close_oldest(self.unknown, len(self.unknown) - self._unknown_max)
        _close_oldest(self.known, len(self.known) - self._known_max)

    def make_room(self, count: int) -> None:
        """Close connections, of unknown callers first, although no bound is reached."""
        _close_oldest(self.unknown or self.known, count)


def _close_oldest(waiting: "dict[ClientConnection, asyncio.Transport]", count: int) -> None:
    for connection in list(itertools.islice(waiting, max(0, count))):
        waiting.pop(connection).abort()


class ClientConnection:
    """The state of one client connection that the bounds need.

    Attributes:
        is_known: True after a request with a valid key.
    """

    __slots__ = ("_transport", "_waiting", "is_known")

    def __init__(self, waiting: WaitingConnections, transport: asyncio.Transport) -> None:
        self._waiting = waiting
        self._transport = transport
        self.is_known = False
        self.wait()
        waiting.trim()

    def admit(self, *, known: bool) -> None:
        """Protect the connection until the end of the request.

        Args:
            known: True if the request has a valid key.
        """
        waiting = self._waiting.known if self.is_known else self._waiting.unknown
        if self in waiting:
            del waiting[self]
        if known:
            self.is_known = True

    def wait(self) -> None:
        """Wait for the next request."""
        (self._waiting.known if self.is_known else self._waiting.unknown)[self] = self._transport

    def closed(self) -> None:
        """Release the room of a connection that is closed."""
        self.admit(known=False)


class OpenConnections:
    """The open connections of one server, and the objects that they share.

    Args:
        open_exchange: opens the exchange of each request.
        waiting: bounds on connections without an admitted request, of all servers of the process.
        on_closed: called after each connection is closed; None for nothing.

    Attributes:
        all: the open connections.
        none_left: set while no connection is open.
        own_headers: headers of every response.
    """

    def __init__(
        self,
        open_exchange: OpenExchange,
        waiting: WaitingConnections | None = None,
        on_closed: Callable[[], object] | None = None,
    ) -> None:
        self.open_exchange = open_exchange
        self.waiting = WaitingConnections() if waiting is None else waiting
        self._on_closed = on_closed
        self.all: set[HttpProtocol] = set()
        self.none_left = asyncio.Event()
        self.none_left.set()
        self.own_headers: Headers = ()

    def add(self, connection: "HttpProtocol") -> None:
        """Add a new connection."""
        self.all.add(connection)
        self.none_left.clear()

    def discard(self, connection: "HttpProtocol") -> None:
        """Remove a closed connection."""
        self.all.discard(connection)
        if not self.all:
            self.none_left.set()
        if self._on_closed is not None:
            self._on_closed()


class _Rejected(Exception):  # httptools catches it
    """Stops the parser at a request that is rejected."""


class HttpProtocol(asyncio.Protocol):
    """One client connection.

    Args:
        connections: the open connections of its server.

    Attributes:
        admit, is_stalled, own_headers: see `exchange.Connection`.
        transport: the transport, from `connection_made` on.
        head_since_s: loop time at which a head began to be awaited or to arrive, None while none is awaited.
    """

    transport: asyncio.Transport
    admit: Admit
    _connection: ClientConnection

    def __init__(self, connections: OpenConnections) -> None:
        loop = self._loop = asyncio.get_running_loop()
        self._connections = connections
        self.own_headers = connections.own_headers
        self._waiting = connections.waiting
        self._open_exchange = connections.open_exchange
        self._parser = self._new_parser()
        self.is_stalled = False
        self._under_way: ClientExchange | None = None  # its response is the next to be sent
        self._last: ClientExchange | None = None  # the request that was read last
        self._queue: deque[ClientExchange] = deque()  # the requests that wait for their turn
        self._is_paused = False  # nothing is read
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._in_head = False  # part of a head has arrived
        self._head_again = b""  # of a request that the parser would misread, in other words; empty for none
        self._head_bytes = 0
        self._data: bytes | memoryview = b""  # what is being parsed
        self._unread_bytes = 0
        self._last_read_s = loop.time()  # time of the client's last read, or at which nothing was left to read
        self._bytes_since_body = 0  # since the last piece of a body: the parser stores trailers, too
        self._rejection: GatewayError | None = None
        self._last_response: bytes | None = None  # the last response, sent after pending ones; if set, input is ignored
        self.head_since_s: float | None = self._last_read_s
        self._idle_since_s: float | None = None  # None before the first request and while one is served

    # the transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        connected = cast("asyncio.Transport", transport)  # uvloop's transports are no instances of asyncio's
        self.transport = connected
        connected.set_write_buffer_limits(high=0)  # uvloop holds a whole write until its last byte is sent
        self._connections.add(self)
        self._connection = ClientConnection(self._waiting, connected)
        self.admit = self._connection.admit

    def connection_lost(self, exc: Exception | None) -> None:
        under_way = self._under_way
        self._under_way = self._last = None
        self._queue.clear()
        if under_way is not None:
            under_way.client_gone()
        self._connection.closed()
        self._connections.discard(self)
        del self._parser  # it refers to this object: no cycle outlives a connection

    def data_received(self, data: bytes) -> None:
        if self._last_response is not None:
            return
        size = len(data)
        self._bytes_since_body += size
        rest: bytes | memoryview = data
        while rest:
            self._data = rest
            try:
                self._parser.feed_data(rest)
            except httptools.HttpParserUpgrade as upgrade:  # is ignored: the parser goes on after that request
                rest = memoryview(rest)[upgrade.args[0] :]
                if self._head_again:
                    rest, self._head_again = self._head_again + rest, b""
                    self._parser = self._new_parser()  # the other one takes nothing after `connection: close`
                continue
            except httptools.HttpParserError:
                self._refuse()
            break
        self._data = b""
        last = self._last
        if self._in_head or self.head_since_s is not None:  # the data belongs to a head that is still incomplete
            self._head_bytes += size
            if self.head_since_s is None:
                self.head_since_s = self._loop.time()
        elif last is not None and last.more_body:
            last.receive()
        if (
            self._bytes_since_body > HEAD_BYTES_MAX or self._head_bytes > HEAD_BYTES_MAX
        ) and not self.transport.is_closing():
            self._rejection = too_large(HEAD_BYTES_MAX)
            self._refuse()

    def eof_received(self) -> bool:
        """Return True, to keep the connection for the response, if the client has only stopped to send.

        An end of file of a client that requested an answer of a model is a disconnect: the two look the same, and the
        upstream request of a client that is gone would be billed. A proxy in front of the gateway does the same.
        """
        last = self._last
        if last is not None and not (last.is_over or last.more_body or last.head.method == "POST"):
            last.keep_alive = False
            return True
        if self._under_way is not None:
            self._under_way.client_gone()  # now: the transport may still have bytes to send before it closes
        return False

    def pause_writing(self) -> None:
        self.is_stalled = True
        if self._under_way is not None:
            self._under_way.stall()

    def resume_writing(self) -> None:
        self.is_stalled = False
        if self._under_way is not None:
            self._under_way.go_on()

    # the parser's calls

    def on_message_begin(self) -> None:
        self._idle_since_s = None
        self._in_head = True
        self._url = b""
        self._headers = []

    def on_url(self, url: bytes) -> None:
        self._url += url
        if len(self._url) > TARGET_BYTES_MAX:  # before anything decodes it, which takes 40 ns a byte each time
            message = f"the request's path and query are over {TARGET_BYTES_MAX} bytes; send a shorter target"
            self._reject(TargetTooLong(message))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        headers, parser = self._headers, self._parser
        read_bytes = self._head_bytes + len(self._data)  # the head, and perhaps more
        self._head_bytes = self._bytes_since_body = 0
        if read_bytes > HEAD_BYTES_MAX and len(self._url) + field_bytes(headers) > HEAD_BYTES_MAX:
            self._reject(too_large(HEAD_BYTES_MAX))
        version, by_name, expects_continue = parser.get_http_version(), dict(headers), False
        if (
            version != "1.1"
            or len(by_name) != len(headers)
            or b"host" not in by_name
            or not _UNUSUAL.isdisjoint(by_name)
        ):
            if b"upgrade" in by_name and parser.should_upgrade():
                self._head_again = head_without_upgrade(parser.get_method(), self._url, version, headers)
                if self._head_again:
                    return
            error = head_error(version, headers, by_name)  # no other head is rejected
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
            self._url,
            version,
            headers,
            by_name,
            parser.should_keep_alive() and version != "1.0" and not self._waiting.draining,
            expects_continue,
        )
        self.own_headers = self._connections.own_headers  # the date changes every second
        exchange = self._last = self._open_exchange(self, head)
        self._headers = []  # trailers go here and are dropped: as headers they would evade the checks of a proxy
        if self._under_way is None:
            self._under_way = exchange
            exchange.begin()
        else:
            self._wait_for_turn(exchange)

    def on_body(self, body: bytes) -> None:
        self._bytes_since_body = 0
        assert self._last is not None
        self._last.on_body(body)

    def on_message_complete(self) -> None:
        if self._head_again:
            return
        if self._headers and field_bytes(self._headers) > HEAD_BYTES_MAX:  # trailers
            self._reject(too_large(HEAD_BYTES_MAX))
        last = self._last
        assert last is not None
        last.more_body = False
        last.receive()

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        parser.set_dangerous_leniencies(lenient_data_after_close=True)  # the request before it is still answered
        return parser

    # requests and responses, in order

    def _wait_for_turn(self, exchange: ClientExchange) -> None:
        """Queue a request until the responses to earlier ones are complete; nothing is read before."""
        if not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()
        self._queue.append(exchange)
        if len(self._queue) > PIPELINED_MAX:
            message = f"over {PIPELINED_MAX} requests are pipelined on this connection; wait for responses first"
            self._reject(BadRequest(message, code="invalid_http"))

    def pause_body(self) -> None:
        """See `exchange.Connection`."""
        if not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()

    def resume_body(self) -> None:
        """See `exchange.Connection`."""
        if self._is_paused and not self.transport.is_closing():
            self._is_paused = False
            self.transport.resume_reading()

    def reset(self) -> None:
        """See `exchange.Connection`."""
        sock = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()

    def on_response_complete(self) -> None:
        """See `exchange.Connection`."""
        if self._data:  # during a read: requests after this one are queued, so that their number is bounded
            self._loop.call_soon(self.on_response_complete)
            return
        self._under_way = None
        if self.transport.is_closing():
            return
        if self._is_paused:
            self._is_paused = False
            self.transport.resume_reading()
        if self._queue:
            exchange = self._under_way = self._queue.popleft()
            self._loop.call_soon(self._begin_queued, exchange)  # not on the stack of an upstream's read
            return
        self._idle_since_s = self._loop.time()
        self._connection.wait()
        if self._last_response is not None:
            self._send_last_response()

    def _begin_queued(self, exchange: ClientExchange) -> None:
        exchange.begin()
        exchange.receive()

    # the server's calls

    def drain(self) -> None:
        """Close the connection after the request under way, and announce that in its response if it has not begun."""
        last = self._last
        if last is not None and not last.started:
            last.keep_alive = False

    def shutdown(self, first_request_s: float = 0.0) -> None:
        """Close the connection now, or after the response under way.

        Args:
            first_request_s: time from the connection's start that it has for its first request.
        """
        last = self._last
        if last is not None and not last.is_over:
            last.keep_alive = False
            return
        since_s = self.head_since_s if last is None else None
        left_s = 0.0 if since_s is None else since_s + first_request_s - self._loop.time()
        if left_s > 0.0:
            self._loop.call_later(left_s, self.shutdown)
        else:
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
            self.transport.close()
        if self.head_since_s is not None and now_s > self.head_since_s + HEAD_S_MAX and not self.transport.is_closing():
            self._rejection = SlowHeaders(
                f"the request's headers are incomplete after {HEAD_S_MAX:g} s; send them at once"
            )
            self._refuse()

    # rejections

    def _reject(self, error: GatewayError) -> NoReturn:
        """Stop the parser: the request is rejected with this error."""
        self._rejection = error
        raise _Rejected

    def _refuse(self) -> None:
        """Answer the request that is rejected, or input that is not HTTP, after the pending responses."""
        error = self._rejection or BadRequest(
            "the request is not valid HTTP/1.1; check the program that sent it", code="invalid_http"
        )
        self._rejection = None
        if self._last_response is not None:
            return
        body = error.body()
        head = b"HTTP/1.1 %d Refused\r\ncontent-type: application/json\r\n" % error.status
        self._last_response = head + b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body) + body
        last = self._last
        if self._under_way is None:
            self._send_last_response()
        elif last is not None and last.more_body and self._queue:
            self._queue.pop()  # this is the rejected request, and it has not started
        elif last is not None and last.more_body:  # this is the rejected request, and its body is being read
            if last.started:
                self._last_response = b""  # it already has a response
            last.client_gone()
            self._send_last_response()

    def _send_last_response(self) -> None:
        """Send the last response and close; all earlier requests have been answered."""
        if self._last_response is not None and not self.transport.is_closing():
            self.transport.write(self._last_response)
            self.transport.close()


def _unacknowledged_bytes(transport: asyncio.Transport) -> int:
    """Return the bytes in the kernel's send buffer; without them a slow client would seem to read 86 kB or nothing."""
    with contextlib.suppress(OSError):  # not every system reports it
        return int(struct.unpack("i", fcntl.ioctl(transport.get_extra_info("socket"), termios.TIOCOUTQ, bytes(4)))[0])
    return 0
