"""What tokens cost at one replica. Pure; it must not know who pays nor why.

Units: money of one currency, whichever the configuration is written in, per million tokens; tokens.
"""

from dataclasses import dataclass
from typing import Final

_PER: Final = 1_000_000
_DIGITS: Final = 12  # a single token of the cheapest models costs 1e-8; this keeps sums free of 0.30000000000000004


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices per million tokens.

    Attributes:
        prompt: of a prompt token that was not cached.
        cached_prompt: of one that was.
        completion: of a generated token, reasoning included.
    """

    prompt: float
    cached_prompt: float
    completion: float

    def cost(self, prompt_tokens: float, cached_tokens: float, completion_tokens: float) -> float:
        """Money for one attempt; prompt_tokens includes the cached ones."""
        cached = min(cached_tokens, prompt_tokens)
        prompt = self.prompt * (prompt_tokens - cached) + self.cached_prompt * cached
        return money((prompt + self.completion * completion_tokens) / _PER)


def money(amount: float) -> float:
    """An amount, or a sum of amounts, without the noise of binary fractions."""
    return round(amount, _DIGITS)
