"""The events that a client was sent, while its stream can be recovered: earlier events compressed, the latest not.

Units: bytes.
"""

import zlib
from collections.abc import Iterator
from typing import Final

EVENTS_BYTES_MAX: Final = 4 * 1024 * 1024  # of events: some 16,000 tokens; a longer answer is not recovered
PACK_BYTES: Final = 16 * 1024  # uncompressed events before they are packed; most of a stream's memory
_PACK_BYTES_MAX: Final = 512 * 1024  # of one call, 5 ms; a larger event is no text that could be continued
_PACK_LEVEL: Final = 1  # the fastest; events are very similar


class SentEvents(bytearray):
    """The events of one stream; its own bytes are the events that are not packed yet.

    Attributes:
        packed: compressed earlier events, in order.
        earlier_bytes: uncompressed size of all events that were packed or taken.
    """

    packed: tuple[bytes, ...] = ()  # most streams are too short to be packed, so the class has the empty value
    earlier_bytes = 0

    def pack(self) -> bool:
        """Compress the latest events; return False if the stream is too long to be recovered."""
        size = len(self)
        self.earlier_bytes += size
        if self.earlier_bytes > EVENTS_BYTES_MAX or size > _PACK_BYTES_MAX:
            return False
        self.packed += (zlib.compress(self, _PACK_LEVEL),)
        self.clear()
        return True

    def take(self) -> Iterator[bytes]:
        """Yield all events in order, and forget them."""
        packed, self.packed = self.packed, ()
        yield from map(zlib.decompress, packed)
        self.earlier_bytes += len(self)
        latest = bytes(self)
        self.clear()
        yield latest
