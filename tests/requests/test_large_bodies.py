"""Large bodies: their messages are checked apart from the rest, with the same result as the body as a whole."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inbound_bodies import read
from openai_calls import in_one_piece
from providers.openai.request import build
from ttft_gateway.apis.base import Api
from ttft_gateway.requests import large, request
from ttft_gateway.requests.errors import InvalidRequest
from ttft_gateway.requests.request import Inbound

_LONG = "x" * large.SIZE_MIN
_HELLO = {"role": "user", "content": "hello"}
_ASKED = {"role": "user", "content": _LONG}
_MESSAGES: Sequence[Any] = (
    [_ASKED],
    [_HELLO, _ASKED, {"role": "assistant"}, {"role": "tool", "content": None}],
    [{"content": [{"type": "text", "text": _LONG}, {"type": "x", "messages": []}], "role": "user", "name": "]"}],
    [{"role": "user", "content": _LONG + '"messages": [], "model": "n"}]\u00e9'}],
    [_ASKED, {"role": "user", "content": 5}],
    [_ASKED, {"role": "user", "content": {}}],
    [_ASKED, {"role": 1}],
    [_ASKED, 1],
    [_LONG],
    [],
    _LONG,
    {"role": "user", "content": _LONG},
)
_OTHER = st.dictionaries(
    st.sampled_from(["stream", "n", "max_tokens", "user", "stop", "metadata", "stream_options", "x"]),
    st.sampled_from([True, None, 1, 0, 1.5, 7, "a]", [], ["]"], {}, {"messages": [_HELLO]}, "\u00e9", '"messages":[']),
    max_size=4,
)
_TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"required": ["a"]}}}]
_DAMAGE = st.sampled_from([b"", b"]", b"}", b"\xff", b",", b'"', b"0", b"\\"])


def _outcome(body: bytes, api: Api) -> tuple[Inbound, bytes] | tuple[str, str | None, str | None]:
    """The parsed request and an upstream body, or the error."""
    try:
        inbound = read(body, api)
    except InvalidRequest as error:
        return error.message, error.param, error.code
    return inbound, in_one_piece(build(inbound.call, "up", stream=True, ask_usage=True))


@given(
    messages=st.sampled_from(_MESSAGES),
    others=_OTHER,
    tools=st.booleans(),
    order=st.randoms(use_true_random=False),
    compact=st.booleans(),
    repeated=st.booleans(),
    damage=st.none() | st.tuples(st.integers(-60, 120), _DAMAGE),
    api=st.sampled_from([Api.CHAT, Api.MESSAGES, Api.RESPONSES]),
)
def test_a_body_in_parts_reads_as_a_whole_one(
    messages: object,
    others: dict[str, object],
    tools: bool,
    order: Any,
    compact: bool,
    repeated: bool,
    damage: tuple[int, bytes] | None,
    api: Api,
) -> None:
    """Any body, valid or not, gives the same call, or the same error, as a parser that reads it as a whole."""
    members = [("model", "m"), ("input" if api is Api.RESPONSES else "messages", messages), *others.items()]
    members += [("tools", _TOOLS)] if tools else []
    order.shuffle(members)
    members += members[:1] if repeated else []
    colon, comma = (":", ",") if compact else (": ", ", ")
    pairs = [json.dumps(key) + colon + json.dumps(value, separators=(comma, colon)) for key, value in members]
    body = ("{" + comma.join(pairs) + "}").encode()
    if damage is not None:
        at, put = damage
        at %= len(body)
        body = body[:at] + put + body[at + 1 :]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(large, "SIZE_MIN", len(body))
        whole = _outcome(body, api)
    assert _outcome(body, api) == whole


@pytest.mark.parametrize(
    ("last", "times"),
    [({}, 1), ({"tools": _TOOLS}, 1), ({"stop": ["]"]}, 2), ({"stop": ["]"], "x": {}, "tools": _TOOLS}, 2)],
)
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_messages_are_decoded_at_most_twice(
    last: dict[str, object], times: int, separators: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of a valid body is read without its messages, which are found even if other arrays follow."""
    decoded: list[int] = []
    decode = large.end_of_messages

    def counting(api: Api, body: bytes, span: tuple[int, int]) -> int | None:
        decoded.append(span[1] - span[0])
        return decode(api, body, span)

    monkeypatch.setattr(large, "end_of_messages", counting)
    read_top = request._read_top
    monkeypatch.setattr(request, "_read_top", lambda body: read_top(body if len(body) < large.SIZE_MIN else b""))
    fields = {"model": "m", "stream": True, "messages": [_HELLO, _ASKED] * 10, **last}
    body = json.dumps(fields, separators=separators).encode()
    inbound = read(body)
    assert json.loads(inbound.prompt) == fields["messages"]
    assert len(decoded) == times
    for key, (start, end) in inbound.call.spans.items():
        assert json.loads(body[start:end]) == fields[key]


def test_the_keys_of_a_large_body_are_bounded() -> None:
    """A body with white space at its top level and 64 kB of keys is rejected, with messages of any size."""
    fields = {"model": "m", "messages": [_HELLO, {"role": "user", "content": _LONG * 40}], "k" * 70_000: 1}
    assert _outcome(json.dumps(fields).encode(), Api.CHAT)[0] == (
        "the keys at the top level of the body have over 65536 characters; send at most 65536"
    )
