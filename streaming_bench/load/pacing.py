"""Sends requests at planned times regardless of earlier answers (open loop), or one after the other (closed loop).

In an open loop a request's times count from its *planned* time, so that delays by a stalled client or server are
included. Owns waiting and the bound on requests in flight; is independent of HTTP. Units: seconds.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from streaming_bench.load.client import Client, PlannedRequest
from streaming_bench.report.records import Record
from ttft_gateway.apis.base import Call

IN_FLIGHT_MAX: Final = 4_096

_TICK_S: Final = 0.010


class Sender(Protocol):
    """A `Client`, or several clients in turn."""

    @property
    def in_flight(self) -> int:
        """Number of requests in flight."""

    def call(self, planned: PlannedRequest) -> Call:
        """Build a request."""

    def send(self, planned: PlannedRequest, call: Call, due_s: float, done: Callable[[Record], None]) -> None:
        """Send a request now; call `done` after its end."""

    async def idle(self) -> None:
        """Wait until no request is in flight."""


def poisson(count: int, rate_per_s: float, rng: random.Random) -> list[float]:
    """Return arrival times of a Poisson process; the first is at 0."""
    times, at_s = [], 0.0
    for _ in range(count):
        times.append(at_s)
        at_s += rng.expovariate(rate_per_s)
    return times


async def open_loop(
    client: Sender, requests: Sequence[PlannedRequest], begin_s: float, done: Callable[[Record], None]
) -> None:
    """Send each request at its time and wait for all answers.

    Args:
        begin_s: the loop's time from which those times count.
        done: called with each record.
    """
    loop = asyncio.get_running_loop()
    for planned in requests:
        assert planned.at_s is not None
        call = client.call(planned)
        due_s = begin_s + planned.at_s
        if due_s > loop.time():
            await asyncio.sleep(due_s - loop.time())
        if client.in_flight < IN_FLIGHT_MAX:
            client.send(planned, call, due_s, done)
        else:
            record = Record(planned.number, planned.block, planned.at_s, planned.at_s, error="client_full")
            record.end_s = record.due_s
            done(record)
    await client.idle()


async def closed_loop(
    client: Client, requests: Sequence[PlannedRequest], concurrency: int, done: Callable[[Record], None]
) -> None:
    """Send all requests with `concurrency` of them in flight, and wait for all answers."""
    loop = asyncio.get_running_loop()
    waiting = iter(requests)
    over: asyncio.Future[None] = loop.create_future()
    open_ = min(concurrency, len(requests))  # workers that still send requests
    stopped = False

    def work(record: Record | None) -> None:
        nonlocal open_
        if record is not None:
            done(record)
        planned = None if stopped else next(waiting, None)
        if planned is not None:
            call = client.call(planned)
            client.send(planned, call, loop.time(), work)
            return
        open_ -= 1
        if not open_ and not over.done():
            over.set_result(None)

    for _ in range(open_):
        work(None)
    try:
        if requests:
            await over
    finally:
        stopped = True


class LoopLag:
    """Measures the delay of the event loop, which is included in every recorded time.

    Attributes:
        lags_s: delay of a timer, every 10 ms.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.lags_s: list[float] = []
        self._due_s = self._loop.time() + _TICK_S
        self._timer = self._loop.call_at(self._due_s, self._tick)

    def stop(self) -> None:
        self._timer.cancel()

    def _tick(self) -> None:
        now_s = self._loop.time()
        self.lags_s.append(max(0.0, now_s - self._due_s))
        self._due_s = now_s + _TICK_S
        self._timer = self._loop.call_at(self._due_s, self._tick)
