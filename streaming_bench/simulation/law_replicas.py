"""Replicas with a TTFT by a law of the prompt, the replica and the time, with slots, quotas and faults: U1 to U25.

The random numbers of an attempt depend on the seed, the request, the replica and the number of the attempt there, so
that every policy has the same ones. Units: seconds of the loop's clock, tokens.
"""

import asyncio
import math
import random
from collections import deque
from collections.abc import Sequence
from typing import Final

from streaming_bench.simulation.decoding import Decoder, Generation
from streaming_bench.simulation.engine_scenario import Episodes
from streaming_bench.simulation.law_scenario import Decoding, SharedLimits, TtftLaw
from streaming_bench.simulation.provider_quota import (
    REFUSED_AFTER_S,
    LimitHeaders,
    OtherTraffic,
    ProviderQuota,
    limits_of,
)
from streaming_bench.simulation.scenario import Scenario
from streaming_bench.simulation.speed_timeline import Slowdown, SpeedTimeline, draw_slowdowns
from streaming_bench.simulation.world import TimedStream, World
from ttft_gateway.apis.base import Call, Sink, Stream
from ttft_gateway.apis.errors import BadStatus
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.limits.bucket import Limit
from ttft_gateway.limits.ledger import Ledger

_AFTERWARDS: Final = 2.0  # timelines are drawn for longer than the arrivals take
_MIN_S: Final = 60.0


class LawDraws:
    """The random numbers of one seed.

    Args:
        arrivals_s: times of the arrivals.
    """

    def __init__(self, scenario: Scenario, arrivals_s: Sequence[float], seed: int) -> None:
        assert scenario.law is not None
        law = self._law = scenario.law
        self._scenario, self._seed = scenario, seed
        count = len(arrivals_s)
        rng = random.Random(f"{seed}/requests")
        self._tokens = [_tokens(law, rng) for _ in range(count)]
        self._noise = [rng.lognormvariate(0.0, law.request_noise) for _ in range(count)]
        self._miss = [rng.random() for _ in range(count)]
        self._facts = [RequestFacts(prompt_tokens=tokens, coin=rng.random()) for tokens in self._tokens]
        self._length_s = _AFTERWARDS * arrivals_s[-1]
        self._rate = count / arrivals_s[-1]
        slow = random.Random(f"{seed}/slow")
        self._timelines = [self._timeline(law.slow, index, slow) for index in range(scenario.replicas)]
        rng = random.Random(f"{seed}/answers")
        self._answers = [] if law.decode is None else [_answer(law.decode, rng, each) for each in self._tokens]
        slow = random.Random(f"{seed}/spells")
        spells = None if law.decode is None else law.decode.slow
        self._spells = [self._timeline(spells, index, slow) for index in range(scenario.replicas)]

    def ttft_s(self, request: int, replica: int, nth: int, now_s: float) -> tuple[float, random.Random]:
        """Return the TTFT of an attempt, and the generator for what follows the first token.

        Args:
            nth: number of earlier attempts of the request at the replica.
        """
        law = self._law
        rng = random.Random(f"{self._seed}/{request}/{replica}/{nth}")
        usual_s = law.base_s + self._tokens[request] / law.tokens_per_s if law.ttft is None else law.ttft.draw(rng, 0)
        ttft_s = usual_s * rng.lognormvariate(0.0, law.noise) * self._noise[request]
        if law.misses is not None:
            own, which = rng.random(), rng.random()
            coin = self._miss[request] if which < math.sqrt(law.misses.correlation) else own
            if coin < law.misses.share:
                ttft_s *= law.misses.factor
        ttft_s *= self._factor(replica, now_s) / self._timelines[replica].speed(now_s)
        if rng.random() < law.stalls:
            ttft_s += law.stall.draw(rng, 0)
        return ttft_s, rng

    def tokens(self, request: int) -> float:
        """Return the length of a prompt."""
        return self._tokens[request]

    def answer(self, request: int, decode: Decoding, rng: random.Random) -> tuple[int, float]:
        """Return the tokens of an answer, and the factor of their time."""
        tokens, slowness = self._answers[request]
        return tokens, slowness * rng.lognormvariate(0.0, decode.noise)

    def decoder(self, replica: int, decode: Decoding, loop: asyncio.AbstractEventLoop) -> Decoder:
        """Return the generation of a replica's answers."""
        factor = decode.factors[replica] if replica < len(decode.factors) else 1.0
        return Decoder(loop, self._spells[replica], factor * decode.gap_s, factor * decode.per_stream_s)

    def world(self, scenario: Scenario, loop: asyncio.AbstractEventLoop, *, held: bool) -> World:
        """Return fresh replicas with these draws; headers always come with the first token."""
        law, count = self._law, scenario.replicas
        queues = [_Slots(law.slots or len(self._facts)) for _ in range(1 if law.one_queue else count)]
        replicas = [_LawReplica(self, law, loop, index, queues[index % len(queues)]) for index in range(count)]
        names: list[str | None] = [None] * count
        configured: list[Limit] = []
        form = None
        if law.limits is not None:
            limits = law.limits
            amounts = limits_of(limits, self._rate, self._tokens, limits.others)
            headers = LimitHeaders.EXACT if limits.known == "headers" else LimitHeaders.NONE
            quotas = [ProviderQuota(amounts, headers, self._others(limits, i)) for i in range(limits.count)]
            form = quotas[0].form
            for index, replica in enumerate(replicas):
                number = index * limits.count // count
                names[index] = f"quota-{number}"
                replica.quota = quotas[number]
            configured = amounts if limits.known == "configured" else []

        def ledgers() -> dict[str, Ledger]:
            return {name: Ledger(configured) for name in names if name}

        return World(replicas, self._facts, names, ledgers, limits=form)

    def _factor(self, replica: int, now_s: float) -> float:
        law, day = self._law, self._scenario.arrivals.day
        factor = 1.0 if day is None else 1.0 + (law.busy - 1.0) * day.height(now_s)
        if law.spread is not None:
            share = replica / max(1, self._scenario.replicas - 1)
            factor *= law.spread.min * (law.spread.max / law.spread.min) ** share
        if replica < len(law.factors):
            factor *= law.factors[replica]
        if replica == 0:
            factor *= (1.0 + law.drift_per_min) ** (now_s / _MIN_S)
            factor *= 1.0 if law.pulse is None else law.pulse.at(now_s)
        return factor

    def _timeline(self, slow: Episodes | None, replica: int, rng: random.Random) -> SpeedTimeline:
        slowdowns: list[Slowdown] = []
        if slow is not None and (slow.at == "each replica" or replica == 0):
            slowdowns = draw_slowdowns(slow, self._length_s, rng)
        return SpeedTimeline(slowdowns)

    def _others(self, limits: SharedLimits, index: int) -> OtherTraffic:
        tokens = [tokens + limits.answer_tokens for tokens in self._tokens]
        return OtherTraffic(limits.others, tokens, f"{self._seed}/others/{index}", limits.bursts)


def _tokens(law: TtftLaw, rng: random.Random) -> float:
    if law.long is not None and rng.random() < law.long.share:
        return float(law.long.tokens)
    prompts = law.prompts
    return max(5.0, min(prompts.max, rng.lognormvariate(math.log(prompts.median), prompts.sigma)))


def _answer(decode: Decoding, rng: random.Random, prompt_tokens: float) -> tuple[int, float]:
    """Draw an answer: its tokens, and the factor of their time."""
    law = decode.tokens
    tokens = max(2, min(int(law.max), int(rng.lognormvariate(math.log(law.median), law.sigma))))
    slowness = 1.0 if decode.lasts is None else decode.lasts.draw(rng, 0) / (decode.gap_s * (tokens - 1))
    return tokens, slowness * (1.0 if decode.prompt_tokens is None else 1.0 + prompt_tokens / decode.prompt_tokens)


class _Job(TimedStream):
    """One attempt, which waits for a slot and holds it until its end."""

    __slots__ = ("answer_s", "decoder", "generation", "is_over", "loop", "queue", "slowness", "ttft_s")

    def __init__(self, sink: Sink, loop: asyncio.AbstractEventLoop, queue: "_Slots", decoder: Decoder | None) -> None:
        super().__init__(sink)
        self.loop = loop
        self.queue = queue
        self.decoder = decoder
        self.generation: Generation | None = None
        self.ttft_s = self.answer_s = math.inf
        self.slowness = 1.0
        self.is_over = False

    def begin(self) -> None:
        """Start computing."""
        first_s = self.loop.time() + self.ttft_s
        if first_s < math.inf:
            self.at(self.loop, first_s, self.first_token)
        if first_s + self.answer_s < math.inf and self.decoder is None:
            self.at(self.loop, first_s + self.answer_s, self.end)

    def first_token(self) -> None:
        super().first_token()
        if self.decoder is not None and self.answer_s < math.inf and not self.is_over:
            self.generation = self.decoder.start(self.unsent, self.slowness, self.send, self.end)

    def end(self) -> None:
        if not self.is_over:
            self.is_over = True
            self.queue.leave(self)
            super().end()

    def abort(self) -> None:
        super().abort()
        if not self.is_over:
            self.is_over = True
            self.queue.leave(self)
        if self.generation is not None and self.decoder is not None:
            self.decoder.cancel(self.generation)


class _Slots:
    """The attempts that a server computes, and those that wait, in the order of arrival."""

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._waiting: deque[_Job] = deque()

    def enter(self, job: _Job) -> None:
        """Begin or queue an attempt."""
        if self._free:
            self._free -= 1
            job.begin()
        else:
            self._waiting.append(job)

    def leave(self, job: _Job) -> None:
        """Remove an attempt, and begin the next one if it held a slot."""
        if job in self._waiting:
            self._waiting.remove(job)
        elif self._waiting:
            self._waiting.popleft().begin()
        else:
            self._free += 1


class _LawReplica:
    """One replica; an `Endpoint`."""

    def __init__(
        self, draws: LawDraws, law: TtftLaw, loop: asyncio.AbstractEventLoop, index: int, queue: _Slots
    ) -> None:
        self._draws = draws
        self._law = law
        self._loop = loop
        self._index = index
        self._queue = queue
        self._decoder = None if law.decode is None else draws.decoder(index, law.decode, loop)
        self._asked: dict[int, int] = {}
        self.quota: ProviderQuota | None = None

    def open(self, call: Call, sink: Sink) -> Stream:
        request, now_s, law = int(call.body), self._loop.time(), self._law
        nth = self._asked.get(request, 0)
        self._asked[request] = nth + 1
        job = _Job(sink, self._loop, self._queue, self._decoder)
        if self.quota is not None and law.limits is not None:
            error = self.quota.charge(self._draws.tokens(request) + law.limits.answer_tokens, now_s)
            job.headers = self.quota.headers(now_s)
            if error is not None:
                job.is_over = True
                job.at(self._loop, now_s + REFUSED_AFTER_S, lambda: job.refuse(error))
                return job
        ttft_s, rng = self._draws.ttft_s(request, self._index, nth, now_s)
        if self._is_in(law.failing, now_s):
            job.is_over = True
            job.at(self._loop, now_s + REFUSED_AFTER_S, lambda: job.refuse(BadStatus("out of order", status=500)))
            return job
        if not self._is_in(law.dead, now_s):
            job.ttft_s = ttft_s
            is_silent = self._index == 0 and rng.random() < law.silent
            job.answer_s = math.inf if is_silent else law.answer.draw(rng, request)
            if law.decode is not None:
                tokens, job.slowness = self._draws.answer(request, law.decode, rng)
                job.unsent = tokens - 1
        self._queue.enter(job)
        return job

    def _is_in(self, span: tuple[float, float] | None, now_s: float) -> bool:
        return self._index == 0 and span is not None and span[0] <= now_s < span[1]
