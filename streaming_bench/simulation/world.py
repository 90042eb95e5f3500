"""What a simulated workload consists of, whoever simulates it: requests, replicas, limits; a stream driven by timers.

The simulated replicas implement `providers.base.Endpoint`, so the gateway's own race speaks to them. A call's body is
the request's number: by it a replica finds its draws, the same ones under every policy (common random numbers).

Units: seconds of the loop's clock, tokens.
"""

import asyncio
import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gateway.hedging.contract import RequestFacts
from gateway.limits.ledger import Ledger
from providers.base import Api, Call, Endpoint, Frame, FrameKind, Headers, Sink
from providers.errors import BadStatus
from providers.rate_limit_headers import RateLimitFormat
from streaming_bench.simulation.scenario import Arrivals, TrafficState
from streaming_bench.simulation.toml_section import Duration

CONTENT: Final = Frame(FrameKind.CONTENT, b"token")


@dataclass(frozen=True, slots=True)
class World:
    """One seed of one workload, ready to be run once.

    Attributes:
        endpoints: the replicas.
        facts: what the gateway knows of each request.
        quotas: the name of each replica's quota, None where nobody counts.
        ledgers: the gateway's, by quota.
        batches: the replicas are engines that compute several answers at once.
        gain_min: what a backup must be expected to save, as a multiple of its own TTFT; by default as for providers.
        prefill: tokens computed so far, and those of them for attempts that were cancelled.
        limits: how the replicas' limit headers are meant; None where they send none.
    """

    endpoints: Sequence[Endpoint]
    facts: Sequence[RequestFacts]
    quotas: Sequence[str | None]
    ledgers: Mapping[str, Ledger] = field(default_factory=dict)
    batches: bool = False
    gain_min: float = 0.25
    prefill: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0)
    limits: RateLimitFormat | None = None


def call_of(request: int) -> Call:
    """What is sent for a request."""
    return Call(Api.CHAT, b"%d" % request, {}, 1, "bench", streaming=True)


def arrivals_s(arrivals: Arrivals, count: int, seed: int) -> list[float]:
    """When each request of an open loop arrives: Poisson, at a rate that may switch between states."""
    assert arrivals.per_second is not None
    rng = random.Random(f"{seed}/arrivals")
    states = itertools.cycle(arrivals.states or (TrafficState(1.0, Duration(math.inf)),))
    times_s: list[float] = []
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
    """One answer on its way: timers that are cancelled when it is aborted."""

    __slots__ = ("_timers", "headers", "sink")

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.headers: Headers = ()
        self._timers: list[asyncio.TimerHandle] = []

    def at(self, loop: asyncio.AbstractEventLoop, at_s: float, act: Callable[[], None]) -> None:
        """Do something then, unless it is aborted before."""
        self._timers.append(loop.call_at(at_s, act))

    def pause(self) -> None:
        """Nobody is slow here."""

    def resume(self) -> None:
        """Nobody is slow here."""

    def abort(self) -> None:
        """Do nothing any more."""
        for timer in self._timers:
            timer.cancel()

    def flush_headers(self) -> None:
        """The status goes out ahead of everything else."""
        self.sink.on_headers(200, self.headers)

    def answer(self) -> None:
        """The first token, which is all there is."""
        self.sink.on_frame(CONTENT)
        self.sink.on_end(None)

    def refuse(self, error: BadStatus) -> None:
        """An error is all there is."""
        self.sink.on_headers(error.status or 429, self.headers)
        self.sink.on_end(error)

    def first_token(self) -> None:
        """The status and the first token; more come."""
        self.sink.on_headers(200, self.headers)
        self.sink.on_frame(CONTENT)

    def end(self) -> None:
        """The last token has come."""
        self.sink.on_end(None)

    def headers_and_answer(self) -> None:
        """The status was held back until now."""
        self.sink.on_headers(200, self.headers)
        self.answer()
