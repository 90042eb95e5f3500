"""The form in which `ttft1.lua` receives asks and returns answers. Pure.

Batches are msgpack arrays. Integers of slices travel as text, because Lua's numbers are exact up to 2^53 only. The rows
of a gauge are packed by themselves, because the server keeps them packed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from msgspec.msgpack import Decoder, Encoder

from gateway.share.words import (
    Answer,
    Ask,
    BucketAnswer,
    BucketAsk,
    GaugeAnswer,
    GaugeAsk,
    News,
    NewsAnswer,
    NewsAsk,
    Reply,
    SliceAnswer,
    SliceAsk,
    SlotsAnswer,
    SlotsAsk,
)

_encode = Encoder().encode
_Raw: TypeAlias = Sequence[Any]
_decode = Decoder(tuple[list[list[Any]], int]).decode
_decode_sums = Decoder(dict[str, list[int]] | list[Any]).decode  # Lua has one kind of empty table, which is an array


def pack(asks: Sequence[Ask]) -> list[bytes]:
    """Return the arguments of the function for a batch."""
    return [_encode([_packed(ask) for ask in asks]), *(_encode(ask.rows) for ask in asks if isinstance(ask, GaugeAsk))]


def unpack(asks: Sequence[Ask], replied: Sequence[bytes]) -> Reply:
    """Return the reply to a batch.

    Raises:
        ValueError: it is not a reply to this batch.
    """
    try:
        raws, heads = _decode(replied[0])
        sums = iter(replied[1:])
        answers: list[Answer] = [
            _gauge(ask, raw, _decode_sums(next(sums))) if isinstance(ask, GaugeAsk) else _ANSWERS[type(ask)](raw)
            for ask, raw in zip(asks, raws, strict=True)
        ]
    except (IndexError, StopIteration, TypeError, ValueError) as error:
        raise ValueError(f"the reply has an unknown form: {error}") from None
    return Reply(answers, heads)


def _packed(ask: Ask) -> object:
    if isinstance(ask, GaugeAsk):
        return ("gauge", ask.key)
    if isinstance(ask, SliceAsk):
        return ("slice", ask.key, [text for name, added in ask.added.items() for text in (name, str(added))], ask.since)
    if isinstance(ask, NewsAsk):
        return ("news", [field for news in ask.news for field in (news.name, news.value, news.left_s)], ask.after)
    return ask


def _bucket(raw: _Raw) -> BucketAnswer:
    granted, left, wait_s, epoch, amount = raw
    return BucketAnswer(float(granted), float(left), float(wait_s), epoch, float(amount))


def _slots(raw: _Raw) -> SlotsAnswer:
    granted, others, limit, wanted = raw
    return SlotsAnswer(granted, others, limit, wanted)


def _gauge(ask: GaugeAsk, raw: _Raw, sums: Mapping[str, Sequence[int]] | Sequence[object]) -> GaugeAnswer:
    """Return the sums over other heads: those over all without the head's own rows."""
    heads, is_counted = raw
    others: dict[str, list[int]] = {}
    for name, (_, *total) in sums.items() if isinstance(sums, Mapping) else ():
        if is_counted:
            for place, own in enumerate(ask.rows.get(name, ())):
                total[place] -= own
        if any(total):
            others[name] = total
    return GaugeAnswer(heads, others)


def _slice(raw: _Raw) -> SliceAnswer:
    now, bins = raw
    return SliceAnswer(now, {number: _sums(texts) for number, texts in _pairs(bins)})


def _sums(texts: _Raw) -> dict[str, int]:
    return {name: int(text) for name, text in _pairs(texts)}


def _news(raw: _Raw) -> NewsAnswer:
    number, fields, reached = raw
    return NewsAnswer(number, [News(*fields[i : i + 3]) for i in range(0, len(fields), 3)], reached)


def _pairs(flat: _Raw) -> Iterator[tuple[Any, Any]]:
    return zip(flat[::2], flat[1::2], strict=True)


_ANSWERS: Final[Mapping[type[Ask], Callable[[_Raw], Answer]]] = {
    BucketAsk: _bucket,
    SlotsAsk: _slots,
    SliceAsk: _slice,
    NewsAsk: _news,
}
