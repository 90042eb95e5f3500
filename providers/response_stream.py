r"""Reads one response of an upstream: its bytes become frames, and every failure one `UpstreamError`.

An answer is whole by the rule of `endings.py`, which is applied here and nowhere else, whatever ends the body.

Content events in a row that differ only in their text are forwarded as one piece, without being read one by one:

    learned event  data: {"id":"c1","choices":[{"delta":{"content":"Hel"}}]}\n\n
    prefix         data: {"id":"c1","choices":[{"delta":{"content":"
    suffix         "}}]}\n\n
    separator      "}}]}\n\ndata: {"id":"c1","choices":[{"delta":{"content":"     (suffix + prefix)
    bytes read     <prefix>lo<separator>, wor<separator>ld<suffix>data: [DONE]\n\n
    run            3 events: "lo", ", wor", "ld" are plain text and none is empty; `data: [DONE]` is read next

Units: seconds, bytes.
"""

import asyncio
from collections.abc import Sequence
from io import BytesIO
from typing import Final

import msgspec

from providers.stream_support import RequestMode, StreamSupport
from providers.whole_answer import WholeAnswer
from ttft_gateway.apis.base import (
    FIRST_CONTENT,
    Burst,
    Call,
    ContentRun,
    EventReader,
    Frame,
    FrameKind,
    Headers,
    HttpStream,
    Phase,
    Sink,
    WireProtocol,
)
from ttft_gateway.apis.endings import broken, frames_of_body
from ttft_gateway.apis.errors import LOOP, LoopFound, ProtocolError, RequestModeRejected, UpstreamError
from ttft_gateway.apis.json_values import is_light, plain_text
from ttft_gateway.apis.read_turns import MANY_BYTES, TURN_S
from ttft_gateway.apis.sse import UNCODED, Splitter

ERROR_BODY_BYTES_MAX = 64 * 1024
_LINGER_S = 1.0  # wait for the body's last chunk after the closing event, before the connection is dropped
_TRAILING_S = 3.0  # wait for token counts and the closing event after the last finish_reason
_ERROR_BODY_S = 3.0  # wait for the body of an error status, because the request is then tried elsewhere
_FIRST_EVENTS: Final = range(4)  # role, the beginning of the reasoning, and an event with text
_ANSWERS: Final = frozenset({200, 201, 202, 203})  # some servers answer a POST with 201, some proxies with 203
_CONTENT, _ERROR, _DONE = FrameKind.CONTENT, FrameKind.ERROR, FrameKind.DONE
_DECISIVE: Final = FIRST_CONTENT | {_ERROR}
_QUOTED_MAX: Final = 40  # characters of a header's value
_FEW_BYTES: Final = 4 * 1024  # of a read that is never divided: 4,096 blank lines take 10 ms
_DENSE_BYTES: Final = 2 * 1024  # of a slice of bytes with many line ends
_LINE_BYTES_MIN: Final = 8  # mean length of a line below which there are many; events of content have at least 20
_RUN_BYTES: Final = 2 * 1024  # above which a run is looked for after an incomplete event
_LARGE_EVENT: Final = 64 * 1024  # bytes above which the values of an event are counted
_EVENT_VALUES: Final = 100_000  # of a large event
_LF, _CR, _QUOTE = 10, 13, 34
_BLANK: Final = b"\xef\xbb\xbf \t\r\n"  # bytes that may precede an answer: byte order mark, white space
_JSON: Final = b"{["  # first bytes of a JSON answer
_MARKUP: Final = ord("<")  # first byte of HTML or XML, such as a page of a proxy


class Bounds(msgspec.Struct, frozen=True):
    """Limits on what an upstream may send.

    Attributes:
        event_bytes_max: maximum size of one SSE event.
        body_bytes_max: maximum size of a JSON answer.
    """

    event_bytes_max: int = 16 * 1024 * 1024
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
        "_answer",
        "_body",
        "_call",
        "_content_seen",
        "_context",
        "_headers",
        "_is_answer",
        "_is_due",
        "_is_unseen",
        "_late_end",
        "_linger",
        "_mode",
        "_paused",
        "_protocol",
        "_reader",
        "_run",
        "_sink",
        "_splitter",
        "_status",
        "_unread",
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
        self._body = b""  # the beginning of an error's body
        self._answer: WholeAnswer | None = None  # the body of an answer that is not read as events
        self._status = 0
        self._is_answer = False  # the status is no error
        self._paused = False
        self._is_unseen = False  # the first byte of the body will show its form; some servers declare another one
        self._content_seen = False  # content or a refusal was pushed
        self._unread: bytearray | None = None  # bytes that wait for the stream's next turn; None if it waits for none
        self._is_due = False  # the turn began while the client was slow
        self._late_end: tuple[UpstreamError | None] | None = None  # of the response, after the bytes that wait
        self._linger: asyncio.TimerHandle | None = None  # limits the wait for bytes that the answer does not need

    # Stream

    def pause(self) -> None:
        self._paused = True
        self.exchange.pause()

    def resume(self) -> None:
        self._paused = False
        if self._unread is None:
            self.exchange.resume()
        elif self._is_due:
            self._is_due = False
            asyncio.get_running_loop().call_soon(self._next_turn)

    def abort(self) -> None:
        if self._sink is not None:
            self._sink = None
            self._stop_lingering()
            self.exchange.abort()

    def finish(self) -> bool:
        reader = self._reader
        if self._sink is None or reader is None or not reader.complete or reader.resumed:
            return False
        self.exchange.abort()
        self._over(None)
        return True

    # HttpSink

    def on_response(self, status: int, headers: Headers) -> None:
        sink = self._sink
        if sink is None:
            return
        self._is_answer = status in _ANSWERS
        self._status = status
        fields = dict(headers)
        if not self._is_answer:
            self._headers = headers
            self._wait_for_rest(_ERROR_BODY_S)
        elif b"content-encoding" in fields and (compression := _compression(headers)):
            encoding = compression[:_QUOTED_MAX].decode("latin-1")
            self._fail(ProtocolError(f"the upstream's answer is compressed ({encoding}); turn its compression off"))
            return
        elif self._call.streaming or self._call.assemble:
            self._is_unseen = True
        sink.on_headers(status, headers)

    def on_body(self, data: bytes) -> None:
        """Push what one read of the socket brought: runs of content events as they are, other events one by one.

        Examples, one read a line, `|` ends an event (see above for a run):

            role|Hel|lo|,      role; run of "Hel" (learned) and "lo"; the splitter stores the incomplete event
             wo|rld|usage|     feed: ", wo" and "rld" are pushed together, then usage; no run after an incomplete event
            a|b|c|             one run
            a|b|usage|[DONE]|  run of "a" and "b", usage, [DONE]
            a|finish|b|        "a", finish and "b" one by one
            é|                 read: text outside ASCII is in no run
        """
        if (len(data) > _FEW_BYTES and (len(data) > MANY_BYTES or _is_dense(data))) or self._unread is not None:
            self._take_turn(data)
            return
        sink, run, burst = self._sink, self._run, self._context.burst
        burst.is_open = True
        try:
            if run is not None and sink is not None:
                content, data, events = take_run(run, data)
                if events:
                    self._content_seen = True
                    burst.is_last = not data
                    sink.on_content(content, events, run.phase)
            if data:
                burst.is_last = False
                if self._is_unseen:
                    data = self._recognise(data)
                self._read(data)
        except ProtocolError as error:
            self._fail(error)
        except Exception as error:  # a bug must fail one attempt immediately, not stall the client
            self._fail(_unreadable(error))
        finally:
            burst.is_open = burst.is_last = False
            if burst.at_end:
                at_end, burst.at_end = burst.at_end, []
                for send in at_end:
                    send()

    def on_close(self, error: UpstreamError | None) -> None:
        if self._unread is not None:
            self._late_end = (error,)  # after the bytes before it
            return
        if error is None and self._reader is not None and (partial := self._splitter.partial):
            self.on_body(b"\n" if partial[-1] == _LF else b"\n\n")  # some servers omit the last blank line
        if self._sink is not None:
            self._over(error)
        elif self._linger is not None:
            self._stop_lingering()

    # Internals

    def _over(self, error: UpstreamError | None) -> None:
        """End the stream after its body, or after an answer to which nothing is missing."""
        if self._linger is not None:
            self._stop_lingering()
        if self._status and not self._is_answer:
            self._end(self._status_error())
        elif self._is_unseen:
            self._end(broken(error))
        elif self._reader is not None:
            is_whole = self._reader.complete and not (self._reader.resumed and error)
            self._close(None if is_whole else broken(error))
        else:
            self._close(error)

    def _recognise(self, data: bytes) -> bytes:
        """Read the body as events unless its first byte begins a JSON answer; return the bytes to read."""
        start = data[0] if data[0] not in _BLANK else next((byte for byte in data if byte not in _BLANK), None)
        self._is_unseen = start is None
        if start == _MARKUP:
            raise ProtocolError(
                "the upstream answered 200 with HTML or XML; check the replica's base_url, and the proxies on the way"
            )
        if start is not None and start not in _JSON:
            self._splitter = Splitter(self._context.bounds.event_bytes_max)
            self._reader = self._protocol.reader(self._call)
            self._answer = None  # white space
            if data[0] != start:
                return data.lstrip(_BLANK)  # a byte order mark would be part of the name of the first field
        return data

    def _take_turn(self, data: bytes) -> None:
        """Read many bytes in slices; bytes over the time of this turn of the stream are read in its next turns."""
        exchange, loop = self.exchange, asyncio.get_running_loop()
        if self._unread is not None:  # its turn is over, and the transport or the parser had more
            self._unread += data
            return
        began_s = exchange.read_began_s or loop.time()
        self._read_slices(data, loop, loop.time() + TURN_S)
        if self._sink is not None:
            exchange.pause()
            self._context.burst.turns.wait(self._call.owner, self._next_turn, loop.time() - began_s, loop)

    def _next_turn(self) -> None:
        """Read the bytes that were left, or else the socket."""
        unread = self._unread
        if self._sink is None or unread is None:
            return
        if self._paused:
            self._is_due = True  # until `resume`
            return
        self._unread = None
        if unread:
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            self._read_slices(bytes(unread), loop, began_s + TURN_S)
            if self._sink is not None:
                self._context.burst.turns.wait(self._call.owner, self._next_turn, loop.time() - began_s, loop)
        elif self._late_end is not None:
            self.on_close(*self._late_end)
        else:
            self.exchange.resume()

    def _read_slices(self, data: bytes, loop: asyncio.AbstractEventLoop, until_s: float) -> None:
        """Read slices until this time; the bytes after them wait for the next turn."""
        at = 0
        while at < len(data):
            piece = data[at : at + MANY_BYTES]
            if _is_dense(piece):
                piece = piece[:_DENSE_BYTES]
            self.on_body(piece)
            if self._sink is None:
                return
            at += len(piece)
            if loop.time() >= until_s:
                break
        self._unread = bytearray(data[at:])

    def _read(self, data: bytes) -> None:
        """Read bytes that begin with no run: the first events one by one, because one of them may begin a run."""
        sink, reader = self._sink, self._reader
        if sink is None:
            return
        if reader is None:
            self._gather(data)
            return
        splitter = self._splitter
        if splitter.partial and len(data) > _RUN_BYTES:
            data = self._push_partial(reader, splitter, data)
        if self._call.streaming and not splitter.partial and _CR not in data:  # assembling needs single events
            tried = self._run  # on these bytes, by `on_body`
            for _ in _FIRST_EVENTS:
                if self._sink is None:
                    return
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
        if data:
            self._push_all(reader, splitter.feed(data))
        self._run = reader.run if self._call.streaming and not splitter.partial else None
        if reader.complete and self._sink is not None and not self.exchange.received:
            self._await_end(reader)

    def _push_partial(self, reader: EventReader, splitter: Splitter, data: bytes) -> bytes:
        """Push the incomplete event that ends in data, and return the bytes after it, where a run may begin."""
        size = data.find(b"\n\n") + 2
        if size < 2:
            return data
        self._push_all(reader, splitter.feed(data[:size]))
        return data[size:]

    def _push_run(self, run: ContentRun | None, sink: Sink, data: bytes) -> bytes | None:
        """Push the run at the start of data, and return the bytes after it; None if there is no run."""
        if run is None:
            return None
        content, rest, events = take_run(run, data)
        if not events:
            return None
        self._content_seen = True
        sink.on_content(content, events, run.phase)
        return rest

    def _push_all(self, reader: EventReader, events: Sequence[bytes]) -> None:
        """Push whole events, content in a row as one, until the closing event or until the sink aborts."""
        run: list[bytes] = []
        phase = None  # of the last event of the run
        for event in events:
            if len(event) > _LARGE_EVENT and not is_light(event, _EVENT_VALUES):
                raise ProtocolError(f"the upstream sent an event of {len(event)} bytes with too many values")
            frame = reader.read(event)
            if frame.kind is _CONTENT and frame.usage is None and self._call.streaming:
                run.append(frame.raw)
                phase = frame.phase
                continue
            if run:
                self._push_content(run, phase)
                run.clear()
            if self._sink is None:
                return
            self._push(reader, self._sink, frame)
        if run:
            self._push_content(run, phase)

    def _push_content(self, run: Sequence[bytes], phase: Phase | None) -> None:
        self._content_seen = True
        if self._sink is not None:
            self._sink.on_content(b"".join(run), len(run), phase)

    def _push(self, reader: EventReader, sink: Sink, frame: Frame) -> None:
        """Push one event, and the end of the stream after its closing event, which is pushed only if it is the end."""
        kind = frame.kind
        if kind in _DECISIVE:
            if kind is not _ERROR:
                self._content_seen = True
            elif self._content_seen and self.finish():  # an error after the finish cost the answer nothing
                return
        if kind is not _DONE or reader.complete:
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
        self._end(None if reader.complete else broken(is_empty=not self._content_seen))

    def _await_end(self, reader: EventReader) -> None:
        """Limit the wait for the end after a finish, and lift the limit if content follows."""
        if reader.resumed:
            self._stop_lingering()
        elif self._linger is None:
            self._wait_for_rest(_TRAILING_S)

    def _wait_for_rest(self, rest_s: float) -> None:
        """Limit the wait for bytes after a complete answer or an error status."""
        self._linger = asyncio.get_running_loop().call_later(rest_s, self._rest_is_late, rest_s)

    def _rest_is_late(self, rest_s: float) -> None:
        if self._paused or self._unread is not None:  # the bytes may have arrived unread
            self._wait_for_rest(rest_s)
            return
        self.exchange.abort()
        if self._sink is not None:
            self._over(None)

    def _stop_lingering(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None

    def _gather(self, data: bytes) -> None:
        """Collect a body that is read as a whole: an error's beginning, or an answer up to its bound."""
        if self._is_answer:
            if self._answer is None:
                self._answer = WholeAnswer(self._context.bounds.body_bytes_max)
            self._answer.add(data)
            return
        self._body += data[: ERROR_BODY_BYTES_MAX - len(self._body)]
        if len(self._body) == ERROR_BODY_BYTES_MAX:
            self._fail(self._status_error())

    def _close(self, error: UpstreamError | None) -> None:
        """End the stream after the body; push its last frames first, unless the error cost the answer something."""
        if error is None or self._reader is None:
            try:
                frames = self._last_frames()
                if error is None or all(frame.kind is not _ERROR for frame in frames):
                    error = None
                    for frame in frames:
                        if self._sink is not None:
                            self._sink.on_frame(frame)
            except ProtocolError as failure:
                error = error or failure
            except Exception as failure:  # as in on_body
                error = error or _unreadable(failure)
        self._end(error)

    def _status_error(self) -> UpstreamError:
        """Read an error status; a rejected request mode is reported as such if there is another mode to try."""
        error = self._protocol.error(self._status, self._headers, self._body)
        if self._status == LOOP and self._call.hops:
            return LoopFound(error)
        now_s = asyncio.get_running_loop().time()
        other = self._context.support.rejected(self._call, self._mode, error, now_s)
        return RequestModeRejected(error) if other else error

    def _last_frames(self) -> Sequence[Frame]:
        """Return the closing frame of a stream without a closing event, or the frames of a JSON body."""
        if self._reader is not None:
            last = self._reader.close()
            return () if last is None else (last,)
        answer, call = self._answer or WholeAnswer(0), self._call
        self._answer = None
        body = answer.light()
        if body is None:
            frame = None if call.streaming else self._protocol.outlined(answer.outline())
            if frame is not None and frame.kind is not _CONTENT:
                return (frame,)
            if frame is not None:
                first, *rest = answer.pieces()
                return (msgspec.structs.replace(frame, raw=first), *(Frame(_CONTENT, piece) for piece in rest))
            body = answer.converted()
        if call.streaming or call.assemble:
            return frames_of_body(self._protocol.reader(call), body)
        return (self._protocol.whole(call, body),)

    def _fail(self, error: UpstreamError) -> None:
        self._stop_lingering()
        self.exchange.abort()
        self._end(error)

    def _end(self, error: UpstreamError | None) -> None:
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.on_end(error)


def take_run(run: ContentRun, data: bytes) -> tuple[bytes, bytes, int]:
    """Take the events of a run at the start of data, as in the example at the top of this file.

    Returns:
        The events, the bytes after them, and the number of events; 0 events if the next event must be read.
    """
    prefix, suffix = run.prefix, run.suffix
    if not data.startswith(prefix):
        return b"", data, 0
    if plain_text(data[run.text_at]) and data.endswith(suffix):  # a token that arrives alone
        return data, b"", 1
    if _QUOTE not in data[run.text_at]:  # not even one event: a separator begins with a quote
        return b"", data, 0
    size = data.rfind(suffix) + len(suffix)
    events = data[:size]
    lines = BytesIO(events).readlines()  # in half the time of `split`; each second line is blank
    texts = list(map(run.text_of_line, lines[::2]))
    equal = prefix + (suffix + prefix).join(texts) + suffix
    if equal != events or b"" in texts or not plain_text(b"".join(texts)):
        return b"", data, 0
    return events, data[size:], len(texts)


def _is_dense(data: bytes) -> bool:
    """Return True for bytes that may be many events, such as blank lines: their lines are short."""
    return (data.count(b"\n") + data.count(b"\r")) * _LINE_BYTES_MIN > len(data)


def _compression(headers: Headers) -> bytes:
    """Return the content-encoding of a body, empty if it is not compressed."""
    codings = (value for name, value in headers if name == b"content-encoding")
    return next((coding for coding in codings if coding.strip().lower() not in UNCODED), b"")


def _unreadable(error: Exception) -> ProtocolError:
    return ProtocolError(f"the upstream's answer is unreadable ({type(error).__name__})")
