"""Reads one response of an upstream: its bytes become frames, and every failure one `UpstreamError`.

Content events in a row that differ only in their text are forwarded as one piece, without being read one by one.
Units: seconds, bytes.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from providers.base import (
    Burst,
    Call,
    ContentRun,
    EventReader,
    Frame,
    FrameKind,
    Headers,
    HttpStream,
    Sink,
    WireProtocol,
)
from providers.errors import ConnectionCut, ProtocolError, RequestModeRejected, UpstreamError
from providers.sse import Splitter
from providers.stream_support import RequestMode, StreamSupport

ERROR_BODY_BYTES_MAX = 64 * 1024
_LINGER_S = 1.0  # wait for the body's last chunk after the closing event, before the connection is dropped
_TRAILING_S = 3.0  # wait for token counts and the closing event after the last finish_reason
_ERROR_BODY_S = 3.0  # wait for the body of an error status, because the request is then tried elsewhere
_FIRST_EVENTS: Final = range(4)  # role, the beginning of the reasoning, and an event with text
# Looked up once, because every event is compared with them.
_CONTENT, _ERROR = FrameKind.CONTENT, FrameKind.ERROR
_DECISIVE: Final = frozenset({_CONTENT, _ERROR, FrameKind.REFUSAL})
_QUOTED_MAX: Final = 40  # characters of a header's value
_LF, _CR = 10, 13


class Bounds(msgspec.Struct, frozen=True):
    """Limits on what an upstream may send.

    Attributes:
        event_bytes_max: maximum size of one SSE event.
        body_bytes_max: maximum size of a JSON answer.
    """

    event_bytes_max: int = 4 * 1024 * 1024
    body_bytes_max: int = 64 * 1024 * 1024


class ResponseContext(msgspec.Struct, frozen=True):
    """The objects that all responses of one endpoint share.

    Attributes:
        bounds: limits on a response.
        support: request modes that the server supports.
        burst: opened while a piece of a body is read.
    """

    bounds: Bounds
    support: StreamSupport
    burst: Burst


class ResponseStream:
    """One response on its way to a sink: the `HttpSink` of the client and the `Stream` of the attempt."""

    __slots__ = (
        "_body",
        "_call",
        "_content_seen",
        "_context",
        "_headers",
        "_linger",
        "_mode",
        "_paused",
        "_protocol",
        "_reader",
        "_run",
        "_sink",
        "_splitter",
        "_status",
        "exchange",
    )

    exchange: HttpStream
    _splitter: Splitter  # set with the reader
    _headers: Headers  # of an error status

    def __init__(
        self, protocol: WireProtocol, call: Call, sink: Sink, mode: RequestMode, context: ResponseContext
    ) -> None:
        self._context = context
        self._protocol = protocol
        self._call = call
        self._mode = mode
        self._sink: Sink | None = sink
        self._reader: EventReader | None = None  # set while the body is read as events
        self._run: ContentRun | None = None  # to try on the next bytes; None after an incomplete event
        self._body: bytearray | None = None  # the body, if it is not read as events
        self._status = 0
        self._paused = False
        self._content_seen = False  # content or a refusal was pushed
        self._linger: asyncio.TimerHandle | None = None  # limits the wait for bytes that the answer does not need

    # Stream

    def pause(self) -> None:
        self._paused = True
        self.exchange.pause()

    def resume(self) -> None:
        self._paused = False
        self.exchange.resume()

    def abort(self) -> None:
        if self._sink is not None:
            self._sink = None
            self._stop_lingering()
            self.exchange.abort()

    # HttpSink

    def on_response(self, status: int, headers: Headers) -> None:
        sink = self._sink
        if sink is None:
            return
        self._status = status
        fields = dict(headers)
        if status != 200:
            self._headers = headers
            self._wait_for_rest(_ERROR_BODY_S)
        elif b"content-encoding" in fields and (compression := _compression(headers)):
            encoding = compression[:_QUOTED_MAX].decode("latin-1")
            self._fail(ProtocolError(f"the upstream's answer is compressed ({encoding}); turn its compression off"))
            return
        elif b"json" in fields.get(b"content-type", b"").lower():  # all other types are read as events
            pass
        elif self._call.streaming or self._call.assemble:
            self._splitter = Splitter(self._context.bounds.event_bytes_max)
            self._reader = self._protocol.reader(self._call)
        sink.on_headers(status, headers)

    def on_body(self, data: bytes) -> None:
        """Push what one read of the socket brought: runs of content events as they are, other events one by one.

        Examples, one read a line, `|` ends an event (openai/events.py has an example of a run):

            role|Hel|lo|,      role; run of "Hel" (learned) and "lo"; the splitter keeps the incomplete event
             wo|rld|usage|     feed: ", wo" and "rld" are pushed together, then usage; no run after an incomplete event
            a|b|c|             one run
            a|b|usage|[DONE]|  run of "a" and "b", usage, [DONE]
            a|finish|b|        "a", finish and "b" one by one
            é|                 read: text outside ASCII is in no run
        """
        sink, run, burst = self._sink, self._run, self._context.burst
        burst.is_open = True
        try:
            if run is not None and sink is not None:
                content, data, events = run.take(data)
                if events:
                    self._content_seen = True
                    sink.on_content(content, events)
            if data:
                self._read(data)
        except ProtocolError as error:
            self._fail(error)
        except Exception as error:  # a bug must fail one attempt at once, not stall the client
            self._fail(_unreadable(error))
        finally:
            burst.close()

    def on_close(self, error: UpstreamError | None) -> None:
        if self._linger is not None:
            self._stop_lingering()
        if self._sink is None:
            return
        if self._status != 200 and self._status:
            self._end(self._status_error())
        elif self._reader is not None:
            # A connection lost after the last finish_reason cost the answer nothing.
            self._close(None if self._reader.complete else error or _cut())
        else:
            self._close(error)

    # Internals

    def _read(self, data: bytes) -> None:
        """Read bytes that begin with no run: the first events one by one, because one of them may begin a run."""
        sink, reader = self._sink, self._reader
        if sink is None:
            return
        if reader is None:
            self._gather(data)
            return
        splitter = self._splitter
        if self._call.streaming and not splitter.partial and _CR not in data:  # assembling needs single events
            tried = self._run  # on these bytes, by `on_body`
            for _ in _FIRST_EVENTS:
                size = data.find(b"\n\n") + 2
                if size < 3 or size > splitter.event_bytes_max or data[0] == _LF:
                    break
                frame = reader.read(data[:size])
                if (
                    frame.kind is _CONTENT
                    and reader.run is not tried
                    and (rest := self._push_run(reader.run, sink, data)) is not None
                ):
                    data = rest
                else:
                    self._push(reader, sink, frame)
                    data = data[size:]
                tried = None
                if not data:
                    break
                if self._sink is None:
                    return
        if data:
            self._push_all(reader, splitter.feed(data))
        self._run = reader.run if self._call.streaming and not splitter.partial else None
        if reader.complete and self._linger is None and self._sink is not None and not self.exchange.received:
            self._wait_for_rest(_TRAILING_S)

    def _push_run(self, run: ContentRun | None, sink: Sink, data: bytes) -> bytes | None:
        """Push the run at the start of data, and return the bytes after it; None if there is no run."""
        if run is None:
            return None
        content, rest, events = run.take(data)
        if not events:
            return None
        self._content_seen = True
        sink.on_content(content, events)
        return rest

    def _push_all(self, reader: EventReader, events: Sequence[bytes]) -> None:
        """Push whole events, content in a row as one, until the closing event or until the sink aborts."""
        run: list[bytes] = []
        for event in events:
            frame = reader.read(event)
            if frame.kind is _CONTENT and frame.usage is None and self._call.streaming:
                run.append(frame.raw)
                continue
            if run:
                self._push_content(run)
                run.clear()
            if self._sink is None:
                return
            self._push(reader, self._sink, frame)
        if run:
            self._push_content(run)

    def _push_content(self, run: Sequence[bytes]) -> None:
        self._content_seen = True
        if self._sink is not None:
            self._sink.on_content(b"".join(run), len(run))

    def _push(self, reader: EventReader, sink: Sink, frame: Frame) -> None:
        """Push one event, and the end of the stream after its closing event."""
        if frame.kind in _DECISIVE:
            if frame.kind is not _ERROR:
                self._content_seen = True
            elif self._content_seen and reader.complete:
                self.exchange.abort()  # an error after the last finish_reason cost the answer nothing
                self.on_close(None)
                return
        sink.on_frame(frame)
        if reader.closed:
            self._done(reader)

    def _done(self, reader: EventReader) -> None:
        """End the stream for the sink after the closing event; the body's end may follow and free the connection."""
        if self._sink is None:  # aborted
            return
        if self._linger is not None:
            self._stop_lingering()
        if not self.exchange.received:
            self._linger = asyncio.get_running_loop().call_later(_LINGER_S, self.exchange.abort)
            if self._paused:
                self.exchange.resume()  # the sink cannot resume it after the end
        self._end(None if reader.complete else _cut())

    def _wait_for_rest(self, rest_s: float) -> None:
        """Limit the wait for bytes after a complete answer or an error status."""
        self._linger = asyncio.get_running_loop().call_later(rest_s, self._rest_is_late, rest_s)

    def _rest_is_late(self, rest_s: float) -> None:
        if self._paused:  # the bytes may have arrived unread
            self._wait_for_rest(rest_s)
            return
        self.exchange.abort()
        self.on_close(None)

    def _stop_lingering(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None

    def _gather(self, data: bytes) -> None:
        """Collect a body that is read as a whole: an error's beginning, or an answer up to its bound."""
        if self._body is None:
            self._body = bytearray()
        body, bytes_max = self._body, self._context.bounds.body_bytes_max
        if self._status != 200:
            if not _compression(self._headers):  # the text of a compressed error stays unknown, its status is enough
                body += data[: ERROR_BODY_BYTES_MAX - len(body)]
            if len(body) == ERROR_BODY_BYTES_MAX:
                self._fail(self._status_error())
        elif len(body) + len(data) > bytes_max:
            self._fail(ProtocolError(f"the upstream's answer is over the limit of {bytes_max} bytes"))
        else:
            body += data

    def _close(self, error: UpstreamError | None) -> None:
        """End the stream after the body; without an error, push its last frames first."""
        if error is None:
            try:
                for frame in self._last_frames():
                    if self._sink is not None:
                        self._sink.on_frame(frame)
            except Exception as failure:  # as in on_body
                error = _unreadable(failure)
        self._end(error)

    def _status_error(self) -> UpstreamError:
        """Read an error status; a rejected request mode is reported as such if there is another mode to try."""
        error = self._protocol.error(self._status, self._headers, bytes(self._body or b""))
        now_s = asyncio.get_running_loop().time()
        other = self._context.support.rejected(self._call, self._mode, error, now_s)
        return RequestModeRejected(error) if other else error

    def _last_frames(self) -> Sequence[Frame]:
        """Return the closing frame of a stream without a closing event, or the frames of a JSON body."""
        if self._reader is not None:
            last = self._reader.close()
            return () if last is None else (last,)
        body = bytes(self._body or b"")
        if self._call.streaming or self._call.assemble:
            return self._protocol.reader(self._call).read_body(body)
        return (self._protocol.whole(self._call, body),)

    def _fail(self, error: UpstreamError) -> None:
        self._stop_lingering()
        self.exchange.abort()
        self._end(error)

    def _end(self, error: UpstreamError | None) -> None:
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.on_end(error)


def _compression(headers: Headers) -> bytes:
    """Return the content-encoding of a body, empty if it is not compressed."""
    compression = b""
    for name, value in headers:
        if name == b"content-encoding" and value.lower() != b"identity":
            compression = value
    return compression


def _cut() -> ConnectionCut:
    return ConnectionCut("the upstream's stream ended before the answer was complete")


def _unreadable(error: Exception) -> ProtocolError:
    return ProtocolError(f"the upstream's answer is unreadable ({type(error).__name__})")
