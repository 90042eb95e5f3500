"""Scripted replicas and a recording client for tests of the race in virtual time: fakes of the contracts."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from defaults import default_hedging, default_timeouts
from gateway.errors import GatewayError
from gateway.events import Event, RequestEnded
from gateway.race.context import Caller, Model, RecoveryMode, Runtime
from gateway.race.deadlines import Timeouts, TimerQueue
from gateway.race.race import Race
from providers.protocols import RECOVERERS
from running import run_virtual
from ttft_gateway.apis.base import Api, Call, Frame, FrameKind, Sink
from ttft_gateway.apis.errors import BadStatus, UpstreamError
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.hedging.parameters import HedgeParameters
from ttft_gateway.hedging.plan import Policy
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import Replica

Step = tuple[float, str | Frame | UpstreamError | None]


def text(word: str) -> Frame:
    """A content event."""
    return Frame(FrameKind.CONTENT, word.encode())


ROLE = Frame(FrameKind.PREAMBLE, b"<role>")
FINISH = Frame(FrameKind.FINISH, b"<stop>")
DONE = Frame(FrameKind.DONE, b"<done>")
BROKEN = Frame(FrameKind.MALFORMED, b"")


def answer(ttft_s: float, words: str = "ab", gap_s: float = 0.01) -> list[Step]:
    """Headers and role immediately, the first word after ttft_s, one word each gap_s, a clean end."""
    steps: list[Step] = [(0.001, "headers"), (0.001, ROLE)]
    steps += [(ttft_s + i * gap_s, text(word)) for i, word in enumerate(words)]
    end_s = ttft_s + len(words) * gap_s
    return [*steps, (end_s, FINISH), (end_s, DONE), (end_s, None)]


def status(at_s: float, code: int, error_code: str | None = None, retry_after_s: float | None = None) -> list[Step]:
    """An error status, with the error object that servers send with it."""
    error = BadStatus(
        f"status {code}", status=code, kind=_KINDS.get(code), code=error_code, retry_after_s=retry_after_s
    )
    return [(at_s, error)]


_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    422: "invalid_request_error",
}


def bare_status(at_s: float, code: int) -> list[Step]:
    """An error status without an error object, as proxies and firewalls send."""
    return [(at_s, BadStatus(f"status {code}", status=code))]


@dataclass(eq=False)
class ScriptedStream:
    """One open request; `closed_s` is when its connection was closed by us, `whole` after the step "whole"."""

    sink: Sink
    opened_s: float
    timers: list[asyncio.TimerHandle] = field(default_factory=list)
    closed_s: float | None = None
    ended: bool = False
    paused: bool = False
    aborts: int = 0
    whole: bool = False

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def abort(self) -> None:
        self.aborts += 1
        for timer in self.timers:
            timer.cancel()
        if not self.ended and self.closed_s is None:
            self.closed_s = asyncio.get_running_loop().time()

    def finish(self) -> bool:
        if self.ended or not self.whole:
            return False
        self.abort()
        self.ended = True
        self.sink.on_end(None)
        return True


class Scripted:
    """An endpoint: the n-th request gets the n-th script, the last one repeats."""

    def __init__(self, *scripts: list[Step]) -> None:
        self.scripts = scripts
        self.streams: list[ScriptedStream] = []

    def open(self, call: Call, sink: Sink) -> ScriptedStream:
        loop = asyncio.get_running_loop()
        stream = ScriptedStream(sink, loop.time())
        script = self.scripts[min(len(self.streams), len(self.scripts) - 1)]
        self.streams.append(stream)
        for i, (at_s, action) in enumerate(script):  # a nanosecond apart: timers of one instant fire in any order
            stream.timers.append(loop.call_at(stream.opened_s + at_s + i * 1e-9, self._act, stream, action))
        return stream

    def _act(self, stream: ScriptedStream, action: str | Frame | UpstreamError | None) -> None:
        if stream.closed_s is not None or stream.ended:
            return
        if action == "whole":
            stream.whole = True
        elif action == "headers":
            stream.sink.on_headers(200, [(b"x-request-id", b"up-1")])
        elif isinstance(action, Frame):
            stream.sink.on_frame(action)
        else:
            assert action is None or isinstance(action, UpstreamError)
            stream.ended = True
            stream.timers.clear()  # they refer to the sink
            stream.sink.on_end(action)


@dataclass
class RecordingClient:
    """A client that keeps what it got, with times."""

    streaming: bool = True
    got: bytes = b""
    headers: dict[bytes, bytes] = field(default_factory=dict)
    begun_s: float | None = None
    alive_s: list[float] = field(default_factory=list)
    finished: bool = False
    error: GatewayError | None = None
    ends: int = 0
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def committed(self) -> bool:
        return self.streaming and bool(self.got)

    def begin(self, headers: list[tuple[bytes, bytes]]) -> None:
        self.headers = dict(headers)
        self.begun_s = asyncio.get_running_loop().time()
        self.got = b""

    def keep_alive(self) -> None:
        self.alive_s.append(asyncio.get_running_loop().time())

    def write(self, raw: bytes) -> None:
        self.got += raw

    def finish(self) -> None:
        self.finished = True
        self._end()

    def fail(self, error: GatewayError) -> None:
        self.error = error
        self._end()

    def _end(self) -> None:
        self.ends += 1
        self.over.set()


class Hearing:
    """What one race tells while it runs.

    Attributes:
        events: in order.
        host: on which it runs.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.events: list[Event] = []
        self.runtime = Runtime(loop, self._hear, lambda: 0.0, TimerQueue(loop))
        self._ended = asyncio.Event()

    def _hear(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, RequestEnded):
            self._ended.set()

    async def over(self) -> tuple[RequestEnded, float]:
        """Its one report, and when it came; whatever is still armed may fire, and must do nothing."""
        await self._ended.wait()
        end_s = self.runtime.loop.time()
        await asyncio.sleep(1000)
        (report,) = [event for event in self.events if isinstance(event, RequestEnded)]
        return report, end_s


@dataclass
class Outcome:
    """What one race came to."""

    client: RecordingClient
    report: RequestEnded
    events: list[Event]
    replicas: list[Scripted]
    pools: list[Pool]
    end_s: float


HEDGED = default_hedging(policy=Policy.STATIC, static_delay_s=0.1, budget=1.0)


def run_race(
    *replicas: Scripted,
    fallbacks: Iterable[Scripted] = (),
    hedge: HedgeParameters = HEDGED,
    timeouts: Timeouts | None = None,
    fallback_timeouts: Timeouts | None = None,
    streaming: bool = True,
    assemble: bool = True,
    facts: RequestFacts | None = None,
    during: Callable[[Race, RecordingClient, list[Pool]], object] | None = None,
    prepare: Callable[[list[Pool]], None] | None = None,
    counted: bool = True,
    apis: Sequence[frozenset[Api]] = (),
    pinned: int | None = None,
    recovery: RecoveryMode = RecoveryMode.OFF,
    body: bytes = b"{}",
) -> Outcome:
    """Race one request over scripted replicas, first choice first, until its client has its end.

    Args:
        replicas: of the first pool; the primary is the first.
        fallbacks: one pool each.
        hedge: settings of every pool.
        timeouts: of the model.
        fallback_timeouts: of the first fallback; None: the model's.
        streaming: what the client asked for.
        assemble: an answer that is not streamed is put together from a stream.
        facts: about the request.
        during: called right after the start.
        prepare: called with the pools before the start.
        counted: in-flight counts must be back at zero.
        apis: APIs of each replica, fallbacks last; none given: all of them.
        pinned: index of the replica that holds what the request goes on with.
        recovery: reaction to a stream that breaks.
        body: of the request.
    """
    fallbacks = list(fallbacks)

    async def main() -> Outcome:
        loop = asyncio.get_running_loop()
        groups = [list(replicas), *[[fallback] for fallback in fallbacks]]
        names = iter("abcdefgh")
        able = iter(apis)
        made = [[Replica(next(names), r, apis=next(able, frozenset(Api))) for r in group] for group in groups]
        pools = [Pool(f"pool-{i}", group, hedge) for i, group in enumerate(made)]
        if prepare is not None:
            prepare(pools)
        heard = Hearing(loop)
        client = RecordingClient(streaming)
        call = Call(Api.CHAT, body, {}, 1, "m", streaming, assemble=assemble)
        caller = Caller("req_1", "key", loop.time())
        own = {} if fallback_timeouts is None else {"pool-1": fallback_timeouts}
        model = Model("m", pools, timeouts or default_timeouts(), own, recovery=recovery, recoverers=RECOVERERS)
        known = facts or RequestFacts()
        if pinned is not None:
            known = msgspec.structs.replace(known, pinned=[replica for group in made for replica in group][pinned])
        race = Race(model, call, known, client, caller, heard.runtime)
        race.start()
        if during is not None:
            during(race, client, pools)
        report, end_s = await heard.over()
        assert client.ends <= 1
        for pool in pools:
            assert not counted or all(replica.in_flight == 0 for replica in pool.replicas)
        for endpoint in (*replicas, *fallbacks):
            assert all(stream.ended or stream.closed_s is not None for stream in endpoint.streams)
        return Outcome(client, report, heard.events, [*replicas, *fallbacks], pools, end_s)

    return run_virtual(main())
