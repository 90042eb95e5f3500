"""What is wrong with a body that is not JSON, in words that help. Pure.

Looks only at the place where the parser stopped; never shows more than that. Units: bytes.
"""

import re

_AT = re.compile(r"byte (\d+)")
_HINTS = (
    (re.compile(rb"^'"), "strings are quoted with \", not with '"),
    (re.compile(rb"^(True|False|None)\b"), "write true, false and null, not True, False and None"),
    (re.compile(rb"^(NaN|-?Infinity)\b"), "NaN and Infinity are not JSON"),
    (re.compile(rb"^\xef\xbb\xbf"), "the body begins with a byte order mark; leave it out"),
    (re.compile(rb"^(//|/\*|#)"), "JSON has no comments"),
)


def hint(body: bytes, error: str) -> str:
    """The parser's words, with line and column, and a guess at the mistake."""
    found = _AT.search(error)
    if found is None:
        return error
    at = min(int(found[1]), len(body))
    line = body.count(b"\n", 0, at) + 1
    column = at - (body.rfind(b"\n", 0, at) + 1) + 1
    text = f"{error.partition(' (byte')[0]}, at line {line}, column {column}"
    for pattern, meaning in _HINTS:
        if pattern.match(body, at) or pattern.match(body[at : at + 20]):
            return f"{text}; {meaning}"
    if body[:at].rstrip().endswith(b",") and body[at : at + 1] in b"}]":
        return f"{text}; a comma stands before the closing bracket"
    return text
