"""An HTTP/2 server in a few lines, for tests of HTTP clients: one script for all its streams.

Each request is answered by what the test's function says, in pieces; flow control is h2's own. Units: bytes.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import h2.config
import h2.connection
import h2.events


def goaway(last: int, code: int = 0, debug: bytes = b"") -> bytes:
    """Return a GOAWAY frame that permits the streams up to `last`."""
    payload = last.to_bytes(4, "big") + code.to_bytes(4, "big") + debug
    return len(payload).to_bytes(3, "big") + b"\x07" + bytes(5) + payload


@dataclass
class Http2Server:
    """What it answers, and what it has seen.

    Attributes:
        pieces: of each answer's body; the stream ends behind them unless `endless`.
        endless: it never ends.
        status: of each answer.
        headers: of each answer, with whatever bytes.
        reset: streams are reset behind their pieces.
        goaway: bytes that are sent before the body of each answer; of a GOAWAY, after which the answer goes on.
        requests: headers and body of each request.
        sent: bytes of bodies that went out.
    """

    pieces: Sequence[bytes] = (b"hi",)
    endless: bool = False
    status: str = "200"
    headers: Sequence[tuple[bytes, bytes]] = ((b"X-Case", b"mixed"),)
    reset: bool = False
    goaway: bytes = b""
    requests: list[tuple[dict[bytes, bytes], bytes]] = field(default_factory=list)
    sent: int = 0

    async def script(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection; a script of scripted_http."""
        config = h2.config.H2Configuration(client_side=False, header_encoding=None, validate_outbound_headers=False)
        connection = h2.connection.H2Connection(config)
        connection.initiate_connection()
        asked: dict[int, tuple[dict[bytes, bytes], bytes]] = {}
        waiting: dict[int, memoryview] = {}
        while True:
            writer.write(connection.data_to_send())
            await writer.drain()
            data = await reader.read(65536)
            if not data:
                return
            for event in connection.receive_data(data):
                if isinstance(event, h2.events.RequestReceived):
                    asked[event.stream_id] = (dict(event.headers), b"")
                elif isinstance(event, h2.events.DataReceived):
                    headers, body = asked[event.stream_id]
                    asked[event.stream_id] = (headers, body + event.data)
                    connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                elif isinstance(event, h2.events.StreamEnded):
                    self.requests.append(asked.pop(event.stream_id))
                    connection.send_headers(event.stream_id, [(b":status", self.status.encode()), *self.headers])
                    waiting[event.stream_id] = memoryview(b"".join(self.pieces))
            await self._write(connection, waiting, writer)

    async def _write(
        self, connection: h2.connection.H2Connection, waiting: dict[int, memoryview], writer: asyncio.StreamWriter
    ) -> None:
        """Send what the windows allow."""
        for stream, body in list(waiting.items()):
            if self.goaway and not self.sent:
                writer.write(connection.data_to_send() + self.goaway)  # h2 would send nothing after its own
            rest = body
            while rest and (room := min(connection.local_flow_control_window(stream), 16384)) > 0:
                connection.send_data(stream, bytes(rest[:room]))
                self.sent += len(rest[:room])
                rest = rest[room:]
                writer.write(connection.data_to_send())
                await writer.drain()
            waiting[stream] = rest
            if not rest and not self.endless:
                del waiting[stream]
                if self.reset:
                    connection.reset_stream(stream)
                else:
                    connection.end_stream(stream)
