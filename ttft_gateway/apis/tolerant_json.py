"""Reads and writes JSON as upstreams really send it: all that Python's json module accepts, at msgspec's speed.

Servers written in Python send NaN, Infinity and unpaired surrogates (an emoji split by a tokenizer); clients written in
Python accept them.
"""

import json

import msgspec

_COUNT_MAX = 10**9  # a thousand times the longest context

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def loads(data: bytes) -> object:
    """Parse one JSON document; None if it is invalid, or nested too deeply to be an answer."""
    try:
        return _decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        pass
    try:
        value: object = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value


def dumps(value: object) -> bytes:
    """Write compact JSON; unpaired surrogates are written as escapes."""
    try:
        return _encode(value)
    except (UnicodeEncodeError, OverflowError):
        return json.dumps(value, separators=(",", ":")).encode()


def as_count(value: object) -> int | None:
    """Return a count of tokens from an integer, or a float with an integer value; None for impossible values."""
    if type(value) is int:  # a bool is no count
        return value if 0 <= value <= _COUNT_MAX else None
    return as_count(int(value)) if isinstance(value, float) and value.is_integer() else None


def as_key(value: object) -> object:
    """Return a JSON value as a dictionary key: an index may have any type, if equal ones mean the same item."""
    return dumps(value) if isinstance(value, (dict, list)) else value
