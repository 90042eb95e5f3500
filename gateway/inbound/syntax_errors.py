"""Builds the errors for a request as a whole: its headers, its encoding, its JSON. Pure.

Used only after `gateway.inbound.request` has rejected a request, so it may be slow. A message has what was found,
where, and what to send instead, and shows at most some 60 characters of the client's data. Codes are OpenAI's where
OpenAI has one. Units: bytes; lines and columns count from 1, columns in characters.
"""

import re
from typing import Final

from gateway.errors import BadRequest

_SHOWN_MAX: Final = 60  # characters
_EXAMPLE: Final = '{"model": "...", "messages": [{"role": "user", "content": "..."}]}'

_BYTE: Final = re.compile(r" \(byte (\d+)\)")
_WORD_BEGIN: Final = re.compile(rb"[\w.+-]*\Z")  # the decoder reports an offset inside a literal or number
_WORD: Final = re.compile(r"\\?[\w.+-]{1,20}|.", re.DOTALL)
_AFTER_COMMA: Final = re.compile(r",\s*\Z")
# JSON escapes a character above U+FFFF as a surrogate pair, high half first. Matches a half without the other one:
#     "\ud83d\ude00"   a pair, U+1F600                    no match
#     "\ud83d!"        no low half after the high half    matches \ud83d
#     "x\ude00"        no high half before the low half   matches \ude00
#     "\\ud83d"        an escaped backslash, then text    no match: of two backslashes the second starts no escape
_HALF_CHARACTER: Final = re.compile(
    rb"(?<!\\)(?:\\\\)*+(\\u[dD](?:[89abAB]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..\\u[dD])[c-fC-F]..))"
)
_ADVICE: Final = (
    (r"'", "names and strings stand in double quotes, not in single ones"),
    (r"(?i:true|false)\Z", "write true or false, in lower case"),
    (r"(?i:none|null|nil|undefined)\Z", "write null"),
    (r"(?i:[+-]?(nan|inf))", "JSON has no such number; write another one, or null"),
    (r"[/#]", "JSON has no comments; take them out"),
    ("\ufeff", "this is a byte order mark; send UTF-8 without it"),
    ("[\u2018-\u201f]", 'this is a typographic quote; write "'),
    (r"\0", "this looks like UTF-16; send UTF-8"),
    (r"[\x01-\x1f]", "a control character; within strings write a line break as \\n, a tab as \\t"),
    (r"[+.-]|\d", "a number begins with a digit or -, without leading zeros, and has digits behind its point"),
    (r"[^\W\d]", "names and strings stand in double quotes; the only bare words are true, false and null"),
)


def content_type(media_type: bytes) -> BadRequest:
    """Build the error for a body whose declared media type is not JSON."""
    return BadRequest(
        f"the body was sent as `{_header(media_type)}`; send JSON, with the header `content-type: application/json` "
        "(curl says form data unless told otherwise: -H 'content-type: application/json')",
        param="content-type",
        code="unsupported_value",
    )


def content_encoding(encoding: bytes) -> BadRequest:
    """Build the error for a body that is declared as compressed."""
    return BadRequest(
        f"the body was sent with `content-encoding: {_header(encoding)}`; send it uncompressed, without this header",
        param="content-encoding",
        code="unsupported_value",
    )


def switch_header(name: str, value: bytes) -> BadRequest:
    """Build the error for a header that is neither `on` nor `off`."""
    return BadRequest(
        f"the header `{name}` is `{_header(value)}`; write `on` or `off`, or leave it out",
        param=name,
        code="invalid_value",
    )


def too_deep() -> BadRequest:
    """Build the error for a body nested more deeply than the decoder supports."""
    return _syntax("arrays and objects are nested too deeply; a request needs a few dozen levels at most")


def not_utf8(body: bytes, offset: int) -> BadRequest:
    """Build the error for a body that is not UTF-8; `offset` is that of the first invalid byte."""
    if body.startswith((b"\xff\xfe", b"\xfe\xff")):
        advice = "this looks like UTF-16; send UTF-8"
    elif body.startswith(b"\x1f\x8b"):
        advice = "this looks like gzip; send it uncompressed"
    else:
        advice = "send UTF-8"
    return _syntax(f"byte 0x{body[offset]:02x} at {_position(body, offset)} is not UTF-8; {advice}")


def not_object(body: bytes) -> BadRequest:
    """Build the error for valid JSON that is not an object."""
    value = {b"[": "an array", b'"': "a string"}.get(body.lstrip()[:1], "a single value")
    hint = " (was it encoded twice?)" if value == "a string" else ""
    return BadRequest(f"the body is {value}{hint}; send one JSON object, like {_EXAMPLE}", code="invalid_type")


def too_many_keys(count: int, maximum: int) -> BadRequest:
    """Build the error for a body with too many keys at its top level."""
    return BadRequest(
        f"the body has {count} keys at its top level; this gateway takes {maximum}", code="object_above_max_properties"
    )


def duplicate(key: str) -> BadRequest:
    """Build the error for a duplicate key at the top level."""
    name = cut(key)
    return BadRequest(
        f"the key `{name}` stands twice at the top level of the body; write it once", param=name, code="duplicate_key"
    )


def not_json(body: bytes, error: str) -> BadRequest:
    """Build the error for a body that is not valid JSON.

    Args:
        body: the body, in UTF-8.
        error: the decoder's message.
    """
    if not body.strip():
        return BadRequest(f"the body is empty; send one JSON object, like {_EXAMPLE}", code="invalid_json")
    if half := _HALF_CHARACTER.search(body):
        offset = half.start(1)
        return _syntax(
            f"{_position(body, offset)}: half a character, cut in the middle; send both its escapes, or none"
        )
    if (located := _BYTE.search(error)) is None:
        return _syntax(f'the body ends at {_position(body, len(body))} with something not closed: a ", ] or }}')
    offset = int(located[1])
    if "trailing characters" in error:
        offset -= 1  # the decoder reports one more
    elif "escape" in error:
        offset = body.rfind(b"\\", 0, offset)
    elif (word_start := _WORD_BEGIN.search(body, max(0, offset - 20), offset)) and body[offset : offset + 1] >= b" ":
        offset = word_start.start()
    word = _WORD.match(body[offset : offset + 80].decode(errors="replace"))
    found = word[0] if word else ""
    shown = f": found `{found}`" if found.isprintable() else ""
    return _syntax(f"{_position(body, offset)}{shown}; {_advice(body[:offset].decode(errors='replace'), found, error)}")


def _advice(before: str, found: str, error: str) -> str:
    """Return what to write instead of `found`."""
    if "trailing characters" in error:
        return "the JSON object has ended before; send it alone, and once"
    if found in ("]", "}") and _AFTER_COMMA.search(before[-100:]):
        return "take the comma before it out"
    if "expected ','" in error:
        return 'a comma is missing before it, or a " within a string is not written as \\"'
    if "expected ':'" in error:
        return "a name is followed by a colon"
    if "escape" in error:
        return 'after a backslash stands one of "\\/bfnrt, or u and four hex digits; a backslash itself is \\\\'
    if not before.strip() and found.isprintable():
        return f"the body must begin with {{, like {_EXAMPLE}"
    fitting = (advice for pattern, advice in _ADVICE if re.match(pattern, found))
    return next(fitting, "this cannot stand here")


def _syntax(message: str) -> BadRequest:
    return BadRequest(f"the body is not valid JSON: {message}", code="invalid_json")


def _position(body: bytes, offset: int) -> str:
    before = body[:offset].decode(errors="replace")
    line_at = before.count("\n") + 1
    return f"line {line_at}, column {len(before) - before.rfind(chr(10))}"


def cut(text: str) -> str:
    """Cut the client's text to the length that a message may show."""
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 1] + "…"


def _header(value: bytes) -> str:
    return cut(value.decode("latin-1"))
