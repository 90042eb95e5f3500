"""Counts the items of arrays in a request body, without building more items than are allowed. Pure. Units: bytes.

An empty object takes three bytes of a body and a multiple of that in memory; building and freeing it holds the event
loop. A count ends at the first item over the maximum, and the token numbers of a large array are checked as bytes.
"""

import enum
from collections.abc import Mapping
from typing import Final

import msgspec

from ttft_gateway.requests.errors import InvalidRequest
from ttft_gateway.requests.field_errors import DECODED_MAX, MESSAGES_MAX, PROMPTS_MAX, TOOLS_MAX, too_long
from ttft_gateway.requests.parsed import AnyArray, Prompts, Tokens, prompt_count

_MAXIMA: Final = {"tools": TOOLS_MAX, "input": MESSAGES_MAX}
OBJECTS_MAX: Final = min(_MAXIMA.values())
"""Number of opening braces up to which no array of objects is counted before it is decoded."""

_left: list[None] = []  # items that the running count still accepts


class _TooManyError(Exception):
    """The counted array has more items than are allowed."""


def _count_one() -> None:
    if not _left:
        raise _TooManyError
    _left.pop()


class _Object(msgspec.Struct, gc=False):
    """Any object; each is counted."""

    def __post_init__(self) -> None:
        _count_one()


class _Array(msgspec.Struct, array_like=True, gc=False):
    """Any array; each is counted."""

    def __post_init__(self) -> None:
        _count_one()


class _Text(enum.Enum):
    """Any text; each is counted, except this one, which is longer than most."""

    ANY = "a text that is not counted"

    @classmethod
    def _missing_(cls, _value: object) -> "_Text | None":
        _left.pop()  # after the last one this raises an error, which msgspec turns into its own
        return cls.ANY


_count_objects = msgspec.json.Decoder(list[_Object]).decode
_count_arrays = msgspec.json.Decoder(list[_Array]).decode
_count_texts = msgspec.json.Decoder(list[_Text]).decode
_decode_prompts = msgspec.json.Decoder(Prompts).decode
_decode_token_arrays = msgspec.json.Decoder(list[Tokens]).decode

_encode = msgspec.json.Encoder().encode

_BRACKET: Final = ord("[")
_SPACE: Final = b" \t\r\n"
_IN_NUMBERS: Final = b"0123456789+-.eE," + _SPACE


def has_objects(raw: msgspec.Raw | bytes, maximum: int) -> bool:
    """Return True if a value is an array of objects, not more than allowed."""
    _left[:] = [None] * maximum
    try:
        _count_objects(raw)
    except (msgspec.DecodeError, _TooManyError):
        return False
    return True


def check_objects(raws: Mapping[str, msgspec.Raw]) -> None:
    """Check the lengths of the arrays of which the items may be empty objects.

    Raises:
        InvalidRequest: an array is too long.
    """
    for name, maximum in _MAXIMA.items():
        if name in raws:
            _left[:] = [None] * maximum
            try:
                _count_objects(raws[name])
            except msgspec.ValidationError:
                continue  # the field has another type; the typed decode of the body reports it
            except _TooManyError:
                raise too_long(name, maximum) from None


def without_prompts(name: str, body: bytes, raws: Mapping[str, msgspec.Raw]) -> bytes:
    """Return a body for a decode that skips the items of an array: without them if the array is large."""
    raw = raws.get(name, b"")
    if len(raw) <= DECODED_MAX or memoryview(raw)[0] != _BRACKET:
        return body
    return _encode({**raws, name: msgspec.Raw(b"[]")})


def count_prompts(name: str, prompt: str | AnyArray | None, raws: Mapping[str, msgspec.Raw]) -> int:
    """Return the number of prompts, 0 for none or for items of several types.

    Args:
        name: key of the prompt.
        prompt: a text, or an array of texts, of token numbers, or of arrays of token numbers.
        raws: the values of the top level.

    Raises:
        InvalidRequest: there are more than `PROMPTS_MAX`, or a token of a large array is not a whole number.
        msgspec.ValidationError: an item has another type.
    """
    if prompt is None or isinstance(prompt, str):
        return 0 if prompt is None else 1
    raw = bytes(raws[name])
    try:
        if len(raw) > DECODED_MAX:
            return _count_large(name, raw)
        prompts = _decode_prompts(raw)
        if set(map(type, prompts)) == {AnyArray}:
            return _allowed(name, prompt_count(_decode_token_arrays(raw)))
        count = prompt_count(prompts)
    except msgspec.ValidationError as error:
        raise msgspec.ValidationError(str(error).replace("`$", f"`$.{name}")) from None
    return _allowed(name, count)


def _allowed(name: str, count: int) -> int:
    if count > PROMPTS_MAX:
        raise too_long(name, PROMPTS_MAX, count)
    return count


def _count_large(name: str, raw: bytes) -> int:
    """Return the number of prompts in a large array."""
    _left[:] = [None] * PROMPTS_MAX
    brackets = raw.translate(None, _IN_NUMBERS)
    arrays = len(brackets) // 2 - 1
    try:
        if brackets == b"[]":
            _check_whole(name, raw)
            return int(bool(raw[1:-1].strip()))
        if brackets == b"[%b]" % (b"[]" * arrays):
            _count_arrays(raw)
            _check_whole(name, raw)
            return arrays
        return _allowed(name, len(_count_texts(raw)))
    except _TooManyError:
        raise too_long(name, PROMPTS_MAX) from None
    except msgspec.ValidationError:
        if not _left:
            raise too_long(name, PROMPTS_MAX) from None
        raise


def _check_whole(name: str, raw: bytes) -> None:
    """Check that all numbers are written like 16 or 16.0."""
    compact = raw if b"." in raw else b""
    if any(space in raw for space in (b" ", b"\t", b"\r", b"\n")):
        compact = compact.translate(None, _SPACE)
    fractions = compact.count(b".") - compact.count(b".0,") - compact.count(b".0]")
    if fractions or b"e" in raw or b"E" in raw:
        raise InvalidRequest(
            f"`{name}` has a token number with a fraction or an exponent; write whole numbers like 16",
            param=name,
            code="invalid_type",
        )
