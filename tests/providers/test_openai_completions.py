"""Legacy completions: text instead of messages, everything else as in chat."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_calls import WHOLE, call_of
from providers.openai.chat import OpenAICompletions
from ttft_gateway.apis.base import Api, Frame, FrameKind, Usage

CALL = call_of({"model": "m", "prompt": "Say"}, Api.COMPLETIONS)
STREAMED = call_of({"model": "m", "prompt": "Say", "stream": True}, Api.COMPLETIONS)
HEAD = {"id": "cmpl-1", "object": "text_completion", "created": 1753000000, "model": "m"}


def event(**chunk: Any) -> bytes:
    """One event of a stream."""
    return b"data: " + json.dumps({**HEAD, **chunk}).encode() + b"\n\n"


def text(content: str, index: int = 0, finish: str | None = None, logprobs: object = None) -> bytes:
    """A chunk with text."""
    return event(choices=[{"text": content, "index": index, "logprobs": logprobs, "finish_reason": finish}])


def assembled(*events: bytes) -> Any:
    """The body made of these events."""
    assembler = OpenAICompletions().assembler(CALL)
    for each in events:
        assembler.add(each)
    return json.loads(assembler.body())


def test_a_stream_becomes_a_body() -> None:
    """Text and log probabilities of interleaved choices are joined, usage is the last."""
    usage = {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}
    probs = [
        {"tokens": [token], "token_logprobs": [-1.0], "top_logprobs": None, "text_offset": [n]}
        for n, token in enumerate("Pa")
    ]
    body = assembled(
        text("P", logprobs=probs[0]),
        text("x", 1),
        text("a", 0, "stop", logprobs=probs[1]),
        text("", 1, "length"),
        event(choices=[], usage=usage),
        b"data: [DONE]\n\n",
    )
    joined = {"tokens": ["P", "a"], "token_logprobs": [-1.0, -1.0], "top_logprobs": None, "text_offset": [0, 1]}
    assert body == {
        **HEAD,
        "choices": [
            {"text": "Pa", "index": 0, "logprobs": joined, "finish_reason": "stop"},
            {"text": "x", "index": 1, "logprobs": None, "finish_reason": "length"},
        ],
        "usage": usage,
    }


def test_a_body_becomes_a_stream() -> None:
    """A complete answer where a stream was asked for is two events a choice, with usage withheld from the client."""
    answer = {
        **HEAD,
        "choices": [{"text": "Pa", "index": 0, "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 5},
    }
    frames = OpenAICompletions().reader(STREAMED).read_body(json.dumps(answer).encode())
    assert [frame.kind for frame in frames] == [FrameKind.CONTENT, FrameKind.FINISH, FrameKind.USAGE, FrameKind.DONE]
    chunks = [json.loads(frame.raw.removeprefix(b"data: ")) for frame in frames[:2]]
    assert chunks == [
        {**HEAD, "choices": [{"index": 0, "text": "Pa", "logprobs": None, "finish_reason": None}]},
        {**HEAD, "choices": [{"index": 0, "text": "", "finish_reason": "stop"}]},
    ]
    assert frames[2] == Frame(FrameKind.USAGE, b"", Usage(5))
    assert frames[3].raw == b"data: [DONE]\n\n"


@given(st.lists(st.tuples(st.text(), st.sampled_from(["stop", "length", None])), min_size=1, max_size=3))
def test_there_and_back(choices: list[tuple[str, str | None]]) -> None:
    """A complete answer, taken apart into a stream and put together again, is the same answer."""
    answer = {
        **HEAD,
        "choices": [
            {"text": told, "index": index, "logprobs": None, "finish_reason": finish}
            for index, (told, finish) in enumerate(choices)
        ],
        "usage": {"prompt_tokens": 1},
        "system_fingerprint": "fp",
    }
    frames = OpenAICompletions().reader(CALL).read_body(json.dumps(answer).encode())
    assert answer == assembled(*(frame.raw for frame in frames))


@pytest.mark.parametrize("body", [b'{"error":"no model"}', b"", b"{}"])
def test_errors_are_read_alike(body: bytes) -> None:
    """An error inside a 200, and an error status, are what they are in chat."""
    (frame,) = OpenAICompletions().reader(STREAMED).read_body(body)
    assert frame.kind is FrameKind.ERROR
    assert OpenAICompletions().error(503, [(b"retry-after", b"2")], body).retry_after_s == 2.0


def test_usage() -> None:
    """Token counts of an unstreamed answer."""
    body = b'{"choices":[{"index":0,"text":"a","finish_reason":"stop"}],"usage":{"prompt_tokens":5}}'
    assert OpenAICompletions().whole(WHOLE, body) == Frame(FrameKind.CONTENT, body, Usage(5))
