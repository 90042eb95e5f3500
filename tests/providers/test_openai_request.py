"""Request bodies: three values replaced, every other byte as the client sent it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_calls import call_of, in_one_piece
from providers.openai.chat import OpenAIChat, OpenAICompletions
from ttft_gateway.apis.base import Api

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize(
    ("body", "stream", "built"),
    [
        (b'{"model":"m"}', True, b'{"stream":true,"stream_options":{"include_usage":true},"model":"up"}'),
        (b'{"model":"m"}', False, b'{"model":"up"}'),
        (b'{"stream":true,"model":"m"}', True, b'{"stream_options":{"include_usage":true},"stream":true,"model":"up"}'),
        (
            b'{"model":"m","stream":false}',
            True,
            b'{"stream_options":{"include_usage":true},"model":"up","stream":true}',
        ),
        (b'{"model":"m","stream":null}', False, b'{"model":"up","stream":null}'),
        (
            b'{"model":"m","stream":true,"stream_options":{"include_usage":true,"x":1 }}',
            True,
            b'{"model":"up","stream":true,"stream_options":{"include_usage":true,"x":1 }}',
        ),
        (
            b'{"model":"m","stream":true,"stream_options":{"x" : 1e2, "include_usage":false}}',
            True,
            b'{"model":"up","stream":true,"stream_options":{"x":1e2,"include_usage":true}}',
        ),
        (
            b'{"stream":true,"stream_options":null,"model":"m"}',
            True,
            b'{"stream":true,"stream_options":{"include_usage":true},"model":"up"}',
        ),
        (
            b'{"stream":true,"stream_options":"yes","model":"m"}',
            True,
            b'{"stream":true,"stream_options":"yes","model":"up"}',
        ),
        (
            b' { "model" : "m" , "tools" : [ ] , "n":1.0 } ',
            True,
            b' {"stream":true,"stream_options":{"include_usage":true}, "model" : "up" , "tools" : [ ] , "n":1.0 } ',
        ),
        (b"{}", False, b'{"model":"up"}'),
    ],
)
def test_build(*, body: bytes, stream: bool, built: bytes) -> None:
    """Present values are replaced in place, absent ones inserted in front, all other bytes unchanged."""
    assert built == OpenAIChat().build(call_of(body), "up", stream=stream)


def test_usage_is_not_requested_from_servers_that_reject_the_option() -> None:
    """With `ask_usage` off, `stream_options` is the client's own or absent."""
    chat = OpenAIChat(ask_usage=False)
    assert chat.build(call_of(b'{"model":"m"}'), "up", stream=True) == b'{"stream":true,"model":"up"}'
    asked = b'{"model":"m","stream":true,"stream_options":{"include_usage":true}}'
    assert asked.replace(b'"m"', b'"up"') == chat.build(call_of(asked), "up", stream=True)


def test_a_model_name_is_escaped() -> None:
    """Any model name reaches the upstream as a JSON string."""
    assert json.loads(in_one_piece(OpenAIChat().build(call_of(b'{"model":"m"}'), 'a"\\é\n', stream=False))) == {
        "model": 'a"\\é\n'
    }


@pytest.mark.parametrize("api", [Api.CHAT, Api.COMPLETIONS])
def test_completions_are_built_alike(api: Api) -> None:
    """Both protocols replace the same values, and have the path of their API."""
    protocol = OpenAIChat() if api is Api.CHAT else OpenAICompletions()
    call = call_of({"model": "m", "prompt": "é"}, api)
    built = json.loads(in_one_piece(protocol.build(call, "up", stream=True)))
    assert built == {"stream": True, "stream_options": {"include_usage": True}, "model": "up", "prompt": "é"}
    assert protocol.path(api, "m", stream=True) == f"/{api.value}"


@given(
    rest=st.dictionaries(st.text(max_size=6), JSON, max_size=4),
    stream=st.booleans(),
    options=st.sampled_from([{}, {"x": [1]}, {"include_usage": False}]),
)
def test_nothing_else_changes(*, rest: dict[str, object], stream: bool, options: dict[str, object]) -> None:
    """Of any body, only `model`, `stream` and `stream_options` differ upstream."""
    body = {**rest, "model": "m", "stream": stream, "stream_options": options}
    built = json.loads(in_one_piece(OpenAIChat().build(call_of(body), "up", stream=True)))
    assert built == {**body, "model": "up", "stream": True, "stream_options": {**options, "include_usage": True}}


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=5), st.booleans())
def test_streams_and_options_are_not_sent_to_servers_that_reject_them(others: dict[str, object], stream: bool) -> None:
    """Asked as a whole, a streaming call has no word of streaming; without options, none of them; all else stays."""
    asked = {**others, "model": "m", "stream": True, "stream_options": {"include_usage": True}}
    built = json.loads(in_one_piece(OpenAIChat().build(call_of(asked, options=False), "up", stream=stream)))
    kept = {key: value for key, value in others.items() if key not in ("stream", "stream_options")}
    assert built == {**kept, "model": "up", **({"stream": True} if stream else {})}


@pytest.mark.parametrize("stream", [False, True])
def test_a_large_body_is_not_copied(*, stream: bool) -> None:
    """All but the replaced values of a large body are views of the client's bytes, in the form of a small request."""
    texts = "x", "x" * 1_000_000
    bodies = [
        b'{"model":"m", "stream":true,"messages":[{"role":"user","content":"%b"}]}' % text.encode() for text in texts
    ]
    small, large = [OpenAIChat().build(call_of(body), "upstream", stream=stream) for body in bodies]
    assert isinstance(small, bytes)
    assert in_one_piece(large) == small.replace(b'"x"', b'"%b"' % texts[1].encode())
    if stream:
        assert isinstance(large, tuple)
        assert sum(len(piece) for piece in large if not isinstance(piece, memoryview)) < 100
        assert all(piece.obj is bodies[1] for piece in large if isinstance(piece, memoryview))
