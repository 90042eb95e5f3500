"""Writes one response of a simulated server to a socket: head, framing, end, and its record in the statistics.

Independent of requests. Hashes cover the body bytes before chunk framing. Units: seconds of the loop's clock.
"""

import asyncio
import hashlib
import http
import socket
import struct
from collections.abc import Callable

from gateway.simulated.engine import Slots
from gateway.simulated.player import Player
from gateway.simulated.script import End, Framing, Script
from gateway.simulated.stats import RequestRecord, RequestResult, Stats
from ttft_gateway.apis.base import FIRST_CONTENT, Frame, Headers

_REASONS = {status.value: status.phrase for status in http.HTTPStatus}
_INFORMATIONAL = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </sim>; rel=preload\r\n\r\n"
_FRAMING_HEADERS: dict[Framing, Headers] = {
    Framing.CHUNKED: ((b"transfer-encoding", b"chunked"),),
    Framing.EXTENDED: ((b"transfer-encoding", b"chunked"), (b"trailer", b"x-sim-trailer")),
    Framing.LENGTH: (),
    Framing.CLOSE: ((b"connection", b"close"),),
}
_CHUNKS = {Framing.CHUNKED: b"%x\r\n%b\r\n", Framing.EXTENDED: b'%x;sim="a b";more\r\n%b\r\n'}
_LAST_CHUNK = {Framing.CHUNKED: b"0\r\n\r\n", Framing.EXTENDED: b"0;last\r\nx-sim-trailer: yes\r\n\r\n"}


def response_head(status: int, headers: Headers) -> bytes:
    """Return the bytes of a status line and headers."""
    lines = b"".join(b"%b: %b\r\n" % header for header in headers)
    return b"HTTP/1.1 %d %b\r\n%b\r\n" % (status, _REASONS.get(status, "Simulated").encode(), lines)


def reset(transport: asyncio.Transport) -> None:
    """Close a connection with a RST."""
    raw = transport.get_extra_info("socket")
    if raw is not None:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


class ScriptWriter(Player):
    """Plays a script on a transport.

    Args:
        slots: slots of the replica.
        script: script of the response.
        transport: transport of the connection.
        stats: statistics of the server.
        record: record of the request.
        keep: True if the client allows a persistent connection.
        on_done: called once at the end of the response, not after `cancel`.

    Attributes:
        keep: True if the connection may serve another request; final when on_done is called.
    """

    __slots__ = ("_chunk", "_hash", "_on_done", "_record", "_stats", "_transport", "keep")

    def __init__(
        self,
        slots: Slots,
        script: Script,
        transport: asyncio.Transport,
        stats: Stats,
        record: RequestRecord,
        *,
        keep: bool,
        on_done: "Callable[[ScriptWriter], None]",
    ) -> None:
        super().__init__(asyncio.get_running_loop(), slots, script)
        self._transport = transport
        self._stats = stats
        self._record = record
        self.keep = keep and script.framing is not Framing.CLOSE
        self._on_done = on_done
        self._chunk = _CHUNKS.get(script.framing)
        self._hash = hashlib.sha256()

    def cancel(self) -> None:
        """Stop writing because the client has disconnected."""
        if not self.over:
            self.stop()
            self._count(RequestResult.CANCELLED)

    def on_head(self) -> None:
        """Write the head and the prelude."""
        script = self.script
        headers = [
            *script.headers,
            (b"x-request-id", self._record.request_id.encode()),
            *_FRAMING_HEADERS[script.framing],
        ]
        if script.framing is Framing.LENGTH:
            headers.append((b"content-length", b"%d" % script.length))
        if not self.keep and script.framing is not Framing.CLOSE:
            headers.append((b"connection", b"close"))
        self._record.headers_s = self._loop.time()
        self._stats.streams += script.status == 200 and not script.json
        if script.informational:
            self._transport.write(_INFORMATIONAL)
        self._transport.write(response_head(script.status, headers) + b"".join(map(self._framed, script.prelude)))

    def on_step(self, frame: Frame) -> None:
        """Write one event, unless the transport is closing."""
        if self._transport.is_closing():
            return
        if frame.kind in FIRST_CONTENT:
            self._record.content_events += 1
            self._stats.tokens += frame.usage.completion_tokens or 0 if frame.usage else 1
            if self._record.first_content_s is None:
                self._record.first_content_s = self._loop.time()
        self._transport.write(self._framed(frame))

    def on_over(self) -> None:
        """End the body or the connection."""
        end = self.script.end
        if end is End.RST:
            reset(self._transport)
        elif end is End.COMPLETE:
            self._transport.write(_LAST_CHUNK.get(self.script.framing, b""))
        self._count(RequestResult.COMPLETE if end is End.COMPLETE else RequestResult.BROKEN)
        self.keep = self.keep and end is End.COMPLETE
        self._on_done(self)

    def _framed(self, frame: Frame) -> bytes:
        self._hash.update(frame.raw)
        return frame.raw if self._chunk is None else self._chunk % (len(frame.raw), frame.raw)

    def _count(self, ended: RequestResult) -> None:
        self._stats.end(self._record, ended, self._loop.time(), self._hash.hexdigest())
