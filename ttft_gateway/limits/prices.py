"""Cost of tokens at one replica. Pure; independent of callers and of attempts.

Units: money in the configuration's currency, per million tokens; tokens.
"""

from typing import Final

import msgspec

_PER: Final = 1_000_000
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


def money(amount: float) -> float:
    """Return an amount, or a sum of amounts, without the rounding noise of binary fractions."""
    return round(amount, _DIGITS)
