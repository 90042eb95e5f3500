"""Typical mistakes in a request body or header: code, param and position of each error; sentences by snapshot."""

import gzip
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inbound_bodies import MESSAGES, chat, completions, read, refused, told
from sentences import Sentences
from ttft_gateway.apis.base import Api
from ttft_gateway.requests.errors import InvalidRequest
from ttft_gateway.requests.field_errors import MESSAGES_MAX, PROMPTS_MAX
from ttft_gateway.requests.headers import CallerTimes
from ttft_gateway.requests.request import _READERS, KEYS_MAX

DEEP = 3_000_000  # levels that no version of Python accepts; 3.14 accepts as many as its stack has room for
SYNTAX: dict[str, tuple[bytes, tuple[int, int] | None]] = {  # body -> line and column in the message
    "empty": (b"", None),
    "only white space": (b" \n", None),
    "cut short": (b'{"model":"m","messages":[{"role":"us', (1, 37)),
    "single quotes": (b"{'model': 'm'}", (1, 2)),
    "typographic quotes": ("{“model”: “m”}".encode(), (1, 2)),
    "quotes of a shell that knows none": (b'\'{"model":"m"}\'', (1, 1)),
    "quotes that a shell took away": (b"{model: m}", (1, 2)),
    "trailing comma in an object": (b'{"model": "m",\n "n": 1,\n}', (3, 1)),
    "trailing comma in an array": (b'{"messages": [1, ]}', (1, 18)),
    "missing comma": (b'{"model": "m"\n "n": 1}', (2, 2)),
    "quote within a string": (b'{"model": "so-called "m""}', (1, 23)),
    "missing colon": (b'{"model" "m"}', (1, 10)),
    "missing value": (b'{"model": , "n": 1}', (1, 11)),
    "Python's True": (b'{"stream": True}', (1, 12)),
    "Python's None": (b'{"n": None}', (1, 7)),
    "not a number": (b'{"temperature": NaN}', (1, 17)),
    "infinity": (b'{"temperature": -Infinity}', (1, 17)),
    "number without a leading digit": (b'{"temperature": .5}', (1, 17)),
    "number with a leading zero": (b'{"seed": 007}', (1, 10)),
    "comment": (b'{"model": "m", // mine\n "n": 1}', (1, 16)),
    "line break within a string": ('{"model": "é\nm"}'.encode(), (1, 13)),
    "backslash within a string": (rb'{"model": "C:\models"}', (1, 14)),
    "short escape": (rb'{"model": "\u12"}', (1, 12)),
    "half of an emoji cut short": ('{"model": "\\ud83é"}'.encode(), (1, 12)),
    "first half of an emoji": (rb'{"model": "\\\ud83d"}', (1, 14)),
    "second half of an emoji": (rb'{"model": "\ud83d\ude00 \ude00"}', (1, 25)),
    "two objects": (b'{"model": "m"}\n{"model": "n"}', (2, 1)),
    "a bracket too many": (b'{"model": "m"}}', (1, 15)),
    "form data": (b"model=m&prompt=hi", (1, 1)),
    "byte order mark": (b"\xef\xbb\xbf{}", (1, 1)),
    "UTF-16": ('{"model": "m"}'.encode("utf-16"), (1, 1)),
    "UTF-16 without a mark": ('{"model": "m"}'.encode("utf-16-le"), (1, 2)),
    "Latin-1": ('{"model": "m",\n "user": "é"}'.encode("latin-1"), (2, 11)),
    "gzip without saying so": (gzip.compress(b"{}", mtime=0), (1, 2)),
    "nested too deeply": (b'{"metadata": ' + DEEP * b"[" + DEEP * b"]" + b"}", None),
}


@pytest.mark.parametrize("name", SYNTAX)
def test_a_body_that_is_not_json_is_rejected_with_its_position(name: str) -> None:
    """Each syntax error has its code, and its message has the line and column."""
    body, position = SYNTAX[name]
    error = told(body)
    found = re.search(r"line (\d+), column (\d+)", error.message)
    assert (found and (int(found[1]), int(found[2]))) == position
    assert (error.param, error.code) == (None, "invalid_json")


FIELDS: dict[str, tuple[str, str | None, str | None]] = {  # body -> param, code
    "an array": ("[]", None, "invalid_type"),
    "encoded twice": (json.dumps(chat()), None, "invalid_type"),
    "null": ("null", None, "invalid_type"),
    "too many keys": (
        json.dumps({str(number): 0 for number in range(KEYS_MAX + 1)}),
        None,
        "object_above_max_properties",
    ),
    "a key twice": (chat('"max_tokens":12', '"max_tokens":1'), "max_tokens", "duplicate_key"),
    "a key twice, once in disguise": (chat(r'"mod\u0065l":"n"'), "model", "duplicate_key"),
    "no model": ("{}", "model", "missing_required_parameter"),
    "model misspelt": ('{"Model":"m"}', "model", "missing_required_parameter"),
    "model empty": ('{"model":""}', "model", "empty_string"),
    "model a number": ('{"model":70}', "model", "invalid_type"),
    "no messages": ('{"model":"m"}', "messages", "missing_required_parameter"),
    "messages misspelt": ('{"model":"m","message":[]}', "messages", "missing_required_parameter"),
    "input sent to chat": ('{"model":"m","input":"hi"}', "messages", "missing_required_parameter"),
    "prompt sent to chat": ('{"model":"m","prompt":"hi"}', "messages", "missing_required_parameter"),
    "messages a string": ('{"model":"m","messages":"hi"}', "messages", "invalid_type"),
    "messages one message": ('{"model":"m","messages":{"role":"user","content":"hi"}}', "messages", "invalid_type"),
    "messages empty": ('{"model":"m","messages":[]}', "messages", "empty_array"),
    "too many messages": (
        '{"model":"m","messages":[' + ",".join((MESSAGES_MAX + 1) * ['{"role":""}']) + "]}",
        "messages",
        "array_above_max_length",
    ),
    "a message a string": ('{"model":"m","messages":["hi"]}', "messages[0]", "invalid_type"),
    "no role": (
        '{"model":"m","messages":[{"role":"user","content":"hi"},{"content":"hi"}]}',
        "messages[1].role",
        "missing_required_parameter",
    ),
    "role a number": ('{"model":"m","messages":[{"role":1,"content":"hi"}]}', "messages[0].role", "invalid_type"),
    "content one part": (
        '{"model":"m","messages":[{"role":"user","content":{"type":"text","text":"hi"}}]}',
        "messages[0].content",
        "invalid_type",
    ),
    "content a number": (
        '{"model":"m","messages":[{"role":"user","content":42}]}',
        "messages[0].content",
        "invalid_type",
    ),
    "stream quoted": (chat('"stream":"true"'), "stream", "invalid_type"),
    "stream a number": (chat('"stream":1'), "stream", "invalid_type"),
    "stream_options a boolean": (chat('"stream":true', '"stream_options":true'), "stream_options", "invalid_type"),
    "include_usage quoted": (
        chat('"stream":true', '"stream_options":{"include_usage":"true"}'),
        "stream_options.include_usage",
        "invalid_type",
    ),
    "stream_options without stream": (
        chat('"stream_options":{"include_usage":true}'),
        "stream_options",
        "invalid_value",
    ),
    "n zero": (chat('"n":0'), "n", "integer_below_min_value"),
    "n too large": (chat('"n":17'), "n", "integer_above_max_value"),
    "n a fraction": (chat('"n":1.5'), "n", "invalid_type"),
    "n a boolean": (chat('"n":true'), "n", "invalid_type"),
    "best_of too large": (chat('"best_of":17'), "best_of", "integer_above_max_value"),
    "max_tokens quoted": (chat('"max_tokens":"100"'), "max_tokens", "invalid_type"),
    "max_tokens for no bound": (chat('"max_tokens":-1'), "max_tokens", "integer_below_min_value"),
    "max_completion_tokens beyond all numbers": (
        chat('"max_completion_tokens":' + 5000 * "9"),
        "max_completion_tokens",
        "integer_above_max_value",
    ),
    "tools an object": (chat('"tools":{}'), "tools", "invalid_type"),
    "a tool a string": (chat('"tools":["search"]'), "tools[0]", "invalid_type"),
    "a tool's type null": (chat('"tools":[{"type":null},{"type":0}]'), "tools[1].type", "invalid_type"),
    "a role twice in one message": (
        '{"model":"m","messages":[{"role":1,"role":"user"}]}',
        "messages[0].role",
        "invalid_type",
    ),
}


@pytest.mark.parametrize("name", FIELDS)
def test_a_wrong_field_is_named(name: str) -> None:
    """Each typical mistake in a chat request has its param and code."""
    body, *expected = FIELDS[name]
    error = told(body)
    assert [error.param, error.code] == expected


PROMPTS = {  # member -> param, code
    "no prompt": ("", "prompt", "missing_required_parameter"),
    "null": ('"prompt":null', "prompt", "missing_required_parameter"),
    "messages instead": (MESSAGES, "prompt", "missing_required_parameter"),
    "an object": ('"prompt":{}', "prompt", "invalid_type"),
    "a number": ('"prompt":1', "prompt", "invalid_type"),
    "empty": ('"prompt":[]', "prompt", "empty_array"),
    "mixed": ('"prompt":["a",1]', "prompt[1]", "invalid_type"),
    "fractions": ('"prompt":[1.5]', "prompt[0]", "invalid_type"),
    "a fraction among tokens": ('"prompt":[1,2.0,2.5]', "prompt[2]", "invalid_type"),
    "a fraction one deeper": ('"prompt":[[1.0],[1.5]]', "prompt[1]", "invalid_type"),
    "tokens and a text": ('"prompt":[1.0,"a"]', "prompt[1]", "invalid_type"),
    "strings one deeper": ('"prompt":[[1],["a"]]', "prompt[1]", "invalid_type"),
    "too many": ('"prompt":[' + ",".join((PROMPTS_MAX + 1) * ['""']) + "]", "prompt", "array_above_max_length"),
}


@pytest.mark.parametrize("name", PROMPTS)
def test_a_wrong_prompt_is_named(name: str) -> None:
    """Each typical mistake in a completions request has its param and code."""
    member, *expected = PROMPTS[name]
    error = _prompt_error(member)
    assert [error.param, error.code] == expected


def _prompt_error(member: str) -> InvalidRequest:
    return told(completions(member) if member else completions(), Api.COMPLETIONS)


HEADERS = {  # header, value -> code
    "form data": (b"content-type", b"application/x-www-form-urlencoded", "unsupported_value"),
    "compressed": (b"content-encoding", b"gzip", "unsupported_value"),
    "hedging neither on nor off": (b"x-ttft-hedge", b"maybe", "invalid_value"),
    "usage neither on nor off": (b"x-ttft-usage", b"yes", "invalid_value"),
    "target without a unit": (b"x-ttft-target", b"3", "invalid_value"),
    "target of nothing": (b"x-ttft-target", b"0ms", "invalid_value"),
    "target that is no duration": (b"x-ttft-target", b"soon", "invalid_value"),
    "deadline that is no duration": (b"x-ttft-deadline", b"800", "invalid_value"),
    "longest TTFT of nothing": (b"x-ttft-max", b"0s", "invalid_value"),
    "total that is no duration": (b"x-ttft-total", b"1m", "invalid_value"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_wrong_header_is_named(name: str) -> None:
    """Each header value that would have the body or the request misread has its param and code."""
    header, value, code = HEADERS[name]
    error = told(chat(), headers=[(header, value)])
    assert [error.param, error.code] == [header.decode(), code]


def test_sentences(sentences: Sentences) -> None:
    """The message of each mistake is the one in the snapshot."""
    sentences.check(
        "inbound",
        {f"syntax: {name}": told(body).message for name, (body, _) in SYNTAX.items()}
        | {f"field: {name}": told(body).message for name, (body, *_) in FIELDS.items()}
        | {f"prompt: {name}": _prompt_error(member).message for name, (member, *_) in PROMPTS.items()}
        | {
            f"header: {name}": told(chat(), headers=[(header, value)]).message
            for name, (header, value, _) in HEADERS.items()
        },
    )


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
    """A content type is compared without its parameters and case; without a content type, the body is taken as JSON."""
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


@pytest.mark.parametrize(("value", "target_s"), [(b"3s", 3.0), (b" 800MS ", 0.8), (b"2.5s", 2.5), (b"0.5ms", 0.0005)])
def test_a_target_is_read(value: bytes, target_s: float) -> None:
    """`x-ttft-target` is a duration in milliseconds or seconds, in any case of letters; without it there is none."""
    assert read(chat(), headers=[(b"x-ttft-target", value)]).times.ttft_target_s == pytest.approx(target_s)
    assert read(chat()).times.ttft_target_s is None


@pytest.mark.parametrize(
    ("value", "target_s"),
    [
        (b"800", 0.8),
        (b" 1500.5\t", 1.5005),
        (b"9999999", 9999.999),
        *(
            (value, None)
            for value in (b"", b"0", b"0.0", b"-1", b"800ms", b"1e3", b"nan", b"inf", b"10000000", b"soon")
        ),
    ],
)
def test_the_objective_of_llm_d_is_a_target(value: bytes, target_s: float | None) -> None:
    """`x-llm-d-slo-ttft-ms` is a number of milliseconds; others are ignored; `x-ttft-target` goes first."""
    slo = (b"x-llm-d-slo-ttft-ms", value)
    assert read(chat(), headers=[slo]).times == CallerTimes(ttft_target_s=target_s)
    assert read(chat(), headers=[slo, (b"x-ttft-target", b"3s")]).times.ttft_target_s == 3.0


def test_long_headers_are_cut_in_messages() -> None:
    """An error never echoes more than 80 characters of a header."""
    for header in (
        b"content-type",
        b"content-encoding",
        b"x-ttft-hedge",
        b"x-ttft-target",
        b"x-ttft-deadline",
        b"x-ttft-max",
        b"x-ttft-total",
        b"x-ttft-usage",
    ):
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
    """Any bytes are parsed or get an `InvalidRequest` with a message that can be encoded."""
    at %= len(sample) + 1
    error = refused(sample[:at] + piece + sample[at + drop :], api)
    assert error is None or error.message.encode()
