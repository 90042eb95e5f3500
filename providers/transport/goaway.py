"""Lets an answer under way on an HTTP/2 connection end after the GOAWAY of a server that shuts down in good order.

With a GOAWAY a server announces that it takes no further requests: nginx at a reload and after 1,000 requests, Envoy
and load balancers at each drain. It still answers the streams up to the last one that the frame names (RFC 9113, 6.8).
But the library h2 accepts no frame after a GOAWAY, and httpcore fails each request at one. So such a frame is taken out
of the bytes that are read, and the connection gets no further request. Any other GOAWAY is left in. Sans-I/O. Units:
bytes.
"""

from typing import Final

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD_BYTES: Final = 9  # of a frame: length, type, flags, stream
_HEADERS, _GOAWAY = 1, 7  # types of frames
_FRAME_BYTES_MAX: Final = 16_384  # h2 rejects a longer one
_NO_ERROR: Final = bytes(4)
_ID_BITS: Final = 0x7FFF_FFFF


class GracefulEnd:
    """The frames of one connection with one request at a time.

    Attributes:
        is_announced: True after a GOAWAY that was taken out: the connection must not be used again.
    """

    __slots__ = ("_left", "_part", "_stream", "is_announced")

    def __init__(self) -> None:
        self.is_announced = False
        self._stream = 0  # of the last request
        self._part = b""  # the beginning of a frame that is not known to be kept
        self._left = 0  # bytes of the present frame that are still to come

    def sent(self, buffer: bytes) -> None:
        """Note the stream of a request in bytes that are sent, which are whole frames."""
        at = len(_PREFACE) if buffer.startswith(_PREFACE) else 0
        while at + _HEAD_BYTES <= len(buffer):
            if buffer[at + 3] == _HEADERS:
                self._stream = int.from_bytes(buffer[at + 5 : at + 9], "big")
            at += _HEAD_BYTES + int.from_bytes(buffer[at : at + 3], "big")

    def received(self, data: bytes) -> bytes:
        """Return the bytes that were read, without a GOAWAY that permits the request under way."""
        data, self._part = self._part + data, b""
        kept: list[bytes] = []
        start, at = 0, self._left
        while at < len(data):
            size = int.from_bytes(data[at : at + 3], "big")
            end = at + _HEAD_BYTES + size
            is_known = at + _HEAD_BYTES <= len(data)
            is_goaway = is_known and data[at + 3] == _GOAWAY and size <= _FRAME_BYTES_MAX
            if not is_known or (is_goaway and end > len(data)):
                data, self._part = data[:at], data[at:]
                break
            if is_goaway and self._permits(data[at + _HEAD_BYTES : end]):
                self.is_announced = True
                kept.append(data[start:at])
                start = end
            at = end
        self._left = at - len(data)
        return b"".join([*kept, data[start:]])

    def _permits(self, payload: bytes) -> bool:
        last = int.from_bytes(payload[:4], "big") & _ID_BITS
        return payload[4:8] == _NO_ERROR and last >= self._stream
