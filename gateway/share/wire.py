"""The form in which `ttft1.lua` receives asks and returns answers. Pure.

Batches are msgpack arrays. Integers of slices travel as text, because Lua's numbers are exact up to 2^53 only. The rows
of a gauge are packed by themselves, because the server keeps them packed.

A client that can write to the server can forge a reply, so any bytes may come. The smallest damaged part is dropped: a
row of a gauge, a bin of a slice, news, or an answer. Only a reply without the form of one is an error. The types of the
parts, with their ranges, are those of gateway/share/words.py.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, TypeAlias, TypeVar

from msgspec import Meta, Raw, convert
from msgspec.msgpack import Decoder, Encoder

from gateway.share.words import (
    NAMES_MAX,
    ROW_MAX,
    Answer,
    Ask,
    BucketAnswer,
    BucketAsk,
    Drop,
    GaugeAnswer,
    GaugeAsk,
    Heads,
    Integer,
    Lost,
    Name,
    News,
    NewsAnswer,
    NewsAsk,
    Number,
    Reply,
    SliceAnswer,
    SliceAsk,
    SlotsAnswer,
    SlotsAsk,
    Sums,
    keep_silent,
)

REPLY_BYTES_MAX: Final = 64_000_000  # 32 asks with 24 bins of 3,000 names each have 50 MB
_DIGITS_MAX: Final = 20  # of an integer of 64 bits, with its sign
_DAMAGES: Final = (ValueError, RecursionError)  # what msgspec raises for any bytes

_Total: TypeAlias = Annotated[list[Integer], Meta(min_length=1, max_length=ROW_MAX + 1)]  # number of heads, then sums
_Named = Annotated[dict[Name, _Total], Meta(max_length=NAMES_MAX)]
_NamedRaw = Annotated[dict[Name, Raw], Meta(max_length=NAMES_MAX)]
_Empty = Annotated[list[None], Meta(max_length=0)]  # Lua has one kind of empty table, which is an array
_T = TypeVar("_T")

_encode = Encoder().encode
_decode = Decoder(tuple[list[Raw], Heads]).decode
_decode_scalars = Decoder(list[bool | int | float]).decode
_decode_gauge = Decoder(tuple[Heads, bool]).decode
_decode_named = Decoder(_Named | _Empty).decode
_decode_named_raw = Decoder(_NamedRaw).decode
_decode_total = Decoder(_Total).decode
_decode_slice = Decoder(tuple[Number, list[Raw]]).decode
_decode_number = Decoder(Number).decode
_decode_texts = Decoder(list[str]).decode
_decode_news = Decoder(tuple[Number, list[Raw], Heads]).decode
_decode_any = Decoder(str | float | int).decode


class WireError(ValueError):
    """A reply does not have the form of one."""


def pack(asks: Sequence[Ask]) -> list[bytes]:
    """Return the arguments of the function for a batch."""
    return [_encode([_packed(ask) for ask in asks]), *(_encode(ask.rows) for ask in asks if isinstance(ask, GaugeAsk))]


def unpack(asks: Sequence[Ask], replied: object, drop: Drop = keep_silent) -> Reply:
    """Return the reply to a batch, without its damaged parts.

    Args:
        replied: value that the client library has read.
        drop: receives each damaged part.

    Raises:
        WireError: it is not a reply to this batch.
    """
    first, *sums = _parts(replied)
    try:
        raws, heads = _decode(first)
    except _DAMAGES as error:
        raise WireError(f"the reply has an unknown form: {error}") from None
    gauges = sum(isinstance(ask, GaugeAsk) for ask in asks)
    if len(raws) != len(asks) or len(sums) != gauges:
        raise WireError(f"the reply has {len(raws)} answers and {len(sums)} sums to {len(asks)} asks, {gauges} of sums")
    rest = iter(sums)
    return Reply([_answer(ask, raw, rest, drop) for ask, raw in zip(asks, raws, strict=True)], heads)


def _parts(replied: object) -> list[bytes]:
    parts = [part for part in replied if isinstance(part, bytes)] if isinstance(replied, list) else []
    if not isinstance(replied, list) or not parts or len(parts) < len(replied):
        raise WireError("the reply is no array of texts")
    if (size := sum(map(len, parts))) > REPLY_BYTES_MAX:
        raise WireError(f"the reply has {size} bytes; at most {REPLY_BYTES_MAX} are read")
    return parts


def _answer(ask: Ask, raw: Raw, sums: Iterator[bytes], drop: Drop) -> Answer:
    packed = next(sums) if isinstance(ask, GaugeAsk) else b""
    name = "news" if isinstance(ask, NewsAsk) else ask.key

    def drop_part(part: str, fault: str) -> None:
        drop(f"{name} {part}".rstrip(), fault)

    try:
        if isinstance(ask, GaugeAsk):
            return _gauge(ask, raw, packed, drop_part)
        return _ANSWERS[type(ask)](raw, drop_part)
    except _DAMAGES as error:
        drop_part("", str(error))
        return Lost()


def _packed(ask: Ask) -> object:
    if isinstance(ask, GaugeAsk):
        return ("gauge", ask.key)
    if isinstance(ask, SliceAsk):
        return ("slice", ask.key, [text for name, added in ask.added.items() for text in (name, str(added))], ask.since)
    if isinstance(ask, NewsAsk):
        return ("news", [field for news in ask.news for field in (news.name, news.value, news.left_s)], ask.after)
    return ask


def _bucket(raw: Raw, _drop: Drop) -> BucketAnswer:
    return convert(("bucket", *_decode_scalars(raw)), BucketAnswer)


def _slots(raw: Raw, _drop: Drop) -> SlotsAnswer:
    return convert(("slots", *_decode_scalars(raw)), SlotsAnswer)


def _gauge(ask: GaugeAsk, raw: Raw, packed: bytes, drop: Drop) -> GaugeAnswer:
    """Return the sums over other heads: those over all without the head's own rows."""
    heads, is_counted = _decode_gauge(raw)
    others: dict[str, list[int]] = {}
    for name, (_, *total) in _totals(packed, drop):
        if is_counted and not _subtract(total, ask.rows.get(name, ())):
            drop(name, "it is shorter than the part of this gateway")
        elif any(total):
            others[name] = total
    return GaugeAnswer(heads, others)


def _totals(packed: bytes, drop: Drop) -> Iterator[tuple[str, list[int]]]:
    try:
        named = _decode_named(packed)
    except _DAMAGES:
        for name, raw in _decode_named_raw(packed).items():
            if (total := _undamaged(_decode_total, raw, name, drop)) is not None:
                yield name, total
    else:
        yield from named.items() if isinstance(named, dict) else ()


def _subtract(total: list[int], own: Sequence[int]) -> bool:
    """Subtract a row; return False if it is the longer one."""
    if len(own) > len(total):
        return False
    for place, value in enumerate(own):
        total[place] -= value
    return True


def _slice(raw: Raw, drop: Drop) -> SliceAnswer:
    now, bins = _decode_slice(raw)
    found = {}
    for number, texts in _pairs(bins):
        sums = _undamaged(_sums, texts, "bin", drop)
        if sums is not None:
            found[_decode_number(number)] = sums
    return convert(("slice", now, found), SliceAnswer)


def _sums(raw: Raw) -> dict[str, int]:
    pairs = list(_pairs(_decode_texts(raw)))
    if any(len(text) > _DIGITS_MAX for _, text in pairs):
        raise ValueError("a sum has too many digits")
    return convert({name: int(text) for name, text in pairs}, Sums)


def _news(raw: Raw, drop: Drop) -> NewsAnswer:
    number, fields, reached = _decode_news(raw)
    triples = [fields[start : start + 3] for start in range(0, len(fields), 3)]
    read = (_undamaged(_item, each, "", drop) for each in triples)
    return convert(("news", number, [item for item in read if item is not None], reached), NewsAnswer)


def _item(fields: Sequence[Raw]) -> News:
    return convert(tuple(map(_decode_any, fields)), News)


def _undamaged(read: Callable[[Any], _T], raw: object, name: str, drop: Drop) -> _T | None:
    """Return a part; None if it is damaged, after it was reported."""
    try:
        return read(raw)
    except _DAMAGES as error:
        drop(name, str(error))
        return None


def _pairs(flat: Sequence[_T]) -> Iterator[tuple[_T, _T]]:
    return zip(flat[::2], flat[1::2], strict=True)


_ANSWERS: Final[Mapping[type[Ask], Callable[[Raw, Drop], Answer]]] = {
    BucketAsk: _bucket,
    SlotsAsk: _slots,
    SliceAsk: _slice,
    NewsAsk: _news,
}
