"""The setup of `compare`: replicas, policies and traffic, as data. Pure.

Each replica takes its first-token times from a shuffled deck with an exact share of misses, so that a short run does
not depend on its number of misses; decks of different replicas are independent. Every run has the same decks and the
same requests at the same times. Units: seconds; shares are fractions of 1.
"""

import random
from dataclasses import dataclass
from typing import Final

from gateway.simulated.quantities import Distribution
from streaming_bench.compare.gateway_process import SIGNALS
from streaming_bench.load.client import PlannedRequest
from streaming_bench.load.pacing import poisson
from streaming_bench.load.token_distribution import prompt_text

POLICIES: Final = ("direct", "off", "headers", "ttfb", "static", "quantile", "adaptive")
"""The compared policies: no gateway, and a gateway with each policy."""

_PROFILES: Final[dict[str, dict[str, object]]] = {
    "flushed": {"headers": "at_once", "role": "with"},
    "held": {"headers": "with_first_content", "role": "with"},
    "role first": {"headers": "at_once", "role": "early"},
    "comment first": {"headers": "at_once", "role": "with", "first_comment": "OPENROUTER PROCESSING"},
}
_HEADERS_DELAY: Final = "uniform:1.3ms,1.6ms"  # as in the article on which W2 is based
_DECK: Final = 500
_PROMPT_TOKENS: Final = 60


@dataclass(frozen=True, slots=True)
class Experiment:
    """Replicas and traffic.

    Attributes:
        ttft: TTFT of a cache hit.
        miss_ttft: TTFT of a cache miss.
        misses: share of misses.
        gap: time between the tokens of an answer.
        tokens: length of an answer.
        replicas: number of replicas.
        rate_per_s: mean rate of requests, a Poisson process.
        budget: share of hedges of the policies with a budget; `quantile` hedges at 1 - budget.
        static_delay: delay of `static`, and minimum delay of `headers`.
        slowness: slowdown factor of an episode.
        seed: seed of decks and times.
    """

    ttft: Distribution
    miss_ttft: Distribution
    misses: float = 0.2
    gap: str = "4ms"
    tokens: int = 8
    replicas: int = 4
    rate_per_s: float = 100.0
    budget: float = 0.2
    static_delay: str = "26ms"
    slowness: float = 8.0
    seed: int = 1

    def profiles(self, mode: str) -> list[dict[str, object]]:
        """Return the profile of each replica, with the simulated replica's keys."""
        shared = {**_PROFILES[mode], "headers_delay": _HEADERS_DELAY, "gap": self.gap, "tokens": self.tokens}
        return [{**shared, "ttft": self.deck(number)} for number in range(self.replicas)]

    def deck(self, replica: int) -> str:
        """Return a replica's first-token times, repeated in order."""
        rng = random.Random(f"{self.seed}/deck/{replica}")
        misses = round(self.misses * _DECK)
        laws = [self.miss_ttft] * misses + [self.ttft] * (_DECK - misses)
        times = [law.draw(rng, number) for number, law in enumerate(laws)]
        rng.shuffle(times)
        return "trace:" + ",".join(f"{1000 * time_s:.3f}ms" for time_s in times)

    def hedge(self, row: str) -> dict[str, object]:
        """Return the hedge settings of a policy's gateway."""
        policy = "quantile" if row in SIGNALS else row
        settings: dict[str, object] = {"policy": policy, "hedge_delay_min": "1ms", "budget": f"{100 * self.budget:g}%"}
        if row == "static":
            settings["delay"] = self.static_delay
        if row == "headers":
            settings["hedge_delay_min"] = self.static_delay  # as a proxy's timer, which headers end
        if row == "ttfb":
            settings["budget"] = "100%"  # as published: without a budget
        if row in ("quantile", "ttfb", "headers"):
            settings["quantile"] = 1.0 - self.budget  # the quantile that its budget pays for
        return settings

    def requests(self, count: int, stretch: str) -> list[PlannedRequest]:
        """Return the requests of a stretch, the same for every run.

        Args:
            stretch: name of the stretch; each stretch has its own times.
        """
        times = poisson(count, self.rate_per_s, random.Random(f"{self.seed}/{stretch}"))
        words = random.Random(f"{self.seed}/{stretch}/words")
        return [
            PlannedRequest(number, 0, at_s, prompt_text(number, _PROMPT_TOKENS, words), _PROMPT_TOKENS, self.tokens)
            for number, at_s in enumerate(times)
        ]
