"""What a request costs in calls: the whole gateway between two pretended sockets, in virtual time, counted exactly.

Calls of functions, Python's and C's, are what a CPU-bound gateway spends its time on, and are the same on every machine
and in every run, which times are not. Upstreams are bytes on timers. Calls of this harness (its pretended sockets, the
loop) are counted with all others and apart. Units: calls a request or chunk; CPU seconds.
"""

import asyncio
import contextlib
import gc
import json
import random
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from msgspec import structs

import pretended_client
from checkout import ROOT
from gateway.api.plain_routes import contract
from gateway.config.settings import Settings
from gateway.server.app import Gateway
from pretended_client import PretendedClient, connected, request
from scrapes import rendered
from streaming_bench.simulation import virtual_loop
from streaming_bench.simulation.virtual_loop import VirtualLoop

contract()  # read the file while no loop is running

_WARM = 40  # requests of each model before any is counted: plans, predictions and connections are there then
_ASKED = 3  # models that are asked, of however many
_TTFT_S, _GAP_S = 0.05, 0.001
_PRODUCT = tuple(str(ROOT / package) + "/" for package in ("gateway", "providers"))
_HARNESS = (__file__, pretended_client.__file__, virtual_loop.__file__)
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclass(frozen=True)
class Fleet:
    """What the gateway is in front of.

    Attributes:
        models: how many, each with its own replicas.
        replicas: of each model.
        words: of an answer.
        words_per_read: words that arrive together; 1 means that each arrives alone.
        routing: see `hedge.routing`.
        measures: True to measure what hedging saves.
        sample: share of the requests that are traced, as in a file; empty without tracing.
        traces_to: where the traces go.
    """

    models: int = 1
    replicas: int = 3
    words: int = 10
    words_per_read: int = 1
    routing: str = "predicted"
    measures: bool = False
    sample: str = ""
    traces_to: str = "http://127.0.0.1:9"


@dataclass(frozen=True)
class Cost:
    """Calls or CPU time of a piece of work; the other one is 0.

    Attributes:
        calls: of functions, the harness included.
        harness_calls: the part of `calls` that belongs to the harness.
        cpu_s: CPU time.
    """

    calls: float = 0.0
    harness_calls: float = 0.0
    cpu_s: float = 0.0

    @property
    def product_calls(self) -> float:
        """Calls that the gateway makes, those into libraries included."""
        return self.calls - self.harness_calls


@dataclass(slots=True)
class Counts:
    """Calls, and the part of them that belongs to the harness."""

    calls: int = 0
    harness_calls: int = 0


def cost(fleet: Fleet, count: int, *, timed: bool = False) -> Cost:
    """Send requests one after the other and measure; with `timed` CPU time, else calls."""

    async def measured(gateway: Gateway) -> Cost:
        client = connected(gateway)
        for number in range(_WARM * min(fleet.models, _ASKED) + fleet.replicas):
            await _ask(client, f"m{number % min(fleet.models, _ASKED)}")
        began_s = time.process_time()
        with contextlib.nullcontext(Counts()) if timed else counted() as counts:
            for number in range(count):
                await _ask(client, f"m{number % min(fleet.models, _ASKED)}")
        cpu_s = time.process_time() - began_s
        return Cost(counts.calls / count, counts.harness_calls / count, cpu_s / count if timed else 0.0)

    return _with_gateway(fleet, measured)


def longest_slice(fleet: Fleet, asked: int, *, timed: bool = False) -> Cost:
    """Of a scrape of the metrics, what it does between two turns of the loop, at most.

    Args:
        fleet: what the metrics are of.
        asked: requests before, of all models in turn: they make series.
        timed: the least of five scrapes in CPU time, else one in calls.
    """

    async def measured(gateway: Gateway) -> Cost:
        client = connected(gateway)
        for number in range(asked):
            await _ask(client, f"m{number % fleet.models}")
        if not timed:
            return Cost(calls=max(_slices(gateway)))
        return Cost(cpu_s=min(max(_slices(gateway, timed=True)) for _ in range(5)))

    return _with_gateway(fleet, measured)


async def _scraped(gateway: Gateway) -> bytes:
    return await rendered(await gateway.view.metrics.scrape())


def _slices(gateway: Gateway, *, timed: bool = False) -> Iterator[float]:
    """What each step of a scrape costs."""
    scrape = _scraped(gateway)
    with contextlib.suppress(StopIteration):
        while True:
            began_s = time.process_time()
            with contextlib.nullcontext(Counts()) if timed else counted() as counts:
                scrape.send(None)
            yield time.process_time() - began_s if timed else counts.calls


def _with_gateway(fleet: Fleet, measured: Callable[[Gateway], Coroutine[object, object, Cost]]) -> Cost:
    """Measure something of a gateway before such a fleet."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()

        async def connect(factory: Callable[[], Any], *_where: object, **_how: object) -> tuple[asyncio.Transport, Any]:
            protocol = factory()
            transport = _Upstream(loop, protocol, fleet)
            protocol.connection_made(transport)
            return transport, protocol

        vars(loop)["create_connection"] = connect  # every address leads to an upstream
        return runner.run(_run(fleet, measured))


async def _run(fleet: Fleet, measured: Callable[[Gateway], Coroutine[object, object, Cost]]) -> Cost:
    async with asyncio.TaskGroup() as tasks:
        gateway = Gateway(_settings(fleet), tasks)
        gateway._observers._writer.close()  # its thread would be counted now and then
        structs.force_setattr(gateway.runtime, "rand", random.Random(1).random)
        result = await measured(gateway)
        gateway.close()
        await asyncio.sleep(100)
    return result


@contextlib.contextmanager
def counted() -> Iterator[Counts]:
    """Counts calls while inside; a collection would add the finalizers of garbage that others have left."""
    counts = Counts()

    def count(frame: FrameType, event: str, _arg: object) -> None:
        if event in ("call", "c_call"):  # of a C function, the frame is its caller's
            counts.calls += 1
            counts.harness_calls += _is_of_harness(frame)

    collects = gc.isenabled()
    gc.disable()
    sys.setprofile(count)
    try:
        yield counts
    finally:
        sys.setprofile(None)
        if collects:
            gc.enable()


def _is_of_harness(frame: FrameType | None) -> bool:
    """Find the owner of a call: a library's calls belong to its caller, the loop's own to the harness."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_PRODUCT):
            return False
        if file in _HARNESS:
            return True
        frame = frame.f_back
    return True


def _settings(fleet: Fleet) -> Settings:
    """As a file would say it."""
    config = {
        "listen": "127.0.0.1:0",
        "admin_listen": "off",
        **({"tracing": {"endpoint": fleet.traces_to, "sample": fleet.sample}} if fleet.sample else {}),
        "models": [
            {
                "name": f"m{model}",
                "hedge": {"routing": fleet.routing, "measure": {"losers": "1%"} if fleet.measures else {}},
                "replicas": [
                    {
                        "name": f"r{number}",
                        "kind": "vllm",
                        "base_url": f"http://r{number}.m{model}.test/v1",
                        "model": "u",
                    }
                    for number in range(fleet.replicas)
                ],
            }
            for model in range(fleet.models)
        ],
    }
    return Settings.model_validate(config)


async def _ask(client: PretendedClient, model: str) -> None:
    """One streamed request, as bytes; returns when its answer has gone out."""
    body = json.dumps({"model": model, "stream": True, "messages": [{"role": "user", "content": "hello"}]}).encode()
    answer = await client.stream(request(body, headers={"authorization": "Bearer sk-1"}))
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"data: [DONE]\n\n" in answer


class _Upstream(asyncio.Transport):
    """Answers each request that is written to it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: Any, fleet: Fleet) -> None:
        super().__init__()
        self._loop = loop
        self._protocol = protocol
        self._head = _HEAD + _chunk({"role": "assistant", "content": ""})
        words = [_chunk({"content": f"w{n} "}) for n in range(fleet.words)]
        self._reads = [
            b"".join(words[first : first + fleet.words_per_read])
            for first in range(0, len(words), fleet.words_per_read)
        ]
        self._closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._loop.call_later(0.001, self._send, self._head)
        for number, read in enumerate(self._reads):
            self._loop.call_later(_TTFT_S + number * _GAP_S, self._send, read)
        last = _chunk({}, "stop") + _framed(b"data: [DONE]\n\n") + b"0\r\n\r\n"
        self._loop.call_later(_TTFT_S + (len(self._reads) + 1) * _GAP_S, self._send, last)

    def _send(self, data: bytes) -> None:
        if not self._closed:
            self._protocol.data_received(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._loop.call_soon(self._protocol.connection_lost, None)

    abort = close

    def is_closing(self) -> bool:
        return self._closed

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def _chunk(delta: dict[str, str], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    data = json.dumps({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "u", "choices": [choice]})
    return _framed(b"data: %b\n\n" % data.encode())


def _framed(event: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(event), event)
