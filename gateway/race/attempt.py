"""One upstream stream of one request: stamps its times, holds back events before first content, ends once.

The `Sink` of one `ttft_gateway.apis.base.Stream`. Times are stamped here, on the stack that read the socket.
Independent of other attempts, policies and the client; it reports first content, failure and finish to its race. Once
it forwards, content events in a row cost a time stamp and the call that writes them; if the stream can be recovered,
they are also recorded.

Units: seconds of the loop's clock, bytes.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from gateway.events import Role
from gateway.race.deadlines import AttemptDeadlines, Timeouts
from gateway.race.sent_events import SentEvents
from ttft_gateway.apis.base import Call, Frame, FrameKind, Headers, Phase, Stream, Usage
from ttft_gateway.apis.errors import EmptyAnswer, ProtocolError, TimedOut, UpstreamError, shown_id
from ttft_gateway.hedging.contract import Forecast, StreamWatch
from ttft_gateway.hedging.outcomes import Outcome
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import Replica

PREAMBLE_BYTES_MAX = 256 * 1024  # besides what repeats the request
_REPEATED_BYTES_MAX = 16 * 1024 * 1024  # of it
_REPEATED = 8  # times the request's bytes: Responses repeat instructions in up to three events, and may escape
_LONG_GAP_S = 0.5  # between two events; shorter ones need no guard
_MALFORMED_MAX = 1  # events skipped per stream; a second one means that the stream is broken

_CONTENT, _REFUSAL, _ERROR = FrameKind.CONTENT, FrameKind.REFUSAL, FrameKind.ERROR
_FINISH, _DONE, _WORK, _PREAMBLE = FrameKind.FINISH, FrameKind.DONE, FrameKind.WORK, FrameKind.PREAMBLE
_MALFORMED, _COMMENT = FrameKind.MALFORMED, FrameKind.COMMENT
_RECOVERY, _GUARD = Role.RECOVERY, Role.GUARD
_THINKING, _TEXT = Phase.THINKING, Phase.TEXT


class AttemptListener(Protocol):
    """Receives the events of an attempt: a race."""

    def on_headers(self, attempt: "Attempt", headers: Headers) -> None:
        """Response headers arrived which are rate limits, or which end hedging."""

    def on_work(self, attempt: "Attempt") -> None:
        """The first sign of work arrived, before any content."""

    def on_content(self, attempt: "Attempt") -> None:
        """First content, or a policy refusal, arrived."""

    def on_failed(self, attempt: "Attempt", error: UpstreamError) -> None:
        """The attempt ended without a complete answer."""

    def on_finished(self, attempt: "Attempt") -> None:
        """The attempt ended with a complete answer."""


class Attempt:
    """One upstream stream.

    Attributes:
        replica, pool: target of the attempt.
        role, reason: kind of the attempt, and the reason for it as text.
        start_s: time at which the request was sent.
        headers_s, content_s: times of response headers and first content, None before.
        work_s: time of the first sign of work, None before.
        first_token_s: time of the event that is timed as the first token, content or a sign of work; None before.
        generated_s: time of the last event with generated output, or with a finish_reason.
        phase: kind of the last output, or of the block that began after it; None for text.
        last_s: time of the last event.
        written_s: time of the last event with bytes for the client; some events have none after a translation.
        status: the upstream's HTTP status, None before headers.
        usage: token counts, None until reported.
        refused: True if its first content is a policy refusal.
        empty: True if it is complete without content: a valid empty answer.
        outcome: outcome, None while it runs.
        deadlines: deadlines until its first content.
        timeouts: time limits of its pool.
        forecast: the pool's forecast, None if it has none.
        sent_events: events that the client was sent; None if a broken stream could not be recovered, and after the end.
        is_measured: True if it has lost its race and is still read (`measuring.py`).
        retry_after_s: Retry-After of a 429 or 503, None if the response had none.
        transient: True if it failed with an error that may soon be over.
        is_paced: True if reading was paused for a slow client.
        watch: state of its stream for guards; None for a short stream.
    """

    __slots__ = (
        "_begun_s",
        "_finished",
        "_held",
        "_held_bytes_max",
        "_loop",
        "_race",
        "_stream",
        "_write",
        "content_s",
        "deadlines",
        "empty",
        "end_s",
        "error",
        "events",
        "first_token_s",
        "forecast",
        "generated_s",
        "headers_s",
        "is_measured",
        "is_paced",
        "last_s",
        "malformed",
        "outcome",
        "phase",
        "pool",
        "reason",
        "refused",
        "replica",
        "retry_after_s",
        "role",
        "sent_events",
        "start_s",
        "status",
        "timeouts",
        "transient",
        "upstream_request_id",
        "usage",
        "watch",
        "work_s",
        "written_s",
    )

    def __init__(
        self,
        race: AttemptListener,
        pool: Pool,
        replica: Replica,
        role: Role,
        reason: str,
        deadlines: AttemptDeadlines,
        timeouts: Timeouts,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._race = race
        self._loop = loop
        self.pool = pool
        self.replica = replica
        self.role = role
        self.reason = reason
        self.start_s = self.last_s = self.written_s = deadlines.start_s
        self.headers_s: float | None = None
        self.content_s: float | None = None
        self.work_s: float | None = None
        self.first_token_s: float | None = None
        self.end_s: float | None = None
        self.status: int | None = None
        self.upstream_request_id: str | None = None
        self.usage: Usage | None = None
        self.error: str | None = None
        self.retry_after_s: float | None = None
        self.events = 0
        self.malformed = 0
        self.refused = False
        self.empty = False
        self.outcome: Outcome | None = None
        self.forecast: Forecast | None = None
        self.is_measured = self.is_paced = self.transient = False
        self.watch: StreamWatch | None = None
        self.deadlines = deadlines
        self.timeouts = timeouts
        self._finished = False  # a finish_reason was seen
        self._stream: Stream | None = None
        self._write: Callable[[bytes], None] | None = None  # set while events are forwarded
        self.sent_events: SentEvents | None = None
        self.generated_s = 0.0
        self._begun_s = 0.0  # time of the last event without output that begins a block of output
        self.phase: Phase | None = None
        self._held = b""  # events held back

    def open(self, call: Call) -> None:
        """Send the request."""
        self._held_bytes_max = PREAMBLE_BYTES_MAX + min(_REPEATED * len(call.body), _REPEATED_BYTES_MAX)
        self._stream = self.replica.endpoint.open(call, self)

    def forward(self, write: Callable[[bytes], None], sent_events: SentEvents | None = None) -> None:
        """Write the events held back, and from now on every event as it arrives; record them if the place is given."""
        self._write, self.sent_events = write, sent_events
        held, self._held = self._held, b""
        if sent_events is not None:
            sent_events += held
        if held:
            write(held)

    def divert(self, write: Callable[[bytes], None]) -> SentEvents | None:
        """Write events elsewhere from now on, and record none; return the record, for `restore`."""
        recorded, self.sent_events, self._write = self.sent_events, None, write
        return recorded

    def restore(self, write: Callable[[bytes], None], recorded: SentEvents | None, held: bytes) -> None:
        """Write the diverted events that the client is to get, and forward again."""
        self._held = held
        self.forward(write, recorded)

    def watched(self) -> StreamWatch:
        """Return the state of its stream for guards, made at the first call after the first content."""
        if self.watch is None:
            self.watch = StreamWatch(self.content_s or self.last_s, 1)
        return self.watch

    def measure_for(self, listener: AttemptListener) -> None:
        """Report to another listener from now on: the attempt has lost its race and is measured."""
        self._race = listener
        self.is_measured = True

    def pause(self) -> None:
        """Stop reading: the client is slow."""
        self.is_paced = True
        if self._stream is not None and self.outcome is None:
            self._stream.pause()

    def resume(self) -> None:
        """Continue reading."""
        if self._stream is not None and self.outcome is None:
            self.forgive(self._loop.time() - self.last_s)  # silence while reading was paused is not a stall
            self._stream.resume()

    def finish(self) -> bool:
        """End an answer that is already whole, as `Stream.finish` does; False for an answer without content."""
        return self.content_s is not None and self._stream is not None and self._stream.finish()

    def stall(self, now_s: float) -> TimedOut | None:
        """Return the failure of an attempt that has shown output or work and is silent for too long, else None."""
        if now_s < self.generated_s + self.timeouts.stall_s:
            return None
        if now_s < self._stall_due_s():
            return None
        output, silence_s = (self.phase or Phase.TEXT).value, self._silence_s_max()
        return TimedOut(f"the upstream sent no {output} for {silence_s:g} s in the middle of its answer")

    def stall_check_s(self, now_s: float) -> float:
        """Return the loop time of the next check for a stall."""
        text_due_s = self.generated_s + self.timeouts.stall_s
        return text_due_s if text_due_s > now_s else self._stall_due_s()

    def _stall_due_s(self) -> float:
        """Return the loop time at which the silence is a stall.

        Only generated output, or the start of a block of it, ends a silence; while the model thinks, any event does.
        """
        since_s = self.last_s if self.phase is _THINKING else self.output_s
        return since_s + self._silence_s_max()

    def _silence_s_max(self) -> float:
        """Return the longest silence of the phase: thinking and tool calls may be silent for longer than text."""
        timeouts = self.timeouts
        if self.phase is None:
            return timeouts.stall_s
        return max(
            timeouts.stall_s, timeouts.stall_thinking_s if self.phase is _THINKING else timeouts.stall_tool_call_s
        )

    def forgive(self, silence_s: float) -> None:
        """Discount a silence in which the gateway did not read."""
        now_s = self._loop.time()
        self.last_s = min(now_s, self.last_s + silence_s)
        if self._begun_s > self.generated_s:  # the later time has the phase, and remains the later time
            self._begun_s = min(now_s, self._begun_s + silence_s)
        else:
            self.generated_s = min(now_s, self.generated_s + silence_s)

    def close(self, outcome: Outcome, error: UpstreamError | None = None) -> bool:
        """End the attempt and abort its stream; returns False if it had ended before."""
        if self.outcome is not None:
            return False
        self.outcome = outcome
        self.end_s = self._loop.time()
        if error is not None:
            self.error = error.label
            self.retry_after_s = error.retry_after_s
            if self.status is None:
                self.status = error.status
        stream, self._stream, self._write, self.sent_events = (
            self._stream,
            None,
            None,
            None,
        )  # no cycle outlives a request
        if stream is not None:
            stream.abort()
        return True

    def observe_limits(self, headers: Headers) -> None:
        """Pass the rate limits of response headers to the pool."""
        read = self.replica.read_limits
        limits = read(headers) if read is not None else ()
        if limits:
            self.pool.on_limits(self, limits, self._loop.time())

    @property
    def output_s(self) -> float:
        """Loop time of the last generated output, or of the start of a block of it."""
        return max(self.generated_s, self._begun_s)

    @property
    def carries_on(self) -> bool:
        """True if it was sent to continue a stream of the client."""
        return self.role is _RECOVERY or self.role is _GUARD

    @property
    def live(self) -> bool:
        """True while it has not ended and content may still arrive for the client."""
        return self.outcome is None and not self.empty and not self.is_measured

    # Sink

    def on_headers(self, status: int, headers: Headers) -> None:
        self.headers_s = self._loop.time()
        self.status = status
        self.upstream_request_id = shown_id(headers, self.replica.secrets)
        if self.replica.read_limits is not None or self.pool.stops_at_headers:
            self._race.on_headers(self, headers)

    def on_content(self, raw: bytes, events: int, phase: Phase | None) -> None:
        write = self._write
        if write is None or not raw:
            self._on_unforwarded(raw, events, phase)
            return
        now_s = self._loop.time()
        if now_s - self.generated_s > _LONG_GAP_S:
            self._note_gap(now_s)
        self.last_s = self.written_s = self.generated_s = now_s
        self.phase = phase
        self.events += events
        sent = self.sent_events
        if sent is not None:
            sent += raw
            if len(sent) > sent.bytes_max and not sent.pack():
                self.sent_events = None
        write(raw)

    def on_frame(self, frame: Frame) -> None:
        kind = frame.kind
        if frame.usage is not None:
            self.usage = frame.usage
        if kind is _CONTENT:
            self.on_content(frame.raw, 1, frame.phase)
        elif self._write is None:
            self._on_early(frame)
        elif kind is _FINISH or kind is _DONE:
            self.on_content(frame.raw, 0, None)
        elif kind is _REFUSAL:
            self.on_content(frame.raw, 1, None)
        else:
            self._on_silent(frame)

    def on_end(self, error: UpstreamError | None) -> None:
        self._stream = None
        if self.outcome is not None:
            return
        if error is None and self.content_s is None:
            self.empty = self._finished
            if not self.empty:
                error = EmptyAnswer("the upstream's stream ended without an answer")
        if error is None:
            self._race.on_finished(self)
        else:
            self._race.on_failed(self, error)

    # inside

    def _note_gap(self, now_s: float) -> None:
        """Record a long gap of the present phase, for guards."""
        gaps_s, phase, gap_s = self.watched().gaps_s, self.phase or _TEXT, now_s - self.output_s
        if gap_s > gaps_s.get(phase, _LONG_GAP_S):
            gaps_s[phase] = gap_s

    def _send(self, raw: bytes) -> None:
        """Write bytes that are no content, and record them as `on_content` does."""
        assert self._write is not None
        sent = self.sent_events
        if sent is not None:
            sent += raw
            if len(sent) > sent.bytes_max and not sent.pack():
                self.sent_events = None
        self._write(raw)

    def _on_unforwarded(self, raw: bytes, events: int, phase: Phase | None) -> None:
        """Handle content that is the first, or that has no bytes for the client."""
        if self.outcome is not None:
            return
        now_s = self.last_s = self.generated_s = self._loop.time()
        self.phase = phase
        self.events += events
        if self._write is None:
            self._held += raw
            self.written_s = self.content_s = now_s
            self._race.on_content(self)

    def _on_early(self, frame: Frame) -> None:
        """Handle an event other than content while none is forwarded; it is held back, except a comment."""
        if self.outcome is not None:
            return
        kind, raw = frame.kind, frame.raw
        now_s = self.last_s = self._loop.time()
        if kind is not _PREAMBLE and not self._is_held(frame):
            return
        self._held += raw
        if len(self._held) > self._held_bytes_max:
            text = f"the upstream sent over {self._held_bytes_max} bytes before any content"
            self._race.on_failed(self, ProtocolError(text))
        elif kind is _WORK:
            self._begun_s, self.phase = now_s, frame.phase
            if self.work_s is None:
                self.work_s = now_s
                self._race.on_work(self)

    def _is_held(self, frame: Frame) -> bool:
        """Handle an early event that is no preamble; return True if it is held back."""
        kind = frame.kind
        if kind is _FINISH:
            self._finished = True
            self.generated_s, self.phase = self.last_s, None
        elif kind is _REFUSAL:
            self.refused = True
            self.on_content(frame.raw, 1, None)
            return False
        elif kind is _ERROR or kind is _MALFORMED:
            self._on_fault(frame)
            return False
        return kind is not _COMMENT

    def _on_silent(self, frame: Frame) -> None:
        """Handle an event without output in the middle of the answer."""
        self.last_s = self._loop.time()
        if frame.kind is _ERROR or frame.kind is _MALFORMED:
            self._on_fault(frame)
            return
        if frame.phase is not None:  # the start of an empty text does not end the reasoning before it
            self._begun_s, self.phase = self.last_s, frame.phase
        if frame.raw:
            self.written_s = self.last_s
            self._send(frame.raw)

    def _on_fault(self, frame: Frame) -> None:
        """Handle an error, or an event that is not JSON."""
        if frame.kind is _ERROR:
            self._race.on_failed(self, frame.error or ProtocolError("the upstream sent an error without a message"))
            return
        self.malformed += 1
        if self.malformed > _MALFORMED_MAX:
            self._race.on_failed(self, ProtocolError("the upstream's stream has several events that are not JSON"))
