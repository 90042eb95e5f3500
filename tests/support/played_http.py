"""An HTTP client that a test plays, and a sink that records what a response pushes."""

from dataclasses import dataclass, field

from ttft_gateway.apis.base import Frame, FrameKind, Headers, HttpSink, Phase, Request
from ttft_gateway.apis.errors import UpstreamError


class Exchange:
    """The client's stream for a request."""

    aborted = False
    received = False
    read_began_s = 0.0

    def pause(self) -> None:
        """Nothing to stop."""

    def resume(self) -> None:
        """Nothing to go on with."""

    def abort(self) -> None:
        """Keep that it was aborted."""
        self.aborted = True


@dataclass
class Client:
    """An HTTP client that is played by the test."""

    sinks: list[HttpSink] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    exchange: Exchange = field(default_factory=Exchange)

    def send(self, request: Request, sink: HttpSink) -> Exchange:
        """Keep the sink."""
        self.requests.append(request)
        self.sinks.append(sink)
        return self.exchange


@dataclass
class RecordingSink:
    """A sink that keeps everything, unless it is broken; `told` is what was pushed, in the pieces of the pushes."""

    frames: list[Frame] = field(default_factory=list)
    told: list[tuple[FrameKind, bytes, int]] = field(default_factory=list)
    ends: list[UpstreamError | None] = field(default_factory=list)
    broken: bool = False

    def on_headers(self, status: int, headers: Headers) -> None:
        """Of no interest here."""

    def on_content(self, raw: bytes, events: int, phase: Phase | None) -> None:
        """Keep them."""
        self._keep(Frame(FrameKind.CONTENT, raw, phase=phase), events)

    def on_frame(self, frame: Frame) -> None:
        """Keep it."""
        self._keep(frame, 1)

    def _keep(self, frame: Frame, events: int) -> None:
        if self.broken:
            raise ZeroDivisionError
        self.frames.append(frame)
        self.told.append((frame.kind, frame.raw, events))

    def on_end(self, error: UpstreamError | None) -> None:
        """Keep it."""
        self.ends.append(error)
