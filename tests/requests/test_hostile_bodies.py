"""Bodies that are cheap to send: reading and rejecting them decodes each byte a bounded number of times."""

import contextlib
import json
import re
import tracemalloc
from typing import Any

import pytest

from hostile_bodies import SHAPES
from ttft_gateway.apis.base import Api
from ttft_gateway.requests import arrays, field_errors, large, openai, request, responses
from ttft_gateway.requests.errors import InvalidRequest
from ttft_gateway.requests.parsed import NumberLimits

_BYTES = 1_000_000
_OBJECTS_MAX = 6  # bytes of objects for a byte of body; an empty text takes three bytes, and eight of a list


@pytest.mark.parametrize("shape", SHAPES)
def test_little_is_built_from_a_hostile_body(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 64 kB of each field are decoded for a message, and objects take a bounded multiple of the body."""
    api, status, make = SHAPES[shape]
    body, decoded = make(_BYTES), 0

    def counting(text: Any, **named: Any) -> object:
        nonlocal decoded
        decoded += len(text)
        return json.JSONDecoder(**named).decode(text if isinstance(text, str) else text.decode())

    monkeypatch.setattr(json, "loads", counting)
    tracemalloc.start()
    try:
        request.parse(api, body, (), NumberLimits(16, 1_000_000), frozenset())
        seen = 200
    except InvalidRequest:
        seen = 400
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert seen == status
    assert decoded <= field_errors.DECODED_MAX
    assert peak <= _OBJECTS_MAX * len(body)


def test_keys_are_counted_before_they_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body of nothing but keys is rejected without decoding all of them; one of many colons is not."""
    _, _, make = SHAPES["many keys at the top level"]
    monkeypatch.setattr(request, "_read_top", None)
    with pytest.raises(InvalidRequest, match="over 200 keys"):
        request._top_level(make(_BYTES))
    monkeypatch.undo()
    assert len(request._top_level(b'{"a":"%b","\\u00e9":{"x":1},"b":[{"y":2}]}' % (b":" * _BYTES))) == 3


@pytest.mark.parametrize(("field", "maximum"), [("tools", arrays.OBJECTS_MAX), ("input", field_errors.MESSAGES_MAX)])
def test_objects_are_counted_before_they_are_built(field: str, maximum: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An array of too many objects is rejected after its first items; strings with many braces are not counted."""
    raws = request._read_top(b'{"%b":[%b]}' % (field.encode(), b",".join([b"{}"] * (maximum + 1000))))
    with pytest.raises(InvalidRequest, match=f"over {maximum} items"):
        arrays.check_objects(raws)
    assert arrays._left == []
    arrays.check_objects(request._read_top(b'{"%b":[%b]}' % (field.encode(), b",".join([b"{}"] * maximum))))
    arrays.check_objects(request._read_top(b'{"%b":["%b"]}' % (field.encode(), b"{" * (maximum + 1))))
    monkeypatch.setattr(arrays, "_left", None)
    assert "tools" in request._top_level(b'{"tools":[%b]}' % b",".join([b"{}"] * 100))


_ONES = "1," * 40_000
_SPACES = " " * 70_000
_PROMPTS: dict[str, tuple[str, object]] = {
    "token numbers": (f"[{_ONES}1]", 1),
    "token numbers with a fraction of zero": ("[%s1.0 ]" % ("1.0 ,\n" * 20_000), 1),
    "no item": (f"[{_SPACES}]", "inconsistent"),
    "arrays of token numbers": (f"[[{_ONES}1],[],[2.0]]", 3),
    "as many arrays as allowed": (f"[{'[1],' * 2_047}{_SPACES}[1]]", 2_048),
    "texts": ('["%s","b",""]' % ("a," * 40_000), 3),
    "too many arrays": ("[%s[1]]" % ("[1]," * 20_000), "over 2048 items"),
    "too many texts": ('[%s"b"]' % ('"a",' * 20_000), "over 2048 items"),
    "too many empty texts": ('[%s""]' % ('"",' * 30_000), "over 2048 items"),
    "too many texts that are not counted": ('[%s""]' % (f'"{arrays._Text.ANY.value}",' * 3_000), "3001 items"),
    "a fraction": (f"[{_ONES}1.5]", "fraction"),
    "a fraction in an array": (f"[[{_ONES}1.5],[1]]", "fraction"),
    "an exponent": (f"[{_ONES}1e3]", "exponent"),
    "an upper-case exponent": (f"[{_ONES}1E3]", "exponent"),
    "an array after numbers": (f"[{_ONES}[1]]", "prompt[0]"),
    "a number after arrays": (f"[{'[1],' * 2_000}{_SPACES}1]", "prompt[2000]"),
    "null after numbers": (f"[{_ONES}null]", "prompt[0]"),
    "a number after a text": (f'["a",{_SPACES}1]', "prompt[1]"),
    "an object after a text": (f'["a",{_SPACES}{{}}]', "prompt[1]"),
    "an array in an array of numbers": (f"[[[{_ONES}1]]]", "prompt[0]"),
}


@pytest.mark.parametrize("case", _PROMPTS)
def test_prompts_of_a_large_array_are_counted_without_building_them(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of prompts, and each error, is found without a list of numbers."""
    monkeypatch.setattr(arrays, "_decode_prompts", None)
    monkeypatch.setattr(arrays, "_decode_token_arrays", None)
    prompt, wanted = _PROMPTS[case]
    body = f'{{"model":"m","prompt":{prompt}}}'.encode()
    with contextlib.ExitStack() as raises:
        if isinstance(wanted, str):
            raises.enter_context(pytest.raises(InvalidRequest, match=re.escape(wanted)))
        parsed = request.parse(Api.COMPLETIONS, body, (), NumberLimits(16, 1_000_000), frozenset())
        assert parsed.call.choices == wanted


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ('"model":"%s"' % ("\\ud83d\\ude00" * 20_000), "messages", "missing"),
        ('"model":{"a":"%s"}' % ("x" * 70_000), "model", "an object"),
        ('"model":"m","messages":"%s"' % ("\\u00e9" * 20_000), "messages", "the string"),
        ('"model":"m","messages":[{"role":"user","content":"%s"},{"role":1}]' % ("x" * 70_000), "messages[1].role", ""),
        ('"model":"m","messages":[{"role":"user","content":"%s"},{}]' % ("x" * 70_000), "messages[1].role", "missing"),
        ('"model":"m","messages":[{"role":"user","content":"a"}],"n":-%s' % ("1" * 70_000), "n", "-111"),
        ('"model":"m","messages":[{"role":"user","content":"a"}],"n":.%s' % ("1" * 70_000), None, "JSON"),
    ],
)
def test_a_large_field_has_a_message_too(fields: str, param: str | None, message: str) -> None:
    """The error of a field that is not decoded again names it, its type or the path in it."""
    with pytest.raises(InvalidRequest) as error:
        request.parse(next(iter(SHAPES.values()))[0], f"{{{fields}}}".encode(), (), NumberLimits(16, 99), frozenset())
    assert error.value.param == param
    assert message in error.value.message


@pytest.mark.parametrize("shape", SHAPES)
def test_a_hostile_body_is_passed_over_a_few_times(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An accepted body is decoded once, a rejected one at most three times, and the last decode ends at the error."""
    api, status, make = SHAPES[shape]
    body, passes = make(_BYTES), 0.0

    def counting(decode: Any) -> Any:
        def counted(text: Any) -> object:
            nonlocal passes
            passes += len(text) / len(body)
            return decode(text)

        return counted

    monkeypatch.setattr(request, "_read_top", counting(request._read_top))
    for name in ("_decode_chat", "_decode_completions", "_decode_embeddings"):
        monkeypatch.setattr(openai, name, counting(getattr(openai, name)))
    monkeypatch.setattr(responses, "_decode", counting(responses._decode))
    kinds = {each: kind._replace(decode=counting(kind.decode)) for each, kind in large._KINDS.items()}
    monkeypatch.setattr(large, "_KINDS", kinds)
    with contextlib.suppress(InvalidRequest):
        request.parse(api, body, (), NumberLimits(16, 1_000_000), frozenset())
    assert passes <= (1.1 if status == 200 else 3.1)
