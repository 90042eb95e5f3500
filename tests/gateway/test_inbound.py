"""What a request body is read as, and what each typical mistake is told, word for word."""

import gzip
import json
import re
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import BadRequest, GatewayError
from gateway.hedging.outcomes import Denial
from gateway.inbound import _READERS, KEYS_MAX, Inbound, parse
from gateway.inbound_asked import Bounds
from gateway.inbound_fields import MESSAGES_MAX, PROMPTS_MAX
from gateway.inbound_syntax import not_json
from providers.base import Api, Headers

BOUNDS = Bounds(n_max=16, max_tokens_max=1000)
MESSAGES = '"messages":[{"role":"user","content":"hi"}]'
EXAMPLE = '{"model": "...", "messages": [{"role": "user", "content": "..."}]}'
NOT_JSON = "the body is not valid JSON: "


def read(body: bytes | str, api: Api = Api.CHAT, headers: Headers = ()) -> Inbound:
    """Parse as the routes do."""
    raw = body.encode() if isinstance(body, str) else body
    return parse(api, raw, list(headers), BOUNDS, frozenset({b"traceparent"}))


def chat(*members: str) -> str:
    """A chat body that is good but for these members."""
    return "{" + ",".join(('"model":"m"', MESSAGES, *members)) + "}"


def completions(*members: str) -> str:
    """A completions body with these members behind its model."""
    return "{" + ",".join(('"model":"m"', *members)) + "}"


def told(body: bytes | str, api: Api = Api.CHAT, headers: Headers = ()) -> BadRequest:
    """The error that a body gets."""
    with pytest.raises(BadRequest) as caught:
        read(body, api, headers)
    return caught.value


def refused(body: bytes | str, api: Api = Api.CHAT) -> GatewayError | None:
    """The error that a body gets, if any."""
    try:
        read(body, api)
    except GatewayError as error:
        return error
    return None


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


def test_a_chat_request_is_read() -> None:
    """Every field the gateway uses is read; the body stays as it came."""
    body = (
        '{"model":"m",'
        + MESSAGES
        + ',"stream":true,"stream_options":{"include_usage":true},"n":2,"max_tokens":7,"x":0}'
    )
    inbound = read(body, headers=[(b"traceparent", b"00-1"), (b"cookie", b"c"), (b"x-stainless-read-timeout", b"90.5")])
    call = inbound.call
    assert (call.api, call.body, call.model) == (Api.CHAT, body.encode(), "m")
    assert (call.streaming, call.include_usage, call.choices, call.max_tokens) == (True, True, 2, 7)
    assert call.headers == ((b"traceparent", b"00-1"),)
    assert inbound.prompt == b'[{"role":"user","content":"hi"}]'
    assert inbound.deadline_s == 90.5


def test_what_is_not_said_has_its_default() -> None:
    """Null counts as absent everywhere."""
    nulls = (
        "stream",
        "stream_options",
        "n",
        "best_of",
        "max_tokens",
        "max_completion_tokens",
        "tools",
        "store",
        "audio",
    )
    for body in (chat(), chat(*(f'"{name}":null' for name in nulls))):
        inbound = read(body)
        call = inbound.call
        assert (call.streaming, call.include_usage, call.choices, call.max_tokens) == (False, False, 1, None)
        assert (call.assemble, call.headers) == (True, ())
        assert (inbound.hedge_off, inbound.deadline_s) == (None, None)


def test_the_newer_name_of_max_tokens_counts() -> None:
    """Where both are given, `max_completion_tokens` is the bound."""
    assert read(chat('"max_tokens":5', '"max_completion_tokens":6')).call.max_tokens == 6


@pytest.mark.parametrize("content", ['"hi"', "null", "[]", '[{"type":"text","text":"hi"}]', '["hi"]'])
def test_content_has_several_forms(content: str) -> None:
    """A message's content is a string, an array of anything, null or absent, and its role is any string."""
    read('{"model":"m","messages":[{"role":"x","content":' + content + '},{"role":"assistant"}]}')


@pytest.mark.parametrize(
    ("prompt", "choices"),
    [('"hi"', 1), ('""', 1), ('["a"]', 1), ('["a","b"]', 2), ("[1,2]", 1), ("[[1,2]]", 1), ("[[1],[2],[]]", 3)],
)
def test_each_prompt_of_a_batch_gets_its_choices(prompt: str, choices: int) -> None:
    """A completions call is answered with n choices a prompt, and more than one are not hedged."""
    inbound = read(completions(f'"prompt":{prompt}'), Api.COMPLETIONS)
    assert inbound.call.choices == choices
    assert inbound.prompt == prompt.encode()
    assert inbound.hedge_off is (Denial.OFF if choices > 1 else None)
    assert read(completions(f'"prompt":{prompt}', '"n":2'), Api.COMPLETIONS).call.choices == 2 * choices


@pytest.mark.parametrize(
    "member",
    [
        '"n":2',
        '"store":true',
        '"background":true',
        '"web_search_options":{}',
        '"tools":[{"type":"function"},{"type":"web_search"}]',
    ],
)
def test_work_that_must_not_be_done_twice_is_not_hedged(member: str) -> None:
    """What the provider keeps or does by itself switches hedging off, streaming or not, and is still assembled."""
    for body in (chat(member), chat(member, '"stream":true')):
        inbound = read(body)
        assert (inbound.hedge_off, inbound.call.assemble) == (Denial.OFF, True)


@pytest.mark.parametrize(
    "member",
    [
        '"n":1',
        '"store":false',
        '"modalities":["text"]',
        '"tools":[]',
        '"tools":[{"type":"function"},{"type":"custom"},{"function":{}}]',
        '"best_of":1',
        '"echo":false',
    ],
)
def test_what_looks_special_but_is_not_is_raced(member: str) -> None:
    """Spelling out a default changes nothing."""
    inbound = read(chat(member))
    assert (inbound.hedge_off, inbound.call.assemble) == (None, True)


@pytest.mark.parametrize(
    "member",
    [
        '"best_of":2',
        '"prompt_logprobs":0',
        '"echo":true',
        '"use_beam_search":true',
        '"audio":{"voice":"v","format":"wav"}',
        '"modalities":["text","audio"]',
    ],
)
def test_what_does_not_stream_is_neither_assembled_nor_raced(member: str) -> None:
    """Asked unstreamed, such a call goes as it is to one replica; a stream of it races like any other."""
    inbound = read(chat(member))
    assert (inbound.hedge_off, inbound.call.assemble) == (Denial.OFF, False)
    assert read(chat(member, '"stream":true')).hedge_off is None


def test_a_client_switches_hedging_off() -> None:
    """`x-ttft-hedge: off` marks a request that is not hedged, in any case of letters."""
    for value in (b"off", b"OFF", b" off"):
        assert read(chat(), headers=[(b"x-ttft-hedge", value)]).hedge_off is Denial.OFF


@pytest.mark.parametrize(
    ("value", "deadline_s"),
    [
        (b"600", 600.0),
        (b"0.25", 0.25),
        (b"0", None),
        (b"-1", None),
        (b"nan", None),
        (b"inf", None),
        (b"NOT_GIVEN", None),
    ],
)
def test_a_deadline_is_positive_and_finite(value: bytes, deadline_s: float | None) -> None:
    """Nonsense in the SDK's time-out header is taken for silence."""
    assert read(chat(), headers=[(b"x-stainless-read-timeout", value)]).deadline_s == deadline_s


# properties

TYPED = frozenset(
    {"model", "messages", "prompt", "stream", "stream_options", "n", "best_of", "tools"}
    | {"max_tokens", "max_completion_tokens"}
)
SPACE = st.sampled_from(["", "", " ", "\n", "\t", "\r\n  "])
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NUMBER = st.sampled_from(["1", "12", "1.5", "1e5", "-0", "12E+2", "-1"])
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
RENDERED = NUMBER | st.builds(
    lambda value, indent, ascii_only: json.dumps(value, indent=indent, ensure_ascii=ascii_only),
    VALUE,
    st.sampled_from([None, 2, "\t"]),
    st.booleans(),
)


@dataclass
class Member:
    """One member of a JSON object, as text."""

    name: str
    key: str
    value: str


def spelt(name: str, style: int) -> str:
    """A key in one of several spellings."""
    if style == 0:
        units = name.encode("utf-16-be").hex()
        return '"' + re.sub("(....)", r"\\u\1", units) + '"'
    return json.dumps(name, ensure_ascii=style == 1)


MEMBER = st.builds(
    lambda name, style, value: Member(name, spelt(name, style), value),
    TEXT.filter(lambda name: name not in TYPED),
    st.integers(0, 2),
    RENDERED,
)
NEEDED = [Member("model", '"model"', '"m"'), Member("messages", '"messages"', '[ {"role": "user"} ]')]
MEMBERS = st.lists(MEMBER, max_size=5, unique_by=lambda member: member.name).flatmap(
    lambda members: st.permutations([*members, *NEEDED])
)


def rendered(members: list[Member], space: st.DataObject | None) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """An object of these members with white space anywhere, and where its values stand."""

    def gap() -> bytes:
        return b"" if space is None else space.draw(SPACE).encode()

    body, spans = gap() + b"{", {}
    for number, member in enumerate(members):
        body += (b"," if number else b"") + gap() + member.key.encode() + gap() + b":" + gap()
        start = len(body)
        body += member.value.encode()
        spans[member.name] = (start, len(body))
        body += gap()
    return body + b"}" + gap(), spans


@pytest.mark.parametrize("key", ["é", '\\"', "\\u0065", "\\n"])
def test_a_key_may_be_longer_in_the_body_than_it_reads(key: str) -> None:
    """Keys with escapes or letters of several bytes move no span, in a body without white space either."""
    body = chat(f'"{key}":1', '"user":"u"').encode()
    start, end = read(body).call.spans["user"]
    assert body[start:end] == b'"u"'


@given(members=MEMBERS, data=st.data(), compact=st.booleans())
def test_spans_are_exactly_the_bytes_of_the_values(members: list[Member], data: st.DataObject, compact: bool) -> None:
    """For any keys, values, spelling and white space, every value's place is known to the byte."""
    body, expected = rendered(members, None if compact else data)
    call = read(body).call
    assert call.spans == expected
    assert body[: call.insert_at].strip() == b"{"


@given(members=MEMBERS, data=st.data(), compact=st.booleans(), value=RENDERED, style=st.integers(0, 2))
def test_a_key_that_stands_twice_is_always_found(
    members: list[Member],
    data: st.DataObject,
    compact: bool,
    value: str,
    style: int,
) -> None:
    """However the second key is spelt, wherever it stands and whatever its value is, the request is refused."""
    first = data.draw(st.sampled_from(members))
    again = Member(first.name, spelt(first.name, style), data.draw(st.sampled_from([value, first.value])))
    members = list(members)
    members.insert(data.draw(st.integers(0, len(members))), again)
    error = told(rendered(members, None if compact else data)[0])
    assert (error.code, error.param) == ("duplicate_key", first.name)


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


@given(depth=st.integers(800, 1200))
def test_any_depth_of_nesting_is_read_or_refused(depth: int) -> None:
    """Wherever the decoders give up, they do so with an error of ours."""
    nested = depth * "[" + depth * "]"
    refused(chat(f'"metadata":{nested}'))
    assert refused('{"model":"m","messages":' + nested + "}") is not None


def test_an_error_at_the_very_end_is_told_like_any_other() -> None:
    """A decoder that stops behind the last byte gives a refusal, not an exception."""
    error = not_json(b'{"a": tru', "JSON is malformed: invalid character (byte 9)")
    assert (error.status, error.code) == (400, "invalid_json")


def response(*members: str) -> str:
    """A body of the Responses API that is good but for these members."""
    return "{" + ",".join(('"model":"m"', '"input":"hi"', *members)) + "}"


RESPONSES: dict[str, tuple[str, str, str]] = {  # what is wrong -> body, param, code
    "no input": ('{"model":"m"}', "input", "missing_required_parameter"),
    "messages instead": ('{"model":"m","messages":[]}', "input", "missing_required_parameter"),
    "input of a wrong type": ('{"model":"m","input":3}', "input", "invalid_type"),
    "empty input": ('{"model":"m","input":[]}', "input", "empty_array"),
    "an item that is none": ('{"model":"m","input":["hi"]}', "input[0]", "invalid_type"),
    "an item of no type": ('{"model":"m","input":[{"type":1}]}', "input[0].type", "invalid_type"),
    "instructions": (response('"instructions":["x"]'), "instructions", "invalid_type"),
    "limit": (response('"max_output_tokens":0'), "max_output_tokens", "integer_below_min_value"),
    "background": (response('"background":true'), "background", "invalid_value"),
    "store": (response('"store":"yes"'), "store", "invalid_type"),
    "prompt": ('{"model":"m","prompt":"x"}', "prompt", "invalid_type"),
    "stream": (response('"stream":1'), "stream", "invalid_type"),
    "tools": (response('"tools":{}'), "tools", "invalid_type"),
    "previous": (response('"previous_response_id":7'), "previous_response_id", "invalid_type"),
}
EMBEDDINGS: dict[str, tuple[str, str, str]] = {
    "no input": ('{"model":"m"}', "input", "missing_required_parameter"),
    "empty text": ('{"model":"m","input":""}', "input", "empty_string"),
    "no texts": ('{"model":"m","input":[]}', "input", "empty_array"),
    "too many texts": (
        f'{{"model":"m","input":{json.dumps(["a"] * (PROMPTS_MAX + 1))}}}',
        "input",
        "array_above_max_length",
    ),
    "mixed": ('{"model":"m","input":["a",1]}', "input[1]", "invalid_type"),
    "half a token": ('{"model":"m","input":[[1,2.5]]}', "input[0]", "invalid_type"),
    "an object": ('{"model":"m","input":{}}', "input", "invalid_type"),
    "a stream": ('{"model":"m","input":"a","stream":true}', "stream", "invalid_value"),
    "no model": ('{"input":"a"}', "model", "missing_required_parameter"),
}


@pytest.mark.parametrize(
    ("api", "body", "param", "code"),
    [(Api.RESPONSES, *case) for case in RESPONSES.values()] + [(Api.EMBEDDINGS, *case) for case in EMBEDDINGS.values()],
)
def test_a_wrong_field_of_another_api_is_named(api: Api, body: str, param: str, code: str) -> None:
    """The Responses API and embeddings have their mistakes told as the others do."""
    error = told(body, api)
    assert (error.param, error.code) == (param, code)


@pytest.mark.parametrize(
    ("members", "hedge_off", "kept", "follows"),
    [
        ((), None, True, None),
        (('"store":false',), None, False, None),
        (('"store":true',), Denial.OFF, True, None),
        (('"store":false', '"previous_response_id":"resp_1"'), Denial.OFF, False, "resp_1"),
        (('"store":false', '"conversation":"conv_1"'), Denial.OFF, False, None),
        (('"store":false', '"tools":[{"type":"web_search"}]'), Denial.OFF, False, None),
        (('"store":false', '"tools":[{"type":"function"},{"type":"custom"}]'), None, False, None),
        (('"store":null', '"background":false'), None, True, None),
    ],
)
def test_what_may_be_asked_twice_in_the_responses_api(
    members: tuple[str, ...], hedge_off: Denial | None, *, kept: bool, follows: str | None
) -> None:
    """What is kept, or goes on with that, is never hedged; what might be kept is left to who knows the replicas."""
    inbound = read(response(*members, '"stream":true', '"max_output_tokens":7'), Api.RESPONSES)
    assert (inbound.hedge_off, inbound.kept, inbound.follows) == (hedge_off, kept, follows)
    assert (inbound.call.streaming, inbound.call.assemble, inbound.call.max_tokens) == (True, True, 7)


def test_the_prompt_of_a_response_is_what_the_model_reads_first() -> None:
    """Instructions come before the input, wherever they stand."""
    assert read(response('"instructions":"be brief"'), Api.RESPONSES).prompt == b'"be brief""hi"'


@pytest.mark.parametrize("given", ['"hi"', '["a","b"]', "[1,2,3]", "[[1],[2,3]]"])
def test_embeddings_are_timed_and_hedged_as_a_whole(given: str) -> None:
    """They come in one piece, whose time says how fast a replica is, several inputs included."""
    inbound = read(f'{{"model":"m","input":{given}}}', Api.EMBEDDINGS)
    assert (inbound.call.streaming, inbound.call.assemble, inbound.call.timed) == (False, False, True)
    assert (inbound.hedge_off, inbound.prompt) == (None, given.encode())
