"""Estimates the prompt prefixes in a replica's prefix cache.

A prompt is cut into blocks of its raw bytes at fixed positions; each position is identified by a hash of all bytes
before it, so two prompts share hashes as far as they share bytes. Independent of token counts: a share of the bytes
counts as the same share of the tokens. A hash collision causes a wrong prediction, nothing else.

Units: bytes; now_s in seconds.
"""

import math
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final
from zlib import crc32

_BLOCK_BYTES: Final = 512  # about 128 tokens: the unit in which providers count cached prompts
_GROWTH: Final = 16  # later blocks are a sixteenth of all before them: at most 6 % off, few blocks for long prompts
_COMMON_BYTES: Final = 1024  # with the same hashes in every process; hash() is faster, and differs between processes
_MIX: Final = 0x9E3779B97F4A7C15  # odd; spreads each bit over the higher ones
_MASK: Final = 2**64 - 1
_PROMPT_BYTES_MAX: Final = 512 * 1024  # maximum that is hashed; the end of a longer prompt counts as uncached


def _ends() -> tuple[int, ...]:
    ends = [_BLOCK_BYTES]
    while ends[-1] < _PROMPT_BYTES_MAX:
        ends.append(ends[-1] + max(_BLOCK_BYTES, ends[-1] // _GROWTH))
    return tuple(ends)


_ENDS: Final = _ends()


def prefix_hashes(prompt: bytes) -> tuple[int, ...]:
    """Return one hash for each cut within the prompt, of all bytes before it; empty below 512 bytes.

    Args:
        prompt: raw bytes of the messages, in the order in which the model reads them.
    """
    if len(prompt) < _BLOCK_BYTES:
        return ()
    hashes: list[int] = []
    prefix_hash = start = 0
    for end in _ENDS:
        if end > len(prompt):
            break
        block = prompt[start:end]
        prefix_hash = crc32(block, prefix_hash) if end <= _COMMON_BYTES else hash((prefix_hash, block))
        hashes.append(prefix_hash)
        start = end
    return tuple(hashes)


class PrefixMemory:
    """The prefixes that one replica received recently.

    Args:
        hashes_max: maximum number of hashes, about 100 bytes each; the least recently used ones are evicted first.
        keep_s: time after its last use at which a prefix counts as evicted from the replica's cache.
    """

    def __init__(self, *, hashes_max: int = 2_048, keep_s: float = 600.0) -> None:
        self._hashes_max = hashes_max
        self._keep_s = keep_s
        self._used_s: OrderedDict[int, float] = OrderedDict()  # least recently used first

    def cached_bytes(self, hashes: tuple[int, ...], now_s: float) -> int:
        """Return the length of the prompt's prefix that is probably cached, from its prefix hashes."""
        oldest_s = now_s - self._keep_s
        # A use of a hash is a use of all before it, and these are evicted later: so the known ones come first.
        known = bisect_left(hashes, x=True, key=lambda prefix_hash: self._used_s.get(prefix_hash, -math.inf) < oldest_s)
        return _ENDS[known - 1] if known else 0

    def remember(self, hashes: tuple[int, ...], now_s: float) -> None:
        """Record that the replica received a prompt with these hashes."""
        used_s = self._used_s
        for prefix_hash in reversed(hashes):  # longest prefix first: it is evicted first
            used_s[prefix_hash] = now_s
            used_s.move_to_end(prefix_hash)
        while len(used_s) > self._hashes_max:
            used_s.popitem(last=False)


def seed_of(name: str) -> int:
    """Return the number of a replica for `favourite`."""
    return crc32(name.encode()) * _MIX


def favourite(prefix: int, seeds: Mapping[str, int]) -> str:
    """Return the replica with the highest weight for a prefix: the same at every gateway, another for most prefixes."""
    return max(seeds, key=lambda name: (prefix ^ seeds[name]) * _MIX & _MASK)


def uncached_tokens(tokens: float, prompt_bytes: int, cached_bytes: int) -> float:
    """Return the tokens that a replica has to compute: the prompt's, less the share of its cached bytes."""
    return tokens * (1.0 - min(1.0, cached_bytes / prompt_bytes)) if prompt_bytes else tokens
