"""Which beginnings of prompts a replica is believed to hold in its prefix cache.

A prompt is its raw bytes, cut at fixed places; each place is known by a hash of everything before it, so two prompts
share a hash as far as they share their bytes. It must not know how tokens are counted: a share of the bytes stands for
the same share of the tokens. A hash that collides costs a wrong prediction, nothing else.

Units: bytes; now_s in seconds.
"""

import math
from bisect import bisect_left
from collections import OrderedDict
from typing import Final

_BLOCK_BYTES: Final = 512  # about 128 tokens: what providers count cached prompts in
_GROWTH: Final = 16  # later blocks are a sixteenth of what is before them: 6 % off at most, few blocks for long prompts
_PROMPT_BYTES_MAX: Final = 512 * 1024  # hashed at most; a longer prompt is new behind it


def _ends() -> tuple[int, ...]:
    """Where prompts are cut; the same places for all of them."""
    ends = [_BLOCK_BYTES]
    while ends[-1] < _PROMPT_BYTES_MAX:
        ends.append(ends[-1] + max(_BLOCK_BYTES, ends[-1] // _GROWTH))
    return tuple(ends)


_ENDS: Final = _ends()


def prefix_hashes(prompt: bytes) -> tuple[int, ...]:
    """One hash for each cut within the prompt, of everything before it; empty below 512 bytes.

    Args:
        prompt: the raw bytes of the messages, in the order in which the model reads them.
    """
    hashes: list[int] = []
    link = start = 0
    for end in _ENDS:
        if end > len(prompt):
            break
        link = hash((link, prompt[start:end]))
        hashes.append(link)
        start = end
    return tuple(hashes)


class PrefixMemory:
    """The prefixes one replica has seen lately.

    Args:
        hashes_max: hashes kept, about 100 bytes each; the least recently used ones go first.
        keep_s: a prefix unused for so long is no longer believed cached.
    """

    __slots__ = ("_hashes_max", "_keep_s", "_used_s")

    def __init__(self, *, hashes_max: int = 2_048, keep_s: float = 600.0) -> None:
        self._hashes_max = hashes_max
        self._keep_s = keep_s
        self._used_s: OrderedDict[int, float] = OrderedDict()  # least recently used first

    def cached_bytes(self, hashes: tuple[int, ...], now_s: float) -> int:
        """How much of a prompt's beginning is believed cached, given its prefix hashes."""
        oldest_s = now_s - self._keep_s
        # Whoever uses a hash uses all before it, and these are forgotten later: so the known ones come first.
        known = bisect_left(hashes, x=True, key=lambda link: self._used_s.get(link, -math.inf) < oldest_s)
        return _ENDS[known - 1] if known else 0

    def remember(self, hashes: tuple[int, ...], now_s: float) -> None:
        """The replica has been sent a prompt with these hashes."""
        used_s = self._used_s
        for link in reversed(hashes):  # the longest prefix first: the first to be forgotten
            used_s[link] = now_s
            used_s.move_to_end(link)
        while len(used_s) > self._hashes_max:
            used_s.popitem(last=False)


def uncached_tokens(tokens: float, prompt_bytes: int, cached_bytes: int) -> float:
    """Tokens a replica has to compute: the prompt's tokens, less the share whose bytes are cached."""
    return tokens * (1.0 - min(1.0, cached_bytes / prompt_bytes)) if prompt_bytes else tokens
