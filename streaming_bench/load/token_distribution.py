"""Distributions of token counts, and prompts of a given length. Pure.

Prompts consist of words that common tokenizers encode as one token; the results contain the server's own counts.
Units: tokens.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from gateway.simulated.quantities import UnitError

TOKENS_MAX: Final = 100_000

_TEXT: Final = (
    "the of and to in is that for it as was with be by on not he his but at are this have from or had an they which "
    "one you were all her she there would their we him been has when who will no more if out so said what up its about "
    "than into them can only other time new some could these two may first then do any like my now over such our man "
    "me even most made after also well before must through back years where much your way down should because long"
)
_WORDS: Final = tuple(_TEXT.split())
_HEAD_TOKENS: Final = 8  # for "Request 17:" and a chat template


@dataclass(frozen=True, slots=True)
class TokenDistribution:
    """A distribution of token counts.

    Attributes:
        text: notation of the distribution.
        draw: draws a count from 1 to TOKENS_MAX, from a generator and the number of the request.
    """

    text: str
    draw: Callable[[random.Random, int], int] = field(compare=False, repr=False)


def token_distribution(text: str) -> TokenDistribution:
    """Read "200", "uniform:100,2000", "lognormal:500,200" (mean and standard deviation) or "trace:100,2000,50".

    Raises:
        UnitError: The text is none of these.
    """
    name, colon, rest = text.partition(":")
    values = [_tokens(word, text) for word in (rest if colon else name).split(",")]
    if not colon and len(values) == 1:
        return TokenDistribution(text, lambda _rng, _number: values[0])
    if name == "trace":
        return TokenDistribution(text, lambda _rng, number: values[number % len(values)])
    if name == "uniform" and len(values) == 2 and values[0] <= values[1]:
        return TokenDistribution(text, lambda rng, _number: rng.randint(values[0], values[1]))
    if name == "lognormal" and len(values) == 2:
        return TokenDistribution(text, lambda rng, _number: _lognormal(rng, *values))
    raise UnitError(
        f"{text!r} is not a distribution of tokens; write 200, uniform:100,2000, lognormal:500,200 or trace:100,2000,50"
    )


def prompt_text(number: int, tokens: int, rng: random.Random, shared: str = "") -> str:
    """Return a prompt of about `tokens` tokens.

    Args:
        number: number of the request; at the beginning of its own part, so that no prefix cache contains that part.
        tokens: length of the prompt, including the shared part.
        shared: common prefix of all prompts.
    """
    count = max(1, tokens - _HEAD_TOKENS - len(shared.split()))
    words = " ".join(rng.choices(_WORDS, k=count))
    return f"{shared} Request {number}: {words}" if shared else f"Request {number}: {words}"


def shared_text(tokens: int, seed: int) -> str:
    """Return the common prefix of all prompts."""
    return " ".join(random.Random(f"{seed}/shared").choices(_WORDS, k=tokens)) if tokens else ""


def _tokens(word: str, text: str) -> int:
    if not word.isascii() or not word.isdecimal() or not 1 <= int(word) <= TOKENS_MAX:
        raise UnitError(f"{text!r} has a wrong token count; write whole numbers from 1 to {TOKENS_MAX:,}")
    return int(word)


def _lognormal(rng: random.Random, mean: int, deviation: int) -> int:
    # The plain moments of a lognormal: sigma^2 = ln(1 + (sd / mean)^2), mu = ln(mean) - sigma^2 / 2.
    variance = math.log1p((deviation / mean) ** 2)
    drawn = rng.lognormvariate(math.log(mean) - variance / 2, math.sqrt(variance))
    return min(TOKENS_MAX, max(1, round(drawn)))
