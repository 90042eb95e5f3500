"""Answers of the Messages API as answers of chat completions."""

import json
from typing import Any

import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from anthropic_calls import (
    CHAT_TO_MESSAGES,
    DONE,
    PING,
    WALL_S,
    block,
    data_in,
    end,
    event,
    read_through,
    start,
    text,
    thinking,
    tool,
)
from openai_calls import STREAMED, WHOLE, call_of
from ttft_gateway.apis.base import FrameKind, Usage

WITH_USAGE = call_of({"model": "m", "stream": True, "stream_options": {"include_usage": True}})
# what: events inside a message -> the deltas of the chunks that a client gets, and the finish_reason
CHUNKS: dict[str, tuple[list[bytes], list[dict[str, Any]], str]] = {
    "text": (
        [*text(0, "Hel", "lo"), *end()],
        [{"content": "Hel"}, {"content": "lo"}],
        "stop",
    ),
    "text that begins with its block": (
        [*block(0, {"type": "text", "text": "Hel"}, {"type": "text_delta", "text": "lo"}), *end()],
        [{"content": "Hel"}, {"content": "lo"}],
        "stop",
    ),
    "pings": ([PING, *text(0, "Hi"), PING, *end()], [{"content": "Hi"}], "stop"),
    "two blocks of text": (
        [*text(0, "A"), *text(1, "B"), *end("max_tokens")],
        [{"content": "A"}, {"content": "B"}],
        "length",
    ),
    "a tool call behind a text": (
        [*text(0, "Let me see."), *tool(1, "toolu_1", "get_weather", "", '{"city":', '"Paris"}'), *end("tool_use")],
        [
            {"content": "Let me see."},
            {
                "tool_calls": [
                    {
                        "index": 0,
                        "id": "toolu_1",
                        "type": "function",
                        "function": {"name": "get_weather", "arguments": ""},
                    }
                ]
            },
            {"tool_calls": [{"index": 0, "function": {"arguments": '{"city":'}}]},
            {"tool_calls": [{"index": 0, "function": {"arguments": '"Paris"}'}}]},
        ],
        "tool_calls",
    ),
    "calls in parallel, without arguments and with them at once": (
        [
            *tool(0, "toolu_1", "now"),
            *block(1, {"type": "tool_use", "id": "toolu_2", "name": "f", "input": {"a": 1}}),
            *end("tool_use"),
        ],
        [
            {
                "tool_calls": [
                    {"index": 0, "id": "toolu_1", "type": "function", "function": {"name": "now", "arguments": ""}}
                ]
            },
            {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]},
            {
                "tool_calls": [
                    {"index": 1, "id": "toolu_2", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
                ]
            },
        ],
        "tool_calls",
    ),
    "thinking": (
        [*thinking(0, "sig", "2", "+2"), *text(1, "4"), *end()],
        [
            {"reasoning_content": "2"},
            {"reasoning_content": "+2"},
            {"thinking_blocks": [{"index": 0, "type": "thinking", "thinking": "2+2", "signature": "sig"}]},
            {"content": "4"},
        ],
        "stop",
    ),
    "thinking that is not shown": (
        [*thinking(0, "sig"), *block(1, {"type": "redacted_thinking", "data": "EvwB"}), *text(2, "4"), *end()],
        [
            {"thinking_blocks": [{"index": 0, "type": "thinking", "thinking": "", "signature": "sig"}]},
            {"thinking_blocks": [{"index": 1, "type": "redacted_thinking", "data": "EvwB"}]},
            {"content": "4"},
        ],
        "stop",
    ),
    "a refusal": (
        [*end("refusal", stop_details={"type": "refusal", "category": None, "explanation": "No."})],
        [{"refusal": "No."}],
        "content_filter",
    ),
    "a stop sequence": ([*text(0, "A"), *end("stop_sequence")], [{"content": "A"}], "stop"),
    "no room left": ([*text(0, "A"), *end("model_context_window_exceeded")], [{"content": "A"}], "length"),
    "what is not known": (
        [event("new_event"), *block(0, {"type": "new_block"}, {"type": "new_delta"}), *end("pause_turn")],
        [],
        "pause_turn",
    ),
}


def chunks_in(data: list[Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """The deltas of chunks that are not empty, and their finish_reasons."""
    choices = [each["choices"][0] for each in data if isinstance(each, dict) and each["choices"]]
    return [each["delta"] for each in choices if each["delta"]], [
        each["finish_reason"] for each in choices if each["finish_reason"]
    ]


@pytest.mark.parametrize("case", CHUNKS, ids=str)
def test_messages_as_chunks(case: str) -> None:
    """A Messages stream is one valid stream of chunks: role, content, finish_reason, [DONE]; each with its head."""
    events, deltas, finish = CHUNKS[case]
    data = data_in(read_through(CHAT_TO_MESSAGES, STREAMED, [start(), *events]))
    assert data.pop() == "[DONE]"
    assert chunks_in(data) == ([{"role": "assistant", "content": ""}, *deltas], [finish])
    heads = {(each["id"], each["object"], each["created"], each["model"]) for each in data}
    assert heads == {("msg_01", "chat.completion.chunk", int(WALL_S), "claude-opus-5")}


@pytest.mark.parametrize("case", sorted(CHUNKS.keys() - {"what is not known"}), ids=str)
def test_openais_sdk_adds_them_up(case: str) -> None:
    """OpenAI's SDK makes one message of the chunks, with every block of thinking."""
    events, deltas, finish = CHUNKS[case]
    state = ChatCompletionStreamState()
    for each in data_in(read_through(CHAT_TO_MESSAGES, STREAMED, [start(), *events]))[:-1]:
        state.handle_chunk(ChatCompletionChunk.model_validate(each))
    choice = state.current_completion_snapshot.choices[0]
    message = choice.message.model_dump()
    blocks = [block for delta in deltas for block in delta.get("thinking_blocks", ())]
    assert (message["content"], choice.finish_reason) == ("".join(each.get("content", "") for each in deltas), finish)
    assert message.get("thinking_blocks", []) == blocks


def test_token_counts_for_chat() -> None:
    """The usage chunk comes where it is asked for, with what was cached as part of the prompt, and only then."""
    events = [start(), *text(0, "A"), *end()]
    *_, usage, done = data_in(read_through(CHAT_TO_MESSAGES, WITH_USAGE, events))
    assert usage["usage"] == {
        "prompt_tokens": 128,
        "completion_tokens": 15,
        "total_tokens": 143,
        "prompt_tokens_details": {"cached_tokens": 100, "cache_write_tokens": 3, "cache_creation_tokens": 3},
    }
    assert (usage["choices"], done) == ([], "[DONE]")
    assert b'"usage"' not in read_through(CHAT_TO_MESSAGES, STREAMED, events)
    assert b'"reasoning_tokens":9' in read_through(
        CHAT_TO_MESSAGES,
        WITH_USAGE,
        [start(usage={"output_tokens": 1, "output_tokens_details": {"thinking_tokens": 9}}), *end()],
    )


def test_frames_keep_what_they_are() -> None:
    """Translation changes the bytes of a frame and nothing else: kinds and counts are the upstream's."""
    reader = CHAT_TO_MESSAGES.reader(STREAMED)
    events = [start(), PING, *text(0, "A"), *end("refusal")]
    kinds = [reader.read(each).kind.value for each in events]
    assert kinds == ["preamble", "preamble", "work", "content", "preamble", "refusal", "done"]
    assert (reader.complete, reader.closed) == (True, True)


def test_error_events_end_a_chat_stream() -> None:
    """An error event is an error, before content or after it, and is not forwarded as anything else."""
    reader = CHAT_TO_MESSAGES.reader(STREAMED)
    reader.read(start())
    frame = reader.read(event("error", error={"type": "overloaded_error", "message": "Overloaded"}))
    assert (frame.kind, frame.raw) == (FrameKind.ERROR, b"")
    assert frame.error is not None
    assert frame.error.status == 529


def test_a_missing_message_stop() -> None:
    """A stream that ends after its stop reason is complete, and closed in the client's API."""
    reader = CHAT_TO_MESSAGES.reader(WITH_USAGE)
    for each in [start(), *text(0, "A"), end()[0]]:
        reader.read(each)
    last = reader.close()
    assert reader.complete
    assert last is not None
    assert last.raw.endswith(DONE)
    assert len(data_in(last.raw)) == 2


def test_a_message_as_a_completion() -> None:
    """A message that was not streamed is put together as the completion that a chat client wants."""
    message = {
        "id": "msg_01",
        "model": "claude-opus-5",
        "content": [{"type": "text", "text": "Hi"}, {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 2, "output_tokens": 3},
    }
    frame = CHAT_TO_MESSAGES.whole(WHOLE, json.dumps(message).encode())
    assert json.loads(frame.raw) == {
        "id": "msg_01",
        "object": "chat.completion",
        "created": int(WALL_S),
        "model": "claude-opus-5",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "Hi",
                    "tool_calls": [{"id": "t", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}],
                },
                "finish_reason": "tool_calls",
            }
        ],
        "usage": {
            "prompt_tokens": 2,
            "completion_tokens": 3,
            "total_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }
    assert frame.usage == Usage(2, 3)
    assert (
        CHAT_TO_MESSAGES.whole(WHOLE, b'{"type":"error","error":{"type":"api_error","message":"x"}}').error is not None
    )
