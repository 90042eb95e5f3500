"""The simulated replica makes the same calls in process and through sockets, for every fault."""

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

import simulated_sockets
from gateway.simulated.faults import FAULTS
from gateway.simulated.profile import parse_profile
from gateway.simulated.replica import FAULT_HEADER, SimulatedReplica
from openai_calls import call_of
from providers.openai.chat import OpenAIChat
from providers.response_stream import Bounds
from providers.transport.http1 import WireClient
from providers.transport.origin import Origin
from providers.upstream import HttpEndpoint
from running import run_real
from simulated_endpoint import SimulatedEndpoint
from simulated_sockets import until
from ttft_gateway.apis.base import Api, Endpoint, Frame, FrameKind, Headers, Phase
from ttft_gateway.apis.errors import BadStatus, RequestModeRejected, UpstreamError

ARGUMENTS = {"stall": ":1,20ms", "refuse": ":20ms", "big": ":300000", "coalesce": ":3", "slow_read": ":1000000"}
ENDLESS = ("silence", "headers_silence")
BODY = {"model": "m", "temperature": 0, "max_tokens": 4, "messages": [{"role": "user", "content": "hello"}]}


@dataclass
class Recorder:
    """A sink that records every call."""

    status: int = 0
    frames: list[Frame] = field(default_factory=list)
    error: UpstreamError | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def on_headers(self, status: int, headers: Headers) -> None:
        self.status = status

    def on_content(self, raw: bytes, events: int, phase: Phase | None) -> None:
        self.frames.append(Frame(FrameKind.CONTENT, raw, phase=phase))

    def on_frame(self, frame: Frame) -> None:
        self.frames.append(frame)

    def on_end(self, error: UpstreamError | None) -> None:
        self.error = error
        self.over.set()

    def summary(self) -> tuple[object, ...]:
        """Return the calls that must agree, without messages of errors and events without data."""
        events: list[Frame] = []
        for frame in self.frames:
            burst = events[-1] if events and events[-1].kind is frame.kind is FrameKind.CONTENT else None
            if burst is not None and not (burst.usage or frame.usage):  # bursts of content may come as one frame
                events[-1] = Frame(FrameKind.CONTENT, burst.raw + frame.raw, phase=frame.phase)
            elif frame.raw or frame.kind is not FrameKind.COMMENT:
                events.append(frame)
        calls = [(frame.kind, frame.raw, frame.usage, frame.phase, _essence(frame.error)) for frame in events]
        return (self.status, calls, _essence(self.error), self.over.is_set())


def _essence(error: UpstreamError | None) -> tuple[object, ...] | None:
    """Return the facts of an error; a rejected request mode is detected on sockets only."""
    if error is None:
        return None
    kind = BadStatus if isinstance(error, RequestModeRejected) else type(error)
    return (kind, error.kind, error.code, error.retry_after_s)


async def _record(endpoint: Endpoint, fault: str, *, streaming: bool) -> tuple[object, ...]:
    headers = ((FAULT_HEADER, fault.encode()),) if fault else ()
    call = call_of({**BODY, "stream": streaming}, headers=headers, assemble=streaming, streaming=streaming)
    sink = Recorder()
    stream = endpoint.open(call, sink)
    if fault not in ENDLESS:
        await sink.over.wait()
        return sink.summary()
    if fault == "headers_silence":
        await until(lambda: bool(sink.frames))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await sink.over.wait()
    stream.abort()
    return sink.summary()


async def _both(fault: str, *, streaming: bool) -> tuple[tuple[object, ...], tuple[object, ...]]:
    keys: dict[str, Any] = {"ttft": "1ms", "provider": "openai"}
    profile = parse_profile(keys)
    async with simulated_sockets.serving(3, **keys) as server, asyncio.TaskGroup() as tasks:
        client = WireClient(Origin("127.0.0.1", server.port), tasks)
        through_sockets = HttpEndpoint(client, {Api.CHAT: OpenAIChat()}, "/v1", ((b"host", b"sim"),), "m", Bounds())
        in_process = SimulatedEndpoint(SimulatedReplica(profile, random.Random(3), 3, str(server.port)))
        recorded = [await _record(endpoint, fault, streaming=streaming) for endpoint in (through_sockets, in_process)]
        client.close()
    return recorded[0], recorded[1]


WIRE_ONLY = [name for name, fault in FAULTS.items() if fault.wire_only and name not in ("utf8", "json_answer")]
NOT_ON_WIRE = [name for name, fault in FAULTS.items() if not fault.wire_only and name != "reset_accept"]


@pytest.mark.parametrize("name", ["", *NOT_ON_WIRE])
def test_stream_makes_the_same_calls(name: str) -> None:
    """A stream through sockets makes the calls of the stream in process."""
    through_sockets, in_process = run_real(_both(name + ARGUMENTS.get(name, ""), streaming=True))
    if name == "refuse":  # the connection that triggers it is reset on the socket, and was never made in process
        through_sockets, in_process = through_sockets[:2], in_process[:2]
    assert through_sockets == in_process


@pytest.mark.parametrize("name", WIRE_ONLY)
def test_odd_writes_make_the_same_calls(name: str) -> None:
    """A response in odd writes makes the calls of a healthy response."""
    through_sockets, in_process = run_real(_both(name + ARGUMENTS.get(name, ""), streaming=True))
    assert through_sockets == in_process


@pytest.mark.parametrize("name", ["", "500", "429", "cut_mid", "json_error", "length", "close", "split"])
def test_json_response_makes_the_same_calls(name: str) -> None:
    """A JSON response through sockets makes the calls of the response in process."""
    through_sockets, in_process = run_real(_both(name, streaming=False))
    assert through_sockets == in_process
