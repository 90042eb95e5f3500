"""Any bytes as a request body: refused in words, or sent on as the same JSON with nothing but three keys replaced.

The first byte chooses the API. What is read here is read again by Python's own json module, duplicate keys included.
"""

import json
from contextlib import suppress
from typing import Final
from unittest import mock

from fuzz.answers import WAYS
from openai_calls import in_one_piece
from providers.openai.request import build, edited
from ttft_gateway.apis.base import Api, Call
from ttft_gateway.apis.errors import Unsupported
from ttft_gateway.requests import large
from ttft_gateway.requests.errors import InvalidRequest
from ttft_gateway.requests.parsed import NumberLimits
from ttft_gateway.requests.request import parse

WORDS: Final = (
    b'"model":"m",',
    b'"stream":true,',
    b'"stream_options":{"include_usage":true},',
    b'"stream_options":null,',
    b'"messages":[{"role":"user","content":"x"}],',
    b'"messages":[{"role":"user","content":"some text as long as all the rest"},{"role":"x"}]',
    b'"prompt":"x",',
    b'"input":"x",',
    b'"\\u006dodel":',
    b"\\ud83d",
    b"\\",
    b"1e5",
    b"-0",
    b"null",
    b"true",
    b'{"a":[',
    b"]}",
    b'"n":2,',
    b'"tools":[{"type":"function","function":{"name":"f","parameters":{}}}],',
    b'"max_tokens":1,',
)
APIS: Final = (Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.EMBEDDINGS)
_BOUNDS: Final = NumberLimits(n_max=16, max_tokens_max=100_000)
_TOLD_MAX: Final = 2_000  # bytes of an error body; it shows some 60 characters of what was sent
_OURS: Final = frozenset({"model", "stream", "stream_options"})

Pairs = list[tuple[str, object]]


def check(data: bytes) -> None:
    """Parse it, build what upstreams get, and read that again."""
    api, body = APIS[data[0] % len(APIS) if data else 0], data[1:]
    call = _parsed(api, body)
    with mock.patch.object(large, "SIZE_MIN", 0):  # the messages apart from the rest, as of a large body
        assert _parsed(api, body) == call
    if call is None:
        return
    try:
        given = _read(body)
    except RecursionError:
        return
    keys = [key for key, _ in given]
    assert len(set(keys)) == len(keys) == len(call.spans)
    for key, (start, end) in call.spans.items():
        assert dict(given)[key] == _read_value(body[start:end])
    for stream, ask_usage in ((True, True), (True, False), (False, False)):
        _replaced(given, _read(in_one_piece(build(call, 'up"é', stream=stream, ask_usage=ask_usage))))
    _edited(call, given)
    for protocol in WAYS[api]:
        with suppress(Unsupported):
            json.loads(in_one_piece(protocol.build(call, "up", stream=api is not Api.EMBEDDINGS)))


def _parsed(api: Api, body: bytes) -> Call | None:
    """The call, None where it is refused in few words."""
    try:
        return parse(api, body, (), _BOUNDS, frozenset()).call
    except InvalidRequest as error:
        told_bytes = len(f"{error.message}{error.param}".encode())
    assert told_bytes < _TOLD_MAX
    return None


def _replaced(given: Pairs, built: Pairs) -> None:
    """All but our keys are what they were, in order; ours stand there once."""
    assert [pair for pair in built if pair[0] not in _OURS] == [pair for pair in given if pair[0] not in _OURS]
    keys = [key for key, _ in built]
    assert len(set(keys)) == len(keys)
    assert dict(built)["model"] == 'up"é'


def _edited(call: Call, given: Pairs) -> None:
    """A call with values replaced and added parses again, with the right spans."""
    made = edited(call, {"model": b"[1]", "quite_new": b"{}"})
    assert dict(_read(made.body)) == {**dict(given), "model": _read_value(b"[1]"), "quite_new": []}
    for key, (start, end) in made.spans.items():
        assert dict(_read(made.body))[key] == _read_value(made.body[start:end])


def _read(body: bytes) -> Pairs:
    value = _read_value(body)
    assert isinstance(value, list)
    return value


def _read_value(body: bytes) -> object:
    """Objects as lists of pairs, so that nothing is lost; numbers as they are written."""
    return json.loads(body, object_pairs_hook=list, parse_int=str, parse_float=str)
