"""Splitting and reading server-sent events: no byte lost or moved, the same events however the bytes were cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttft_gateway.apis.errors import ProtocolError
from ttft_gateway.apis.sse import Splitter, data_of, forwardable

BIG = 1 << 24
LINES = st.sampled_from(
    [
        b"data: {}",
        b"data:x",
        b"data",
        b": c",
        b":",
        b"id: 1",
        b"retry: 9",
        b"event: e",
        b"\xef\xbb\xbfdata: \xf0\x9f\x98\x80",
    ]
)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
STREAMS = st.lists(
    st.tuples(st.lists(st.tuples(LINES, ENDS), max_size=3), ENDS).map(
        lambda event: b"".join(line + end for line, end in event[0]) + event[1]
    ),
    max_size=6,
).map(b"".join)


def events_of(pieces: list[bytes], event_bytes_max: int = BIG) -> tuple[list[bytes], bytes]:
    """All events of a stream that came in these pieces, and the rest."""
    splitter = Splitter(event_bytes_max)
    return [event for piece in pieces for event in splitter.feed(piece)], splitter.rest()


def plainly(stream: bytes) -> tuple[list[bytes], bytes]:
    """The slow way, byte by byte: line after line, an event at each blank one."""
    events, start, at, blank, after_cr = [], 0, 0, True, False
    while at < len(stream):
        if stream[at] not in b"\r\n":
            at, blank = at + 1, False
            continue
        at_once = blank and after_cr  # CR CR
        if stream[at] == 13 and blank and not at_once and at + 1 == len(stream):
            break  # an LF may follow
        crlf = stream[at : at + 2] == b"\r\n" and not at_once
        after_cr = stream[at] == 13 and not crlf and not blank
        at += 1 + crlf
        if blank:
            events.append(stream[start:at])
            start = at
        blank = True
    return events, stream[start:]


@given(st.one_of(STREAMS, st.binary(max_size=60), st.text("a:\r\n", max_size=30).map(str.encode)), st.data())
def test_any_split_gives_the_same_events(stream: bytes, data: st.DataObject) -> None:
    """Any split of the bytes gives the same events as the plain way, and events and remainder are the bytes."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    whole = events_of([stream])
    assert plainly(stream) == whole
    assert whole == events_of(pieces)
    assert whole == events_of([bytes([byte]) for byte in stream])
    assert stream == b"".join(whole[0]) + whole[1]


@pytest.mark.parametrize(
    ("stream", "events", "rest"),
    [
        (b"", [], b""),
        (b"data: a\n\n", [b"data: a\n\n"], b""),
        (b"data: a\r\n\r\n", [b"data: a\r\n\r\n"], b""),
        (b"data: a\r\r", [b"data: a\r\r"], b""),
        (b"data: a\n\r\n", [b"data: a\n\r\n"], b""),
        (b"data: a\r\n\n", [b"data: a\r\n\n"], b""),
        (b"data: a\n\ndata: b\n\nda", [b"data: a\n\n", b"data: b\n\n"], b"da"),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"data: a\r\n\r\n", b"data: b\r\n\r\n"], b""),
        (b"data: a\n\ndata: b\r\n\r\n", [b"data: a\n\n", b"data: b\r\n\r\n"], b""),
        (b"data: a\r\rdata: b\r\r", [b"data: a\r\r", b"data: b\r\r"], b""),
        (b"data: a\n\n\n\ndata: b\n\n", [b"data: a\n\n", b"\n", b"\n", b"data: b\n\n"], b""),
        (b"\ndata: a\n\n", [b"\n", b"data: a\n\n"], b""),
        (b"\n\n", [b"\n", b"\n"], b""),
        (b"\r\n\r\n", [b"\r\n", b"\r\n"], b""),
        (b"\xef\xbb\xbfdata: a\n\n", [b"\xef\xbb\xbfdata: a\n\n"], b""),
        (b"data: a\r\n\r", [], b"data: a\r\n\r"),
        (b"data: a\ndata: b\n", [], b"data: a\ndata: b\n"),
        (b"data: a\rdata: b\n\n", [b"data: a\rdata: b\n\n"], b""),
    ],
)
def test_events(stream: bytes, events: list[bytes], rest: bytes) -> None:
    """An event ends with its blank line, whatever ends the lines."""
    assert (events, rest) == events_of([stream])


def test_one_piece_that_is_one_event_is_not_copied() -> None:
    """A piece that is exactly one event comes out as the same object."""
    splitter = Splitter(BIG)
    for event in (b"data: {}\n\n", b"data: {}\r\n\r\n"):
        (out,) = splitter.feed(event)
        assert event is out


@pytest.mark.parametrize("size", [1, 2, 1000])
@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"], ids=["LF", "CRLF", "CR"])
def test_what_is_buffered_is_not_searched_again(size: int, end: bytes) -> None:
    """Each piece of a large event is searched once, but for two bytes before it in which an end may begin."""
    splitter = Splitter(BIG)
    splitter.feed(b"data: x" + end)
    for count in range(1, 200):
        assert splitter.feed(b"x" * size) == []
        assert splitter._scan == max(0, count * size - 2)
    assert splitter.feed(end) == [b"x" * size * 199 + end]
    assert splitter._scan == 0


@pytest.mark.parametrize(
    "pieces",
    [
        [b"data: 345678\n\n"],
        [b"data: 3456", b"78\n\n"],
        [b"data: 345678901"],
        [b"d\n\n", b"data: 345678\n\ndata: 1"],
        [b"data: 345678\r\n\r\n"],
    ],
)
def test_an_event_over_the_limit_is_an_error(pieces: list[bytes]) -> None:
    """No event longer than the limit comes out, and no more than the limit is buffered."""
    with pytest.raises(ProtocolError, match="limit of 13 bytes"):
        events_of(pieces, event_bytes_max=13)


def test_an_event_of_the_limit_is_none() -> None:
    """The limit itself is allowed, and counts for each event, not for the stream."""
    event = b"data: 34567\n\n"
    assert ([event] * 3, b"") == events_of([event, event[:5], event[5:] + event], event_bytes_max=13)


@pytest.mark.parametrize(
    ("event", "data"),
    [
        (b"data: x\n\n", b"x"),
        (b"data: x\r\n\r\n", b"x"),
        (b"data: x\r\r", b"x"),
        (b"data: x\n\r\n", b"x"),
        (b"data:x\n\n", b"x"),
        (b"data:  x\n\n", b" x"),
        (b"data: x \n\n", b"x "),
        (b"data: a\ndata: b\n\n", b"a\nb"),
        (b"data: a\rdata: b\n\n", b"a\nb"),
        (b"data: a\r\ndata: b\r\n\r\n", b"a\nb"),
        (b"data: a\rdata: b\r\n\r\n", b"a\nb"),
        (b"data\n\n", b""),
        (b"data:\n\n", b""),
        (b"data: a\ndata\n\n", b"a\n"),
        (b"id: 1\nevent: e\ndata: x\n\n", b"x"),
        (b"data: x\nid: 1\n\n", b"x"),
        (b"data: x\r\nid: 1\r\n\r\n", b"x"),
        (b"\xef\xbb\xbfdata: x\n\n", b"x"),
        (b": data: x\n\n", None),
        (b"Data: x\n\n", None),
        (b"database: x\n\n", None),
        (b"event: e\n\n", None),
        (b"\n", None),
        (b"", None),
    ],
)
def test_data(event: bytes, data: bytes | None) -> None:
    """The data lines are joined with LF; one leading space of each is removed."""
    assert data == data_of(event)


@pytest.mark.parametrize(
    ("event", "forwarded"),
    [
        (b"data: x\n\n", b"data: x\n\n"),
        (b"event: e\r\ndata: x\r\n\r\n", b"event: e\r\ndata: x\r\n\r\n"),
        (b"id: 1\ndata: x\n\n", b"data: x\n\n"),
        (b"data: x\r\nid: 1\r\nretry:5\r\n\r\n", b"data: x\n\n"),
        (b"data: x\rid: 1\n\n", b"data: x\n\n"),  # CR LF would be one end of a line, and the event would go on
        (b"id\ndata: a\ndata: b\n\n", b"data: a\ndata: b\n\n"),
        (b": c\nid: 1\ndata: x\n\n", b": c\ndata: x\n\n"),
        (b"idx: 1\ndata: x\n\n", b"idx: 1\ndata: x\n\n"),
        (b"data: id: 1\n\n", b"data: id: 1\n\n"),
        (b": ping\n\n", b": ping\n\n"),
        (b"\n", b"\n"),
        (b"", b""),
        (b": ping\nid: 1\n\n", b""),
        (b"retry: 5\n\n", b""),
        (b"event: ping\n\n", b""),
        (b"event: ping\ndata\n\n", b""),
        (b"data: \n\n", b""),
        (b"foo: bar\n\n", b""),
    ],
)
def test_forwardable(event: bytes, forwarded: bytes) -> None:
    """Only `id`, `retry` and events without data are withheld from a client; every other line stays."""
    assert forwarded == forwardable(event)


@given(st.one_of(STREAMS, st.binary(max_size=60)))
def test_what_is_forwarded_has_the_same_data(stream: bytes) -> None:
    """Forwarding keeps an event's data or drops the event, and what was forwarded passes unchanged."""
    for event in events_of([stream])[0]:
        out = forwardable(event)
        assert out == forwardable(out)
        if out:
            assert data_of(event) == data_of(out)
