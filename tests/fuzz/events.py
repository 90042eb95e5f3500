"""Any bytes as server-sent events: the same ones however they are cut, none lost, fields as the standard reads them."""

import re
from typing import Final

from fuzz.pieces import cuts
from ttft_gateway.apis.errors import ProtocolError
from ttft_gateway.apis.sse import Splitter, data_of, events_of, fields, forwardable

WORDS: Final = (
    b"data: ",
    b"data:",
    b"data",
    b"event: error",
    b"id: 1",
    b"retry: 5",
    b": ping",
    b"\n\n",
    b"\r\n\r\n",
    b"\r\r",
    b"\n\r",
    b"\r\n\r",
    b"\xef\xbb\xbf",
)
_SMALL: Final = 48
_line = re.compile(rb"([^\r\n]*)(\r\n|\r|\n)").match


def check(data: bytes) -> None:
    """Split it in several ways, with and without a limit that it may break."""
    whole, *others = [_split(pieces, len(data)) for pieces in cuts(data)]
    assert whole is not None
    assert all(other == whole for other in others)
    events, rest = whole[:-1], whole[-1]
    assert b"".join(whole) == data
    assert b"".join(events_of(data)) == data
    limited = [_split(pieces, _SMALL) for pieces in cuts(data)]
    assert all(other == limited[0] for other in limited[1:])
    assert (limited[0] is None) == (max(map(len, whole)) > _SMALL)
    told = [value for value in map(data_of, events) if value is not None]
    if not rest:
        assert _by_the_standard(data) == told
    for event in events:
        assert b"".join(line for _, _, line in fields(event)) == event
        passed = forwardable(event)
        assert forwardable(passed) == passed
        assert not any(name in (b"id", b"retry") for name, _, _ in fields(passed)) or passed == event


def _split(pieces: list[bytes], event_bytes_max: int) -> list[bytes] | None:
    """Events and, last, what is left; None where one is too long."""
    splitter, events = Splitter(event_bytes_max), list[bytes]()
    try:
        for piece in pieces:
            events += splitter.feed(piece)
    except ProtocolError:
        return None
    return [*events, splitter.rest()]


def _by_the_standard(data: bytes) -> list[bytes]:
    """The data of every event, read line by line as the WHATWG says it; each line's byte order mark is skipped."""
    told: list[bytes] = []
    values: list[bytes] = []
    at = 0
    while line := _line(data, at):
        at = line.end()
        if not line[1]:
            told += [b"\n".join(values)] if values else []
            values = []
        name, _, value = line[1].removeprefix(b"\xef\xbb\xbf").partition(b":")
        if name == b"data":
            values.append(value.removeprefix(b" "))
    return told
