"""Ways to cut bytes into pieces, and to change them at random; both repeat for a seed.

Knows nothing of what the bytes are.
"""

import random
import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

_SINGLY_MAX: Final = 600  # bytes that are also fed one by one
_PIECES_MAX: Final = 24
_BYTES_MAX: Final = 20_000  # of a changed input
_EDGES: Final = (b"", b"\0", b"\xff", b"\r", b"\n", b"\r\n", b" ", b"0", b"-1", b"9" * 20, b"A" * 300)


def cuts(data: bytes) -> list[list[bytes]]:
    """The bytes whole, one by one (the first few hundred), and at random places that depend on nothing but them."""
    rand = random.Random(zlib.crc32(data))
    places = sorted(rand.randrange(len(data) + 1) for _ in range(rand.randrange(1, _PIECES_MAX)))
    bounds = [0, *places, len(data)]
    pieces = [data[start:end] for start, end in pairwise(bounds) if start < end]
    singly = [data[at : at + 1] for at in range(min(len(data), _SINGLY_MAX))]
    return [[data], [*singly, *([data[_SINGLY_MAX:]] if len(data) > _SINGLY_MAX else [])], pieces]


def changed(rand: random.Random, corpus: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    """One input of the corpus with one to six things done to it.

    Args:
        rand: where all choices come from.
        corpus: at least one input.
        words: what means something where the input is read.
    """
    data = bytearray(corpus[rand.randrange(len(corpus))])
    for _ in range(rand.randrange(1, 7)):
        start = rand.randrange(len(data) + 1)
        end = min(len(data), start + rand.choice((0, 1, 1, 2, 5, 40)))
        match rand.randrange(6):
            case 0:
                data[start:end] = rand.randbytes(end - start)
            case 1:
                data[start:end] = rand.choice(_EDGES)
            case 2:
                data[start:end] = rand.choice(words)
            case 3:  # again, elsewhere or often
                data[start:start] = bytes(data[start:end]) * rand.choice((1, 2, 50))
            case 4:
                del data[start:end]
            case _:  # go on as another one does
                other = corpus[rand.randrange(len(corpus))]
                data[start:] = other[rand.randrange(len(other) + 1) :]
    return bytes(data[:_BYTES_MAX])
