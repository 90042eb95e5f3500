"""The [tiers] table of a scenario: one provider that sells one model in several tiers (C1).

Owns the form of the table. Units: seconds, tokens; shares as fractions of 1; prices as multiples of the usual tier's.
"""

from typing import Annotated, Final

import msgspec

from streaming_bench.simulation.engine_scenario import LogNormal
from streaming_bench.simulation.law_scenario import Pulse
from streaming_bench.simulation.toml_section import Duration, Positive, RandomDuration, Section, Share
from ttft_gateway.limits.prices import Prices

USUAL: Final = "default"
"""Tier with which bills are compared."""


class TierLaw(Section, frozen=True):
    """Waits on one tier in one phase.

    Attributes:
        ttft: time to the first token.
        stalls: share of the answers that stall before their first token.
        stall: length of a stall, in addition to the time to the first token.
        refused: share of the requests that get a 429 at once.
    """

    ttft: RandomDuration
    stalls: Share = Share(0.0)
    stall: RandomDuration = RandomDuration("pareto:1s,1.3")
    refused: Share = Share(0.0)


class Tier(Section, frozen=True):
    """One tier.

    Attributes:
        price: price as a multiple of the usual tier's.
        laws: laws of its phases, in turn.
        phase_s: length of a phase.
        slow: factor of its times that comes and goes; None for none.
        served_as: tier that serves and bills its requests, as its answers state; None for itself.
    """

    price: Positive
    laws: Annotated[tuple[TierLaw, ...], msgspec.Meta(min_length=1)]
    phase_s: Duration = Duration(600.0)
    slow: Pulse | None = None
    served_as: str | None = None

    def law(self, now_s: float) -> TierLaw:
        """Return the law at a time."""
        return self.laws[int(now_s / self.phase_s) % len(self.laws)]


class Tiers(Section, frozen=True):
    """The tiers of a provider, and its requests.

    Attributes:
        target_s: TTFT target of the gateway, which prefers cost.
        of: tiers by name; `default` is the usual one.
        prompts, answers: lengths in tokens.
        prompt_price, answer_price: prices of a million tokens on the usual tier.
        gap_s: time between the tokens of an answer.
    """

    target_s: Duration
    of: dict[str, Tier]
    prompts: LogNormal = LogNormal(600.0, 0.8, 30_000.0)
    answers: LogNormal = LogNormal(100.0, 0.8, 2_000.0)
    prompt_price: Positive = 1.0
    answer_price: Positive = 4.0
    gap_s: Duration = Duration(0.02)

    def __post_init__(self) -> None:
        if USUAL not in self.of:
            raise ValueError(f"there is no tier {USUAL!r}, with which bills are compared; add it")

    def prices(self, name: str) -> Prices:
        """Return the prices of a tier."""
        price = self.of[name].price
        return Prices(price * self.prompt_price, price * self.prompt_price, price * self.answer_price)
