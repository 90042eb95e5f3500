"""JSON as upstreams really send it: read and write what Python's own json module accepts, at msgspec's speed otherwise.

Servers written in Python send NaN, Infinity and halves of surrogate pairs (an emoji cut in two by a tokenizer); clients
written in Python read them. Knows nothing of what the JSON means.
"""

import json

import msgspec

_COUNT_MAX = 10**9  # a thousand times the longest context

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def loads(data: bytes) -> object:
    """Parse one JSON document; None when it is none, or is nested too deeply to be an answer."""
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
    """Write JSON, compactly; halves of surrogate pairs leave as the escapes they came as."""
    try:
        return _encode(value)
    except (UnicodeEncodeError, OverflowError):
        return json.dumps(value, separators=(",", ":")).encode()


def as_count(value: object) -> int | None:
    """A count of tokens, as an integer or a float that is one; None for what no answer can have."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _COUNT_MAX else None


def as_key(value: object) -> object:
    """A JSON value as the key of a dictionary: an index may be anything, if only the same one comes again."""
    return dumps(value) if isinstance(value, (dict, list)) else value
