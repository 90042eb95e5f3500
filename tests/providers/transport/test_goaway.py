"""A GOAWAY that permits the request under way is taken out of an HTTP/2 connection's bytes, and nothing else is."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from http2_server import goaway
from providers.transport.goaway import GracefulEnd

_REQUEST = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)  # and empty SETTINGS


def _frame(kind: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, 0)) + stream.to_bytes(4, "big") + payload


def _asking(stream: int) -> GracefulEnd:
    """A connection with a request on this stream."""
    end = GracefulEnd()
    end.sent(_REQUEST if stream == 1 else b"")
    end.sent(_frame(1, stream, b"head") + _frame(0, stream, b"{}"))
    return end


_DATA = [_frame(0, 3, b"x" * 20), _frame(7, 3, b"")[:3] + b"\x06" + bytes(5), _frame(0, 3, goaway(3))]
_PERMITTING = [goaway(3), goaway(2**31 - 1, debug=b"draining"), goaway(3, debug=b"y" * 300)]


@given(st.lists(st.sampled_from([*_DATA, *_PERMITTING]), max_size=8), st.lists(st.integers(0, 400), max_size=8))
def test_any_reads_give_the_other_frames(frames: list[bytes], cuts: list[int]) -> None:
    """Whatever a read brings, all other frames are kept, and their bytes come in order."""
    end, whole = _asking(3), b"".join(frames)
    places = [0, *sorted(cuts), len(whole)]
    got = b"".join(end.received(whole[at:to]) for at, to in itertools.pairwise(places))
    assert got == b"".join(frame for frame in frames if frame not in _PERMITTING)
    assert end.is_announced == any(frame in _PERMITTING for frame in frames)


@pytest.mark.parametrize("frame", [goaway(1), goaway(3, 1), goaway(2**31 - 1, 11), b"\xff\xff\xff\x07" + bytes(20)])
def test_any_other_goaway_is_left_in(frame: bytes) -> None:
    """It ends the request: the stream is not permitted, there is an error, or the frame is invalid."""
    end = _asking(3)
    assert (end.received(frame), end.is_announced) == (frame, False)


def test_the_stream_of_the_last_request_counts() -> None:
    """A GOAWAY for the first request does not permit the second one."""
    end = _asking(1)
    assert end.received(goaway(1)) == b""
    end.sent(_frame(1, 3, b"head"))
    assert end.received(goaway(1)) == goaway(1)
