"""The form of batches and replies in a Redis or Valkey server: the arguments and results of `ttft3.lua`. Pure.

Asks and answers are msgpack arrays. Gauges and slices travel together, as changes (server_rows.py). A client that can
write to the server can forge a reply, so any bytes may come. The smallest damaged part is dropped: a row of a gauge, a
bin of a slice, a switch, or an answer. Only a reply without the form of a reply is an error.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Raw, convert
from msgspec.msgpack import Decoder, Encoder

from gateway.share.messages import (
    Answer,
    Ask,
    BucketAnswer,
    BucketAsk,
    GaugeAsk,
    Lost,
    Number,
    Processes,
    Reply,
    SliceAsk,
    SlotsAnswer,
    SlotsAsk,
    SwitchesAnswer,
    SwitchesAsk,
    SwitchState,
    keep_silent,
)
from gateway.share.server_rows import ServerRows
from ttft_gateway.pool.learned import Drop

CALL_MAX: Final = 32  # asks in one function call, during which the server does nothing else; gauges are one
REPLY_BYTES_MAX: Final = 64_000_000  # 16 slices with 24 bins of 3,000 names each have 25 MB
_FALSE: Final = b"\xc2"  # in msgpack; stands for no answer
_DAMAGES: Final = (ValueError, RecursionError)  # what msgspec raises for any bytes
_PARTS: Final = 3  # of a reply: the answers, the sums of rows, and the bins of slices
_CALL_BYTES: Final = 150  # of a call and its reply, about, without arguments and results

_encode = Encoder().encode
_decode = Decoder(tuple[list[Raw], Processes, float, Raw]).decode
_decode_scalars = Decoder(list[bool | int | float]).decode
_decode_switches = Decoder(tuple[Number, list[Raw], Processes]).decode
_decode_any = Decoder(str | float | int).decode


class WireError(ValueError):
    """A reply does not have the form of one."""


def pack(asks: Sequence[Ask], rows: ServerRows, now_s: float, until_s: float = math.inf) -> list[list[bytes]]:
    """Return the arguments of each call of the function for a batch.

    Args:
        rows: the rows of this process in the server.
        now_s: time of the clock of this process.
        until_s: time of the server's clock after which nothing is leased.
    """
    exchanged, others = _divided(asks)
    until = f"{until_s:.6f}".encode()
    calls = [[until, _encode([_packed(ask) for ask in part]), b""] for part in _in_calls(others)]
    if exchanged:
        calls[0][2] = rows.pack(exchanged, now_s)
    return calls


def unpack(asks: Sequence[Ask], replied: Sequence[object], rows: ServerRows, drop: Drop = keep_silent) -> Reply:
    """Return the reply to a batch, without its damaged parts; its size is without the batch.

    Args:
        replied: value that the client library has read for each call.
        rows: the rows that the batch was packed with.
        drop: receives each damaged part.

    Raises:
        WireError: it is not a reply to this batch.
    """
    exchanged, others = _divided(asks)
    answers: list[Answer] = []
    sums: Sequence[Answer] = ()
    processes, now_s, size = 0, 0.0, 0
    for place, (part, each) in enumerate(zip(_in_calls(others), replied, strict=True)):
        first, packed_sums, bins = _parts(each)
        size += len(first) + len(packed_sums) + len(bins) + _CALL_BYTES
        try:
            raws, processes, now_s, about_rows = _decode(first)
        except _DAMAGES as error:
            raise WireError(f"the reply has an unknown form: {error}") from None
        if len(raws) != len(part):
            raise WireError(f"the reply has {len(raws)} answers to {len(part)} asks")
        answers += [_answer(ask, raw, drop) for ask, raw in zip(part, raws, strict=True)]
        if exchanged and not place:
            sums = rows.unpack(exchanged, about_rows, packed_sums, bins, drop)
    rest, summed = iter(answers), iter(sums)
    return Reply(
        [next(summed if isinstance(ask, GaugeAsk | SliceAsk) else rest) for ask in asks], processes, now_s, size
    )


def _divided(asks: Sequence[Ask]) -> tuple[list[GaugeAsk | SliceAsk], list[Ask]]:
    exchanged = [ask for ask in asks if isinstance(ask, GaugeAsk | SliceAsk)]
    return exchanged, [ask for ask in asks if not isinstance(ask, GaugeAsk | SliceAsk)] if exchanged else list(asks)


def _in_calls(asks: Sequence[Ask]) -> list[Sequence[Ask]]:
    """Return asks in parts for one call each; no asks are a part as well."""
    return [asks[start : start + CALL_MAX] for start in range(0, max(1, len(asks)), CALL_MAX)]


def _parts(replied: object) -> list[bytes]:
    parts = [part for part in replied if isinstance(part, bytes)] if isinstance(replied, list) else []
    if not isinstance(replied, list) or len(parts) != _PARTS or len(parts) < len(replied):
        raise WireError(f"the reply is no array of {_PARTS} texts")
    if (size := sum(map(len, parts))) > REPLY_BYTES_MAX:
        raise WireError(f"the reply has {size} bytes; at most {REPLY_BYTES_MAX} are read")
    return parts


def _answer(ask: Ask, raw: Raw, drop: Drop) -> Answer:
    name = "switches" if isinstance(ask, SwitchesAsk) else ask.key
    if bytes(raw) == _FALSE:  # an old ask
        return Lost()
    try:
        return _ANSWERS[type(ask)](raw, drop)
    except _DAMAGES as error:
        drop(name, str(error))
        return Lost()


def _packed(ask: Ask) -> object:
    if isinstance(ask, SwitchesAsk):
        return (
            "switches",
            [field for each in ask.switches for field in (each.name, each.value, each.left_s)],
            ask.after,
        )
    return ask


def _bucket(raw: Raw, _drop: Drop) -> BucketAnswer:
    return convert(("bucket", *_decode_scalars(raw)), BucketAnswer)


def _slots(raw: Raw, _drop: Drop) -> SlotsAnswer:
    return convert(("slots", *_decode_scalars(raw)), SlotsAnswer)


def _switches(raw: Raw, drop: Drop) -> SwitchesAnswer:
    number, fields, reached = _decode_switches(raw)
    triples = [fields[start : start + 3] for start in range(0, len(fields), 3)]
    read = (_item(each, drop) for each in triples)
    return convert(("switches", number, [item for item in read if item is not None], reached), SwitchesAnswer)


def _item(fields: Sequence[Raw], drop: Drop) -> SwitchState | None:
    """Return a switch; None if it is damaged, after it was reported."""
    try:
        return convert(tuple(map(_decode_any, fields)), SwitchState)
    except _DAMAGES as error:
        drop("switches", str(error))
        return None


_ANSWERS: Final[Mapping[type[Ask], Callable[[Raw, Drop], Answer]]] = {
    BucketAsk: _bucket,
    SlotsAsk: _slots,
    SwitchesAsk: _switches,
}
