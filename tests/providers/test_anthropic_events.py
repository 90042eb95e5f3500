"""Native Messages streams: events are classified and their bytes are forwarded unchanged."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anthropic_calls import PING, end, event, messages_call, start, text, thinking, tool
from providers.anthropic.protocol import AnthropicMessages
from ttft_gateway.apis.base import Frame, FrameKind, Usage
from ttft_gateway.apis.error_reasons import is_refusal, is_too_long
from ttft_gateway.apis.errors import BadStatus, ProtocolError
from ttft_gateway.apis.sse import Splitter

CALL = messages_call(stream=True)
STREAM = [
    start(),
    PING,
    *thinking(0, "sig", "Let me", " see"),
    *text(1, "Hello", " \u4e16\u754c"),
    *tool(2, "toolu_1", "get_weather", "", '{"city":', '"Paris"}'),
    *end("tool_use"),
]


def opening(kind: str, **fields: Any) -> bytes:
    """A block begins."""
    return event("content_block_start", index=0, content_block={"type": kind, **fields})


def delta(kind: str, **fields: Any) -> bytes:
    """A piece of a block."""
    return event("content_block_delta", index=0, delta={"type": kind, **fields})


def test_the_answer_alone_may_count() -> None:
    """With `first_token: answer` thinking is not content, also after other thinking."""
    reader = AnthropicMessages(first_token="answer").reader(CALL)
    kinds = [reader.read(each).kind for each in STREAM[2:8]]
    assert kinds == [FrameKind.WORK, *[FrameKind.PREAMBLE] * 4, FrameKind.WORK]


@pytest.mark.parametrize(("status", "name"), [(529, "overloaded_error"), (429, "rate_limit_error"), (500, "api_error")])
def test_error_events(status: int, name: str) -> None:
    """An error event has the status that its type has over HTTP."""
    frame = AnthropicMessages().reader(CALL).read(event("error", error={"type": name, "message": "No"}))
    assert frame.error is not None
    assert (frame.error.status, frame.error.kind, frame.error.message) == (status, name, "No")


def test_token_counts() -> None:
    """Input tokens come with the first event, output tokens with the last; cached tokens are part of the prompt."""
    reader = AnthropicMessages().reader(CALL)
    usages = [usage for each in STREAM if (usage := reader.read(each).usage) is not None]
    assert usages == [Usage(128, 1, 100), Usage(128, 15, 100)]


def frames_of(pieces: list[bytes]) -> list[Frame]:
    """The client's frames for these bytes of an upstream's answer."""
    splitter, reader = Splitter(1 << 20), AnthropicMessages().reader(CALL)
    return [reader.read(each) for piece in pieces for each in splitter.feed(piece)]


@given(st.lists(st.integers(0, len(b"".join(STREAM))), max_size=8).map(sorted))
def test_any_split_of_the_bytes(cuts: list[int]) -> None:
    """However the bytes are cut, the same events come out, byte for byte as they came in."""
    whole = b"".join(STREAM)
    pieces = [whole[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    frames = frames_of(pieces)
    assert b"".join(frame.raw for frame in frames) == whole
    assert frames == frames_of(STREAM)


@pytest.mark.parametrize("missing", range(1, len(STREAM) + 1))
def test_a_cut_is_noticed(missing: int) -> None:
    """A stream is complete with its stop reason, and not before."""
    reader = AnthropicMessages().reader(CALL)
    for each in STREAM[:-missing]:
        reader.read(each)
    assert (reader.complete, reader.closed, reader.close()) == (missing < 2, False, None)


MESSAGE = {
    "id": "msg_01",
    "type": "message",
    "role": "assistant",
    "content": [
        {"type": "thinking", "thinking": "Let me see", "signature": "sig"},
        {"type": "redacted_thinking", "data": "EvwB"},
        {"type": "text", "text": "Hello \u4e16\u754c", "citations": None},
        {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Paris"}},
        {"type": "tool_use", "id": "toolu_2", "name": "now", "input": {}},
    ],
    "model": "claude-opus-5",
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "stop_details": None,
    "usage": {"input_tokens": 25, "cache_read_input_tokens": 100, "output_tokens": 15, "service_tier": "standard"},
}


def test_there_and_back() -> None:
    """A whole message, taken apart into a stream and put together again, is the same message."""
    protocol = AnthropicMessages()
    assembler = protocol.assembler(CALL)
    frames = protocol.reader(CALL).read_body(json.dumps(MESSAGE).encode())
    for frame in frames:
        assembler.add(frame.raw)
    assert json.loads(assembler.body()) == MESSAGE
    assert frames[-1].kind is FrameKind.DONE


def test_streams_become_messages() -> None:
    """A stream's events make the message that the API sends unstreamed."""
    assembler = AnthropicMessages().assembler(CALL)
    for each in [*STREAM[:-2], delta("nonsense"), *end("tool_use", stop_details=None)]:
        assembler.add(each)
    assert json.loads(assembler.body()) == {
        **MESSAGE,
        "content": [
            {"type": "thinking", "thinking": "Let me see", "signature": "sig"},
            {"type": "text", "text": "Hello \u4e16\u754c"},
            {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Paris"}},
        ],
        "usage": {
            "input_tokens": 25,
            "cache_creation_input_tokens": 3,
            "cache_read_input_tokens": 100,
            "output_tokens": 15,
        },
    }


_CUT = tool(0, "t", "f", '{"a": "b')


@pytest.mark.parametrize("reason", ["max_tokens", "refusal", "model_context_window_exceeded"])
def test_an_answer_that_ends_in_the_input_of_a_tool_is_an_answer(reason: str) -> None:
    """Its block has no input: the API sends such a message, too, and it was paid for."""
    assembler = AnthropicMessages().assembler(CALL)
    for each in [start(), *tool(0, "t", "f", '{"a": 1}'), *tool(1, "u", "g", '{"a": "b'), *end(reason)]:
        assembler.add(each)
    message = json.loads(assembler.body())
    assert ([block["input"] for block in message["content"]], message["stop_reason"]) == ([{"a": 1}, {}], reason)


@pytest.mark.parametrize("events", [[], [PING], [start(), *_CUT], [start(), *_CUT, *end("tool_use")]])
def test_what_makes_no_message(events: list[bytes]) -> None:
    """Events that make no message are not made into one."""
    assembler = AnthropicMessages().assembler(CALL)
    for each in events:
        assembler.add(each)
    with pytest.raises(ValueError, match=r"no message|not JSON"):
        assembler.body()


def test_a_piece_of_a_block_that_has_not_begun_makes_no_message() -> None:
    """Without its block the text would be missing in a message that looks whole."""
    assembler = AnthropicMessages().assembler(CALL)
    assembler.add(start())
    with pytest.raises(ProtocolError, match="had not begun"):
        assembler.add(delta("text_delta", text="Hello"))


def test_citations_are_gathered() -> None:
    """Citations in single events are collected in one list."""
    assembler = AnthropicMessages().assembler(CALL)
    for each in [start(), opening("text", text=""), *(delta("citations_delta", citation={"n": n}) for n in (1, 2))]:
        assembler.add(each)
    block = json.loads(assembler.body())["content"][0]
    assert block == {"type": "text", "text": "", "citations": [{"n": 1}, {"n": 2}]}


def test_bodies() -> None:
    """An unstreamed message goes on as it is, with its counts; an error or nonsense in a 200 is an error."""
    protocol, body = AnthropicMessages(), json.dumps(MESSAGE).encode()
    assert protocol.whole(CALL, body) == Frame(FrameKind.CONTENT, body, Usage(125, 15, 100, tier="standard"))
    for broken in (b"[]", b"{}", b"<html>", json.dumps({"error": {"type": "api_error", "message": "x"}}).encode()):
        assert protocol.whole(CALL, broken).error is not None


def error(status: int, kind: str, message: str) -> BadStatus:
    """Read an error response."""
    body = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}
    return AnthropicMessages.error(status, [(b"retry-after", b"7")], json.dumps(body).encode())


def test_error_responses() -> None:
    """An error response keeps its status, type, words and wait."""
    overloaded = error(529, "overloaded_error", "Overloaded")
    assert (overloaded.status, overloaded.kind, overloaded.retry_after_s) == (529, "overloaded_error", 7)
    assert error(400, "invalid_request_error", "temperature: must be at most 1").status == 400


def test_reasons() -> None:
    """A prompt that is too long, and a policy's no, are understood in Anthropic's words."""
    assert is_too_long(error(400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum"))
    exceeded = "input length and `max_tokens` exceed context limit: 190000 + 32000 > 200000"
    assert is_too_long(error(400, "invalid_request_error", exceeded))
    assert is_refusal(error(400, "invalid_request_error", "Output blocked by content filtering policy"))
