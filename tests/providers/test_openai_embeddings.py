"""Embeddings: bodies go on byte for byte, and a model that does not embed is no broken replica."""

import json

import pytest

from openai_calls import call_of, in_one_piece
from providers.openai.whole import OpenAIEmbeddings
from ttft_gateway.apis.base import Api, Frame, FrameKind, Usage
from ttft_gateway.apis.errors import BadStatus, Unsupported

CALL = call_of({"model": "m", "input": ["a"], "encoding_format": "base64"}, Api.EMBEDDINGS)


def test_only_the_model_is_replaced() -> None:
    """All other bytes of the caller's body reach the upstream unchanged."""
    built = OpenAIEmbeddings().build(CALL, "up", stream=False)
    assert json.loads(in_one_piece(built)) == {"model": "up", "input": ["a"], "encoding_format": "base64"}


@pytest.mark.parametrize("vector", ["[0.1,-2e-05]", '"AAAAPw=="'])
def test_an_answer_goes_on_as_it_came(vector: str) -> None:
    """Numbers and base64 are not read; token counts are."""
    body = f'{{"data": [{{"embedding": {vector}, "index": 0}}], "usage": {{"prompt_tokens": 2}}}}'.encode()
    assert OpenAIEmbeddings().whole(CALL, body) == Frame(FrameKind.CONTENT, body, Usage(2))


@pytest.mark.parametrize("body", [b"", b"{}", b'{"data":[]}', b'{"data":3}', b'{"error":{"message":"no"}}', b"<html>"])
def test_anything_else_is_an_error(body: bytes) -> None:
    """A 200 without embeddings is a failure."""
    assert OpenAIEmbeddings().whole(CALL, body).kind is FrameKind.ERROR
    assert OpenAIEmbeddings().reader(CALL).read_body(body)[0].kind is FrameKind.ERROR


@pytest.mark.parametrize(
    ("status", "kind"), [(403, Unsupported), (404, Unsupported), (501, Unsupported), (400, BadStatus), (500, BadStatus)]
)
def test_a_model_that_does_not_embed_is_unsupported(status: int, kind: type) -> None:
    """A server that rejects the model or the path is not broken: its breaker must not count that."""
    assert type(OpenAIEmbeddings().error(status, (), b'{"error":{"message":"no"}}')) is kind
