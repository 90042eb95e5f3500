"""Replicas with a TTFT from a distribution, independent of their load: W1 to W4, W7, W8.

All random numbers of a seed are drawn beforehand: one for each request, replica and attempt there, so that every policy
has the same ones. Units: seconds of the loop's clock.
"""

import asyncio
import math
import random
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from streaming_bench.simulation.scenario import RareEvent, SampledModel, Scenario
from streaming_bench.simulation.world import TimedStream, World
from ttft_gateway.apis.base import Call, Sink, Stream
from ttft_gateway.hedging.contract import RequestFacts

_ATTEMPTS: Final = 2  # of one request at one replica; only the reference library uses a replica twice
_PROMPT_TOKENS: Final = 100.0  # of every request; it has no effect on these replicas


class TtftDraws:
    """The random numbers of one seed, drawn once and used by every policy.

    Args:
        correlation: correlation of rare events between replicas; None for the scenario's.
    """

    def __init__(self, scenario: Scenario, seed: int, correlation: float | None) -> None:
        count, drawn = scenario.requests, scenario.drawn
        assert drawn is not None
        rng = random.Random(f"{seed}/ttft")
        slots = range(scenario.replicas * _ATTEMPTS)
        self.ttft_s = [[drawn.ttft.draw(rng, i) for _ in slots] for i in range(count)]
        if drawn.rare is not None:
            rho = drawn.rare.correlation if correlation is None else correlation
            _add_rare(self.ttft_s, drawn.rare, scenario.replicas, rho, seed)
        rng = random.Random(f"{seed}/headers")
        headers = scenario.headers
        self.headers_s = None if headers is None else [headers.draw(rng, i) for i in range(count)]
        rng = random.Random(f"{seed}/coin")
        self.facts = [RequestFacts(prompt_tokens=_PROMPT_TOKENS, coin=rng.random()) for _ in range(count)]

    def world(self, scenario: Scenario, loop: asyncio.AbstractEventLoop, *, held: bool) -> World:
        """Return fresh replicas with these draws.

        Args:
            held: True if headers come with the first token.
        """
        endpoints = [_SampledReplica(self, scenario, loop, i, held=held) for i in range(scenario.replicas)]
        assert scenario.drawn is not None
        thinking = scenario.drawn.thinking
        return World(
            endpoints,
            self.facts,
            [None] * scenario.replicas,
            reasoning_s=0.0 if thinking is None else thinking.lasts_s,
        )


def _add_rare(table: list[list[float]], rare: RareEvent, replicas: int, correlation: float, seed: int) -> None:
    """Apply rare events; replicas share one random number as often as the correlation requires."""
    coins = random.Random(f"{seed}/rare")
    effects = random.Random(f"{seed}/effect")
    shared = math.sqrt(correlation)
    for i, row in enumerate(table):
        common = coins.random()
        for slot, usual_s in enumerate(row):
            own, which = coins.random(), coins.random()
            coin = common if which < shared else own
            if coin < rare.share and (rare.replicas is None or slot % replicas < rare.replicas):
                row[slot] = _effect(rare, usual_s, effects, i)


def _effect(rare: RareEvent, usual_s: float, rng: random.Random, request: int) -> float:
    if rare.ttft is not None:
        return rare.ttft.draw(rng, request)
    if rare.extra is not None:
        return usual_s + rare.extra.draw(rng, request)
    assert rare.factor is not None
    return usual_s * rare.factor


class _SampledReplica:
    """One replica; an `Endpoint`."""

    def __init__(
        self, draws: TtftDraws, scenario: Scenario, loop: asyncio.AbstractEventLoop, index: int, *, held: bool
    ) -> None:
        self._ttft_s = draws.ttft_s
        self._headers_s = None if held else draws.headers_s
        assert scenario.drawn is not None
        self._drawn = scenario.drawn
        self._thinking = scenario.drawn.thinking
        self._level = _LoadLevel(scenario.drawn)
        self._loop = loop
        self._index = index
        self._replicas = scenario.replicas
        self._asked: set[int] = set()

    def open(self, call: Call, sink: Sink) -> Stream:
        request = int(call.body)
        again = request in self._asked
        self._asked.add(request)
        slot = self._index + (self._replicas if again else 0)
        now_s = self._loop.time()
        stream = TimedStream(sink)
        ttft_s = self._now_taking_s(self._ttft_s[request][slot], now_s)
        if self._thinking is not None:
            self._think(stream, now_s, ttft_s, 0.0 if self._headers_s is None else self._headers_s[request])
        elif self._headers_s is None:
            stream.at(self._loop, now_s + ttft_s, stream.headers_and_answer)
        else:
            headers_s = min(self._headers_s[request], ttft_s)
            stream.at(self._loop, now_s + headers_s, stream.flush_headers)
            stream.at(self._loop, now_s + ttft_s, stream.answer)
        return stream

    def _think(self, stream: TimedStream, now_s: float, begin_s: float, headers_s: float) -> None:
        """Schedule an answer that begins with hidden reasoning."""
        assert self._thinking is not None
        sign_s = begin_s if self._thinking.sign == "begin" else headers_s
        stream.at(self._loop, now_s + min(headers_s, begin_s), stream.flush_headers)
        stream.at(self._loop, now_s + sign_s, stream.work)
        stream.at(self._loop, now_s + begin_s + self._thinking.lasts_s, stream.answer_after_reasoning)

    def _now_taking_s(self, drawn_s: float, now_s: float) -> float:
        ttft_s = drawn_s * self._level.at(now_s) + self._drawn.overhead_s
        round_s = self._drawn.round_s
        return round(ttft_s / round_s) * round_s if round_s else ttft_s


class _LoadLevel:
    """Slowdown of all answers over time."""

    def __init__(self, drawn: SampledModel) -> None:
        self._starts_s: Sequence[float] = [step.start_s for step in drawn.steps]
        self._factors = [1.0, *(step.factor for step in drawn.steps)]

    def at(self, now_s: float) -> float:
        return self._factors[bisect_right(self._starts_s, now_s)]
