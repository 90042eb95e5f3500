"""A simulated replica behind the HTTP of an upstream, in virtual time: the gateway's own protocols read its bytes.

No sockets: a request's head and body are read, and the bytes of the response reach the sink at their times. Units:
seconds of the loop's clock.
"""

import asyncio
import re

from gateway.simulated.engine import Slots
from gateway.simulated.player import Player
from gateway.simulated.replica import RawRequest, SimulatedReplica
from gateway.simulated.script import End, Framing, Script
from ttft_gateway.apis.base import Api, Frame, HttpSink, HttpStream, Request
from ttft_gateway.apis.errors import ConnectionCut
from ttft_gateway.apis.upload import Upload

_PATH = re.compile(rb"POST /v1/(\S+) ").match


class SimulatedHttp:
    """The `HttpClient` to a simulated replica.

    Args:
        replica: the replica.

    Attributes:
        paths: paths of the requests, below `/v1`.
    """

    def __init__(self, replica: SimulatedReplica) -> None:
        self._replica = replica
        self._loop = asyncio.get_running_loop()
        self.paths: list[str] = []

    def send(self, request: Request, sink: HttpSink) -> HttpStream:
        """Send a request; see `HttpClient.send`."""
        found = _PATH(request.head)
        assert found is not None, request.head
        api = Api(found[1].decode())
        self.paths.append(api.value)
        assert not isinstance(request.body, Upload), "uploads are not simulated"
        body = request.body if isinstance(request.body, bytes) else b"".join(request.body)
        faults = self._replica.choose_faults(accepting=True) + self._replica.choose_faults(accepting=False)
        script = self._replica.script(RawRequest(api, body), faults, self._loop.time(), self._loop.time())
        stream = _Response(self._loop, self._replica.slots, script, sink)
        stream.start()
        return stream


class _Response(Player):
    """Plays a script into a sink; the `HttpStream` of one request."""

    __slots__ = ("_sink",)

    received = False
    read_began_s = 0.0

    def __init__(self, loop: asyncio.AbstractEventLoop, slots: Slots, script: Script, sink: HttpSink) -> None:
        super().__init__(loop, slots, script)
        self._sink = sink

    def abort(self) -> None:
        """Stop all calls of the sink; see `Flow.abort`."""
        self.stop()

    def on_head(self) -> None:
        self._sink.on_response(self.script.status, self.script.headers)
        for frame in self.script.prelude:
            if not self.over:
                self._sink.on_body(frame.raw)

    def on_step(self, frame: Frame) -> None:
        self._sink.on_body(frame.raw)

    def on_over(self) -> None:
        looks_whole = self.script.end is End.FIN and self.script.framing is Framing.CLOSE
        if self.script.status and (self.script.end is End.COMPLETE or looks_whole):
            self._sink.on_close(None)
        else:
            self._sink.on_close(ConnectionCut("the upstream closed the connection in the middle of its answer"))
