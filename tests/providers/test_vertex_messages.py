"""Messages API at Vertex AI: the model is in the path, the version in the body, all other bytes are as sent."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_calls import call_of, in_one_piece
from providers.anthropic.protocol import AnthropicMessages
from providers.protocols import ProtocolOptions, protocols
from ttft_gateway.apis.base import Api
from ttft_gateway.apis.clouds import kind_at

VERSION = "vertex-2023-10-16"
VERTEX = AnthropicMessages(body_version=VERSION)
JSON = st.recursive(st.none() | st.booleans() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=2))


@pytest.mark.parametrize(
    ("model", "stream", "path"),
    [
        ("claude-opus-4-8", True, "/models/claude-opus-4-8:streamRawPredict"),
        ("claude-sonnet-4-5@20250929", False, "/models/claude-sonnet-4-5@20250929:rawPredict"),
        ("a/../b;c?d", True, "/models/a%2F..%2Fb%3Bc%3Fd:streamRawPredict"),
    ],
)
def test_the_model_is_in_the_path(model: str, *, stream: bool, path: str) -> None:
    """A stream and a whole answer have paths of their own, and no name of a model leaves its segment."""
    assert VERTEX.path(Api.MESSAGES, model, stream=stream) == path


@pytest.mark.parametrize(
    ("body", "stream", "built"),
    [
        (
            b'{"max_tokens":1, "model" : "m","stream":true}',
            True,
            b'{"max_tokens":1, "anthropic_version":"vertex-2023-10-16","stream":true}',
        ),
        (
            b'{"model":"m","max_tokens":1}',
            True,
            b'{"stream":true,"anthropic_version":"vertex-2023-10-16","max_tokens":1}',
        ),
        (
            b'{"stream":true,"model":"m","max_tokens":1}',
            False,
            b'{"anthropic_version":"vertex-2023-10-16","max_tokens":1}',
        ),
        (
            b'{"model":"m","max_tokens":1,"anthropic_version":"2026-10-21"}',
            False,
            b'{"anthropic_version":"vertex-2023-10-16","max_tokens":1}',
        ),
    ],
)
def test_the_version_replaces_the_model(*, body: bytes, stream: bool, built: bytes) -> None:
    """The version is sent in the place of `model`; a stream is requested or not, whatever the client wrote."""
    assert in_one_piece(VERTEX.build(call_of(body, Api.MESSAGES), "up", stream=stream)) == built


def test_a_key_that_is_written_with_an_escape_is_removed() -> None:
    """A key `model` is found by its meaning if its bytes are not the usual ones."""
    call = call_of(b'{"model":"m","max_tokens":1}', Api.MESSAGES)
    body = rb'{"\u006dodel":"m","max_tokens":1}'
    shift = len(body) - len(call.body)
    spans = {key: (start + shift, end + shift) for key, (start, end) in call.spans.items()}
    escaped = msgspec.structs.replace(call, body=body, spans=spans)
    assert json.loads(in_one_piece(VERTEX.build(escaped, "up", stream=False))) == {
        "anthropic_version": VERSION,
        "max_tokens": 1,
    }


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=4), st.booleans(), st.booleans())
def test_nothing_else_changes(others: dict[str, object], asked: bool, stream: bool) -> None:
    """Of any body, only `model`, `stream` and `anthropic_version` differ."""
    body = {**others, "model": "m", "max_tokens": 5, **({"stream": True} if asked else {})}
    built = json.loads(in_one_piece(VERTEX.build(call_of(body, Api.MESSAGES), "up", stream=stream)))
    kept = {key: value for key, value in body.items() if key not in ("model", "stream", "anthropic_version")}
    expected = {**kept, "anthropic_version": VERSION, **({"stream": True} if stream else {})}
    assert {**built, "stream": built.get("stream", False)} == {**expected, "stream": stream}


def test_a_large_body_is_not_copied() -> None:
    """A body with images is sent as views of the client's bytes."""
    call = call_of({"model": "m", "max_tokens": 1, "messages": "x" * 300_000}, Api.MESSAGES)
    built = VERTEX.build(call, "up", stream=True)
    assert isinstance(built, tuple)
    assert sum(isinstance(piece, memoryview) for piece in built) >= 2


def test_chat_completions_reach_claude_at_vertex_by_translation() -> None:
    """A chat completion has the path and the version of Vertex, too."""
    kind = kind_at("vertex", "https://h/v1/projects/p/locations/l/publishers/anthropic", "claude-x")
    protocol = protocols(kind, kind.apis, ProtocolOptions())[Api.CHAT]
    call = call_of({"model": "m", "messages": [{"role": "user", "content": "hi"}]})
    built = json.loads(in_one_piece(protocol.build(call, "claude-x", stream=True)))
    assert protocol.path(Api.CHAT, "claude-x", stream=True) == "/models/claude-x:streamRawPredict"
    assert "model" not in built
    assert built["anthropic_version"] == VERSION
