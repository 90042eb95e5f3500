"""The events that a client was sent, as long as its stream can be recovered: the latest as they are, the rest packed.

Units: bytes.
"""

import zlib
from collections.abc import Iterator
from typing import Final

KEPT_BYTES_MAX: Final = 4 * 1024 * 1024  # of events: some 16,000 tokens; a longer answer is not recovered
PACK_BYTES: Final = 16 * 1024  # events kept uncompressed before they are packed; most of a stream's memory
PACKED_AT_ONCE_MAX: Final = 512 * 1024  # 5 ms; a larger event is no text that could be continued
_PACK_LEVEL: Final = 1  # the fastest; events are very similar


class KeptEvents(bytearray):
    """The events of one stream: itself those that are not packed yet.

    Attributes:
        packed: compressed earlier events, in order.
        earlier_bytes: uncompressed size of all events that were packed or taken.
    """

    packed: tuple[bytes, ...] = ()  # most streams are too short to be packed: no object of theirs has these
    earlier_bytes = 0

    def pack(self) -> bool:
        """Compress the latest events; return False if the stream is too long to be kept."""
        size = len(self)
        self.earlier_bytes += size
        if self.earlier_bytes > KEPT_BYTES_MAX or size > PACKED_AT_ONCE_MAX:
            return False
        self.packed += (zlib.compress(self, _PACK_LEVEL),)
        self.clear()
        return True

    def take(self) -> Iterator[bytes]:
        """Yield all events in order, and keep none of them."""
        packed, self.packed = self.packed, ()
        yield from map(zlib.decompress, packed)
        self.earlier_bytes += len(self)
        latest = bytes(self)
        self.clear()
        yield latest
