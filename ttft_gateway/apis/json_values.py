"""Bounds the work of decoding a JSON document before it is decoded: an object costs a multiple of its bytes. Pure.

A document is light if it has few values for its size. Its decoding takes some milliseconds and little memory, whatever
the values are. Units: bytes, values.
"""

import re
from typing import Final

import msgspec

ITEMS_MAX: Final = 2_048
"""Tool calls, blocks or output items of one answer that is assembled or translated; each takes some 8 us."""

VALUES_MIN: Final = 15_000  # values of a small document: 30 ms if each is translated
_BYTES_PER_VALUE: Final = 64  # of a large document: an agent's messages have 100 to 1,000
plain_text: Final = re.compile(rb"[ !#-\[\]-\x7f]+").fullmatch
"""Matches the text of a JSON string that has neither escapes nor bytes outside ASCII, and is not empty."""

_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
# Where items of an array may end: after tokens with alternatives, objects in objects, and so on.
_ENDS: Final = (b"}]},", b"}},", b"]},", b"},", b"],", b",")
_THINNED_MIN: Final = 8 * 1024
# Text of a string: bytes without a quote, of which some are found in no number, true, false, null or NaN.
_TEXT: Final = re.compile(rb"(?:[ !#-\[\]-\xff]++|\\.)++").fullmatch
_ONLY_IN_TEXT: Final = re.compile(rb"[A-DG-HJ-MO-Zb-dg-hj-kmo-qv-z\\\x80-\xff]").search
_WHOLE: Final = re.compile(rb"[ !#-\[\]-\xff]{7}|\\u[0-9a-fA-F]{4}").search  # no escape ends after it

_skip = msgspec.json.Decoder(msgspec.Raw).decode


def count_values(data: bytes) -> int:
    """Return an upper bound of the number of values in a piece of a document: its punctuation, in strings too."""
    return data.count(b",") + data.count(b"{") + data.count(b"[")


def values_max(size: int, values_min: int = VALUES_MIN) -> int:
    """Return the largest number of values of a light document of `size` bytes."""
    return values_min + size // _BYTES_PER_VALUE


def is_light(document: bytes, values_min: int = VALUES_MIN) -> bool:
    """Return True if a document has few values for its size.

    A count of punctuation or of keys is enough for nearly all documents; of others the strings are removed.
    """
    most = values_max(len(document), values_min)
    if count_values(document) <= most:
        return True
    if document.count(b'":') - document.count(b'\\":') > most:  # each ends a key, unless its quote is escaped
        return False
    return count_values(_STRING.sub(b"", document, 2 * most)) <= most


def thinned(piece: bytes) -> bytes:
    """Return a piece of a document without most of its items and texts, so that the document stays valid or invalid.

    Items between two places where items of one array may end are left out if they are valid as an array of their own,
    which is checked without building them. Example: `6,1],[0,7],[4,2],[8` becomes `6,1],0,[8`.
    """
    if len(piece) < _THINNED_MIN:
        return piece
    for end in _ENDS:
        start, stop = piece.find(end) + len(end), piece.rfind(end) + len(end) - 1
        if 4 * (stop - start) > len(piece) and _is_valid(b"[%b]" % piece[start:stop]):
            return b"%b0%b" % (thinned(piece[:start]), thinned(piece[stop:]))
    if _TEXT(piece) and _ONLY_IN_TEXT(piece) and (whole := _WHOLE(piece)):
        return piece[: whole.end()]  # its first bytes may end an escape
    half = len(piece) // 2
    return thinned(piece[:half]) + thinned(piece[half:])


def _is_valid(array: bytes) -> bool:
    try:
        _skip(array)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
