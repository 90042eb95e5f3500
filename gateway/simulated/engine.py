"""The shared resources of a simulated replica's requests: slots and prefix cache. No clock, no I/O.

Units: requests; tokens, estimated as four bytes of the prompt's JSON each.
"""

from collections import OrderedDict
from collections.abc import Callable

from gateway.simulated.request import BYTES_PER_TOKEN

_BLOCK_TOKENS = 64  # prefixes are cached in whole blocks, as in real engines
_BLOCK_BYTES = _BLOCK_TOKENS * BYTES_PER_TOKEN

Start = Callable[[], None]
"""Callback of a request that gets a slot; called once."""


class Slots:
    """Limits the requests in work; further requests wait in order of arrival.

    Args:
        slots: maximum of requests in work; 0: unlimited.
        queue_max: maximum of waiting requests.
    """

    def __init__(self, slots: int, queue_max: int) -> None:
        self._slots = slots
        self._queue_max = queue_max
        self._waiting: OrderedDict[Start, None] = OrderedDict()
        self._busy = 0

    @property
    def full(self) -> bool:
        """True if no slot is free and the queue is full."""
        return bool(self._slots) and self._busy >= self._slots and len(self._waiting) >= self._queue_max

    def resize(self, slots: int, queue_max: int) -> None:
        """Change both maxima; start waiting requests that fit now, and stop none."""
        self._slots, self._queue_max = slots, queue_max
        self._start_waiting()

    def acquire(self, start: Start) -> None:
        """Take a slot or wait for one; `start` is called immediately, or when a slot is free."""
        if not self._slots:
            self._busy += 1
            start()
        else:
            self._waiting[start] = None
            self._start_waiting()

    def release(self, start: Start) -> None:
        """Release the slot or the place in the queue; call it exactly once for each `acquire`."""
        if start in self._waiting:
            del self._waiting[start]
        else:
            self._busy -= 1
            self._start_waiting()

    def _start_waiting(self) -> None:
        while self._waiting and (self._busy < self._slots or not self._slots):
            start, _ = self._waiting.popitem(last=False)
            self._busy += 1
            start()


class PrefixCache:
    """Recently used prompt prefixes, in blocks of 64 tokens.

    Args:
        tokens_max: capacity in tokens; the least recently used block is evicted first.
    """

    def __init__(self, tokens_max: int) -> None:
        self._blocks_max = tokens_max // _BLOCK_TOKENS
        self._blocks: OrderedDict[int, None] = OrderedDict()  # hash of the prompt up to the block's end

    def use(self, prompt: bytes) -> int:
        """Add a prompt.

        Returns:
            Tokens at the beginning of the prompt that were cached before.
        """
        chain = 0
        cached = 0
        hit = True
        for start in range(0, len(prompt) - _BLOCK_BYTES + 1, _BLOCK_BYTES):
            chain = hash((chain, prompt[start : start + _BLOCK_BYTES]))
            hit = hit and chain in self._blocks
            cached += hit
            self._blocks[chain] = None
            self._blocks.move_to_end(chain)
        while len(self._blocks) > self._blocks_max:
            self._blocks.popitem(last=False)
        return cached * _BLOCK_TOKENS
