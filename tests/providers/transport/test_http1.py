"""Bounds on what an upstream may send around a body; whatever else it may send is fuzzed (tests/fuzz/exchanges.py)."""

import itertools

import pytest

from fuzz.exchanges import read
from providers.transport.http1 import HEADERS_BYTES_MAX

_OK = b"HTTP/1.1 200 OK\r\n"
_CHUNKED = _OK + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n"
_PIECE = b"x" * 10_000


@pytest.mark.parametrize(
    "begun",
    [
        _OK + b"x-endless: ",
        _OK + b"x-endless",
        _CHUNKED + b"0\r\nx-endless: ",
        _CHUNKED + b"5;",
        b"HTTP/1.1 103 Early Hints\r\nx-endless: ",
    ],
    ids=["header", "header name", "trailer", "chunk extension", "early hint"],
)
def test_what_is_no_body_is_bounded(begun: bytes) -> None:
    """The parser keeps a header until it ends, so one that does not end is the end of the connection."""
    endless = iter([_PIECE] * 1000)
    seen = read(itertools.chain([begun], endless))
    assert seen.closes == ["ProtocolError"]
    assert len(_PIECE) * (1000 - len(list(endless))) < 2 * HEADERS_BYTES_MAX


def test_chunk_headers_of_their_own_add_up_to_nothing() -> None:
    """A server that writes a chunk's size and its data one after the other may do so for as long as it likes."""
    count = HEADERS_BYTES_MAX // 4
    seen = read([_CHUNKED, *[b"1\r\n", b"x", b"\r\n"] * count, b"0\r\n\r\n"])
    assert seen.closes == [""]
    assert seen.body == b"hello" + b"x" * count


@pytest.mark.parametrize(
    ("framing", "is_fine"),
    [(b"content-length: 0", True), (b"content-length: 2", False), (b"transfer-encoding: 0", False)],
)
def test_an_informational_answer_has_no_body(framing: bytes, is_fine: bool) -> None:
    """A length of nothing is passed over; a body is refused, because it would be taken for the answer's."""
    seen = read([b"HTTP/1.1 100 Continue\r\n" + framing + b"\r\n\r\n", _OK + b"content-length: 2\r\n\r\nok"])
    assert seen.closes == ["" if is_fine else "ProtocolError"]
    assert seen.body == (b"ok" if is_fine else b"")


@pytest.mark.parametrize(
    "framing",
    [
        b"content-length: 5\r\ntransfer-encoding: chunked",
        b"transfer-encoding: chunked\r\ncontent-length: 5",
        b"transfer-encoding: CHUNKED\r\ncontent-length: 2",
        b"content-length: 2\r\ncontent-length: 2",
        b"content-length: 2, 2",
        b"content-length: +2",
        b"transfer-encoding : chunked",
        b"transfer-encoding:\r\n chunked",
        b"x: a\r\n b\r\ncontent-length: 2",
        b"x: a\rb\r\ncontent-length: 2",
        b"x: a\nb: c\r\ncontent-length: 2",
        b"x: a\0b\r\ncontent-length: 2",
    ],
)
def test_a_head_of_two_meanings_is_refused(framing: bytes) -> None:
    """Two servers could see two ends of this response, or two headers, so none of it is passed on."""
    seen = read([_OK + framing + b"\r\n\r\n2\r\nok\r\n0\r\n\r\n"])
    assert (seen.closes, seen.body) == (["ProtocolError"], b"")


@pytest.mark.parametrize("coding", [b"chunked", b"Chunked", b"\tCHUNKED"])
def test_chunks_are_read_in_any_case_of_letters(coding: bytes) -> None:
    """A coding is compared without regard to case (RFC 9112, 7)."""
    seen = read([_OK + b"Transfer-Encoding:" + coding + b"\r\n\r\n2\r\nok\r\n0\r\n\r\n"])
    assert (seen.closes, seen.body) == ([""], b"ok")
