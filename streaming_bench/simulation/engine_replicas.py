"""Simulated language-model servers: engines with iteration batching (W5) and providers known by their TTFT (W6).

Each is an `Endpoint`. All random numbers are drawn beforehand, for each request and replica, so that every policy has
the same prompts, slowdowns and draws. Units: seconds of the loop's clock, tokens.
"""

import asyncio
import itertools
import math
import random
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from streaming_bench.simulation.decoding import Decoder, Generation
from streaming_bench.simulation.engine_scenario import EngineModel, LogNormal, Prompts, ProviderModel, Quotas
from streaming_bench.simulation.provider_quota import (
    REFUSED_AFTER_S,
    LimitHeaders,
    OtherTraffic,
    ProviderQuota,
    limits_of,
)
from streaming_bench.simulation.scenario import Scenario
from streaming_bench.simulation.speed_timeline import SpeedTimeline, draw_timelines
from streaming_bench.simulation.world import TimedStream, World
from ttft_gateway.apis.base import Call, Sink, Stream
from ttft_gateway.estimation.prefixes import prefix_hashes
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.limits.ledger import Ledger

_BYTES_PER_TOKEN: Final = 4


@dataclass(frozen=True, slots=True)
class Prompt:
    """Prompt and answer of one request.

    Attributes:
        group: group that shares the prefix.
        prefix: length of the prefix.
        tokens: length of the prompt.
        answer: tokens to generate.
        facts: the gateway's knowledge of the request.
    """

    group: int
    prefix: int
    tokens: int
    answer: int
    facts: RequestFacts


def draw_prompts(prompts: Prompts, count: int, answer_counted: int, seed: int) -> list[Prompt]:
    """Draw the prompts of a seed.

    Args:
        answer_counted: tokens that a quota counts for an answer.
    """
    rng = random.Random(f"{seed}/prompts")
    prefixes = [rng.randbytes(_BYTES_PER_TOKEN * _tokens(prompts.prefix_tokens, rng)) for _ in range(prompts.groups)]
    popularity = list(itertools.accumulate((rank + 1) ** -prompts.zipf for rank in range(prompts.groups)))
    documents = prompts.document_tokens
    drawn = []
    for _ in range(count):
        group = bisect_left(popularity, rng.random() * popularity[-1])
        is_document = rng.random() < prompts.documents
        own = int(rng.uniform(documents.min, documents.max)) if is_document else _tokens(prompts.suffix_tokens, rng)
        text = prefixes[group] + rng.randbytes(_BYTES_PER_TOKEN * own)
        tokens = len(text) // _BYTES_PER_TOKEN
        facts = RequestFacts(
            float(tokens), len(text), prefix_hashes(text), answer_tokens=answer_counted, coin=rng.random()
        )
        drawn.append(Prompt(group, tokens - own, tokens, _tokens(prompts.answer_tokens, rng), facts))
    return drawn


def _tokens(law: LogNormal, rng: random.Random) -> int:
    return max(5, min(int(law.max), int(rng.lognormvariate(math.log(law.median), law.sigma))))


_AFTERWARDS: Final = 2.0  # timeline is drawn for longer than the arrivals take


@dataclass(frozen=True, slots=True)
class RequestDraws:
    """Random numbers of one request at one provider.

    Attributes:
        noise: factor of the TTFT.
        hit: uniform number that decides whether the prefix is cached.
        stalls: uniform number that decides whether the answer stalls.
        stall_s: length of the stall.
    """

    noise: float
    hit: float
    stalls: float
    stall_s: float


class ServerDraws:
    """All random numbers of one seed.

    Args:
        headers: rate limit headers of the providers; with NONE the limits are configured.
        others: share of each limit that other clients use; our own headroom refers to the remaining share.
    """

    def __init__(
        self, scenario: Scenario, seed: int, headers: LimitHeaders = LimitHeaders.NONE, others: float = 0.0
    ) -> None:
        self._seed, self._headers, self._others = seed, headers, others
        assert scenario.serving is not None
        assert scenario.arrivals.per_second is not None
        serving = self._serving = scenario.serving
        count, self._rate = scenario.requests, scenario.arrivals.per_second
        self._prompts = draw_prompts(serving.prompts, count, serving.quotas.answer_tokens, seed)
        self._timelines = draw_timelines(serving, scenario.replicas, _AFTERWARDS * count / self._rate, seed)
        rng = random.Random(f"{seed}/luck")  # a label of the golden rows
        slots = range(scenario.replicas)
        opaque = serving.opaque
        self._draws: list[list[RequestDraws]] = []
        if opaque is not None:
            noise, stall = opaque.noise, opaque.stall
            self._draws = [
                [RequestDraws(noise.draw(rng, i), rng.random(), rng.random(), stall.draw(rng, i)) for _ in slots]
                for i in range(count)
            ]
            if opaque.stalls_again > 1.0:
                correlation = (opaque.stalls_again - 1.0) * opaque.stalls / (1.0 - opaque.stalls)
                self._draws = _with_common_stalls(self._draws, correlation, random.Random(f"{seed}/common"))
        self._facts = [prompt.facts for prompt in self._prompts]

    def world(self, scenario: Scenario, loop: asyncio.AbstractEventLoop, *, held: bool) -> World:
        """Return fresh servers with these draws; headers always come with the first token."""
        quotas = self._serving.quotas
        limits = limits_of(quotas, self._rate, [prompt.tokens for prompt in self._prompts], self._others)
        providers = [ProviderQuota(limits, self._headers, self._other_traffic(i)) for i in range(quotas.count)]
        names = [f"quota-{i * quotas.count // scenario.replicas}" for i in range(scenario.replicas)]
        configured = limits if self._headers is LimitHeaders.NONE else ()
        engine, opaque = self._serving.engine, self._serving.opaque
        engines: list[_EngineReplica] = []
        endpoints: list[_EngineReplica | _ProviderReplica] = []
        for i, timeline in enumerate(self._timelines):
            context = _ServerContext(
                loop, self._prompts, timeline, providers[i * quotas.count // scenario.replicas], quotas
            )
            if engine is not None:
                engines.append(_EngineReplica(context, engine))
                endpoints.append(engines[-1])
            elif opaque is not None:
                out = self._serving.brown_out
                endpoints.append(
                    _ProviderReplica(context, opaque, [draws[i] for draws in self._draws], (out.start_s, out.end_s))
                )

        def ledgers() -> dict[str, Ledger]:
            return {name: Ledger(configured) for name in names}

        def prefill() -> tuple[float, float]:
            return sum(one.computed for one in engines), sum(one.wasted for one in engines)

        batches = engine is not None
        return World(endpoints, self._facts, names, ledgers, batches, prefill, providers[0].form)

    def _other_traffic(self, index: int) -> OtherTraffic | None:
        if not self._others:
            return None
        tokens = [prompt.tokens + self._serving.quotas.answer_tokens for prompt in self._prompts]
        return OtherTraffic(self._others, tokens, f"{self._seed}/others/{index}")


def _with_common_stalls(
    draws: list[list[RequestDraws]], correlation: float, rng: random.Random
) -> list[list[RequestDraws]]:
    """Let the replicas share a request's random number for stalls as often as the correlation requires."""
    shared, found = math.sqrt(correlation), []
    for row in draws:
        common = rng.random()
        found.append([replace(own, stalls=common) if rng.random() < shared else own for own in row])
    return found


@dataclass(frozen=True, slots=True)
class _ServerContext:
    """State shared by servers of both kinds."""

    loop: asyncio.AbstractEventLoop
    prompts: Sequence[Prompt]
    timeline: SpeedTimeline
    provider: ProviderQuota
    quotas: Quotas

    def refuse(self, prompt: Prompt, stream: TimedStream) -> bool:
        """Answer 429 if the quota is used up; return True in that case."""
        now_s = self.loop.time()
        error = self.provider.charge(prompt.tokens + self.quotas.answer_tokens, now_s)
        stream.headers = self.provider.headers(now_s)
        if error is not None:
            stream.at(self.loop, now_s + REFUSED_AFTER_S, lambda: stream.refuse(error))
        return error is not None


class _ProviderReplica:
    """A provider's endpoint."""

    def __init__(
        self,
        context: _ServerContext,
        opaque: ProviderModel,
        draws: Sequence[RequestDraws],
        brown_out: tuple[float, float],
    ) -> None:
        self._context = context
        self._opaque = opaque
        self._draws = draws
        self._brown_out = brown_out
        self._last_request_s: dict[int, float] = {}

    def open(self, call: Call, sink: Sink) -> Stream:
        request = int(call.body)
        prompt = self._context.prompts[request]
        stream = TimedStream(sink)
        if self._context.refuse(prompt, stream):
            return stream
        loop = self._context.loop
        now_s = loop.time()
        first_s = now_s + self._ttft_s(prompt, self._draws[request], now_s)
        stream.unsent = prompt.answer
        stream.at(loop, first_s, stream.first_token)
        stream.at(loop, first_s + self._opaque.gap_s * prompt.answer, stream.end)
        return stream

    def _ttft_s(self, prompt: Prompt, draws: RequestDraws, now_s: float) -> float:
        opaque = self._opaque
        recent = now_s - self._last_request_s.get(prompt.group, -math.inf) <= opaque.remembered_s
        self._last_request_s[prompt.group] = now_s
        is_cached = draws.hit < (opaque.hit if recent else opaque.hit_else)
        uncached = prompt.tokens - (prompt.prefix if is_cached else 0)
        ttft_s = (
            (opaque.base_s + uncached / opaque.prefill_tokens_per_s) * draws.noise / self._context.timeline.speed(now_s)
        )
        start_s, end_s = self._brown_out
        stalls = opaque.brown_out_stalls if start_s <= now_s < end_s else opaque.stalls
        return ttft_s + (draws.stall_s if draws.stalls < stalls else 0.0)


class _EngineRequest(TimedStream):
    """One request at an engine."""

    __slots__ = ("_engine", "decoding", "ended", "generation", "prompt", "remaining", "spent")

    def __init__(self, sink: Sink, prompt: Prompt, engine: "_EngineReplica") -> None:
        super().__init__(sink)
        self.prompt = prompt
        self.unsent = prompt.answer
        self.generation: Generation | None = None
        self._engine = engine
        self.remaining: float | None = None  # prompt tokens to compute; None before the first iteration
        self.spent = 0.0  # prompt tokens computed
        self.decoding = False
        self.ended = False

    def abort(self) -> None:
        super().abort()
        if not self.ended:
            self.ended = True
            self._engine.cancelled(self)

    def end(self) -> None:
        self.ended = True
        self._engine.finished()
        super().end()


class _EngineReplica:
    """An engine: iterations of prefill chunks, first come first served, slowed down by decodes.

    Attributes:
        computed: prompt tokens computed.
        wasted: prompt tokens computed for requests that were cancelled before their first token.
    """

    def __init__(self, context: _ServerContext, engine: EngineModel) -> None:
        self._context = context
        self._engine = engine
        self._decoder = Decoder(context.loop, context.timeline, engine.gap_s, engine.gap_per_decode_s)
        self._queue: deque[_EngineRequest] = deque()
        self._decodes = 0
        self._busy = False
        self._cache: OrderedDict[int, int] = OrderedDict()  # tokens by group; keys of requests' own parts are negative
        self._cached = 0
        self.computed = 0.0
        self.wasted = 0.0

    def open(self, call: Call, sink: Sink) -> Stream:
        request = int(call.body)
        job = _EngineRequest(sink, self._context.prompts[request], self)
        if self._context.refuse(job.prompt, job):
            job.ended = True
            return job
        self._queue.append(job)
        if not self._busy:
            self._iterate()
        return job

    def cancelled(self, job: _EngineRequest) -> None:
        """Forget a cancelled request."""
        if job.generation is not None:
            self._decoder.cancel(job.generation)
        if job.decoding:
            self._decodes -= 1
        else:
            self.wasted += job.spent
            if job in self._queue:  # absent if its last chunk was in the same iteration as the winner's
                self._queue.remove(job)

    def finished(self) -> None:
        """Count the end of an answer."""
        self._decodes -= 1

    def _iterate(self) -> None:
        engine, room = self._engine, self._engine.chunk_tokens
        parts: list[tuple[_EngineRequest, float]] = []
        for job in self._queue:
            if job.remaining is None:
                job.remaining = max(1.0, job.prompt.tokens - self._hit(job.prompt))
            part = min(room, job.remaining)
            parts.append((job, part))
            room -= part
            if room <= 0:
                break
        self._busy = bool(parts)
        if parts:
            tokens = engine.chunk_tokens - room
            work_s = (
                engine.iteration_s
                + engine.iteration_per_decode_s * self._decodes
                + tokens / engine.prefill_tokens_per_s
            )
            loop = self._context.loop
            loop.call_at(self._context.timeline.finish_s(loop.time(), work_s), self._iterated, parts)

    def _iterated(self, parts: list[tuple[_EngineRequest, float]]) -> None:
        done = []
        for job, part in parts:
            self.computed += part
            if job.ended:
                self.wasted += part
                continue
            assert job.remaining is not None
            job.remaining -= part
            job.spent += part
            if job.remaining <= 0:
                self._queue.remove(job)
                done.append(job)
        for job in done:
            self._first_token(job)
        self._iterate()

    def _first_token(self, job: _EngineRequest) -> None:
        if job.ended:
            return  # cancelled just now by the first token of another attempt
        prompt = job.prompt
        self._remember(prompt.group, prompt.prefix)
        self._remember(-1 - id(prompt), prompt.tokens - prompt.prefix)
        job.decoding = True
        self._decodes += 1
        job.first_token()
        if not job.ended:
            job.generation = self._decoder.start(prompt.answer, 1.0, job.send, job.end)

    def _hit(self, prompt: Prompt) -> int:
        """Return the number of cached tokens of a prompt's prefix."""
        if prompt.group not in self._cache:
            return 0
        self._cache.move_to_end(prompt.group)
        return prompt.prefix

    def _remember(self, key: int, tokens: int) -> None:
        self._cached += tokens - self._cache.pop(key, 0)
        self._cache[key] = tokens
        while self._cached > self._engine.cache_tokens:
            self._cached -= self._cache.popitem(last=False)[1]
