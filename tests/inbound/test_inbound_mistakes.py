"""What each typical mistake in a request body or header is told, word for word."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.inbound.field_errors import MESSAGES_MAX, PROMPTS_MAX
from gateway.inbound.request import _READERS, KEYS_MAX
from inbound_bodies import EXAMPLE, MESSAGES, NOT_JSON, chat, completions, read, refused, told
from providers.base import Api

SYNTAX: dict[str, tuple[bytes, str]] = {
    "empty": (b"", f"the body is empty; send one JSON object, like {EXAMPLE}"),
    "only white space": (b" \n", f"the body is empty; send one JSON object, like {EXAMPLE}"),
    "cut short": (
        b'{"model":"m","messages":[{"role":"us',
        NOT_JSON + 'the body ends at line 1, column 37 with something not closed: a ", ] or }',
    ),
    "single quotes": (
        b"{'model': 'm'}",
        NOT_JSON + "line 1, column 2: found `'`; names and strings stand in double quotes, not in single ones",
    ),
    "typographic quotes": (
        "{“model”: “m”}".encode(),
        NOT_JSON + 'line 1, column 2: found `“`; this is a typographic quote; write "',
    ),
    "quotes of a shell that knows none": (
        b'\'{"model":"m"}\'',
        NOT_JSON + f"line 1, column 1: found `'`; the body must begin with {{, like {EXAMPLE}",
    ),
    "quotes that a shell took away": (
        b"{model: m}",
        NOT_JSON + "line 1, column 2: found `model`; names and strings stand in double quotes; "
        "the only bare words are true, false and null",
    ),
    "trailing comma in an object": (
        b'{"model": "m",\n "n": 1,\n}',
        NOT_JSON + "line 3, column 1: found `}`; take the comma before it out",
    ),
    "trailing comma in an array": (
        b'{"messages": [1, ]}',
        NOT_JSON + "line 1, column 18: found `]`; take the comma before it out",
    ),
    "missing comma": (
        b'{"model": "m"\n "n": 1}',
        NOT_JSON + 'line 2, column 2: found `"`; a comma is missing before it, '
        'or a " within a string is not written as \\"',
    ),
    "quote within a string": (
        b'{"model": "so-called "m""}',
        NOT_JSON + "line 1, column 23: found `m`; a comma is missing before it, "
        'or a " within a string is not written as \\"',
    ),
    "missing colon": (b'{"model" "m"}', NOT_JSON + 'line 1, column 10: found `"`; a name is followed by a colon'),
    "missing value": (b'{"model": , "n": 1}', NOT_JSON + "line 1, column 11: found `,`; this cannot stand here"),
    "Python's True": (
        b'{"stream": True}',
        NOT_JSON + "line 1, column 12: found `True`; write true or false, in lower case",
    ),
    "Python's None": (b'{"n": None}', NOT_JSON + "line 1, column 7: found `None`; write null"),
    "not a number": (
        b'{"temperature": NaN}',
        NOT_JSON + "line 1, column 17: found `NaN`; JSON has no such number; write another one, or null",
    ),
    "infinity": (
        b'{"temperature": -Infinity}',
        NOT_JSON + "line 1, column 17: found `-Infinity`; JSON has no such number; write another one, or null",
    ),
    "number without a leading digit": (
        b'{"temperature": .5}',
        NOT_JSON + "line 1, column 17: found `.5`; a number begins with a digit or -, without leading zeros, "
        "and has digits behind its point",
    ),
    "number with a leading zero": (
        b'{"seed": 007}',
        NOT_JSON + "line 1, column 10: found `007`; a number begins with a digit or -, without leading zeros, "
        "and has digits behind its point",
    ),
    "comment": (
        b'{"model": "m", // mine\n "n": 1}',
        NOT_JSON + "line 1, column 16: found `/`; JSON has no comments; take them out",
    ),
    "line break within a string": (
        '{"model": "é\nm"}'.encode(),
        NOT_JSON + "line 1, column 13; a control character; within strings write a line break as \\n, a tab as \\t",
    ),
    "backslash within a string": (
        rb'{"model": "C:\models"}',
        NOT_JSON + r'line 1, column 14: found `\models`; after a backslash stands one of "\/bfnrt, '
        r"or u and four hex digits; a backslash itself is \\",
    ),
    "short escape": (
        rb'{"model": "\u12"}',
        NOT_JSON + r'line 1, column 12: found `\u12`; after a backslash stands one of "\/bfnrt, '
        r"or u and four hex digits; a backslash itself is \\",
    ),
    "first half of an emoji": (
        rb'{"model": "\\\ud83d"}',
        NOT_JSON + "line 1, column 14: half a character, cut in the middle; send both its escapes, or none",
    ),
    "second half of an emoji": (
        rb'{"model": "\ud83d\ude00 \ude00"}',
        NOT_JSON + "line 1, column 25: half a character, cut in the middle; send both its escapes, or none",
    ),
    "two objects": (
        b'{"model": "m"}\n{"model": "n"}',
        NOT_JSON + "line 2, column 1: found `{`; the JSON object has ended before; send it alone, and once",
    ),
    "a bracket too many": (
        b'{"model": "m"}}',
        NOT_JSON + "line 1, column 15: found `}`; the JSON object has ended before; send it alone, and once",
    ),
    "form data": (
        b"model=m&prompt=hi",
        NOT_JSON + f"line 1, column 1: found `model`; the body must begin with {{, like {EXAMPLE}",
    ),
    "byte order mark": (
        b"\xef\xbb\xbf{}",
        NOT_JSON + "line 1, column 1; this is a byte order mark; send UTF-8 without it",
    ),
    "UTF-16": (
        '{"model": "m"}'.encode("utf-16"),
        NOT_JSON + "byte 0xff at line 1, column 1 is not UTF-8; this looks like UTF-16; send UTF-8",
    ),
    "UTF-16 without a mark": (
        '{"model": "m"}'.encode("utf-16-le"),
        NOT_JSON + "line 1, column 2; this looks like UTF-16; send UTF-8",
    ),
    "Latin-1": (
        '{"model": "m",\n "user": "é"}'.encode("latin-1"),
        NOT_JSON + "byte 0xe9 at line 2, column 11 is not UTF-8; send UTF-8",
    ),
    "gzip without saying so": (
        gzip.compress(b"{}", mtime=0),
        NOT_JSON + "byte 0x8b at line 1, column 2 is not UTF-8; this looks like gzip; send it uncompressed",
    ),
    "nested too deeply": (
        b'{"metadata": ' + 9999 * b"[" + 9999 * b"]" + b"}",
        NOT_JSON + "arrays and objects are nested too deeply; a request needs a few dozen levels at most",
    ),
}


@pytest.mark.parametrize("name", SYNTAX)
def test_what_is_not_json_is_told_where_and_what_to_write(name: str) -> None:
    """Each way in which a body is no JSON gets its message."""
    body, message = SYNTAX[name]
    error = told(body)
    assert (error.message, error.param, error.code) == (message, None, "invalid_json")


FIELDS: dict[str, tuple[str, str | None, str | None, str]] = {
    "an array": ("[]", None, "invalid_type", f"the body is an array; send one JSON object, like {EXAMPLE}"),
    "encoded twice": (
        json.dumps(chat()),
        None,
        "invalid_type",
        f"the body is a string (was it encoded twice?); send one JSON object, like {EXAMPLE}",
    ),
    "null": ("null", None, "invalid_type", f"the body is a single value; send one JSON object, like {EXAMPLE}"),
    "too many keys": (
        json.dumps({str(number): 0 for number in range(KEYS_MAX + 1)}),
        None,
        "object_above_max_properties",
        "the body has 201 keys at its top level; this gateway takes 200",
    ),
    "a key twice": (
        chat('"max_tokens":12', '"max_tokens":1'),
        "max_tokens",
        "duplicate_key",
        "the key `max_tokens` stands twice at the top level of the body; write it once",
    ),
    "a key twice, once in disguise": (
        chat(r'"mod\u0065l":"n"'),
        "model",
        "duplicate_key",
        "the key `model` stands twice at the top level of the body; write it once",
    ),
    "no model": (
        "{}",
        "model",
        "missing_required_parameter",
        "`model` is missing; write the name of a model, as GET /v1/models lists them",
    ),
    "model misspelt": (
        '{"Model":"m"}',
        "model",
        "missing_required_parameter",
        "`model` is missing (is `Model` meant to be it?); write the name of a model, as GET /v1/models lists them",
    ),
    "model empty": (
        '{"model":""}',
        "model",
        "empty_string",
        "`model` is empty; write the name of a model",
    ),
    "model a number": (
        '{"model":70}',
        "model",
        "invalid_type",
        "`model` is 70; write a string, the name of a model",
    ),
    "no messages": (
        '{"model":"m"}',
        "messages",
        "missing_required_parameter",
        '`messages` is missing; write an array like [{"role": "user", "content": "..."}]',
    ),
    "messages misspelt": (
        '{"model":"m","message":[]}',
        "messages",
        "missing_required_parameter",
        (
            "`messages` is missing (is `message` meant to be it?); "
            'write an array like [{"role": "user", "content": "..."}]'
        ),
    ),
    "prompt sent to chat": (
        '{"model":"m","prompt":"hi"}',
        "messages",
        "missing_required_parameter",
        (
            "`messages` is missing, and there is `prompt`; send it to /v1/completions, "
            'or write [{"role": "user", "content": "..."}]'
        ),
    ),
    "messages a string": (
        '{"model":"m","messages":"hi"}',
        "messages",
        "invalid_type",
        '`messages` is the string "hi"; write an array like [{"role": "user", "content": "..."}]',
    ),
    "messages one message": (
        '{"model":"m","messages":{"role":"user","content":"hi"}}',
        "messages",
        "invalid_type",
        "`messages` is an object; write an array, with [ ] around the object",
    ),
    "messages empty": (
        '{"model":"m","messages":[]}',
        "messages",
        "empty_array",
        "`messages` is an empty array; write at least one message",
    ),
    "too many messages": (
        '{"model":"m","messages":[' + ",".join((MESSAGES_MAX + 1) * ['{"role":""}']) + "]}",
        "messages",
        "array_above_max_length",
        "`messages` has 100001 items; this gateway takes 100000",
    ),
    "a message a string": (
        '{"model":"m","messages":["hi"]}',
        "messages[0]",
        "invalid_type",
        '`messages[0]` is the string "hi"; write an object like {"role": "user", "content": "..."}',
    ),
    "no role": (
        '{"model":"m","messages":[{"role":"user","content":"hi"},{"content":"hi"}]}',
        "messages[1].role",
        "missing_required_parameter",
        '`messages[1].role` is missing; write "system", "user", "assistant" or "tool"',
    ),
    "role a number": (
        '{"model":"m","messages":[{"role":1,"content":"hi"}]}',
        "messages[0].role",
        "invalid_type",
        '`messages[0].role` is 1; write a string: "system", "user", "assistant" or "tool"',
    ),
    "content one part": (
        '{"model":"m","messages":[{"role":"user","content":{"type":"text","text":"hi"}}]}',
        "messages[0].content",
        "invalid_type",
        "`messages[0].content` is an object; write a string, or an array of parts, with [ ] around the object",
    ),
    "content a number": (
        '{"model":"m","messages":[{"role":"user","content":42}]}',
        "messages[0].content",
        "invalid_type",
        "`messages[0].content` is 42; write a string or an array of parts",
    ),
    "stream quoted": (
        chat('"stream":"true"'),
        "stream",
        "invalid_type",
        '`stream` is the string "true"; write true or false, without quotes',
    ),
    "stream a number": (chat('"stream":1'), "stream", "invalid_type", "`stream` is 1; write true or false"),
    "stream_options a boolean": (
        chat('"stream":true', '"stream_options":true'),
        "stream_options",
        "invalid_type",
        '`stream_options` is true; write an object like {"include_usage": true}',
    ),
    "include_usage quoted": (
        chat('"stream":true', '"stream_options":{"include_usage":"true"}'),
        "stream_options.include_usage",
        "invalid_type",
        '`stream_options.include_usage` is the string "true"; write true or false, without quotes',
    ),
    "stream_options without stream": (
        chat('"stream_options":{"include_usage":true}'),
        "stream_options",
        "invalid_value",
        '`stream_options` is given, but `stream` is not true; write "stream": true, or leave it out',
    ),
    "n zero": (
        chat('"n":0'),
        "n",
        "integer_below_min_value",
        "`n` is 0; write a whole number from 1 to 16, or leave it out",
    ),
    "n too large": (
        chat('"n":17'),
        "n",
        "integer_above_max_value",
        "`n` is 17; write a whole number from 1 to 16, or leave it out",
    ),
    "n a fraction": (chat('"n":1.0'), "n", "invalid_type", "`n` is 1.0; write a whole number from 1 to 16"),
    "n a boolean": (chat('"n":true'), "n", "invalid_type", "`n` is true; write a whole number from 1 to 16"),
    "best_of too large": (
        chat('"best_of":17'),
        "best_of",
        "integer_above_max_value",
        "`best_of` is 17; write a whole number from 1 to 16, or leave it out",
    ),
    "max_tokens quoted": (
        chat('"max_tokens":"100"'),
        "max_tokens",
        "invalid_type",
        '`max_tokens` is the string "100"; write a whole number from 1 to 1000, without quotes',
    ),
    "max_tokens for no bound": (
        chat('"max_tokens":-1'),
        "max_tokens",
        "integer_below_min_value",
        "`max_tokens` is -1; write a whole number from 1 to 1000, or leave it out",
    ),
    "max_completion_tokens beyond all numbers": (
        chat('"max_completion_tokens":' + 5000 * "9"),
        "max_completion_tokens",
        "integer_above_max_value",
        f"`max_completion_tokens` is {59 * '9'}…; write a whole number from 1 to 1000, or leave it out",
    ),
    "tools an object": (chat('"tools":{}'), "tools", "invalid_type", "`tools` is an object; write an array of objects"),
    "a tool a string": (
        chat('"tools":["search"]'),
        "tools[0]",
        "invalid_type",
        '`tools[0]` is the string "search"; write an object like {"type": "function", "function": {...}}',
    ),
    "a tool's type null": (
        chat('"tools":[{"type":null},{"type":0}]'),
        "tools[1].type",
        "invalid_type",
        '`tools[1].type` is 0; write a string like "function"',
    ),
    "a role twice in one message": (
        '{"model":"m","messages":[{"role":1,"role":"user"}]}',
        None,
        None,
        "the body cannot be read: Expected `str`, got `int` - at `$.messages[0].role`",
    ),
}


@pytest.mark.parametrize("name", FIELDS)
def test_a_wrong_field_is_named_with_what_was_found_and_what_to_write(name: str) -> None:
    """Each typical mistake in a chat request gets its message, param and code."""
    body, *expected = FIELDS[name]
    error = told(body)
    assert [error.param, error.code, error.message] == expected


FORMS = "a string, an array of strings, or token numbers"
ALIKE = "all items alike: strings, token numbers, or arrays of token numbers"
PROMPTS = {
    "no prompt": ("", "prompt", "missing_required_parameter", f"`prompt` is missing; write {FORMS}"),
    "null": ('"prompt":null', "prompt", "missing_required_parameter", f"`prompt` is missing; write {FORMS}"),
    "messages instead": (
        MESSAGES,
        "prompt",
        "missing_required_parameter",
        "`prompt` is missing, and there is `messages`; send them to /v1/chat/completions, or write a string",
    ),
    "an object": ('"prompt":{}', "prompt", "invalid_type", f"`prompt` is an object; write {FORMS}"),
    "a number": ('"prompt":1', "prompt", "invalid_type", f"`prompt` is 1; write {FORMS}"),
    "empty": ('"prompt":[]', "prompt", "empty_array", "`prompt` is an empty array; write at least one prompt"),
    "mixed": ('"prompt":["a",1]', "prompt[1]", "invalid_type", f"`prompt[1]` is 1; write {ALIKE}"),
    "fractions": ('"prompt":[1.5]', "prompt[0]", "invalid_type", f"`prompt[0]` is 1.5; write {ALIKE}"),
    "strings one deeper": (
        '"prompt":[[1],["a"]]',
        "prompt[1]",
        "invalid_type",
        "`prompt[1]` is an array; write an array of token numbers, all of them whole",
    ),
    "too many": (
        '"prompt":[' + ",".join((PROMPTS_MAX + 1) * ['""']) + "]",
        "prompt",
        "array_above_max_length",
        "`prompt` has 2049 items; this gateway takes 2048",
    ),
}


@pytest.mark.parametrize("name", PROMPTS)
def test_a_wrong_prompt_is_named_with_what_was_found_and_what_to_write(name: str) -> None:
    """Each typical mistake in a completions request gets its message, param and code."""
    member, *expected = PROMPTS[name]
    error = told(completions(member) if member else completions(), Api.COMPLETIONS)
    assert [error.param, error.code, error.message] == expected


HEADERS = {
    "form data": (
        b"content-type",
        b"application/x-www-form-urlencoded",
        "unsupported_value",
        (
            "the body was sent as `application/x-www-form-urlencoded`; send JSON, with the header "
            "`content-type: application/json` (curl says form data unless told otherwise: "
            "-H 'content-type: application/json')"
        ),
    ),
    "compressed": (
        b"content-encoding",
        b"gzip",
        "unsupported_value",
        "the body was sent with `content-encoding: gzip`; send it uncompressed, without this header",
    ),
    "hedging neither on nor off": (
        b"x-ttft-hedge",
        b"maybe",
        "invalid_value",
        "the header `x-ttft-hedge` is `maybe`; write `on` or `off`, or leave it out",
    ),
    "usage neither on nor off": (
        b"x-ttft-usage",
        b"yes",
        "invalid_value",
        "the header `x-ttft-usage` is `yes`; write `on` or `off`, or leave it out",
    ),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_wrong_header_is_named_with_what_to_send(name: str) -> None:
    """Each header that would have the body or the request misread gets its message."""
    header, value, *expected = HEADERS[name]
    error = told(chat(), headers=[(header, value)])
    assert [error.param, error.code, error.message] == [header.decode(), *expected]


@pytest.mark.parametrize(
    ("header", "value"),
    [
        (b"content-type", b"application/json; charset=utf-8"),
        (b"content-type", b"Application/JSON"),
        (b"content-type", b"application/vnd.api+json"),
        (b"content-type", b""),
        (b"content-encoding", b"identity"),
        (b"x-ttft-hedge", b"ON"),
    ],
)
def test_headers_that_say_json_in_other_words_are_taken(header: bytes, value: bytes) -> None:
    """A content type is compared without its parameters and case, and nothing said is as good as JSON."""
    assert read(chat(), headers=[(header, value)]).hedge_off is None


LONG = 5000 * "x"


@pytest.mark.parametrize(
    "body",
    [
        f'{{"model":{LONG}}}',
        f"{LONG}{{}}",
        f'{{"{LONG}":1,"{LONG}":1}}',
        f'{{"model{LONG}":"m"}}',
        f'{{"model":"m","messages":"{LONG}"}}',
        f'{{"model":"m","messages":["{LONG}"]}}',
        chat(f'"stream":"{LONG}"'),
        chat(f'"n":"{LONG}"'),
        chat(rf'"n":"\{LONG}"'),
    ],
)
def test_a_message_shows_little_of_what_the_client_sent(body: str) -> None:
    """An error never echoes more than 80 characters, whichever part of the request is at fault."""
    error = told(body)
    assert 81 * "x" not in error.message
    assert len(error.message) < 300
    assert len(error.param or "") <= 80


def test_usage_is_told_only_if_asked() -> None:
    """`x-ttft-usage: on` asks for it, in any case of letters; nothing and `off` do not, and hedging is not touched."""
    for value, tells in ((b"on", True), (b" ON", True), (b"off", False)):
        inbound = read(chat(), headers=[(b"x-ttft-usage", value)])
        assert (inbound.tells_usage, inbound.hedge_off) == (tells, None)
    assert not read(chat()).tells_usage


def test_long_headers_are_cut_in_messages() -> None:
    """An error never echoes more than 80 characters of a header."""
    for header in (b"content-type", b"content-encoding", b"x-ttft-hedge", b"x-ttft-usage"):
        assert 81 * "x" not in told(chat(), headers=[(header, LONG.encode())]).message


SAMPLES = [
    chat('"stream":true', '"n":1', '"tools":[{"type":"function"}]').encode(),
    *(body for body, _ in SYNTAX.values() if len(body) < 500),
    *(body.encode() for body, *_ in FIELDS.values() if len(body) < 500),
]
PIECES = st.binary(max_size=3) | st.sampled_from([b'"', b"\\", b"\\ud800", b"{", b"]", b"1e999", b"null", b",", b":"])


@given(
    sample=st.sampled_from(SAMPLES) | st.binary(max_size=40),
    at=st.integers(0, 500),
    drop=st.integers(0, 3),
    piece=PIECES,
    api=st.sampled_from(list(_READERS)),
)
def test_bytes_of_any_kind_raise_nothing_else(sample: bytes, at: int, drop: int, piece: bytes, api: Api) -> None:
    """Whatever is sent is read or gets an error of ours, whose body can be written."""
    at %= len(sample) + 1
    error = refused(sample[:at] + piece + sample[at + drop :], api)
    assert error is None or json.loads(error.body())["error"]["type"] == "invalid_request_error"
