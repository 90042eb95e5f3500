"""A simulated workload, independent of its model: requests, replicas, limits, and a stream driven by timers.

The simulated replicas implement `ttft_gateway.apis.base.Endpoint`, so that the gateway's own race uses them. A call's
body is the request's number, by which a replica finds its draws, the same under every policy (common random numbers).

Units: seconds of the loop's clock, tokens.
"""

import asyncio
import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from streaming_bench.simulation.scenario import Arrivals, TrafficState
from streaming_bench.simulation.toml_section import Duration
from ttft_gateway.apis.base import Api, Call, Endpoint, Frame, FrameKind, Headers, Sink, Usage
from ttft_gateway.apis.errors import BadStatus
from ttft_gateway.apis.rate_limit_headers import RateLimitFormat
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.limits.ledger import Ledger
from ttft_gateway.limits.prices import TierPrices

CONTENT: Final = Frame(FrameKind.CONTENT, b"token")
WORK: Final = Frame(FrameKind.WORK, b"item")
_REASONED: Final = Frame(FrameKind.USAGE, b"", Usage(100, 1001, None, 1000, hidden_reasoning=True))


@dataclass(frozen=True, slots=True)
class World:
    """One seed of one workload, to be run once.

    Attributes:
        endpoints: the replicas.
        facts: the gateway's knowledge of each request.
        quotas: name of each replica's quota; None without a quota.
        new_ledgers: returns the ledgers of a gateway, by quota.
        batches: True if the replicas are engines that compute several answers at a time.
        prefill: tokens computed so far, and tokens computed for cancelled attempts.
        limits: form of the replicas' rate limit headers; None without headers.
        reasoning_s: length of the hidden reasoning before each answer, which results exclude.
        ways: prices of each replica, which is one tier of a provider; None for replicas without prices.
        pinned: number of the replica that gets each request first; None if the pool chooses.
    """

    endpoints: Sequence[Endpoint]
    facts: Sequence[RequestFacts]
    quotas: Sequence[str | None]
    new_ledgers: Callable[[], Mapping[str, Ledger]] = dict
    batches: bool = False
    prefill: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0)
    limits: RateLimitFormat | None = None
    reasoning_s: float = 0.0
    ways: Sequence[TierPrices] | None = None
    pinned: Sequence[int] | None = None


def call_of(request: int) -> Call:
    """Return the call of a request."""
    return Call(Api.CHAT, b"%d" % request, {}, 1, "bench", streaming=True)


def arrivals_s(arrivals: Arrivals, count: int, seed: int) -> list[float]:
    """Draw the arrivals of an open loop: Poisson, at a rate that may switch between states."""
    assert arrivals.per_second is not None
    rng = random.Random(f"{seed}/arrivals")
    states = itertools.cycle(arrivals.states or (TrafficState(1.0, Duration(math.inf)),))
    times_s: list[float] = []
    if arrivals.day is not None or arrivals.pulse is not None:
        now_s, peak = 0.0, arrivals.factor_max
        while len(times_s) < count:
            now_s += rng.expovariate(arrivals.per_second * peak)
            if rng.random() * peak < arrivals.factor(now_s):
                times_s.append(now_s)
        return times_s
    end_s = 0.0
    while len(times_s) < count:
        state = next(states)
        now_s, end_s = end_s, end_s + (rng.expovariate(1 / state.lasts_s) if arrivals.states else math.inf)
        while len(times_s) < count:
            now_s += rng.expovariate(arrivals.per_second * state.rate)
            if now_s >= end_s:
                break
            times_s.append(now_s)
    return times_s


class TimedStream:
    """One answer in flight: timers that are cancelled by an abort.

    Attributes:
        headers: response headers.
        unsent: tokens of the answer after the first one that were not sent.
    """

    __slots__ = ("_timers", "headers", "sink", "unsent")

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.headers: Headers = ()
        self.unsent = 0
        self._timers: list[asyncio.TimerHandle] = []

    def at(self, loop: asyncio.AbstractEventLoop, at_s: float, act: Callable[[], None]) -> None:
        """Schedule an action."""
        self._timers.append(loop.call_at(at_s, act))

    def pause(self) -> None:
        """Ignore backpressure: the client is always fast enough."""

    def resume(self) -> None:
        """Ignore backpressure."""

    def abort(self) -> None:
        """Cancel all actions."""
        for timer in self._timers:
            timer.cancel()

    def finish(self) -> bool:
        """Return False: an answer ends with its last event."""
        return False

    def flush_headers(self) -> None:
        """Send the status ahead of the first token."""
        self.sink.on_headers(200, self.headers)

    def answer(self) -> None:
        """Send an answer of one token."""
        self.sink.on_frame(CONTENT)
        self.sink.on_end(None)

    def work(self) -> None:
        """Send a sign of work."""
        self.sink.on_frame(WORK)

    def answer_after_reasoning(self) -> None:
        """Send an answer of one token, and the count of the tokens that were not shown."""
        self.sink.on_frame(CONTENT)
        self.sink.on_frame(_REASONED)
        self.sink.on_end(None)

    def refuse(self, error: BadStatus) -> None:
        """Send an error and end."""
        self.sink.on_headers(error.status or 429, self.headers)
        self.sink.on_end(error)

    def first_token(self) -> None:
        """Send the status and the first of several tokens."""
        self.sink.on_headers(200, self.headers)
        self.sink.on_frame(CONTENT)

    def send(self, tokens: int) -> None:
        """Send tokens of the answer in one read."""
        if tokens > 0:
            self.unsent -= tokens
            self.sink.on_content(CONTENT.raw, tokens, None)

    def end(self) -> None:
        """Send the other tokens and end the answer."""
        self.send(self.unsent)
        self.sink.on_end(None)

    def headers_and_answer(self) -> None:
        """Send the status together with an answer of one token."""
        self.sink.on_headers(200, self.headers)
        self.answer()
