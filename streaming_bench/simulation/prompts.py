"""The prompts of one seed: lengths, and bytes whose hashes show the gateway common prefixes.

Units: tokens of four bytes.
"""

import itertools
import math
import random
from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

from gateway.estimation.prefixes import prefix_hashes
from gateway.hedging.contract import RequestFacts
from streaming_bench.simulation.engine_scenario import LogNormal, Prompts

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
