"""The error of an invalid request, and its text for a request as a whole: its headers, its encoding, its JSON. Pure.

Used only after `ttft_gateway.requests.request` has rejected a request, so it may be slow. A message has what was found,
where, and what to send instead, and shows at most some 60 characters of the client's data. Codes are OpenAI's where
OpenAI has one. Units: bytes; lines and columns count from 1, columns in characters.
"""

import re
from typing import Final

_SHOWN_MAX: Final = 60  # characters
_EXAMPLE: Final = '{"model": "...", "messages": [{"role": "user", "content": "..."}]}'

# compiled at the first use, because the time to import counts
_BYTE: Final = r" \(byte (\d+)\)"
_WORD_BEGIN: Final = rb"[\w.+-]*\Z"  # the decoder reports an offset inside a literal or number
_WORD: Final = r"(?s)\\?[\w.+-]{1,20}|."
_AFTER_COMMA: Final = r",\s*\Z"
# JSON escapes a character above U+FFFF as a surrogate pair, high half first. Matches an unpaired half:
#     "\ud83d\ude00"   a pair, U+1F600                    no match
#     "\ud83d!"        no low half after the high half    matches \ud83d
#     "x\ude00"        no high half before the low half   matches \ude00
#     "\\ud83d"        an escaped backslash, then text    no match: of two backslashes the second starts no escape
#     "\ud83"          three digits                       no match: no half, but an invalid escape
_HALF_CHARACTER: Final = (
    rb"(?<!\\)(?:\\\\)*+(\\u[dD](?:[89abAB]%b(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]%b\\u[dD])[c-fC-F]%b))"
    % (3 * (rb"[\da-fA-F]{2}",))
)
_HALF_BYTES_MAX: Final = 32  # from the decoder's offset back to the half: at most two escapes and what follows
_ADVICE: Final = (
    (r"'", "write keys and strings in double quotes"),
    (r"(?i:true|false)\Z", "write true or false in lower case"),
    (r"(?i:none|null|nil|undefined)\Z", "write null"),
    (r"(?i:[+-]?(nan|inf))", "this is not a JSON number; write a finite number or null"),
    (r"[/#]", "comments are not allowed in JSON; remove them"),
    ("\ufeff", "this is a byte order mark; send UTF-8 without it"),
    ("[\u2018-\u201f]", 'this is a typographic quote; write "'),
    (r"\0", "this seems to be UTF-16; send UTF-8"),
    (r"[\x01-\x1f]", "this is a control character; in strings write a line break as \\n and a tab as \\t"),
    (
        r"[+.-]|\d",
        "invalid number; start it with a digit or -, without leading zeros, and write digits after the decimal point",
    ),
    (r"[^\W\d]", "write keys and strings in double quotes; the only bare words are true, false and null"),
)


class InvalidRequest(Exception):
    """The body of a request cannot be read, or is not valid in its API.

    Args:
        message: `<what> is <state>; <action>`.
        param: request field that caused the error; None if no field did.
        code: code of the error in OpenAI's API; None if it has none.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


def content_type(media_type: bytes) -> InvalidRequest:
    """Build the error for a body with another declared media type than JSON."""
    return InvalidRequest(
        f"the content type is `{_header(media_type)}`; send JSON with the header `content-type: application/json` "
        "(curl sends form data by default; add -H 'content-type: application/json')",
        param="content-type",
        code="unsupported_value",
    )


def content_encoding(encoding: bytes) -> InvalidRequest:
    """Build the error for a body that is declared as compressed."""
    return InvalidRequest(
        f"the content encoding is `{_header(encoding)}`; send the body uncompressed, without `content-encoding`",
        param="content-encoding",
        code="unsupported_value",
    )


def switch_header(name: str, value: bytes) -> InvalidRequest:
    """Build the error for a header that is neither `on` nor `off`."""
    return InvalidRequest(
        f"header `{name}` is `{_header(value)}`; write `on` or `off`, or remove it",
        param=name,
        code="invalid_value",
    )


def form_model(size: int, bytes_max: int) -> InvalidRequest:
    """Build the error for a form with a model name that is too long."""
    return InvalidRequest(
        f"`model` has {size} bytes; a name has at most {bytes_max}", param="model", code="invalid_value"
    )


def form_models() -> InvalidRequest:
    """Build the error for a form that may name several models."""
    return InvalidRequest(
        "the form has `model` in several parts, or in a part that does not begin with `content-disposition: form-data; "
        'name="model"`; write it once, in this form',
        param="model",
        code="invalid_value",
    )


def form_parts(parts_max: int) -> InvalidRequest:
    """Build the error for a form with too many parts."""
    return InvalidRequest(f"the form has over {parts_max} parts; send fewer", code="invalid_value")


def duration_header(name: str, value: bytes) -> InvalidRequest:
    """Build the error for a header that is no duration."""
    return InvalidRequest(
        f"header `{name}` is `{_header(value)}`; write a duration such as `500ms` or `3s`, or remove it",
        param=name,
        code="invalid_value",
    )


def too_deep() -> InvalidRequest:
    """Build the error for a body nested more deeply than the decoder supports."""
    return _syntax("arrays and objects are nested too deeply; use a few dozen levels at most")


def not_utf8(body: bytes, offset: int) -> InvalidRequest:
    """Build the error for a body that is not UTF-8; `offset` is the position of the first invalid byte."""
    if body.startswith((b"\xff\xfe", b"\xfe\xff")):
        advice = "this seems to be UTF-16; send UTF-8"
    elif body.startswith(b"\x1f\x8b"):
        advice = "this seems to be gzip; send it uncompressed"
    else:
        advice = "send UTF-8"
    return _syntax(f"byte 0x{body[offset]:02x} at {_position(body, offset)} is not UTF-8; {advice}")


def not_object(body: bytes) -> InvalidRequest:
    """Build the error for valid JSON that is not an object."""
    value = {b"[": "an array", b'"': "a string"}.get(body.lstrip()[:1], "a single value")
    hint = " (was it encoded twice?)" if value == "a string" else ""
    return InvalidRequest(f"the body is {value}{hint}; send one JSON object, like {_EXAMPLE}", code="invalid_type")


def too_long_keys(maximum: int) -> InvalidRequest:
    """Build the error for keys at the top level that are too long together."""
    return InvalidRequest(
        f"the keys at the top level of the body have over {maximum} characters; send at most {maximum}",
        code="object_above_max_properties",
    )


def too_many_keys(maximum: int) -> InvalidRequest:
    """Build the error for a body with too many keys at its top level."""
    return InvalidRequest(
        f"the body has over {maximum} keys at its top level; send at most {maximum}",
        code="object_above_max_properties",
    )


def duplicate(key: str) -> InvalidRequest:
    """Build the error for a duplicate key at the top level."""
    name = cut(key)
    return InvalidRequest(
        f"key `{name}` is duplicated at the top level of the body; write it once", param=name, code="duplicate_key"
    )


def not_json(body: bytes, error: str) -> InvalidRequest:
    """Build the error for a body that is not valid JSON.

    Args:
        body: the body, in UTF-8.
        error: the decoder's message.
    """
    if not body.strip():
        return InvalidRequest(f"the body is empty; send one JSON object, like {_EXAMPLE}", code="invalid_json")
    if half := _half_character(body, error):
        offset = half.start(1)
        return _syntax(
            f"{_position(body, offset)}: unpaired surrogate escape `{half[1].decode()}`; send both halves of the pair"
        )
    if (located := re.search(_BYTE, error)) is None:
        return _syntax(f'the body ends at {_position(body, len(body))} before a closing ", ] or }}; send it whole')
    offset = int(located[1])
    if "trailing characters" in error:
        offset -= 1  # the decoder reports one more
    elif "escape" in error:
        offset = body.rfind(b"\\", 0, offset)
    elif body[offset : offset + 1] >= b" ":
        word_start = re.compile(_WORD_BEGIN).search(body, max(0, offset - 20), offset)
        offset = offset if word_start is None else word_start.start()
    word = re.match(_WORD, body[offset : offset + 80].decode(errors="replace"))
    found = word[0] if word else ""
    shown = f": found `{found}`" if found.isprintable() else ""
    return _syntax(f"{_position(body, offset)}{shown}; {_advice(body[:offset].decode(errors='replace'), found, error)}")


def _half_character(body: bytes, error: str) -> re.Match[bytes] | None:
    """Return the unpaired surrogate that the decoder has found: just before its offset, or at the end of the body.

    A search of the whole body would take longer than its decoding.
    """
    located = re.search(_BYTE, error)
    end = len(body) if located is None else int(located[1])
    if located is not None and "surrogate" not in error and "escape" not in error:
        return None
    return re.compile(_HALF_CHARACTER).search(body, max(0, end - _HALF_BYTES_MAX))


def _advice(before: str, found: str, error: str) -> str:
    """Return what to write instead of `found`."""
    if "trailing characters" in error:
        return "the JSON object has already ended; send exactly one"
    if found in ("]", "}") and re.search(_AFTER_COMMA, before[-100:]):
        return "remove the comma before it"
    if "expected ','" in error:
        return 'add a comma before it, or write a " within a string as \\"'
    if "expected ':'" in error:
        return "add a colon after the key"
    if "escape" in error:
        return 'after a backslash write one of "\\/bfnrt, or u and four hex digits; write a backslash as \\\\'
    if not before.strip() and found.isprintable():
        return f"the body must start with {{, like {_EXAMPLE}"
    fitting = (advice for pattern, advice in _ADVICE if re.match(pattern, found))
    return next(fitting, "this is not allowed here")


def _syntax(message: str) -> InvalidRequest:
    return InvalidRequest(f"the body is not valid JSON: {message}", code="invalid_json")


def _position(body: bytes, offset: int) -> str:
    before = body[:offset].decode(errors="replace")
    line_at = before.count("\n") + 1
    return f"line {line_at}, column {len(before) - before.rfind(chr(10))}"


def cut(text: str) -> str:
    """Cut the client's text to the length that a message may show."""
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 1] + "…"


def _header(value: bytes) -> str:
    return cut(value.decode("latin-1"))
