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
    WireError,
    unpack,
)

GAUGE, SLICE, BUCKET, SLOTS, SWITCHES = (
    GaugeAsk("g", {"a": (1, 2)}),
    SliceAsk("s", {}),
    BucketAsk("b", 60.0, 60.0),
    SlotsAsk("c", 4, 0),
    SwitchesAsk(),
)
LATIN = b"\xa2\xff\xfe"  # a text that is no UTF-8
DEEP = b"\x91" * 100_000 + b"\x90"
TOO_MANY_BINS: list[object] = [part for number in range(30) for part in (number, ["e1", "1"])]


@pytest.mark.parametrize(
    ("ask", "answer", "sums", "read", "dropped"),
    [
        (GAUGE, [2, True, 0], {"a": [2, 4, 9], "b": [1, 3]}, GaugeAnswer(2, {"a": [3, 7], "b": [3]}), []),
        (GAUGE, [1, True, 0], [], GaugeAnswer(1, {}), []),
        (GAUGE, [2, True, 0], {"a": [2, 4, math.inf], "b": [1, 3]}, GaugeAnswer(2, {"b": [3]}), ["g a"]),
        (GAUGE, [2, True, 0], {"a": [2, 4, math.nan], "b": [1, 3]}, GaugeAnswer(2, {"b": [3]}), ["g a"]),
        (GAUGE, [2, True, 0], {"a": [2, 4, "x"], "b": [1, 3]}, GaugeAnswer(2, {"b": [3]}), ["g a"]),
        (GAUGE, [2, True, 0], {"a": [2, 4], "b": [1, 3]}, GaugeAnswer(2, {"b": [3]}), ["g a"]),
        (GAUGE, [2, True, 0], {"a": [], "b": [1, *range(1, 66)]}, GaugeAnswer(2, {}), ["g a", "g b"]),
        (GAUGE, [2, True, 0], {"a" * 2_000: [1, 3]}, Lost(), ["g"]),
        (GAUGE, [10**9, True, 0], {}, Lost(), ["g"]),
        (GAUGE, [-1, True, 0], {}, Lost(), ["g"]),
        (GAUGE, [2, True], {}, Lost(), ["g"]),
        (GAUGE, [2, True, -1], {}, Lost(), ["g"]),
        (GAUGE, [2, True, 7], b"", GaugeAnswer(2, None, 7), []),
        (GAUGE, [2, True, 0], b"\x81" + LATIN + b"\x92\x01\x02", Lost(), ["g"]),
        (GAUGE, [2, True, 0], DEEP, Lost(), ["g"]),
        (SLICE, [9, [8, ["e1", "2"]]], None, SliceAnswer(9, {8: {"e1": 2}}), []),
        (SLICE, [9, [7, ["e1", "x"], 8, ["e1", "2"]]], None, SliceAnswer(9, {8: {"e1": 2}}), ["s bin"]),
        (SLICE, [9, [7, ["e1", "9" * 5_000], 8, []]], None, SliceAnswer(9, {8: {}}), ["s bin"]),
        (SLICE, [9, [7, ["e1", str(2**70)], 8, []]], None, SliceAnswer(9, {8: {}}), ["s bin"]),
        (SLICE, [9, [7, ["e1"], 8, []]], None, SliceAnswer(9, {8: {}}), ["s bin"]),
        (SLICE, [9, [7]], None, Lost(), ["s"]),
        (SLICE, [-9, []], None, Lost(), ["s"]),
        (SLICE, [9, TOO_MANY_BINS], None, Lost(), ["s"]),
        (BUCKET, [5.0, -3.0, 0, 7, 60], None, BucketAnswer(5.0, -3.0, 0.0, 7, 60.0), []),
        (BUCKET, [0, -3.0, math.inf, 7, 60], None, BucketAnswer(0.0, -3.0, math.inf, 7, 60.0), []),
        (BUCKET, [-5.0, 3.0, 0, 7, 60], None, Lost(), ["b"]),
        (BUCKET, [math.nan, 3.0, 0, 7, 60], None, Lost(), ["b"]),
        (BUCKET, [5.0, -math.inf, 0, 7, 60], None, Lost(), ["b"]),
        (BUCKET, [5.0, 3.0, 0, math.inf, 60], None, Lost(), ["b"]),
        (BUCKET, [5.0, 3.0, 0, 7, [60]], None, Lost(), ["b"]),
        (BUCKET, False, None, Lost(), []),  # an old ask
        (SLOTS, [1, 0, 4, False], None, SlotsAnswer(1, 0, 4, wanted=False), []),
        (SLOTS, [1, -2, 4, False], None, Lost(), ["c"]),
        (SWITCHES, [3, ["x", "on", 5.0], 2], None, SwitchesAnswer(3, [SwitchState("x", "on", 5.0)], 2), []),
        (
            SWITCHES,
            [3, ["x", "on", math.inf, "y", "off", 5], 2],
            None,
            SwitchesAnswer(3, [SwitchState("y", "off", 5.0)], 2),
            ["switches"],
        ),
        (
            SWITCHES,
            [3, ["x" * 2_000, "on", 5, "y", "off", 5], 2],
            None,
            SwitchesAnswer(3, [SwitchState("y", "off", 5)], 2),
            ["switches"],
        ),
        (SWITCHES, [3, [["x"], "on", 5], 2], None, SwitchesAnswer(3, [], 2), ["switches"]),
    ],
)
def test_what_is_read(ask: Ask, answer: object, sums: object, read: object, dropped: list[str]) -> None:
    """A damaged row, bin or item costs itself, other damage the answer; the next answer is read in any case."""
    parts = [encode([[answer, [0, [], 1]], 2, 5.0])]
    if isinstance(ask, GaugeAsk):
        parts.append(sums if isinstance(sums, bytes) else encode(sums))
    names: list[str] = []
    reply = unpack([ask, SWITCHES], parts, lambda name, _: names.append(name))
    assert reply.answers == [read, SwitchesAnswer(0, [], 1)]
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
        [encode([[[0, [], 1]], 10**9, 5.0])],
        [encode([[[0, [], 1]], -1, 5.0])],
        [encode([[[0, [], 1]], math.inf, 5.0])],
        [encode([[[0, [], 1]], 1])],
        [encode([[[0, [], 1]], 1, None])],
        [encode([[], 1, 5.0])],
        [encode([[[0, [], 1]], 1, 5.0]), b""],
        [DEEP],
        [b"\xdd\xff\xff\xff\xff"],
        [LATIN],
        [encode([[[0, [], 1]], 1, 5.0]), bytes(64_000_001)],
    ],
)
def test_what_is_no_reply(replied: object) -> None:
    """Any other value is one error."""
    with pytest.raises(WireError):
        unpack([SWITCHES], replied)
