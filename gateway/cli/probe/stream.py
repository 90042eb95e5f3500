"""Records one request of a probe: the time of each event, and the bytes of the answer.

A `Recording` receives events from both sides of the gateway's own endpoint: connections, headers and bytes from the
client below it, frames and the end from the endpoint. Nothing here depends on a provider; analysis belongs to
quirks.py. Every wait is bounded. Units: seconds of the loop's clock, bytes.
"""

import asyncio
from typing import Protocol

from gateway.cli.fetch import within
from ttft_gateway.apis.base import (
    FIRST_CONTENT,
    Call,
    Endpoint,
    Frame,
    FrameKind,
    Headers,
    HttpSink,
    HttpStream,
    Phase,
    Request,
    Stream,
)
from ttft_gateway.apis.errors import EmptyAnswer, TimedOut, UpstreamError

STREAM_S_MAX = 60.0

_BODY_BYTES_MAX = 256 * 1024
_REST_S_MAX = 1.5  # for the end of the body after the closing event; the endpoint drops the connection after 1 s


class Recording:
    """One streamed answer; a `ttft_gateway.apis.base.Sink`.

    Args:
        asked_usage: True if the request asks for token counts.

    Attributes:
        connect_s: time to open the connection, name look-up and TLS included; None if it was open already.
        sent_s: time at which the request was written.
        headers_s, byte_s: times of the headers and of the first byte of the body; None if not received.
        work_s: time of the first sign of work before any content; None if not received.
        contents_s: time of each content event.
        headers: response headers.
        body: start of the response body.
        reads: number of pieces in which the body arrived.
        error: failure; None without failure, or before the end.
        settled: set at the first content, or at the end if there is none.
        over: set at the end.
        rest: set when the body has been read completely.
    """

    def __init__(self, *, asked_usage: bool) -> None:
        self._time = asyncio.get_running_loop().time
        self.asked_usage = asked_usage
        self.connect_s: float | None = None
        self.sent_s = self._time()
        self.headers_s: float | None = None
        self.byte_s: float | None = None
        self.work_s: float | None = None
        self.contents_s: list[float] = []
        self.headers: Headers = ()
        self.body = bytearray()
        self.reads = 0
        self.error: UpstreamError | None = None
        self.settled, self.over, self.rest = asyncio.Event(), asyncio.Event(), asyncio.Event()

    # from the client

    def on_connected(self) -> None:
        """Record a new connection for the request."""
        now_s = self._time()
        self.connect_s, self.sent_s = now_s - self.sent_s, now_s

    def on_body(self, data: bytes) -> None:
        """Record a piece of the body."""
        if self.byte_s is None:
            self.byte_s = self._time()
        self.reads += 1
        self.body += data[: _BODY_BYTES_MAX - len(self.body)]

    # Sink

    def on_headers(self, status: int, headers: Headers) -> None:
        self.headers_s, self.headers = self._time(), headers

    def on_content(self, raw: bytes, events: int, phase: Phase | None) -> None:
        self.contents_s += [self._time()] * events
        self.settled.set()

    def on_frame(self, frame: Frame) -> None:
        if frame.kind in FIRST_CONTENT:
            self.on_content(frame.raw, 1, frame.phase)
        elif frame.kind is FrameKind.WORK and self.work_s is None and not self.contents_s:
            self.work_s = self._time()
        elif frame.kind is FrameKind.ERROR:
            self.error = frame.error

    def on_end(self, error: UpstreamError | None) -> None:
        self.error = self.error or error
        if self.error is None and not self.contents_s:
            self.error = EmptyAnswer("the answer is complete, but contains no content")
        self.settled.set()
        self.over.set()


class ProbeClient(Protocol):
    """An HTTP client that reports connections and bytes to its recording, if set."""

    recording: Recording | None

    def send(self, request: Request, sink: HttpSink) -> HttpStream:
        """See `ttft_gateway.apis.base.HttpClient`."""


class Tap:
    """An `HttpSink` that records the bytes it forwards to another sink."""

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
    """Send a request, and set the returned recording in the client."""
    recording = client.recording = Recording(asked_usage=call.include_usage)
    return recording, endpoint.open(call, recording)


async def record(client: ProbeClient, endpoint: Endpoint, call: Call) -> Recording:
    """Send a request and record its answer up to its end, a failure or a timeout."""
    recording, stream = begin(client, endpoint, call)
    try:
        if not await within(STREAM_S_MAX, recording.over):
            recording.error = TimedOut(f"the answer was not complete after {STREAM_S_MAX:g} s")
        elif recording.error is None:
            await within(_REST_S_MAX, recording.rest)
    finally:
        stream.abort()
        client.recording = None
    return recording
