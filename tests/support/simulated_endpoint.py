"""A simulated replica in process: a `ttft_gateway.apis.base.Endpoint` without sockets, in virtual time.

Frames reach the sink at the times of the script, on the loop's timers. Faults that change only bytes on a socket have
no effect. Units: seconds of the loop's clock.
"""

import asyncio

from gateway.simulated.engine import Slots
from gateway.simulated.faults import ConnectionAction, InjectedFault, parse_faults
from gateway.simulated.player import Player
from gateway.simulated.replica import FAULT_HEADER, RawRequest, SimulatedReplica
from gateway.simulated.script import End, Script
from ttft_gateway.apis.base import Call, Frame, FrameKind, Sink, Stream
from ttft_gateway.apis.endings import broken
from ttft_gateway.apis.errors import ConnectError, ConnectionCut, UpstreamError

_REFUSED = Script(status=0, end=End.RST, slot=False)
_CONTENT = frozenset({FrameKind.CONTENT, FrameKind.REFUSAL})
_REFUSAL_FINISHES = (b'"finish_reason":"content_filter"', b'"stop_reason":"refusal"')


class SimulatedEndpoint:
    """The `Endpoint` of a simulated replica.

    Args:
        replica: the replica; several endpoints may share one.
        wall_s: wall time at the loop's time 0.
    """

    def __init__(self, replica: SimulatedReplica, wall_s: float = 0.0) -> None:
        self._replica = replica
        self._wall_s = wall_s
        self._refused_until_s = 0.0
        self._loop = asyncio.get_running_loop()

    def open(self, call: Call, sink: Sink) -> Stream:
        """Send the call; see `Endpoint.open`.

        Raises:
            UnitError: The fault header is invalid.
        """
        now_s = self._loop.time()
        faults = self._faults(call)
        for fault, args in faults:
            if fault.action is ConnectionAction.REFUSE:
                self._refused_until_s = now_s + args.seconds
        if now_s < self._refused_until_s:
            script = _REFUSED
        else:
            request = RawRequest(call.api, call.body, call.streaming or call.assemble)
            script = self._replica.script(request, faults, now_s, self._wall_s + now_s)
        stream = _SimulatedStream(self._loop, self._replica.slots, script, call, sink)
        stream.start()
        return stream

    def _faults(self, call: Call) -> tuple[InjectedFault, ...]:
        """Return the call's faults without faults of bytes on a socket."""
        chosen = self._replica.choose_faults(accepting=True) + self._replica.choose_faults(accepting=False)
        for name, value in call.headers:
            if name == FAULT_HEADER:
                chosen += parse_faults(value.decode())
        return tuple(each for each in chosen if not each.fault.wire_only) if chosen else chosen


class _SimulatedStream(Player):
    """Plays a script into a sink; the `Stream` of one attempt."""

    __slots__ = ("_call", "_has_content", "_sink", "_unfinished")

    def __init__(self, loop: asyncio.AbstractEventLoop, slots: Slots, script: Script, call: Call, sink: Sink) -> None:
        super().__init__(loop, slots, script)
        self._call = call
        self._sink = sink
        self._unfinished = call.choices
        self._has_content = False

    def abort(self) -> None:
        """Stop all calls of the sink; see `Stream.abort`."""
        self.stop()

    def finish(self) -> bool:
        """End an answer after its choices have finished; see `Stream.finish`."""
        if self.over or self._unfinished > 0:
            return False
        self._end(None)
        return True

    def on_head(self) -> None:
        """Pass the head and the prelude to the sink."""
        self._sink.on_headers(self.script.status, self.script.headers)
        for frame in self.script.prelude:
            if not self.over:
                self._sink.on_frame(frame)

    def on_step(self, frame: Frame) -> None:
        """Pass one event to the sink, or end the stream at an error response or `[DONE]`."""
        kind = frame.kind
        if kind is FrameKind.DONE and self._unfinished > 0:  # no end of an answer
            self._end(broken(is_empty=not self._has_content))
            return
        self._has_content = self._has_content or kind in _CONTENT
        if self.script.status != 200:
            self._end(frame.error)
            return
        if kind is FrameKind.PREAMBLE and not frame.raw.endswith(b"\n"):
            return  # half an event
        if kind is FrameKind.FINISH or (
            kind is FrameKind.REFUSAL and any(mark in frame.raw for mark in _REFUSAL_FINISHES)
        ):
            self._unfinished -= 1
        elif (
            (kind is FrameKind.USAGE and not self._call.include_usage)  # requested by the gateway, not by the client
            or kind is FrameKind.MALFORMED
            or (kind is FrameKind.ERROR and self.script.json)  # there is no event to forward
        ):
            frame = Frame(kind, b"", frame.usage, frame.error)
        self._sink.on_frame(frame)
        if kind is FrameKind.DONE:
            self._end(None)

    def on_over(self) -> None:
        """Pass the end of the body or of the connection to the sink."""
        whole = self.script.json and self.script.end is End.COMPLETE
        if whole or self._unfinished <= 0:
            self._sink.on_end(None)
        elif self.script is _REFUSED:
            self._sink.on_end(ConnectError("cannot connect to the upstream: Connection refused"))
        else:
            where = "in the middle of its answer" if self.script.status else "without an answer"
            self._sink.on_end(ConnectionCut(f"the upstream closed the connection {where}"))

    def _end(self, error: UpstreamError | None) -> None:
        if not self.over:
            self.stop()
            self._sink.on_end(error)
