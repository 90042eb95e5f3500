"""Language-model servers: engines with iteration batching (W5) and opaque providers (W6).

Each is an `Endpoint`. Everything random was drawn beforehand, for each request and replica, so every policy meets the
same prompts, weather and luck. Units: seconds of the loop's clock, tokens.
"""

import asyncio
import math
import random
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gateway.limits.bucket import Limit
from gateway.limits.ledger import Ledger
from providers.base import Call, Resource, Sink, Stream
from streaming_bench.simulation.engine_scenario import EngineModel, ProviderModel, Quotas
from streaming_bench.simulation.prompts import Prompt, draw_prompts
from streaming_bench.simulation.provider_quota import LimitHeaders, OtherTraffic, ProviderQuota
from streaming_bench.simulation.scenario import Scenario
from streaming_bench.simulation.speed_timeline import SpeedTimeline, draw_timelines
from streaming_bench.simulation.world import TimedStream, World

_REFUSED_AFTER_S: Final = 0.005
_GAIN_MIN_OWN: Final = 5.0  # the gateway's defaults, which a replica's kind decides there
_GAIN_MIN_PROVIDER: Final = 0.25
_AFTERWARDS: Final = 2.0  # weather is drawn for longer than the arrivals take


@dataclass(frozen=True, slots=True)
class RequestDraws:
    """What one request would meet at one replica."""

    noise: float
    hit: float
    stalls: float
    stall_s: float


class ServerDraws:
    """Everything drawn for one seed.

    Args:
        scenario: a workload of servers.
        seed: of the run.
        headers: what providers state of their limits; without any the gateway is told them.
        others: the share of each limit that somebody else uses; our own headroom is in what is left.
    """

    def __init__(
        self, scenario: Scenario, seed: int, headers: LimitHeaders = LimitHeaders.NONE, others: float = 0.0
    ) -> None:
        self._seed, self._headers, self._others = seed, headers, others
        assert scenario.serving is not None
        serving = self._serving = scenario.serving
        count, self._rate = scenario.requests, scenario.arrivals.per_second or 0.0
        self._prompts = draw_prompts(serving.prompts, count, serving.quotas.answer_tokens, seed)
        self._weather = draw_timelines(serving, scenario.replicas, _AFTERWARDS * count / self._rate, seed)
        rng = random.Random(f"{seed}/luck")
        slots = range(scenario.replicas)
        opaque = serving.opaque
        self._luck = [] if opaque is None else [[_draw_request(opaque, rng, i) for _ in slots] for i in range(count)]
        self._facts = [prompt.facts for prompt in self._prompts]

    def world(self, scenario: Scenario, loop: asyncio.AbstractEventLoop, *, held: bool) -> World:
        """Fresh servers with these draws; headers always come with the first token."""
        quotas = self._serving.quotas
        limits = self._limits(quotas)
        providers = [ProviderQuota(limits, self._headers, self._rival(i)) for i in range(quotas.count)]
        names = [f"quota-{i * quotas.count // scenario.replicas}" for i in range(scenario.replicas)]
        told = limits if self._headers is LimitHeaders.NONE else ()
        ledgers = {name: Ledger(told) for name in names}
        engine, opaque = self._serving.engine, self._serving.opaque
        engines: list[_EngineReplica] = []
        endpoints: list[_EngineReplica | _ProviderReplica] = []
        for i, weather in enumerate(self._weather):
            common = _ServerContext(
                loop, self._prompts, weather, providers[i * quotas.count // scenario.replicas], quotas
            )
            if engine is not None:
                engines.append(_EngineReplica(common, engine))
                endpoints.append(engines[-1])
            elif opaque is not None:
                out = self._serving.brown_out
                endpoints.append(
                    _ProviderReplica(common, opaque, [luck[i] for luck in self._luck], (out.start_s, out.end_s))
                )

        def prefill() -> tuple[float, float]:
            return sum(one.computed for one in engines), sum(one.wasted for one in engines)

        batches = engine is not None
        gain_min = _GAIN_MIN_OWN if batches else _GAIN_MIN_PROVIDER
        return World(endpoints, self._facts, names, ledgers, batches, gain_min, prefill, providers[0].form)

    def _rival(self, index: int) -> OtherTraffic | None:
        """Who else uses a quota."""
        if not self._others:
            return None
        tokens = [prompt.tokens + self._serving.quotas.answer_tokens for prompt in self._prompts]
        return OtherTraffic(self._others, tokens, f"{self._seed}/others/{index}")

    def _limits(self, quotas: Quotas) -> list[Limit]:
        """What each quota allows, from what the traffic needs in the mean."""
        tokens = sum(prompt.tokens for prompt in self._prompts) / len(self._prompts) + quotas.answer_tokens
        requests = quotas.headroom * self._rate / quotas.count * quotas.window_s / (1 - self._others)
        return [
            Limit(Resource.REQUESTS, requests, quotas.window_s),
            Limit(Resource.TOKENS, requests * tokens, quotas.window_s),
        ]


def _draw_request(opaque: ProviderModel, rng: random.Random, request: int) -> RequestDraws:
    return RequestDraws(opaque.noise.draw(rng, request), rng.random(), rng.random(), opaque.stall.draw(rng, request))


@dataclass(frozen=True, slots=True)
class _ServerContext:
    """What a server needs, of either kind."""

    loop: asyncio.AbstractEventLoop
    prompts: Sequence[Prompt]
    weather: SpeedTimeline
    provider: ProviderQuota
    quotas: Quotas

    def refuse(self, prompt: Prompt, stream: TimedStream) -> bool:
        """Answer 429 if the quota is used up."""
        now_s = self.loop.time()
        error = self.provider.refuses(prompt.tokens + self.quotas.answer_tokens, now_s)
        stream.headers = self.provider.headers(now_s)
        if error is not None:
            stream.at(self.loop, now_s + _REFUSED_AFTER_S, lambda: stream.refuse(error))
        return error is not None


class _ProviderReplica:
    """A provider's endpoint."""

    def __init__(
        self,
        common: _ServerContext,
        opaque: ProviderModel,
        luck: Sequence[RequestDraws],
        brown_out: tuple[float, float],
    ) -> None:
        self._common = common
        self._opaque = opaque
        self._luck = luck
        self._brown_out = brown_out
        self._asked_s: dict[int, float] = {}

    def open(self, call: Call, sink: Sink) -> Stream:
        """Answer by the law."""
        request = int(call.body)
        prompt = self._common.prompts[request]
        stream = TimedStream(sink)
        if self._common.refuse(prompt, stream):
            return stream
        loop = self._common.loop
        now_s = loop.time()
        first_s = now_s + self._ttft_s(prompt, self._luck[request], now_s)
        stream.at(loop, first_s, stream.first_token)
        stream.at(loop, first_s + self._opaque.gap_s * prompt.answer, stream.end)
        return stream

    def _ttft_s(self, prompt: Prompt, luck: RequestDraws, now_s: float) -> float:
        opaque = self._opaque
        recent = now_s - self._asked_s.get(prompt.group, -math.inf) <= opaque.remembered_s
        self._asked_s[prompt.group] = now_s
        is_cached = luck.hit < (opaque.hit if recent else opaque.hit_else)
        uncached = prompt.tokens - (prompt.prefix if is_cached else 0)
        ttft_s = (
            (opaque.base_s + uncached / opaque.prefill_tokens_per_s) * luck.noise / self._common.weather.speed(now_s)
        )
        start_s, end_s = self._brown_out
        stalls = opaque.brown_out_stalls if start_s <= now_s < end_s else opaque.stalls
        return ttft_s + (luck.stall_s if luck.stalls < stalls else 0.0)


class _EngineRequest(TimedStream):
    """One request at an engine."""

    __slots__ = ("_engine", "decoding", "left", "over", "prompt", "spent")

    def __init__(self, sink: Sink, prompt: Prompt, engine: "_EngineReplica") -> None:
        super().__init__(sink)
        self.prompt = prompt
        self._engine = engine
        self.left: float | None = None  # prompt tokens to compute; None before it begins
        self.spent = 0.0  # those computed
        self.decoding = False
        self.over = False

    def abort(self) -> None:
        """Stop whatever it is doing."""
        super().abort()
        if not self.over:
            self.over = True
            self._engine.dropped(self)

    def end(self) -> None:
        """The last token."""
        self.over = True
        self._engine.finished()
        super().end()


class _EngineReplica:
    """An engine: iterations of prefill chunks, first come first served, that decodes slow down.

    Attributes:
        computed: prompt tokens computed,
        wasted: those of requests that were cancelled before their first token.
    """

    def __init__(self, common: _ServerContext, engine: EngineModel) -> None:
        self._common = common
        self._engine = engine
        self._queue: deque[_EngineRequest] = deque()
        self._decodes = 0
        self._busy = False
        self._cache: OrderedDict[int, int] = OrderedDict()  # tokens by group; a request's own part is below 0
        self._cached = 0
        self.computed = 0.0
        self.wasted = 0.0

    def open(self, call: Call, sink: Sink) -> Stream:
        """Queue it."""
        request = int(call.body)
        job = _EngineRequest(sink, self._common.prompts[request], self)
        if self._common.refuse(job.prompt, job):
            job.over = True
            return job
        self._queue.append(job)
        if not self._busy:
            self._iterate()
        return job

    def dropped(self, job: _EngineRequest) -> None:
        """A request was cancelled."""
        if job.decoding:
            self._decodes -= 1
        else:
            self.wasted += job.spent
            if job in self._queue:  # not if its last chunk came in the same iteration as the winner's
                self._queue.remove(job)

    def finished(self) -> None:
        """A request has its last token."""
        self._decodes -= 1

    def _iterate(self) -> None:
        """Begin the next iteration, if there is something to compute."""
        engine, room = self._engine, self._engine.chunk_tokens
        parts: list[tuple[_EngineRequest, float]] = []
        for job in self._queue:
            if job.left is None:
                job.left = max(1.0, job.prompt.tokens - self._hit(job.prompt))
            part = min(room, job.left)
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
            loop = self._common.loop
            loop.call_at(self._common.weather.finish_s(loop.time(), work_s), self._iterated, parts)

    def _iterated(self, parts: list[tuple[_EngineRequest, float]]) -> None:
        """An iteration is over."""
        done = []
        for job, part in parts:
            self.computed += part
            if job.over:
                self.wasted += part
                continue
            assert job.left is not None
            job.left -= part
            job.spent += part
            if job.left <= 0:
                self._queue.remove(job)
                done.append(job)
        for job in done:
            self._first_token(job)
        self._iterate()

    def _first_token(self, job: _EngineRequest) -> None:
        if job.over:
            return  # another one's first token has cancelled it just now
        prompt, loop = job.prompt, self._common.loop
        self._remember(prompt.group, prompt.prefix)
        self._remember(-1 - id(prompt), prompt.tokens - prompt.prefix)
        job.decoding = True
        self._decodes += 1
        job.at(loop, self._common.weather.finish_s(loop.time(), self._engine.gap_s * prompt.answer), job.end)
        job.first_token()

    def _hit(self, prompt: Prompt) -> int:
        """Tokens of its prefix that are cached."""
        if prompt.group not in self._cache:
            return 0
        self._cache.move_to_end(prompt.group)
        return prompt.prefix

    def _remember(self, key: int, tokens: int) -> None:
        self._cached += tokens - self._cache.pop(key, 0)
        self._cache[key] = tokens
        while self._cached > self._engine.cache_tokens:
            self._cached -= self._cache.popitem(last=False)[1]
