"""One HTTP/1.1 connection of a simulated server: reads requests, has them answered, notices a lost peer.

One request at a time; a pipelined one ends the connection. Bodies and headers are bounded. Units: bytes, seconds.
"""

import asyncio
import socket
from datetime import UTC, datetime
from typing import Protocol, cast

import httptools
import msgspec

from providers.base import Api, Headers
from providers.simulated.apis import SERVED_APIS
from providers.simulated.faults import ConnectionAction, InjectedFault, parse_faults
from providers.simulated.quantities import UnitError
from providers.simulated.render import error_body
from providers.simulated.replica import FAULT_HEADER, RawRequest, SimulatedReplica, served_models
from providers.simulated.response_writer import ResponseWriter, reset, response_head
from providers.simulated.script import JSON, ErrorFields, Script, error_script
from providers.simulated.stats import Stats

BODY_BYTES_MAX = 20 * 1024 * 1024
HEADERS_BYTES_MAX = 64 * 1024
CONTROL = "/sim/"
_LINGER_S = 1.0  # how long an early answer waits for the rest of the request, so that it is not lost to a reset
_SLOW_BUFFER_BYTES = 128 * 1024  # what the kernel takes on top of what was read


class ServerContext(Protocol):
    """The server, as its connections see it."""

    replica: SimulatedReplica
    stats: Stats
    connections: "set[ServerConnection]"

    def control(self, method: str, target: str, body: bytes) -> tuple[int, object]:
        """Answer a control request: the status and what becomes JSON."""

    def refuse_for(self, seconds: float) -> None:
        """Do not listen for a while."""


class ServerConnection(asyncio.Protocol):
    """One connection.

    Args:
        site: the server.
        faulty: may be reset when it is accepted.

    Attributes:
        closed: done when the connection is.
    """

    def __init__(self, server: ServerContext, *, faulty: bool) -> None:
        self._server = server
        self._faulty = faulty
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._writer: ResponseWriter | None = None
        self._linger: asyncio.TimerHandle | None = None
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._begin()

    def _begin(self) -> None:
        """Expect a request."""
        self._target = ""
        self._headers: dict[bytes, bytes] = {}
        self._header_bytes = 0
        self._body = bytearray()
        self._faults: tuple[InjectedFault, ...] = ()
        self._read_rate = 0  # bytes a second, 0: as they come
        self._input_ignored = False  # answered already, what still comes is thrown away

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
            self._refuse(400, f"this is not a request we understand: {error}")
        if self._read_rate:
            self._transport.pause_reading()
            self._loop.call_later(len(data) / self._read_rate, self._read_on)

    def eof_received(self) -> bool:
        self._leave()
        return False  # close our side, too

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
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
        """Drop the connection; the peer sees a cut."""
        self._transport.abort()

    def _leave(self) -> None:
        """The peer has left, or is about to be left."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.cancel()
        if self._linger is not None:
            self._linger.cancel()

    def _read_on(self) -> None:
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
            self._refuse(431, f"the headers are over {HEADERS_BYTES_MAX} bytes")
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
            self._refuse(413, f"the body is over {BODY_BYTES_MAX} bytes")

    def on_message_complete(self) -> None:
        self._read_rate = 0
        if self._input_ignored:
            return
        api = self._api
        if api is not None:
            request = RawRequest(api, bytes(self._body))
            self._play(self._server.replica.script(request, self._faults, self._loop.time(), _wall_s()))
        else:
            self._write_json(*self._other(self._target.partition("?")[0]))

    # answers

    @property
    def _api(self) -> Api | None:
        """The API that is called, None for everything else."""
        path = self._target.partition("?")[0]
        if self._parser.get_method() != b"POST" or path.startswith(CONTROL):
            return None
        return next((api for api in SERVED_APIS if path.endswith("/" + api.value)), None)

    def _choose_faults(self) -> None:
        """Decide on the request's misbehaviour; some of it begins before the body is read."""
        try:
            header = self._headers.get(FAULT_HEADER)
            requested = () if header is None else parse_faults(header.decode("latin-1"))
        except UnitError as error:
            self._refuse(400, f"{FAULT_HEADER.decode()}: {error}")
            return
        self._faults = self._server.replica.choose_faults(accepting=False) + requested
        for fault, args in self._faults:
            if fault.action is ConnectionAction.REFUSE:
                self._server.refuse_for(args.seconds)
            elif fault.action is ConnectionAction.SLOW_READ:
                self._read_rate = max(1, args.count)
                raw = self._transport.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SLOW_BUFFER_BYTES)
            elif fault.action is ConnectionAction.EARLY and fault.edit_script is not None:
                self._input_ignored = True
                self._play(fault.edit_script(Script(), args))

    def _refuse(self, status: int, message: str) -> None:
        """Answer with an error and end the connection, without reading on."""
        self._input_ignored = True
        if self._writer is None:
            self._play(error_script(ErrorFields(status, "invalid_request_error", None, message)))

    def _play(self, script: Script) -> None:
        """Begin an answer."""
        server = self._server
        request_id = self._headers.get(b"x-request-id", b"").decode("latin-1")[:200]
        record = server.stats.begin(request_id, self._loop.time())
        keep = self._parser.should_keep_alive() and not self._input_ignored
        self._writer = ResponseWriter(
            server.replica.slots, script, self._transport, server.stats, record, keep=keep, on_done=self._over
        )
        self._writer.start()

    def _over(self, writer: ResponseWriter) -> None:
        """The answer is over."""
        self._writer = None
        self._next(keep=writer.keep)

    def _next(self, *, keep: bool) -> None:
        """There may be another request."""
        if self._input_ignored:
            self._linger = self._loop.call_later(_LINGER_S, self._transport.close)
        elif keep:
            self._begin()
        else:
            self._transport.close()

    def _other(self, path: str) -> tuple[int, object]:
        """The answer to a request that is not for a completion."""
        method = self._parser.get_method().decode()
        if path.startswith(CONTROL):
            return self._server.control(method, self._target, bytes(self._body))
        if method == "GET" and path == "/health":  # as vLLM and SGLang have it; clients ask before they begin
            return 200, {}
        models = served_models(self._server.replica.profile)
        if method == "GET" and path.endswith("/models"):
            return 200, {"object": "list", "data": models}
        found = [model for model in models if path.endswith(f"/models/{model['id']}")]
        if method == "GET" and found:
            return 200, found[0]
        served = ", ".join(f"POST /v1/{api.value}" for api in SERVED_APIS)
        message = f"found {method} {path}; there are {served}, GET /v1/models"
        return 404, msgspec.Raw(error_body(message, "invalid_request_error", "unknown_url"))

    def _write_json(self, status: int, value: object) -> None:
        """A small JSON answer at once."""
        body = msgspec.json.encode(value)
        keep = self._parser.should_keep_alive()
        headers: Headers = (*JSON, (b"content-length", b"%d" % len(body)))
        if not keep:
            headers = (*headers, (b"connection", b"close"))
        self._transport.write(response_head(status, headers) + body)
        self._next(keep=keep)


def _wall_s() -> float:
    return datetime.now(UTC).timestamp()
