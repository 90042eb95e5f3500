"""Combines an HTTP client, a wire protocol and a splitter to an `Endpoint`, a replica in the form that a race uses.

Turns response bytes into frames, and every failure of a response into one `UpstreamError`. Races and retries are not
handled here. Units: seconds, bytes.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from providers.base import (
    Api,
    Burst,
    Call,
    EventReader,
    Frame,
    FrameKind,
    Headers,
    HttpClient,
    HttpStream,
    Request,
    Sink,
    Stream,
    WireProtocol,
)
from providers.errors import ConnectionCut, ProtocolError, RequestModeRejected, Unsupported, UpstreamError
from providers.sse import Splitter
from providers.stream_support import DEFAULT, UNSTREAMED, RequestMode, StreamSupport

ERROR_BODY_BYTES_MAX = 64 * 1024
_LINGER_S = 1.0  # wait for the body's last chunk after the closing event, before the connection is dropped
_TRAILING_S = 3.0  # wait for token counts and the closing event after the last finish_reason
_ERROR_BODY_S = 3.0  # wait for the body of an error status, because the request is then tried elsewhere


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits on what an upstream may send.

    Attributes:
        event_bytes_max: maximum size of one SSE event.
        body_bytes_max: maximum size of a JSON answer.
    """

    event_bytes_max: int = 4 * 1024 * 1024
    body_bytes_max: int = 64 * 1024 * 1024


class HttpEndpoint:
    """A `providers.base.Endpoint` over HTTP.

    Args:
        client: the client to the replica's origin.
        protocols: the wire protocol for each API that the replica serves.
        path: path of the base URL, without a closing slash.
        headers: headers of every request: host, authorization and so on.
        model: the replica's name of the model.
        bounds: limits on responses.
        query: query string of every request, with its question mark; empty for none.
        burst: opened while a piece of a body is read, None if no caller uses it.
    """

    def __init__(
        self,
        client: HttpClient,
        protocols: dict[Api, WireProtocol],
        path: str,
        headers: Headers,
        model: str,
        bounds: Bounds,
        query: str = "",
        burst: Burst | None = None,
    ) -> None:
        self._client = client
        self._protocols = protocols
        self._model = model
        self.burst = burst or Burst()
        self.bounds = bounds
        self.support = StreamSupport()
        lines = b"".join(b"%s: %s\r\n" % header for header in headers)
        fixed = b"content-type: application/json\r\naccept-encoding: identity\r\n"  # request no compression
        # engines serve `/tokenize` beside `/v1`, not below it
        bases = {api: path.removesuffix("/v1") if api is Api.TOKENIZE else path for api in protocols}
        targets = {api: bases[api] + protocol.path(api) + query for api, protocol in protocols.items()}
        self._heads = {
            api: b"POST %s HTTP/1.1\r\n" % target.encode() + lines + fixed for api, target in targets.items()
        }

    def open(self, call: Call, sink: Sink) -> Stream:
        """Send the call; see `Endpoint.open`."""
        protocol = self._protocols[call.api]
        in_events = call.streaming or call.assemble
        mode = DEFAULT if in_events else UNSTREAMED
        if self.support and in_events:
            mode = self.support.mode_for(call, asyncio.get_running_loop().time())
        sent_call = call if mode.options else msgspec.structs.replace(call, options=False)
        try:
            body = protocol.build(sent_call, self._model, stream=mode.stream)
        except Unsupported as error:
            return _UnsupportedStream(error, sink)
        head = self._heads[call.api]
        if call.headers:
            head += b"".join(b"%s: %s\r\n" % header for header in call.headers)
        size = sum(map(len, body)) if type(body) is tuple else len(body)
        head += b"accept: %s\r\ncontent-length: %d\r\n\r\n" % (_ACCEPT[mode.stream], size)
        stream = _HttpStream(self, protocol, call, sink, mode)
        stream.exchange = self._client.send(Request(head, body), stream)
        return stream


class _UnsupportedStream:
    """The `Stream` of a call that this replica does not support: it fails in the next loop turn."""

    def __init__(self, error: Unsupported, sink: Sink) -> None:
        self._timer = asyncio.get_running_loop().call_soon(sink.on_end, error)

    def pause(self) -> None:
        """Do nothing: there is no data."""

    def resume(self) -> None:
        """Do nothing: there is no data."""

    def abort(self) -> None:
        self._timer.cancel()


_FIRST_EVENTS: Final = 4  # role, the beginning of the reasoning, and an event with text
# Looked up once, because every event is compared with them.
_CONTENT, _REFUSAL, _ERROR = FrameKind.CONTENT, FrameKind.REFUSAL, FrameKind.ERROR
_QUOTED_MAX: Final = 40  # characters of a header's value
_ACCEPT = {True: b"text/event-stream", False: b"application/json"}


class _HttpStream:
    """One response on its way to a sink: the `HttpSink` of the client and the `Stream` of the attempt."""

    __slots__ = (
        "_body",
        "_burst",
        "_call",
        "_compression",
        "_content_seen",
        "_endpoint",
        "_headers",
        "_linger",
        "_mode",
        "_paused",
        "_protocol",
        "_reader",
        "_sink",
        "_splitter",
        "_status",
        "exchange",
    )

    exchange: HttpStream
    _splitter: Splitter  # set with the reader

    def __init__(
        self, endpoint: HttpEndpoint, protocol: WireProtocol, call: Call, sink: Sink, mode: RequestMode
    ) -> None:
        self._endpoint = endpoint
        self._protocol = protocol
        self._call = call
        self._mode = mode
        self._sink: Sink | None = sink
        self._burst = endpoint.burst
        self._reader: EventReader | None = None  # set while the body is read as events
        self._body: bytearray | None = None  # the body, if it is not read as events
        self._status = 0
        self._headers: Headers = ()  # of an error status
        self._compression = b""  # the body's content-encoding, empty if uncompressed
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
        if self._sink is None:
            return
        self._status = status
        is_json = False
        for name, value in headers:
            if name == b"content-type":
                is_json = b"json" in value.lower()  # all other types are read as events
            elif name == b"content-encoding" and value.lower() != b"identity":
                self._compression = value
        if status != 200:
            self._headers = headers
            self._wait_for_rest(_ERROR_BODY_S)
        elif self._compression:
            encoding = self._compression[:_QUOTED_MAX].decode("latin-1")
            self._fail(ProtocolError(f"the upstream's answer is compressed ({encoding}); turn its compression off"))
            return
        elif self._in_events and not is_json:
            self._splitter = Splitter(self._endpoint.bounds.event_bytes_max)
            self._reader = self._protocol.reader(self._call)
        self._sink.on_headers(status, headers)

    def on_body(self, data: bytes) -> None:
        reader = self._reader
        if self._sink is None:
            return
        if reader is None:
            self._gather(data)
            return
        self._burst.is_open = True
        try:
            in_runs = self._call.streaming and not self._splitter.partial  # assembling needs single events
            size, events = reader.content_run(data) if in_runs else (0, 0)
            if size:
                self._sink.on_content(data[:size], events)
            rest = data[size:]
            if rest:
                self._read_rest(reader, rest, in_runs=in_runs and not size)
        except ProtocolError as error:
            self._fail(error)
        except Exception as error:  # a bug must fail one attempt at once, not stall the client
            self._fail(_unreadable(error))
        finally:
            self._burst.close()

    def on_close(self, error: UpstreamError | None) -> None:
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

    @property
    def _in_events(self) -> bool:
        """The sink needs events, whatever was requested."""
        return self._call.streaming or self._call.assemble

    def _read_rest(self, reader: EventReader, data: bytes, *, in_runs: bool) -> None:
        """Read what does not begin with a run of content events: the start, the end, and all that is unusual.

        Examples, one read a line, `|` ends an event (openai/events.py has an example of `content_run`):

            role|Hel|lo|,      role and "Hel" (learned) one by one; run of "lo"; the splitter keeps the incomplete event
             wo|rld|usage|     feed: ", wo" and "rld" are pushed together, then usage; no run after an incomplete event
            a|b|c|             one run; this method is not called
            a|b|usage|[DONE]|  run of "a" and "b"; feed: usage, [DONE]
            a|finish|b|        "a", finish and "b" one by one
            é|                 feed: text outside ASCII is in no run
        """
        splitter = self._splitter
        if in_runs:
            for _ in range(_FIRST_EVENTS):  # the first events of a stream must be read before a run can be recognised
                size = splitter.first_end(data)
                if not size:
                    break
                self._read(reader, (data[:size],))
                data = data[size:]
                if not data or self._sink is None:
                    break
                size, events = reader.content_run(data)
                if size:
                    self._sink.on_content(data[:size], events)
                    data = data[size:]
                    break
        if data and self._sink is not None:
            self._read(reader, splitter.feed(data))
        if reader.complete and self._linger is None and self._sink is not None and not self.exchange.received:
            self._wait_for_rest(_TRAILING_S)

    def _read(self, reader: EventReader, events: Sequence[bytes]) -> None:
        """Push whole events, content in a row as one, until the closing event or until the sink aborts."""
        run: list[bytes] = []
        for event in events:
            frame = reader.read(event)
            kind = frame.kind
            if kind is _CONTENT and frame.usage is None and self._call.streaming:
                run.append(frame.raw)
                continue
            if run:
                self._push_content(run)
                run.clear()
            if self._sink is None:
                return
            if kind is _ERROR and reader.complete and self._content_seen:
                self.exchange.abort()  # an error after the last finish_reason cost the answer nothing
                self.on_close(None)
                return
            if kind is _CONTENT or kind is _REFUSAL:
                self._content_seen = True
            self._sink.on_frame(frame)
            if reader.closed:
                self._done(reader)
                return
        if run:
            self._push_content(run)

    def _push_content(self, run: Sequence[bytes]) -> None:
        self._content_seen = True
        if self._sink is not None:
            self._sink.on_content(b"".join(run), len(run))

    def _done(self, reader: EventReader) -> None:
        """End the stream for the sink after the closing event; the body's end may follow and free the connection."""
        if self._sink is None:  # aborted
            return
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
        body, bytes_max = self._body, self._endpoint.bounds.body_bytes_max
        if self._status != 200:
            if not self._compression:  # the text of a compressed error stays unknown, its status is enough
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
        other = self._endpoint.support.rejected(self._call, self._mode, error, now_s)
        return RequestModeRejected(error) if other else error

    def _last_frames(self) -> Sequence[Frame]:
        """Return the closing frame of a stream without a closing event, or the frames of a JSON body."""
        if self._reader is not None:
            last = self._reader.close()
            return () if last is None else (last,)
        body = bytes(self._body or b"")
        if self._in_events:
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


def _cut() -> ConnectionCut:
    return ConnectionCut("the upstream's stream ended before the answer was complete")


def _unreadable(error: Exception) -> ProtocolError:
    return ProtocolError(f"the upstream's answer is unreadable ({type(error).__name__})")
