"""One request of a probe, recorded as it came: when what was received, and the bytes of the answer.

A `Recording` is told by both sides of the gateway's own endpoint: the client below it tells of connections, heads and
bytes, the endpoint itself of frames and of how it ended. Knows no provider by name, and judges nothing
(probe_quirks.py does). Every wait is bounded. Units: seconds of the loop's clock, bytes.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from providers.base import Call, Endpoint, Frame, FrameKind, Headers, HttpSink, HttpStream, Request, Stream
from providers.errors import EmptyAnswer, TimedOut, UpstreamError

STREAM_S_MAX = 60.0

_BODY_BYTES_MAX = 256 * 1024
_REST_S_MAX = 1.5  # for the body's end behind the closing event; the endpoint itself drops the connection after 1 s
_FETCH_S_MAX = 5.0
_CONTENT = (FrameKind.CONTENT, FrameKind.REFUSAL)


class Recording:
    """One streamed answer; a `providers.base.Sink`.

    Args:
        asked_usage: the request asks for token counts.

    Attributes:
        connect_s: how long a new connection took, name look-up and TLS included; None on one that was open already.
        sent_s: when the request was written.
        headers_s, byte_s: when the head and the first byte of the body came; None: not at all.
        contents_s: when each content event came.
        headers: of the answer.
        body: as it came, its beginning.
        reads: pieces the body came in.
        error: how it failed; None: it did not, or is not over.
        settled: set at the first content, or at the end if there is none.
        over: set at the end.
        rest: set when nothing of the body is left.
    """

    def __init__(self, *, asked_usage: bool) -> None:
        self._time = asyncio.get_running_loop().time
        self.asked_usage = asked_usage
        self.connect_s: float | None = None
        self.sent_s = self._time()
        self.headers_s: float | None = None
        self.byte_s: float | None = None
        self.contents_s: list[float] = []
        self.headers: Headers = ()
        self.body = bytearray()
        self.reads = 0
        self.error: UpstreamError | None = None
        self.settled, self.over, self.rest = asyncio.Event(), asyncio.Event(), asyncio.Event()

    # from the client

    def on_connected(self) -> None:
        """A connection was made for it."""
        now_s = self._time()
        self.connect_s, self.sent_s = now_s - self.sent_s, now_s

    def on_body(self, data: bytes) -> None:
        """A piece of the body came."""
        if self.byte_s is None:
            self.byte_s = self._time()
        self.reads += 1
        self.body += data[: _BODY_BYTES_MAX - len(self.body)]

    # Sink

    def on_headers(self, status: int, headers: Headers) -> None:
        self.headers_s, self.headers = self._time(), headers

    def on_frame(self, frame: Frame) -> None:
        if frame.kind in _CONTENT:
            self.contents_s += [self._time()] * frame.events
            self.settled.set()
        elif frame.kind is FrameKind.ERROR:
            self.error = frame.error

    def on_end(self, error: UpstreamError | None) -> None:
        self.error = self.error or error
        if self.error is None and not self.contents_s:
            self.error = EmptyAnswer("the answer is whole, but nothing in it counts as content")
        self.settled.set()
        self.over.set()


class ProbeClient(Protocol):
    """An HTTP client that tells a recording of connections and bytes while it has one."""

    recording: Recording | None

    def send(self, request: Request, sink: HttpSink) -> HttpStream:
        """See `providers.base.HttpClient`."""


class Tap:
    """An `HttpSink` that tells a recording what passes on its way to another one."""

    def __init__(self, recording: Recording, sink: HttpSink) -> None:
        self._recording = recording
        self._sink = sink

    def on_response(self, status: int, headers: Headers) -> None:
        self._sink.on_response(status, headers)

    def on_body(self, data: bytes) -> None:
        self._recording.on_body(data)
        self._sink.on_body(data)

    def on_close(self, error: UpstreamError | None) -> None:
        self._sink.on_close(error)
        self._recording.rest.set()


def begin(client: ProbeClient, endpoint: Endpoint, call: Call) -> tuple[Recording, Stream]:
    """Send a request; the client's recording is then the one returned."""
    recording = client.recording = Recording(asked_usage=call.include_usage)
    return recording, endpoint.open(call, recording)


async def record(client: ProbeClient, endpoint: Endpoint, call: Call) -> Recording:
    """Send a request and take its answer as far as it comes."""
    recording, stream = begin(client, endpoint, call)
    try:
        if not await within(STREAM_S_MAX, recording.over):
            recording.error = TimedOut(f"the answer was not over after {STREAM_S_MAX:g} s")
        elif recording.error is None:
            await within(_REST_S_MAX, recording.rest)
    finally:
        stream.abort()
        client.recording = None
    return recording


async def within(wait_s: float, event: asyncio.Event) -> bool:
    """Wait for an event; whether it came in time."""
    try:
        async with asyncio.timeout(wait_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def fetch(client: ProbeClient, target: str, headers: Headers) -> bytes | None:
    """The body of a GET as far as it is kept; None unless it was answered with 200."""
    taken = _Document()
    lines = b"".join(b"%s: %s\r\n" % header for header in headers)
    exchange = client.send(Request(b"GET %s HTTP/1.1\r\n%s\r\n" % (target.encode(), lines), b""), taken)
    try:
        whole = await within(_FETCH_S_MAX, taken.over)
    finally:
        exchange.abort()
    return bytes(taken.body) if whole and taken.fine else None


class _Document:
    """The `HttpSink` of a `fetch`."""

    def __init__(self) -> None:
        self.fine = False
        self.body = bytearray()
        self.over = asyncio.Event()

    def on_response(self, status: int, _headers: Sequence[tuple[bytes, bytes]]) -> None:
        self.fine = status == 200

    def on_body(self, data: bytes) -> None:
        self.body += data[: _BODY_BYTES_MAX - len(self.body)]

    def on_close(self, error: UpstreamError | None) -> None:
        self.fine = self.fine and error is None
        self.over.set()
