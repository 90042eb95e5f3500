"""One HTTP/1.1 connection of a simulated server: reads requests, starts responses, detects a disconnect.

Serves one request at a time; a pipelined request ends the connection. Bodies and headers are bounded. Units: bytes,
seconds.
"""

import asyncio
import socket
from datetime import UTC, datetime
from typing import Protocol, cast

import httptools
import msgspec

from gateway.simulated.apis import SERVED_APIS
from gateway.simulated.faults import ConnectionAction, InjectedFault, parse_faults
from gateway.simulated.quantities import UnitError
from gateway.simulated.render import error_body
from gateway.simulated.replica import FAULT_HEADER, RawRequest, SimulatedReplica, served_models
from gateway.simulated.response_writer import ScriptWriter, reset, response_head
from gateway.simulated.script import JSON, ErrorFields, Script, error_script
from gateway.simulated.stats import Stats
from ttft_gateway.apis.base import Api, Headers

BODY_BYTES_MAX = 20 * 1024 * 1024
HEADERS_BYTES_MAX = 64 * 1024
CONTROL = "/sim/"
_LINGER_S = 1.0  # wait for the remaining request after an early response, which a reset could discard
_SLOW_BUFFER_BYTES = 128 * 1024  # receive buffer of the kernel, in addition to the bytes read


class ServerContext(Protocol):
    """Interface of the server that a connection uses."""

    replica: SimulatedReplica
    stats: Stats
    connections: "set[ServerConnection]"

    def control(self, method: str, target: str, body: bytes) -> tuple[int, object]:
        """Handle a control request; return the status code and the value of the JSON body."""

    def refuse_for(self, seconds: float) -> None:
        """Refuse new connections for a while."""


class ServerConnection(asyncio.Protocol):
    """One connection.

    Args:
        server: the server.
        faulty: True if a fault may reset the connection when it is accepted.

    Attributes:
        closed: future that is done when the connection is closed.
    """

    def __init__(self, server: ServerContext, *, faulty: bool) -> None:
        self._server = server
        self._faulty = faulty
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._writer: ScriptWriter | None = None
        self._closing: asyncio.TimerHandle | None = None
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._reset_request()

    def _reset_request(self) -> None:
        self._target = ""
        self._headers: dict[bytes, bytes] = {}
        self._header_bytes = 0
        self._body = bytearray()
        self._faults: tuple[InjectedFault, ...] = ()
        self._read_rate = 0  # bytes per second; 0: unlimited
        self._input_ignored = False  # the response was early; further input is discarded

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._server.connections.add(self)
        self._server.stats.connections_opened += 1
        self._server.stats.connections_open += 1
        if self._faulty and self._server.replica.choose_faults(accepting=True):
            reset(self._transport)

    def data_received(self, data: bytes) -> None:
        if self._input_ignored:
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._reject(400, f"the request is not valid HTTP/1.1: {error}")
        if self._read_rate:
            self._transport.pause_reading()
            self._loop.call_later(len(data) / self._read_rate, self._resume_reading)

    def eof_received(self) -> bool:
        self._cancel()
        return False  # close this side as well

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        self._server.connections.discard(self)
        self.closed.set_result(None)
        self._server.stats.connections_open -= 1

    def pause_writing(self) -> None:
        if self._writer is not None:
            self._server.stats.paused += 1
            self._writer.pause()

    def resume_writing(self) -> None:
        if self._writer is not None:
            self._writer.resume()

    def close(self) -> None:
        """Abort the connection."""
        self._transport.abort()

    def _cancel(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.cancel()
        if self._closing is not None:
            self._closing.cancel()

    def _resume_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    # httptools callbacks

    def on_message_begin(self) -> None:
        if self._writer is not None:
            self._input_ignored = True
            self._transport.abort()

    def on_url(self, url: bytes) -> None:
        self._target += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes <= HEADERS_BYTES_MAX:
            self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        if self._header_bytes > HEADERS_BYTES_MAX:
            self._reject(431, f"the request headers are over {HEADERS_BYTES_MAX} bytes; send fewer")
            return
        if self._api is not None:
            self._choose_faults()
        if self._headers.get(b"expect", b"").lower() == b"100-continue" and not self._input_ignored:
            self._transport.write(response_head(100, ()))

    def on_body(self, body: bytes) -> None:
        if self._input_ignored:
            return
        self._body += body
        if len(self._body) > BODY_BYTES_MAX:
            self._reject(413, f"the request body is over {BODY_BYTES_MAX} bytes; send a shorter one")

    def on_message_complete(self) -> None:
        self._read_rate = 0
        if self._input_ignored:
            return
        api = self._api
        if api is not None:
            request = RawRequest(api, bytes(self._body))
            wall_s = datetime.now(UTC).timestamp()
            self._play(self._server.replica.script(request, self._faults, self._loop.time(), wall_s))
        else:
            self._write_json(*self._other(self._target.partition("?")[0]))

    # responses

    @property
    def _api(self) -> Api | None:
        path = self._target.partition("?")[0]
        if self._parser.get_method() != b"POST" or path.startswith(CONTROL):
            return None
        return next((api for api in SERVED_APIS if path.endswith("/" + api.value)), None)

    def _choose_faults(self) -> None:
        """Choose the request's faults, and start those that act before the body is read."""
        try:
            header = self._headers.get(FAULT_HEADER)
            requested = () if header is None else parse_faults(header.decode("latin-1"))
        except UnitError as error:
            self._reject(400, f"{FAULT_HEADER.decode()}: {error}")
            return
        self._faults = self._server.replica.choose_faults(accepting=False) + requested
        for fault, args in self._faults:
            if fault.action is ConnectionAction.REFUSE:
                self._server.refuse_for(args.seconds)
            elif fault.action is ConnectionAction.SLOW_READ:
                self._read_rate = max(1, args.count)
                raw = self._transport.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SLOW_BUFFER_BYTES)
            elif fault.action is ConnectionAction.EARLY and fault.on_script is not None:
                self._input_ignored = True
                self._play(fault.on_script(Script(), args))

    def _reject(self, status: int, message: str) -> None:
        """Send an error response and end the connection without further reading."""
        self._input_ignored = True
        if self._writer is None:
            self._play(error_script(ErrorFields(status, "invalid_request_error", None, message)))

    def _play(self, script: Script) -> None:
        server = self._server
        request_id = self._headers.get(b"x-request-id", b"").decode("latin-1")[:200]
        record = server.stats.begin(request_id, self._loop.time())
        keep = self._parser.should_keep_alive() and not self._input_ignored
        self._writer = ScriptWriter(
            server.replica.slots, script, self._transport, server.stats, record, keep=keep, on_done=self._on_done
        )
        self._writer.start()

    def _on_done(self, writer: ScriptWriter) -> None:
        self._writer = None
        self._next(keep=writer.keep)

    def _next(self, *, keep: bool) -> None:
        """Await another request, or close the connection."""
        if self._input_ignored:
            self._closing = self._loop.call_later(_LINGER_S, self._transport.close)
        elif keep:
            self._reset_request()
        else:
            self._transport.close()

    def _other(self, path: str) -> tuple[int, object]:
        """Return the status code and the JSON value for a request outside the model APIs."""
        method = self._parser.get_method().decode()
        if path.startswith(CONTROL):
            return self._server.control(method, self._target, bytes(self._body))
        if method == "GET" and path == "/health":  # as in vLLM and SGLang; clients check it at their start
            return 200, {}
        models = served_models(self._server.replica.profile)
        if method == "GET" and path.endswith("/models"):
            return 200, {"object": "list", "data": models}
        found = [model for model in models if path.endswith(f"/models/{model['id']}")]
        if method == "GET" and found:
            return 200, found[0]
        served = ", ".join(f"POST /v1/{api.value}" for api in SERVED_APIS)
        message = f"{method} {path} is unknown; use {served} or GET /v1/models"
        return 404, msgspec.Raw(error_body(message, "invalid_request_error", "unknown_url"))

    def _write_json(self, status: int, value: object) -> None:
        body = msgspec.json.encode(value)
        keep = self._parser.should_keep_alive()
        headers: Headers = (*JSON, (b"content-length", b"%d" % len(body)))
        if not keep:
            headers = (*headers, (b"connection", b"close"))
        self._transport.write(response_head(status, headers) + body)
        self._next(keep=keep)
