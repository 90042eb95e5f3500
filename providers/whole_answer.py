"""Collects an answer that is one JSON document, with an outline of it that can be read without much time or memory.

An answer of a few MB may be a million objects. A small one is decoded. Of a heavy one, the bytes are forwarded and only
its outline is read: the document without most items of its long arrays. The outline is made while the answer arrives,
piece by piece, so that no step takes longer than a few milliseconds. Sans-I/O. Units: bytes, values.
"""

import re
from typing import Final

from ttft_gateway.apis.errors import ProtocolError
from ttft_gateway.apis.json_values import count_values, is_light, thinned

LIGHT_BYTES_MAX: Final = 1024 * 1024  # of an answer that is decoded without need
CONVERTED_BYTES_MAX: Final = 4 * 1024 * 1024  # of an answer that has to be decoded
_VALUES_MIN: Final = 10_000  # values of a light answer
_OUTLINED_BYTES: Final = 128 * 1024  # at a time
_NUMBER_MAX: Final = 512  # bytes at the end in which a comma is looked for
_NOT_JSON: Final = re.compile(rb"(?<=[:,\[\s])-?(?:NaN|Infinity)(?=[,\]}\s])")  # numbers of servers in Python
_OUTLINE_VALUES_MAX: Final = 1_500_000  # are skipped within 15 ms


class WholeAnswer:
    """The bytes of one answer.

    Args:
        bytes_max: a longer answer raises `ProtocolError`.

    Attributes:
        size: bytes so far.
    """

    __slots__ = ("_bytes_max", "_outline", "_pieces", "_unread", "_values", "size")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._pieces: list[bytes] = []
        self._outline: list[bytes] = []
        self._unread: list[bytes] = []  # the last pieces, of which there is no outline yet
        self._values = 0  # in the outline
        self.size = 0

    def add(self, data: bytes) -> None:
        """Take the next bytes.

        Raises:
            ProtocolError: the answer has too many bytes, or its outline too many values.
        """
        before, self.size = self.size, self.size + len(data)
        if self.size > self._bytes_max:
            raise ProtocolError(f"the upstream's answer is over the limit of {self._bytes_max} bytes")
        self._pieces.append(data)
        self._unread.append(data)
        if self.size // _OUTLINED_BYTES > before // _OUTLINED_BYTES:
            self._read()

    def light(self) -> bytes | None:
        """Return the whole answer, None if it is too heavy to be decoded unless it has to be."""
        if self.size > LIGHT_BYTES_MAX:
            return None
        body = b"".join(self._pieces)
        return body if is_light(body, _VALUES_MIN) else None

    def outline(self) -> bytes:
        """Return the outline of a heavy answer.

        Raises:
            ProtocolError: see `add`.
        """
        self._read(is_end=True)
        return b"".join(self._outline)

    def pieces(self) -> list[bytes]:
        """Return the bytes of the answer as they arrived."""
        return self._pieces

    def converted(self) -> bytes:
        """Return a heavy answer that has to be decoded: it becomes events, or an answer of another API.

        Raises:
            ProtocolError: it is too large, or has too many values.
        """
        if self.size > CONVERTED_BYTES_MAX:
            raise ProtocolError(
                f"the upstream's answer is {self.size} bytes of JSON; over {CONVERTED_BYTES_MAX} cannot be converted"
            )
        body = b"".join(self._pieces)
        if not is_light(body, _VALUES_MIN):
            raise ProtocolError(f"the upstream's answer has too many values in {self.size} bytes to be converted")
        return body

    def _read(self, *, is_end: bool = False) -> None:
        """Extend the outline to all pieces, before the end only up to a comma near it: no number is cut."""
        piece = b"".join(self._unread)
        comma = piece.rfind(b",", -_NUMBER_MAX) + 1
        cut = len(piece) if is_end or not comma else comma
        self._unread = [piece[cut:]]
        piece = piece[:cut]
        outline = thinned(_NOT_JSON.sub(b"0", piece) if b"NaN" in piece or b"Infinity" in piece else piece)
        self._values += count_values(outline)
        if self._values > _OUTLINE_VALUES_MAX:
            raise ProtocolError(f"the upstream's answer has over {_OUTLINE_VALUES_MAX} values")
        self._outline.append(outline)
