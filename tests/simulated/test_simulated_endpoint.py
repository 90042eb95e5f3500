"""The simulated replica in process fulfils the Endpoint contract, in virtual time."""

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.simulated.profile import parse_profile
from gateway.simulated.replica import FAULT_HEADER, SimulatedReplica
from openai_calls import call_of
from running import run_virtual
from simulated_endpoint import SimulatedEndpoint
from ttft_gateway.apis.base import Call, Frame, FrameKind, Headers, Phase, Stream
from ttft_gateway.apis.errors import BadStatus, ConnectError, ConnectionCut, EmptyAnswer, ErrorFrame, UpstreamError

HELLO = {"model": "m", "temperature": 0, "max_tokens": 3, "messages": [{"role": "user", "content": "hello"}]}


@dataclass
class Recorder:
    """A sink that records every call with its time; it can abort at the first content."""

    calls: list[tuple[float, str]] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    status: int = 0
    error: UpstreamError | None = None
    stream: Stream | None = None
    abort_at_content: bool = False

    def on_headers(self, status: int, headers: Headers) -> None:
        self.status = status
        self._record("headers")

    def on_content(self, raw: bytes, events: int, phase: Phase | None) -> None:
        raise AssertionError("a simulated replica pushes frames")

    def on_frame(self, frame: Frame) -> None:
        self.frames.append(frame)
        self._record(frame.kind.value)
        if self.abort_at_content and frame.kind is FrameKind.CONTENT:
            assert self.stream is not None
            self.stream.abort()

    def on_end(self, error: UpstreamError | None) -> None:
        self.error = error
        self._record("end")

    def _record(self, what: str) -> None:
        self.calls.append((round(asyncio.get_running_loop().time(), 6), what))

    @property
    def names(self) -> list[str]:
        return [what for _, what in self.calls]


def endpoint_of(**profile: Any) -> SimulatedEndpoint:
    """An endpoint with a replica that has these keys in its profile."""
    return SimulatedEndpoint(SimulatedReplica(parse_profile(profile), random.Random(1)))


def call(fault: str = "", **over: Any) -> Call:
    """Return a streaming call, with a fault header if a fault is given."""
    headers = ((FAULT_HEADER, fault.encode()),) if fault else ()
    return call_of({**HELLO, "stream": True}, headers=headers, **over)


def record(request: Call, length_s: float = 60.0, **profile: Any) -> Recorder:
    """Return a recorder of the calls of one stream."""

    async def main() -> Recorder:
        sink = Recorder()
        sink.stream = endpoint_of(**profile).open(request, sink)
        assert not sink.calls
        await asyncio.sleep(length_s)
        return sink

    return run_virtual(main())


def test_frames_come_at_their_times() -> None:
    """Head and role immediately, content at TTFT and after each gap, the end with the closing event."""
    sink = record(call(include_usage=True), ttft="100ms", gap="10ms")
    assert sink.calls == [
        (0.0, "headers"), (0.0, "preamble"), (0.1, "content"), (0.11, "content"), (0.12, "content"),
        (0.12, "finish"), (0.12, "usage"), (0.12, "done"), (0.12, "end"),
    ]  # fmt: skip
    assert (sink.status, sink.error) == (200, None)


def test_held_headers_come_with_the_content() -> None:
    """A head held until the first content is the first call."""
    sink = record(call(), ttft="100ms", headers="with_first_content", role="none")
    assert sink.calls[:2] == [(0.1, "headers"), (0.1, "content")]


def test_head_is_never_later_than_the_content() -> None:
    """If the head's delay is longer than TTFT, the head comes with the content, once."""
    sink = record(call(), ttft="10ms", headers_delay="1s")
    assert sink.names.count("headers") == 1
    assert sink.calls[:3] == [(0.01, "headers"), (0.01, "preamble"), (0.01, "content")]


@pytest.mark.parametrize("requested", [True, False], ids=["requested", "not requested"])
def test_usage_is_forwarded_only_if_requested(requested: object) -> None:
    """The usage frame always has counts, and has bytes if the client requests usage."""
    sink = record(call(include_usage=requested))
    (usage,) = [frame for frame in sink.frames if frame.kind is FrameKind.USAGE]
    assert usage.usage is not None
    assert usage.usage.completion_tokens == 3
    assert bool(usage.raw) is requested


def test_call_that_is_not_streamed_is_streamed_for_assembling() -> None:
    """A call that may be assembled gets a stream, another call its JSON body."""
    whole = call_of(HELLO)
    assert record(whole).names[-2:] == ["done", "end"]
    sink = record(call_of(HELLO, assemble=False))
    assert sink.names == ["headers", "content", "end"]
    assert sink.frames[0].raw.startswith(b'{"id":')


@pytest.mark.parametrize(
    ("fault", "words", "status", "error"),
    [
        ("429:azure", ["headers", "end"], 429, BadStatus),
        ("500", ["headers", "end"], 500, BadStatus),
        ("empty", ["headers", "preamble", "end"], 200, ConnectionCut),
        ("done", ["headers", "preamble", "end"], 200, EmptyAnswer),
        ("error_frame", ["headers", "preamble", "error", "end"], 200, ConnectionCut),
        ("json_error", ["headers", "error", "end"], 200, type(None)),
        ("no_done+cut_fin:1", ["headers", "preamble", "content", "end"], 200, ConnectionCut),
        ("no_done", ["headers", "preamble", *["content"] * 3, "finish", "usage", "end"], 200, type(None)),
        ("content_filter+no_done", ["headers", "preamble", "refusal", "usage", "end"], 200, type(None)),
        ("cut_rst:1", ["headers", "preamble", "content", "end"], 200, ConnectionCut),
        ("reset", ["end"], 0, ConnectionCut),
        ("refuse", ["end"], 0, ConnectError),
        ("silence", [], 0, type(None)),
        ("headers_silence", ["headers", "preamble"], 200, type(None)),
        ("split:3", ["headers", "preamble", *["content"] * 3, "finish", "usage", "done", "end"], 200, type(None)),
    ],
)
def test_fault_reaches_the_sink(fault: str, words: list[str], status: int, error: type) -> None:
    """A fault results in the calls of the HTTP endpoint; faults of bytes on a socket have no effect."""
    sink = record(call(fault))
    assert (sink.names, sink.status, type(sink.error)) == (words, status, error)


def test_error_response_is_complete() -> None:
    """The error of an error status has the type, code and wait of the response."""
    error = record(call("429:openai,2s")).error
    assert error is not None
    assert (error.status, error.kind, error.code, error.retry_after_s) == (429, "requests", "rate_limit_exceeded", 2.0)


def test_error_frame_is_carried() -> None:
    """The error of an error event is on its frame."""
    assert isinstance(record(call("error_frame")).frames[-1].error, ErrorFrame)


def test_malformed_event_forwards_nothing() -> None:
    """A malformed event reaches the sink without bytes to forward."""
    sink = record(call("malformed"))
    assert [frame.raw for frame in sink.frames if frame.kind is FrameKind.MALFORMED] == [b""]


def test_refusal_of_connections_lasts() -> None:
    """After `refuse:1s` calls fail to connect for a second, then they are answered."""

    async def main() -> list[UpstreamError | None]:
        endpoint = endpoint_of(faults=["refuse:1s once"])
        sinks = [Recorder() for _ in range(3)]
        for sink in sinks:
            endpoint.open(call(), sink)
            await asyncio.sleep(0.6)
        return [sink.error for sink in sinks]

    first, second, third = run_virtual(main())
    assert isinstance(first, ConnectError)
    assert isinstance(second, ConnectError)
    assert third is None


def test_no_call_comes_after_abort() -> None:
    """No call follows an abort, even one from inside a call; a second abort has no effect."""

    async def main() -> list[str]:
        sink = Recorder(abort_at_content=True)
        sink.stream = endpoint_of().open(call(), sink)
        await asyncio.sleep(1)
        sink.stream.abort()
        return sink.names

    assert run_virtual(main()) == ["headers", "preamble", "content"]


def test_abort_at_once_is_silent() -> None:
    """A stream aborted in its first turn of the loop makes no call."""

    async def main() -> list[str]:
        sink = Recorder()
        endpoint_of().open(call(), sink).abort()
        await asyncio.sleep(1)
        return sink.names

    assert run_virtual(main()) == []


def test_paused_stream_waits() -> None:
    """A paused stream holds its frames; after resume late frames come immediately, later ones at their times."""

    async def main() -> Recorder:
        sink = Recorder()
        stream = endpoint_of(ttft="100ms", gap="100ms").open(call(), sink)
        await asyncio.sleep(0.15)
        stream.pause()
        await asyncio.sleep(0.1)
        stream.resume()
        await asyncio.sleep(1)
        return sink

    content = [at_s for at_s, what in run_virtual(main()).calls if what == "content"]
    assert content == [0.1, 0.25, 0.3]


@pytest.mark.parametrize("end", ["end", "abort"])
def test_slot_is_released(end: str) -> None:
    """With one slot the second response starts after the end or the abort of the first."""

    async def main() -> Recorder:
        endpoint = endpoint_of(ttft="100ms", slots=1)
        first = endpoint.open(call(), Recorder())
        waiting = endpoint.open(call(), Recorder())
        sink = Recorder()
        endpoint.open(call(), sink)
        waiting.abort()
        if end == "abort":
            first.abort()
        await asyncio.sleep(1)
        return sink

    at_s = {what: at_s for at_s, what in run_virtual(main()).calls}
    assert at_s["content"] == (0.2 if end == "end" else 0.1)
    assert at_s["headers"] == 0.0


def test_run_is_repeatable() -> None:
    """Two runs with one seed make the same calls at the same times."""
    profile: dict[str, Any] = {"ttft": "lognormal:20ms,5ms", "gap": "lognormal:5ms,1ms", "faults": ["500 30%"]}

    async def main() -> list[tuple[float, str]]:
        endpoint = endpoint_of(**profile)
        sinks = [Recorder() for _ in range(20)]
        for sink in sinks:
            endpoint.open(call(), sink)
        await asyncio.sleep(5)
        return [each for sink in sinks for each in sink.calls]

    assert run_virtual(main()) == run_virtual(main())
