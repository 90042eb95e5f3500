"""Cost of tokens at one replica. Pure; independent of callers and of attempts.

Units: money in the configuration's currency, per million tokens; tokens.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

_PER: Final = 1_000_000
_USUAL_TIERS: Final = ("default", "standard", "on_demand")  # names of the usual tier in answers
_DIGITS: Final = 12  # a token of the cheapest models costs 1e-8; 12 digits hide sums such as 0.30000000000000004


class Prices(msgspec.Struct, frozen=True):
    """Prices per million tokens.

    Attributes:
        prompt: price of prompt tokens that were not cached.
        cached_prompt: price of cached prompt tokens.
        completion: price of generated tokens, reasoning included.
    """

    prompt: float
    cached_prompt: float
    completion: float

    def cost(self, prompt_tokens: float, cached_tokens: float, completion_tokens: float) -> float:
        """Return the cost of one attempt; prompt_tokens includes the cached ones."""
        cached = min(cached_tokens, prompt_tokens)
        prompt = self.prompt * (prompt_tokens - cached) + self.cached_prompt * cached
        return money((prompt + self.completion * completion_tokens) / _PER)

    def times(self, factor: float) -> "Prices":
        """Return the prices of a tier that costs a multiple of these."""
        return Prices(*(money(factor * each) for each in (self.prompt, self.cached_prompt, self.completion)))


class TierPrices(msgspec.Struct, frozen=True):
    """Prices of one model at one provider, by tier.

    Attributes:
        asked: tier that requests ask for.
        usual: prices of the usual tier, with which bills are compared.
        of: prices by tier.
    """

    asked: str
    usual: Prices
    of: Mapping[str, Prices]

    def billed(self, tier: str | None) -> Prices:
        """Return the prices of the tier that an answer names; None, and a tier without prices: the one asked for."""
        if tier in _USUAL_TIERS and tier not in self.of:
            return self.usual
        return self.of.get(tier or self.asked) or self.of[self.asked]


def money(amount: float) -> float:
    """Return an amount, or a sum of amounts, without the rounding noise of binary fractions."""
    return round(amount, _DIGITS)
