"""Server-sent events as bytes: splits a stream into whole events, unchanged, and reads their fields.

Sans-I/O. Every byte fed is returned once, in an event or by `rest()`, and the events do not depend on the sizes of the
reads. A line ends with LF, CRLF or CR, an event with a blank line (so a blank line alone is an event too). Only a CR
after an LF waits for one more byte, because an LF may follow; CR CR ends an event immediately, so that events of a
server that ends lines with CR alone are not one event late. A BOM at the start belongs to the first event.

Units: bytes.
"""

import re
from collections.abc import Sequence

from ttft_gateway.apis.errors import ProtocolError
from ttft_gateway.apis.tolerant_json import loads

UNCODED = frozenset((b"", b"identity", b"none", b"utf-8"))
"""Values of `content-encoding`, in lower case, of a body that is not coded: some servers write the last two."""

_BOM = b"\xef\xbb\xbf"
_LF, _CR = 10, 13
_end_of_event = re.compile(rb"\n\n|\r\r|\n\r\n|\n\r(?=[^\n])").search


class Splitter:
    """Splits a byte stream into events.

    Args:
        event_bytes_max: a longer event, complete or not, raises `ProtocolError`.

    Attributes:
        event_bytes_max: see above.
        partial: the beginning of an incomplete event; empty between two events.
    """

    __slots__ = ("_has_cr", "_scan", "event_bytes_max", "partial")

    def __init__(self, event_bytes_max: int) -> None:
        self.event_bytes_max = event_bytes_max
        self.partial = bytearray()
        self._scan = 0  # no event ends before this offset of the buffer
        self._has_cr = False  # a CR was seen: until then, only LF LF can end an event

    def feed(self, data: bytes) -> Sequence[bytes]:
        """Take the next bytes.

        Returns:
            The events they complete, in order, closing blank lines included.

        Raises:
            ProtocolError: an event is over the limit; the splitter must not be used any more.
        """
        buffer = self.partial
        if not buffer:
            # Nearly always a read is one event of one line: its first line end shows that, and nothing is copied.
            size = len(data)
            line = data.find(b"\n")
            cr = data.find(b"\r")
            if size <= self.event_bytes_max and (
                (line == size - 2 and cr < 0 < line and data[-1] == _LF)
                or (0 < cr == size - 4 and line == cr + 1 and data[-2:] == b"\r\n")
            ):
                return (data,)
            self._has_cr = self._has_cr or cr >= 0
            return self._split(data)
        self._has_cr = self._has_cr or b"\r" in data
        buffer += data
        return self._split(buffer)

    def rest(self) -> bytes:
        """Return the bytes since the last whole event."""
        return bytes(self.partial)

    def _split(self, source: bytes | bytearray) -> list[bytes]:
        """Split the source, which is the buffer, or new bytes while the buffer is empty."""
        events: list[bytes] = []
        start, scan = 0, self._scan
        while (end := self._end(source, start, scan)) > 0:
            if end - start > self.event_bytes_max:
                raise self._too_long()
            events.append(bytes(source[start:end]))
            start = scan = end
        if source is self.partial:
            del self.partial[:start]
        else:
            self.partial += source[start:]
        if len(self.partial) > self.event_bytes_max:
            raise self._too_long()
        self._scan = max(0, len(self.partial) - 2)  # the longest ending is LF CR LF
        return events

    def _end(self, source: bytes | bytearray, start: int, scan: int) -> int:
        """Return the end of the event at `start`, 0 if the event is incomplete."""
        if start == len(source):
            return 0
        if source[start] == _LF:
            return start + 1
        if not self._has_cr:
            blank = source.find(b"\n\n", scan)
            return blank + 2 if blank >= 0 else 0
        if source[start] == _CR:
            if start + 1 == len(source):
                return 0
            return start + (2 if source[start + 1] == _LF else 1)
        found = _end_of_event(source, scan)
        return found.end() if found else 0

    def _too_long(self) -> ProtocolError:
        return ProtocolError(f"the upstream sent an event over the limit of {self.event_bytes_max} bytes")


def events_of(raw: bytes) -> Sequence[bytes]:
    """Split bytes that are whole events; nearly always there is one."""
    if not raw or (raw.find(b"\n\n") == len(raw) - 2 and b"\r" not in raw):
        return (raw,) if raw else ()
    splitter = Splitter(len(raw))
    events, rest = splitter.feed(raw), splitter.rest()
    return [*events, rest] if rest else events


def data_of(event: bytes) -> bytes | None:
    """Return the value of an event's `data` field, several joined with LF; None if it has none."""
    if event.startswith(b"data: "):
        line = event.find(b"\n")
        cr = event.find(b"\r")
        if cr < 0 and line == len(event) - 2:
            return event[6:line]
        if 0 < cr == len(event) - 4 and line == cr + 1:
            return event[6:cr]
    values = [value for name, value, _ in fields(event) if name == b"data"]
    return b"\n".join(values) if values else None


def object_in(data: bytes | None) -> dict[str, object] | None:
    """Return the JSON object that is an event's data, None if the event has no data or `[DONE]`.

    Raises:
        ProtocolError: the data is not a JSON object; a field that no reader decodes may have invalid bytes.
    """
    if not data or data.startswith(b"[DONE]"):
        return None
    value = loads(data)
    if not isinstance(value, dict):
        raise ProtocolError("the upstream sent an event that is not a JSON object")
    return value


def forwardable(event: bytes) -> bytes:
    """Return the event without the parts that break clients that parse every event as JSON.

    `id` and `retry` fields are removed. An event with empty data or without data is dropped, unless it has only
    comments.

    Returns:
        The bytes to forward, empty if the event is dropped.
    """
    lines = fields(event)
    if any(name == b"data" and value for name, value, _ in lines):
        kept = [line for name, _, line in lines if name not in (b"id", b"retry")]
        if len(kept) == len(lines):
            return event
        return b"".join(line.rstrip(b"\r\n") + b"\n" for line in kept)  # a CR before a removed line may meet an LF
    return b"" if any(name for name, _, _ in lines) else event


def fields(event: bytes) -> list[tuple[bytes, bytes, bytes]]:
    """Return name, value and raw line of each line of an event; the name of comments and blank lines is empty."""
    found = []
    for line in event.splitlines(keepends=True):
        name, _, value = line.rstrip(b"\r\n").removeprefix(_BOM).partition(b":")
        found.append((name, value.removeprefix(b" "), line))
    return found
