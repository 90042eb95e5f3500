"""The events that a client was sent, while its stream can be recovered. Units: bytes.

Events are stored as they are up to 64 kB. A longer stream is compressed block by block if its answer is likely to be
recovered at any length; otherwise it is stored as it is, and dropped above 256 kB. Either way a stream takes at most
256 kB of memory.
"""

import zlib
from collections.abc import Callable, Iterator
from typing import Final

STORED_BYTES_MAX: Final = 256 * 1024  # of a stream: some 1,200 tokens as they are, 10,000 tokens compressed
EVENTS_BYTES_MAX: Final = 4 * 1024 * 1024  # of events: they are read on the event loop when the stream breaks
PACK_BYTES: Final = 64 * 1024  # uncompressed events before they are packed in 0.6 ms; some 300 tokens
_PACK_BYTES_MAX: Final = 512 * 1024  # of one call, 5 ms; a larger event is no text that could be continued
_PACK_LEVEL: Final = 1  # the fastest; events are very similar


class SentEvents(bytearray):
    """The events of one stream; its own bytes are the events that are not packed yet.

    Attributes:
        bytes_max: size of its own bytes above which `pack` is called.
        is_long: returns True if the answer is likely to be recovered at any length; called once, None for False.
        packed: compressed earlier events, in order, each with its uncompressed size.
    """

    bytes_max = PACK_BYTES  # most streams are too short to be packed, so the class has their values
    is_long: Callable[[], bool] | None = None
    packed: tuple[tuple[int, bytes], ...] = ()

    @property
    def total(self) -> int:
        """Uncompressed size of all events."""
        return len(self) + sum(size for size, _ in self.packed)

    def pack(self) -> bool:
        """Compress the latest events, or store more of them; return False if the stream is too long to be recovered."""
        if self.is_long is not None:
            is_long, self.is_long = self.is_long, None
            if not is_long():
                self.bytes_max = STORED_BYTES_MAX
        if self.bytes_max == STORED_BYTES_MAX:
            return len(self) <= STORED_BYTES_MAX
        size = len(self)
        if size > _PACK_BYTES_MAX or self.total > EVENTS_BYTES_MAX:
            return False
        self.packed += ((size, zlib.compress(self, _PACK_LEVEL)),)
        self.clear()
        return sum(len(block) for _, block in self.packed) <= STORED_BYTES_MAX - PACK_BYTES

    def since(self, start: int) -> Iterator[bytes]:
        """Yield the events after the first `start` bytes, in order."""
        at = 0
        for size, block in self.packed:
            if at + size > start:
                yield zlib.decompress(block)[max(0, start - at) :]
            at += size
        yield bytes(self[max(0, start - at) :])
