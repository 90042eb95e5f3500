"""The parsed form of request bodies."""

import json
import math
import re
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inbound_bodies import MESSAGES, chat, completions, read, refused, told
from ttft_gateway.apis.base import Api
from ttft_gateway.hedging.outcomes import Denial
from ttft_gateway.requests.errors import not_json
from ttft_gateway.requests.field_errors import PROMPTS_MAX
from ttft_gateway.requests.headers import CallerTimes


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
    assert inbound.times.deadline_s == 90.5


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
        assert (inbound.hedge_off, inbound.times.deadline_s) == (None, None)


def test_the_newer_name_of_max_tokens_counts() -> None:
    """If both are present, `max_completion_tokens` is the limit."""
    assert read(chat('"max_tokens":5', '"max_completion_tokens":6')).call.max_tokens == 6


@pytest.mark.parametrize(
    ("api", "body", "choices", "max_tokens"),
    [
        (Api.CHAT, chat('"n":2.0', '"max_tokens":16.0'), 2, 16),
        (Api.CHAT, chat('"max_completion_tokens":1.6e1'), 1, 16),
        (Api.COMPLETIONS, completions('"prompt":[1.0,2,3.0]', '"max_tokens":1e2'), 1, 100),
        (Api.COMPLETIONS, completions('"prompt":[[1.0],[2]]', '"best_of":1.0'), 2, None),
        (Api.EMBEDDINGS, '{"model":"m","input":[1.0,2]}', 1, None),
        (Api.RESPONSES, '{"model":"m","input":"x","max_output_tokens":16.0}', 1, 16),
        (Api.MESSAGES, chat('"max_tokens":16.0'), 1, 16),
    ],
)
def test_a_whole_number_may_have_a_point(api: Api, body: str, choices: int, max_tokens: int | None) -> None:
    """To JSON Schema 16.0 is an integer; it counts as one, and is passed on as it was written."""
    call = read(body, api).call
    assert (call.choices, call.max_tokens, call.body) == (choices, max_tokens, body.encode())
    assert type(call.choices) is int


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
    """Fields that make a provider store or act switch hedging off, streaming or not; the answer is assembled."""
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
    inbound = read(chat(), headers=[(b"x-stainless-read-timeout", value)])
    assert (inbound.times.deadline_s, inbound.times.read_timeout_s) == (deadline_s, deadline_s)


def test_a_deadline_is_apart_from_the_read_timeout() -> None:
    """`x-ttft-deadline` is the deadline with a longer, a shorter and no read timeout."""
    both = read(chat(), headers=[(b"x-stainless-read-timeout", b"600"), (b"x-ttft-deadline", b"800ms")])
    assert (both.times.deadline_s, both.times.read_timeout_s) == (0.8, 600.0)
    alone = read(chat(), headers=[(b"x-ttft-deadline", b"3s")])
    assert (alone.times.deadline_s, alone.times.read_timeout_s) == (3.0, None)


INF = math.inf
LIMITS: dict[str, tuple[dict[bytes, bytes], CallerTimes]] = {
    "none": ({}, CallerTimes()),
    "the first content": ({b"x-ttft-max": b"2s"}, CallerTimes(2.0)),
    "the end": ({b"x-ttft-total": b"30s"}, CallerTimes(30.0, None, INF, 30.0)),
    "all": (
        {b"x-ttft-max": b"2s", b"x-ttft-total": b"30s", b"x-ttft-deadline": b"4s", b"x-stainless-read-timeout": b"600"},
        CallerTimes(2.0, 600.0, 4.0, 30.0),
    ),
    "an SDK's timeout and the first content": (
        {b"x-ttft-max": b"2s", b"x-stainless-read-timeout": b"600"},
        CallerTimes(2.0, 600.0, 600.0),
    ),
    "a shorter end": ({b"x-ttft-total": b"1s", b"x-ttft-deadline": b"4s"}, CallerTimes(1.0, None, 4.0, 1.0)),
}


@pytest.mark.parametrize("name", LIMITS)
def test_the_shortest_limit_is_the_deadline(name: str) -> None:
    """Each header limits its own part of the answer, and all limit the first content."""
    headers, times = LIMITS[name]
    assert read(chat(), headers=list(headers.items())).times == times


# properties

TYPED = frozenset(
    {"model", "messages", "prompt", "stream", "stream_options", "n", "best_of", "tools"}
    | {"max_tokens", "max_completion_tokens"}
)
FORM = st.sampled_from(["compact", "spaced", "any white space"])
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


def rendered(members: list[Member], space: st.DataObject, form: str) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """An object of these members in one of the forms, and the positions of its values."""

    def gap() -> bytes:
        return space.draw(SPACE).encode() if form == "any white space" else b""

    usual = b" " if form == "spaced" else b""
    body, spans = gap() + b"{", {}
    for number, member in enumerate(members):
        body += (b"," + usual if number else b"") + gap() + member.key.encode() + gap() + b":" + usual + gap()
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


@given(members=MEMBERS, data=st.data(), form=FORM)
def test_spans_are_exactly_the_bytes_of_the_values(members: list[Member], data: st.DataObject, form: str) -> None:
    """For any keys, values, spelling and white space, every value's position is exact to the byte."""
    body, expected = rendered(members, data, form)
    call = read(body).call
    assert call.spans == expected
    assert body[: call.insert_at].strip() == b"{"


@given(members=MEMBERS, data=st.data(), form=FORM, value=RENDERED, style=st.integers(0, 2))
def test_a_key_that_stands_twice_is_always_found(
    members: list[Member],
    data: st.DataObject,
    form: str,
    value: str,
    style: int,
) -> None:
    """A duplicate key is rejected in any spelling, at any position and with any value."""
    first = data.draw(st.sampled_from(members))
    again = Member(first.name, spelt(first.name, style), data.draw(st.sampled_from([value, first.value])))
    members = list(members)
    members.insert(data.draw(st.integers(0, len(members))), again)
    error = told(rendered(members, data, form)[0])
    assert (error.code, error.param) == ("duplicate_key", first.name)


def test_a_duplicate_key_in_place_of_white_space_is_found() -> None:
    """A body as long as its four values with usual white space, which has one key twice and one space, is rejected."""
    body = b'{"model": "m","messages":[{"role": "user"}],"a":1,"b":2,"a":3}'
    assert len(body) == len(json.dumps(json.loads(body)))
    assert (told(body).code, told(body).param) == ("duplicate_key", "a")


@given(depth=st.integers(800, 1200))
def test_any_depth_of_nesting_is_read_or_refused(depth: int) -> None:
    """Wherever the decoders give up, they do so with an error of ours."""
    nested = depth * "[" + depth * "]"
    refused(chat(f'"metadata":{nested}'))
    assert refused('{"model":"m","messages":' + nested + "}") is not None


@pytest.mark.parametrize("space", ["", " "])
def test_a_depth_that_only_a_later_pass_rejects_is_an_error_of_the_body(space: str) -> None:
    """The passes over a body run at different depths of calls, and so accept different depths of nesting.

    Python 3.11 accepts nearly 1,000 levels, 3.12 1,500, 3.13 10,000, and 3.14 what its stack can hold.
    """
    depths = [*range(1, 1_200, 3), *range(1_450, 1_550, 3), *range(9_900, 10_100, 3), 3_000_000]
    errors = [
        refused(
            f'{{"model":{space}"m",{space}"messages":{space}[{{"role":{space}"user"}}],{space}"x":{space}{nested}}}'
        )
        for nested in (depth * "[" + depth * "]" for depth in depths)
    ]
    rejected = [error.message for error in errors if error is not None]
    assert len(set(rejected)) == 1
    assert errors[: -len(rejected)] == [None] * (len(errors) - len(rejected))


def test_an_error_at_the_very_end_is_told_like_any_other() -> None:
    """A decoder error after the last byte gives an `InvalidRequest`, not another exception."""
    error = not_json(b'{"a": tru', "JSON is malformed: invalid character (byte 9)")
    assert error.code == "invalid_json"


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
    """The Responses API and embeddings get errors of the same form as the other APIs."""
    error = told(body, api)
    assert (error.param, error.code) == (param, code)


def _group(size: int) -> str:
    return f'"tools":[{{"type":"namespace","tools":[{",".join(["{}"] * size)}]}}]'


@pytest.mark.parametrize(
    ("members", "hedge_off", "stored", "previous_id"),
    [
        ((), None, True, None),
        (('"store":false',), None, False, None),
        (('"store":true',), Denial.OFF, True, None),
        (('"store":false', '"previous_response_id":"resp_1"'), Denial.OFF, False, "resp_1"),
        (('"store":false', '"conversation":"conv_1"'), Denial.OFF, False, None),
        (('"store":false', '"tools":[{"type":"web_search"}]'), Denial.OFF, False, None),
        (('"store":false', '"tools":[{"type":"namespace","tools":[{"type":"function"}]}]'), None, False, None),
        (('"store":false', '"tools":[{"type":"namespace","tools":[{"type":"mcp"}]}]'), Denial.OFF, False, None),
        (('"store":false', '"tools":[{"type":"namespace","tools":{}}]'), Denial.OFF, False, None),
        (('"store":false', '"tools":[{"type":"namespace"}]'), Denial.OFF, False, None),
        (('"store":false', _group(10_000)), None, False, None),
        (('"store":false', _group(10_001)), Denial.OFF, False, None),
        (('"store":false', '"tools":[{"type":"tool_search","execution":"client"}]'), None, False, None),
        (('"store":false', '"tools":[{"type":"tool_search"}]'), Denial.OFF, False, None),
        (('"store":false', '"tools":[{"type":"function"},{"type":"custom"}]'), None, False, None),
        (('"store":null', '"background":false'), None, True, None),
    ],
)
def test_what_may_be_asked_twice_in_the_responses_api(
    members: tuple[str, ...], hedge_off: Denial | None, *, stored: bool, previous_id: str | None
) -> None:
    """A stored answer or its continuation is never hedged; an answer that may be stored is marked as such."""
    inbound = read(response(*members, '"stream":true', '"max_output_tokens":7'), Api.RESPONSES)
    assert (inbound.hedge_off, inbound.stored, inbound.previous_id) == (hedge_off, stored, previous_id)
    assert (inbound.call.streaming, inbound.call.assemble, inbound.call.max_tokens) == (True, True, 7)


def test_the_prompt_of_a_response_is_what_the_model_reads_first() -> None:
    """Instructions come before the input, in any order of the keys."""
    assert read(response('"instructions":"be brief"'), Api.RESPONSES).prompt == b'"be brief""hi"'
