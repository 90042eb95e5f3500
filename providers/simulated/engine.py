"""What makes requests at one simulated replica wait for each other: its slots and its prefix cache. No clock, no I/O.

Units: requests, tokens, estimated as four bytes of the prompt's JSON each.
"""

from collections import OrderedDict
from collections.abc import Callable

from providers.simulated.request import BYTES_PER_TOKEN

_BLOCK_TOKENS = 64  # what is cached, is cached in blocks, as in real engines
_BLOCK_BYTES = _BLOCK_TOKENS * BYTES_PER_TOKEN

Start = Callable[[], None]
"""Called once, when a request gets a slot."""


class Slots:
    """So many requests are worked on at a time, the others wait in order.

    Args:
        slots: at a time, 0: all at once.
        queue_max: that may wait.
    """

    def __init__(self, slots: int, queue_max: int) -> None:
        self._slots = slots
        self._queue_max = queue_max
        self._waiting: OrderedDict[Start, None] = OrderedDict()
        self._busy = 0

    @property
    def full(self) -> bool:
        """Nobody may come now, not even to wait."""
        return bool(self._slots) and self._busy >= self._slots and len(self._waiting) >= self._queue_max

    def resize(self, slots: int, queue_max: int) -> None:
        """Change the numbers; who works or waits already goes on, as many as fit now begin."""
        self._slots, self._queue_max = slots, queue_max
        self._admit()

    def acquire(self, start: Start) -> None:
        """Take a slot or wait for one; `begin` is called at once or when it is this request's turn."""
        if not self._slots:
            self._busy += 1
            start()
        else:
            self._waiting[start] = None
            self._admit()

    def release(self, start: Start) -> None:
        """Give the slot back, or wait no more; called exactly once for each `enter`."""
        if start in self._waiting:
            del self._waiting[start]
        else:
            self._busy -= 1
            self._admit()

    def _admit(self) -> None:
        while self._waiting and (self._busy < self._slots or not self._slots):
            start, _ = self._waiting.popitem(last=False)
            self._busy += 1
            start()


class PrefixCache:
    """Which prompt prefixes were seen lately, in blocks of 64 tokens.

    Args:
        tokens_max: what it holds, the least recently used goes first.
    """

    def __init__(self, tokens_max: int) -> None:
        self._blocks_max = tokens_max // _BLOCK_TOKENS
        self._blocks: OrderedDict[int, None] = OrderedDict()  # hash of the prompt up to the block's end

    def use(self, prompt: bytes) -> int:
        """Remember a prompt.

        Returns:
            How many tokens of its beginning were cached before.
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
