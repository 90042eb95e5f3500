"""Replies of a server that were damaged or forged: the smallest part is dropped, and reported."""

import math

import pytest
from msgspec.msgpack import encode

from gateway.share.messages import (
    Ask,
    BucketAnswer,
    BucketAsk,
    GaugeAnswer,
    GaugeAsk,
    Lost,
    SliceAnswer,
    SliceAsk,
    SlotsAnswer,
    SlotsAsk,
    SwitchesAnswer,
    SwitchesAsk,
    SwitchState,
)
from gateway.share.server_rows import ServerRows
from gateway.share.wire import WireError, pack, unpack

GAUGE, SLICE = GaugeAsk("g", {"a": (1, 2), "b": (0,)}), SliceAsk("s", {})
BUCKET, SLOTS, SWITCHES = (
    BucketAsk("b", 60.0, 60.0),
    SlotsAsk("c", 4, 0),
    SwitchesAsk(),
)
LATIN = b"\xa2\xff\xfe"  # a text that is no UTF-8
DEEP = b"\x91" * 100_000 + b"\x90"


@pytest.mark.parametrize(
    ("ask", "answer", "read", "dropped"),
    [
        (BUCKET, [5.0, -3.0, 0, 7, 60], BucketAnswer(5.0, -3.0, 0.0, 7, 60.0), []),
        (BUCKET, [0, -3.0, math.inf, 7, 60], BucketAnswer(0.0, -3.0, math.inf, 7, 60.0), []),
        (BUCKET, [-5.0, 3.0, 0, 7, 60], Lost(), ["b"]),
        (BUCKET, [math.nan, 3.0, 0, 7, 60], Lost(), ["b"]),
        (BUCKET, [5.0, -math.inf, 0, 7, 60], Lost(), ["b"]),
        (BUCKET, [5.0, 3.0, 0, math.inf, 60], Lost(), ["b"]),
        (BUCKET, [5.0, 3.0, 0, 7, [60]], Lost(), ["b"]),
        (BUCKET, False, Lost(), []),  # an old ask
        (SLOTS, [1, 0, 4, False], SlotsAnswer(1, 0, 4, wanted=False), []),
        (SLOTS, [1, -2, 4, False], Lost(), ["c"]),
        (SWITCHES, [3, ["x", "on", 5.0], 2], SwitchesAnswer(3, [SwitchState("x", "on", 5.0)], 2), []),
        (
            SWITCHES,
            [3, ["x", "on", math.inf, "y", "off", 5], 2],
            SwitchesAnswer(3, [SwitchState("y", "off", 5.0)], 2),
            ["switches"],
        ),
        (
            SWITCHES,
            [3, ["x" * 2_000, "on", 5, "y", "off", 5], 2],
            SwitchesAnswer(3, [SwitchState("y", "off", 5)], 2),
            ["switches"],
        ),
        (SWITCHES, [3, [["x"], "on", 5], 2], SwitchesAnswer(3, [], 2), ["switches"]),
    ],
)
def test_what_is_read(ask: Ask, answer: object, read: object, dropped: list[str]) -> None:
    """A damaged item costs itself, other damage the answer; the next answer is read in any case."""
    names: list[str] = []
    replied = [encode([[answer, [0, [], 1]], 2, 5.0, False]), b"", b""]
    reply = unpack([ask, SWITCHES], [replied], ServerRows(), lambda name, _: names.append(name))
    assert reply.answers == [read, SwitchesAnswer(0, [], 1)]
    assert names == dropped


def _sums(*sums: object) -> bytes:
    return b"".join(map(encode, sums))


# Epoch, version, numbers of the row that counts processes, of a, b and the slice, number of sums, bin, number of bins.
ROWS = [7, 1, [1, 2, 3, 4], 3, 9, 1]
COUNT, A, B = [1, 2], [2, 4, 9], [3, 3]
BOTH = GaugeAnswer(2, {"a": [3, 7], "b": [3]}, 2)
BIN, ONE = [4, 8, "e1", 2], SliceAnswer(9, {8: {"e1": 2}})


@pytest.mark.parametrize(
    ("about", "sums", "read", "dropped"),
    [
        (ROWS, _sums(COUNT, A, B), [BOTH, ONE], []),
        (ROWS, _sums(COUNT, A, [9, 1]), [GaugeAnswer(2, {"a": [3, 7]}, 2), ONE], []),  # of another process
        ([*ROWS[:3], 0, *ROWS[4:]], b"", [GaugeAnswer(1, {}, 1), ONE], []),
        (ROWS, _sums(COUNT, [2, 4, math.inf], B), [GaugeAnswer(2, {"b": [3]}, 2), ONE], ["g a"]),
        (ROWS, _sums(COUNT, [2, 4, math.nan], B), [GaugeAnswer(2, {"b": [3]}, 2), ONE], ["g a"]),
        (ROWS, _sums(COUNT, [2, 4, "x"], B), [GaugeAnswer(2, {"b": [3]}, 2), ONE], ["g a"]),
        (ROWS, _sums(COUNT, [2, 4], B), [GaugeAnswer(2, {"a": [3, -2], "b": [3]}, 2), ONE], []),
        (ROWS, _sums(COUNT, [2, 4, 9], [3, *range(65)]), [GaugeAnswer(2, {"a": [3, 7]}, 2), ONE], ["g b"]),
        (ROWS, _sums([1, 10**9], A, B), [GaugeAnswer(4096, BOTH.others, 2), ONE], []),
        (ROWS, _sums([1, -1], A, B), [GaugeAnswer(1, BOTH.others, 2), ONE], []),
        (ROWS, _sums(COUNT, A), [Lost(), Lost()], ["rows"]),
        (ROWS, _sums(COUNT, A, {"b": 3}), [Lost(), Lost()], ["rows"]),
        (ROWS, LATIN * 3, [Lost(), Lost()], ["rows"]),
        (ROWS, DEEP, [Lost(), Lost()], ["rows"]),
        ([7, 1, [1, 2], *ROWS[3:]], _sums(COUNT, A, B), [Lost(), Lost()], ["rows"]),
        ([7, 1, [1, 2, 3, 10**9], *ROWS[3:]], _sums(COUNT, A, B), [Lost(), Lost()], ["rows"]),
        ([-7, *ROWS[1:]], _sums(COUNT, A, B), [Lost(), Lost()], ["rows"]),
        ([0, 0, [], 0, 0, 0], b"", [Lost(), Lost()], []),  # the server has lost the rows
        (False, b"", [Lost(), Lost()], ["rows"]),
    ],
)
def test_what_is_read_of_rows_and_slices(about: object, sums: bytes, read: list[object], dropped: list[str]) -> None:
    """A damaged row or bin costs itself, other damage all rows, which are then sent again."""
    names: list[str] = []
    rows = ServerRows()
    asks: list[Ask] = [GAUGE, SLICE]
    pack(asks, rows, 1.0)
    replied = [[encode([[], 2, 5.0, about]), sums, encode(BIN)]]
    assert unpack(asks, replied, rows, lambda name, _: names.append(name)).answers == read
    assert names == dropped


@pytest.mark.parametrize(
    ("bins", "count", "read", "dropped"),
    [
        (_sums(BIN), 1, ONE, []),
        (b"", 0, SliceAnswer(9, {}), []),
        (_sums([4, 7, "e1"], BIN), 2, ONE, ["s bin"]),
        (_sums([4, 8, "e1", "x"]), 1, SliceAnswer(9, {}), ["s bin"]),
        (_sums([4, 8, 5, 2]), 1, SliceAnswer(9, {}), ["s bin"]),
        (_sums([4, 8, "e1", -(2**63)]), 1, SliceAnswer(9, {}), ["s bin"]),
        (_sums([4, -8, "e1", 2]), 1, SliceAnswer(9, {}), ["s bin"]),
        (_sums([-4, 8, "e1", 2]), 1, SliceAnswer(9, {}), ["slices"]),
        (_sums([4]), 1, SliceAnswer(9, {}), ["slices"]),
        (_sums([4, 8, *range(8_200)]), 1, SliceAnswer(9, {}), ["slices"]),
        (_sums([99, 8, "e1", 2], [4, 9, "e1", 2], [4, 10**9, "e1", 2]), 3, SliceAnswer(9, {}), []),  # are not read
        (_sums(BIN), 2, None, ["rows"]),
        (LATIN, 1, SliceAnswer(9, {}), ["slices"]),
    ],
)
def test_what_is_read_of_bins(bins: bytes, count: int, read: SliceAnswer | None, dropped: list[str]) -> None:
    """A damaged bin costs itself, a wrong number of them all rows, which are then sent again."""
    names: list[str] = []
    rows = ServerRows()
    asks: list[Ask] = [GAUGE, SLICE]
    pack(asks, rows, 1.0)
    replied = [[encode([[], 2, 5.0, [*ROWS[:5], count]]), _sums(COUNT, A, B), bins]]
    answers = unpack(asks, replied, rows, lambda name, _: names.append(name)).answers
    assert answers == ([Lost(), Lost()] if read is None else [BOTH, read])
    assert names == dropped


@pytest.mark.parametrize(
    "replied",
    [
        None,
        5,
        [],
        b"",
        [5],
        [b""],
        [b"\xc1"],
        [encode([[[0, [], 1]], 10**9, 5.0, False]), b"", b""],
        [encode([[[0, [], 1]], -1, 5.0, False]), b"", b""],
        [encode([[[0, [], 1]], math.inf, 5.0, False]), b"", b""],
        [encode([[[0, [], 1]], 1, 5.0]), b"", b""],
        [encode([[[0, [], 1]], 1, None, False]), b"", b""],
        [encode([[], 1, 5.0, False]), b"", b""],
        [encode([[[0, [], 1]], 1, 5.0, False]), b""],
        [encode([[[0, [], 1]], 1, 5.0, False]), b"", b"", b""],
        [DEEP, b"", b""],
        [b"\xdd\xff\xff\xff\xff", b"", b""],
        [LATIN, b"", b""],
        [encode([[[0, [], 1]], 1, 5.0, False]), bytes(64_000_001), b""],
    ],
)
def test_what_is_no_reply(replied: object) -> None:
    """Any other value is one error."""
    with pytest.raises(WireError):
        unpack([SWITCHES], [replied], ServerRows())
