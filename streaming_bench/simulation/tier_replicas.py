"""Replicas that are the tiers of one provider: times by a law that may change, refusals, answers with a bill (C1).

The random numbers of an attempt depend on the seed, the request and the tier, so that every policy has the same ones.
Units: seconds of the loop's clock, tokens.
"""

import asyncio
import math
import random
from typing import Final

from streaming_bench.simulation.engine_scenario import LogNormal
from streaming_bench.simulation.provider_quota import REFUSED_AFTER_S
from streaming_bench.simulation.scenario import Scenario
from streaming_bench.simulation.tier_scenario import USUAL, Tier, Tiers
from streaming_bench.simulation.world import TimedStream, World
from ttft_gateway.apis.base import Call, Frame, FrameKind, Sink, Stream, Usage
from ttft_gateway.apis.errors import BadStatus
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.limits.prices import TierPrices

_TOO_MANY: Final = 429


class TierDraws:
    """The random numbers of one seed.

    Args:
        count: number of requests.
    """

    def __init__(self, scenario: Scenario, count: int, seed: int) -> None:
        assert scenario.tiers is not None
        tiers = self._tiers = scenario.tiers
        self.seed = seed
        rng = random.Random(f"{seed}/requests")
        self.prompts = [_length(tiers.prompts, rng) for _ in range(count)]
        self.answers = [_length(tiers.answers, rng) for _ in range(count)]
        self._facts = [RequestFacts(prompt_tokens=tokens, coin=rng.random()) for tokens in self.prompts]

    def world(self, scenario: Scenario, loop: asyncio.AbstractEventLoop, *, held: bool) -> World:
        """Return fresh replicas with these draws; headers always come with the first token."""
        tiers = self._tiers
        prices = {name: tiers.prices(name) for name in tiers.of}
        replicas = [_TierReplica(self, name, tiers, loop) for name in tiers.of]
        ways = [TierPrices(name, prices[USUAL], prices) for name in tiers.of]
        return World(replicas, self._facts, [None] * len(replicas), ways=ways)


def _length(law: LogNormal, rng: random.Random) -> float:
    return float(round(max(2.0, min(law.max, rng.lognormvariate(math.log(law.median), law.sigma)))))


class BilledAnswer(TimedStream):
    """One answer, with its usage and the tier that served it at its end.

    Attributes:
        usage: tokens of prompt and answer.
    """

    __slots__ = ("usage",)

    usage: Usage

    def end(self) -> None:
        """Send the other tokens and the usage, and end the answer."""
        self.send(self.unsent)
        self.sink.on_frame(Frame(FrameKind.USAGE, b"", self.usage))
        self.sink.on_end(None)

    def starts_and_ends(self, loop: asyncio.AbstractEventLoop, first_s: float, rest_s: float, usage: Usage) -> None:
        """Schedule the first token and the end."""
        self.unsent = (usage.completion_tokens or 1) - 1
        self.usage = usage
        self.at(loop, first_s, self.first_token)
        self.at(loop, first_s + rest_s, self.end)

    def is_refused(self, loop: asyncio.AbstractEventLoop) -> None:
        """Schedule a 429."""
        error = BadStatus("Resource unavailable", status=_TOO_MANY, kind="resource_unavailable")
        self.at(loop, loop.time() + REFUSED_AFTER_S, lambda: self.refuse(error))


class _TierReplica:
    """One tier; an `Endpoint`."""

    def __init__(self, draws: TierDraws, name: str, tiers: Tiers, loop: asyncio.AbstractEventLoop) -> None:
        self._draws = draws
        self._name = name
        self._tier: Tier = tiers.of[name]
        self._gap_s = tiers.gap_s
        self._loop = loop
        self._asked: dict[int, int] = {}

    def open(self, call: Call, sink: Sink) -> Stream:
        request, now_s, loop = int(call.body), self._loop.time(), self._loop
        nth = self._asked[request] = self._asked.get(request, 0) + 1
        rng = random.Random(f"{self._draws.seed}/{request}/{self._name}/{nth}")
        law, slow = self._tier.law(now_s), self._tier.slow
        answer = BilledAnswer(sink)
        if rng.random() < law.refused:
            answer.is_refused(loop)
            return answer
        first_s = now_s + law.ttft.draw(rng, request) * (1.0 if slow is None else slow.at(now_s))
        if rng.random() < law.stalls:
            first_s += law.stall.draw(rng, request)
        tokens = int(self._draws.answers[request])
        usage = Usage(int(self._draws.prompts[request]), tokens, tier=self._tier.served_as or self._name)
        answer.starts_and_ends(loop, first_s, tokens * self._gap_s, usage)
        return answer
