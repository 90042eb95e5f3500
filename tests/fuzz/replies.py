"""Any reply of a server to a batch: answers in their ranges, or an error; a pool that uses it works on.

An input is the parts of a reply, divided by `SEPARATOR`.
"""

import math
from typing import Final

import msgspec

from gateway.observe.describe import pool_state
from gateway.share.messages import Ask, BucketAsk, Lost, Reply, SlotsAsk, SwitchesAsk, SwitchState
from gateway.share.pools import exchanges_of
from gateway.share.server_rows import ServerRows
from gateway.share.wire import WireError, pack, unpack
from pooled import pool, send
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.limits.budget import RetryBudget
from ttft_gateway.pool.learned import learned_pool, sound_pool

SEPARATOR: Final = b"<next part>"
WORDS: Final = (
    SEPARATOR,
    b"\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00",  # infinite
    b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00",  # NaN
    b"\xcb\x47\xef\xff\xff\xe0\x00\x00\x00",  # 3.4e38
    b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\xd3\x80\x00\x00\x00\x00\x00\x00\x00",
    b"\xdd\xff\xff\xff\xff",
    b"\x91" * 5_000,
    b"\xa2\xff\xfe",
    b"\xc0",
    b"\xc3",
    b"\xa1a",
    b"\x80",
    b"\x90",
)
_DECODER: Final = msgspec.msgpack.Decoder(Reply)
_NOW_S: Final = 10.0


def check(data: bytes) -> None:
    """Read a reply to the asks of a pool, and to one of each other kind, and use it."""
    tried = pool(None, None)
    parts = exchanges_of([([tried], RetryBudget())], {})
    send(tried, 0, _NOW_S - 1.0)
    asked = [part.asks(_NOW_S, 0.1) for part in parts]
    others: list[Ask] = [
        BucketAsk("b", 60.0, 60.0),
        SlotsAsk("c", 4, 0, 2),
        SwitchesAsk([SwitchState("hedging", "off")]),
    ]
    dropped: list[tuple[str, str]] = []
    asks: list[Ask] = [ask for each in (*asked, others) for ask in each]
    rows = ServerRows()
    pack(asks, rows, _NOW_S)
    try:
        reply = unpack(asks, [data.split(SEPARATOR)], rows, lambda *part: dropped.append(part))
    except WireError:
        return
    assert _DECODER.decode(msgspec.msgpack.encode(reply)) == reply  # a decoder accepts only what is in range
    answers = iter(reply.answers)
    for part, own in zip(parts, asked, strict=True):
        mine = [next(answers) for _ in own]
        if not any(isinstance(answer, Lost) for answer in mine):
            part.answered(mine, _NOW_S)
    for replica in tried.replicas:
        predicted_s = tried.picker.predict(RequestFacts(prompt_tokens=1_000.0), replica, _NOW_S)
        assert predicted_s is None or 0 < predicted_s < math.inf
        assert 0 <= replica.in_flight < math.inf
    assert list(pool_state("m", tried, _NOW_S))[-1] is not None
    learned = list(learned_pool(tried, _NOW_S))[-1]
    assert learned is not None
    assert sound_pool("m", learned, lambda *part: dropped.append(part)) == learned
