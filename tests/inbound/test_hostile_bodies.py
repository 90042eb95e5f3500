"""Bodies that are cheap to send: reading and rejecting them decodes each byte a bounded number of times."""

import json
import tracemalloc
from typing import Any

import pytest

from gateway.errors import BadRequest
from gateway.inbound import field_errors, request
from gateway.inbound.parsed import NumberLimits
from hostile_bodies import SHAPES

_BYTES = 1_000_000
_OBJECTS_MAX = 16  # bytes of objects for a byte of body; a tool of three bytes takes 40 with its place in a list


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
    except BadRequest as error:
        seen = error.status
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
    with pytest.raises(BadRequest, match="over 200 keys"):
        request._top_level(make(_BYTES))
    monkeypatch.undo()
    assert len(request._top_level(b'{"a":"%b","\\u00e9":{"x":1},"b":[{"y":2}]}' % (b":" * _BYTES))) == 3


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
    with pytest.raises(BadRequest) as error:
        request.parse(next(iter(SHAPES.values()))[0], f"{{{fields}}}".encode(), (), NumberLimits(16, 99), frozenset())
    assert error.value.param == param
    assert message in error.value.message
