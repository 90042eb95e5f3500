"""Answers translated between the Messages API and chat completions, errors and cuts included."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anthropic_calls import (
    CHAT_TO_MESSAGES,
    DONE,
    MESSAGES_TO_CHAT,
    PING,
    WALL_S,
    assert_valid,
    block,
    chunk,
    data_in,
    end,
    event,
    messages_call,
    read_through,
    start,
    text,
    thinking,
    tool,
)
from openai_calls import STREAMED, WHOLE, call_of
from providers.base import FrameKind, Usage
from providers.errors import ProtocolError

WITH_USAGE = call_of({"model": "m", "stream": True, "stream_options": {"include_usage": True}})
MESSAGES_CALL = messages_call(stream=True)
USAGE = {"prompt_tokens": 10, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 6}}

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
            {"thinking_blocks": [{"type": "thinking", "thinking": "2+2", "signature": "sig"}]},
            {"content": "4"},
        ],
        "stop",
    ),
    "thinking that is not shown": (
        [*thinking(0, "sig"), *block(1, {"type": "redacted_thinking", "data": "EvwB"}), *text(2, "4"), *end()],
        [
            {"thinking_blocks": [{"type": "thinking", "thinking": "", "signature": "sig"}]},
            {"thinking_blocks": [{"type": "redacted_thinking", "data": "EvwB"}]},
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


def test_token_counts_for_chat() -> None:
    """The usage chunk comes where it is asked for, with what was cached as part of the prompt, and only then."""
    events = [start(), *text(0, "A"), *end()]
    *_, usage, done = data_in(read_through(CHAT_TO_MESSAGES, WITH_USAGE, events))
    assert usage["usage"] == {
        "prompt_tokens": 128,
        "completion_tokens": 15,
        "total_tokens": 143,
        "prompt_tokens_details": {"cached_tokens": 100, "cache_creation_tokens": 3},
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


def piece(index: int | None, id_: str | None = None, name: str | None = None, arguments: Any = "") -> dict[str, Any]:
    """A delta with a piece of a tool call."""
    function = {"arguments": arguments, **({"name": name} if name else {})}
    call = {"index": index, "id": id_, "type": "function", "function": function}
    return {"tool_calls": [{key: value for key, value in call.items() if value is not None}]}


# what: chunks -> blocks of the message that a client makes of the events, its stop_reason and stop_sequence
ROLE = chunk({"role": "assistant", "content": ""})
SERVED: dict[str, tuple[list[bytes], list[dict[str, Any]], str, str | None]] = {
    "text": (
        [ROLE, chunk({"content": "Hel"}), chunk({"content": "lo"}), chunk({}, "stop"), DONE],
        [{"type": "text", "text": "Hello"}],
        "end_turn",
        None,
    ),
    "length": ([chunk({"content": "A"}, "length"), DONE], [{"type": "text", "text": "A"}], "max_tokens", None),
    "comments": (
        [b": OPENROUTER PROCESSING\n\n", ROLE, chunk({"content": "A"}), chunk({}, "stop"), DONE],
        [{"type": "text", "text": "A"}],
        "end_turn",
        None,
    ),
    "reasoning (vLLM)": (
        [
            chunk({"reasoning": "2", "reasoning_content": "2"}),
            chunk({"reasoning": "+2"}),
            chunk({"content": "4"}, "stop"),
            DONE,
        ],
        [{"type": "thinking", "thinking": "2+2", "signature": ""}, {"type": "text", "text": "4"}],
        "end_turn",
        None,
    ),
    "reasoning in parts (Mistral)": (
        [
            chunk({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]}]}),
            chunk({"content": [{"type": "text", "text": "4"}]}, "stop"),
            DONE,
        ],
        [{"type": "thinking", "thinking": "Hm", "signature": ""}, {"type": "text", "text": "4"}],
        "end_turn",
        None,
    ),
    "tool calls": (
        [
            chunk({"content": "See:"}),
            chunk(piece(0, "call_1", "f")),
            chunk(piece(0, arguments='{"a"')),
            chunk(piece(0, arguments=":1}")),
            chunk(piece(1, "call_2", "g", "{}")),
            chunk({}, "tool_calls"),
            DONE,
        ],
        [
            {"type": "text", "text": "See:"},
            {"type": "tool_use", "id": "call_1", "name": "f", "input": {"a": 1}},
            {"type": "tool_use", "id": "call_2", "name": "g", "input": {}},
        ],
        "tool_use",
        None,
    ),
    "whole calls with the same index (Gemini), and stop": (
        [chunk(piece(0, "call_1", "f", "{}")), chunk(piece(0, "call_2", "g", '{"b":2}'), "stop"), DONE],
        [
            {"type": "tool_use", "id": "call_1", "name": "f", "input": {}},
            {"type": "tool_use", "id": "call_2", "name": "g", "input": {"b": 2}},
        ],
        "tool_use",
        None,
    ),
    "calls without index, id or text": (
        [chunk(piece(None, None, "f", {"a": 1})), chunk(piece(None, None, "g", "{}"), "tool_calls"), DONE],
        [
            {"type": "tool_use", "id": "call_chatcmpl-1_0", "name": "f", "input": {"a": 1}},
            {"type": "tool_use", "id": "call_chatcmpl-1_1", "name": "g", "input": {}},
        ],
        "tool_use",
        None,
    ),
    "a stop sequence (vLLM)": (
        [chunk(choices=[{"index": 0, "delta": {"content": "A"}, "finish_reason": "stop", "stop_reason": "END"}]), DONE],
        [{"type": "text", "text": "A"}],
        "stop_sequence",
        "END",
    ),
    "a refusal": (
        [chunk({"refusal": "No."}), chunk({}, "stop"), DONE],
        [{"type": "text", "text": "No."}],
        "refusal",
        None,
    ),
    "a filter": (
        [chunk({"content": "A"}), chunk({}, "content_filter"), DONE],
        [{"type": "text", "text": "A"}],
        "refusal",
        None,
    ),
    "nothing at all": ([ROLE, chunk({}, "stop"), DONE], [], "end_turn", None),
    "no closing event": (
        [ROLE, chunk({"content": "A"}), chunk({}, "stop")],
        [{"type": "text", "text": "A"}],
        "end_turn",
        None,
    ),
}


@pytest.mark.parametrize("case", SERVED, ids=str)
def test_chunks_as_messages(case: str) -> None:
    """A stream of chunks is one valid Messages stream, of which a client makes the message of the table."""
    chunks, blocks, reason, sequence = SERVED[case]
    raw = read_through(MESSAGES_TO_CHAT, MESSAGES_CALL, chunks)
    assert_valid(raw)
    assembler = MESSAGES_TO_CHAT._translation.assembler(MESSAGES_CALL)
    assembler.add(raw)
    message = json.loads(assembler.body())
    assert message["content"] == blocks
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence)
    assert (message["type"], message["role"]) == ("message", "assistant")


@pytest.mark.parametrize(
    "counts",
    [
        [chunk({"content": "A"}), chunk({}, "stop"), chunk(usage=USAGE), DONE],
        [chunk({"content": "A"}), chunk({}, "stop", usage=USAGE), DONE],
        [chunk({"content": "A"}), chunk({}, "stop", x_groq={"usage": USAGE}), DONE],
    ],
)
def test_token_counts_for_messages(counts: list[bytes]) -> None:
    """Token counts, anywhere in an upstream's stream, are in the last event but one; cached tokens are separate."""
    assert data_in(read_through(MESSAGES_TO_CHAT, MESSAGES_CALL, counts))[-2]["usage"] == {
        "input_tokens": 4,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 6,
        "output_tokens": 4,
    }


def test_missing_token_counts_are_estimated() -> None:
    """Counts that an upstream does not report are estimated from the text, and marked."""
    raw = read_through(MESSAGES_TO_CHAT, MESSAGES_CALL, [chunk({"content": "123456789"}, "stop"), DONE])
    assert data_in(raw)[-2]["usage"] == {
        "input_tokens": 0,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 3,
        "estimated": True,
    }


def test_thinking_can_be_hidden() -> None:
    """A client that requests no thinking text gets empty thinking blocks, which count as content."""
    call = messages_call(stream=True, thinking={"type": "adaptive", "display": "omitted"})
    reader = MESSAGES_TO_CHAT.reader(call)
    frames = [reader.read(each) for each in [chunk({"reasoning": "2"}), chunk({"reasoning": "3"})]]
    assert [frame.kind for frame in frames] == [FrameKind.CONTENT] * 2
    assert [each["type"] for each in data_in(frames[0].raw)] == ["message_start", "content_block_start"]
    assert frames[1].raw == b""


def test_interleaved_tool_calls() -> None:
    """A tool call that continues after a later one cannot be expressed in blocks: an error, not a wrong call."""
    reader = MESSAGES_TO_CHAT.reader(MESSAGES_CALL)
    for each in (piece(0, "call_1", "f"), piece(1, "call_2", "g")):
        reader.read(chunk(each))
    with pytest.raises(ProtocolError, match="interleaved"):
        reader.read(chunk(piece(0, arguments="{}")))


def test_chat_errors_end_a_messages_stream() -> None:
    """An error in the stream is an error; a stream cut before its end is not complete and closes nothing."""
    reader = MESSAGES_TO_CHAT.reader(MESSAGES_CALL)
    reader.read(chunk({"content": "A"}))
    frame = reader.read(b'data: {"error":{"message":"Out of memory","type":"server_error"}}\n\n')
    assert (frame.kind, frame.raw, reader.complete) == (FrameKind.ERROR, b"", False)


def test_a_completion_as_a_message() -> None:
    """A completion where a stream was asked for becomes a message."""
    message = {"role": "assistant", "content": "Hi", "tool_calls": None}
    completion = {"id": "c1", "model": "served", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    frame = MESSAGES_TO_CHAT.whole(messages_call(), json.dumps({**completion, "usage": USAGE}).encode())
    body = json.loads(frame.raw)
    assert (body["content"], body["stop_reason"]) == ([{"type": "text", "text": "Hi"}], "end_turn")
    assert frame.usage == Usage(10, 4, 6)


BOTH = [
    (
        CHAT_TO_MESSAGES,
        WITH_USAGE,
        b"".join([start(), PING, *thinking(0, "s", "2"), *text(1, "4"), *tool(2, "t", "f", "{}"), *end()]),
    ),
    (MESSAGES_TO_CHAT, MESSAGES_CALL, b"".join(SERVED["tool calls"][0])),
    (MESSAGES_TO_CHAT, MESSAGES_CALL, b"".join(SERVED["reasoning (vLLM)"][0]).replace(b"\n", b"\r\n")),
]


@given(st.sampled_from(BOTH), st.lists(st.integers(0, 2000), max_size=8).map(sorted))
def test_any_split_of_the_bytes(both: tuple[Any, Any, bytes], cuts: list[int]) -> None:
    """However an upstream's bytes are cut, the client gets the same."""
    protocol, call, whole = both
    pieces = [whole[begin:stop] for begin, stop in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert read_through(protocol, call, pieces) == read_through(protocol, call, [whole])


KEYS = "type index delta message content_block text thinking partial_json usage choices tool_calls function id name"
KEYS += " arguments content finish_reason stop_reason input signature"
TYPES = "message_start content_block_start content_block_delta content_block_stop message_delta tool_use text thinking"
TYPES += " text_delta input_json_delta thinking_delta"
ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.sampled_from(TYPES.split()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS.split()), inner, max_size=5),
    max_leaves=12,
)


@given(st.lists(ODD, max_size=5), st.sampled_from([(CHAT_TO_MESSAGES, STREAMED), (MESSAGES_TO_CHAT, MESSAGES_CALL)]))
def test_no_json_breaks_anything(values: list[object], both: tuple[Any, Any]) -> None:
    """Any JSON of an upstream becomes whole events, or the answer is given up."""
    reader = both[0].reader(both[1])
    for value in values:
        try:
            raw = reader.read(b"data: " + json.dumps(value).encode() + b"\n\n").raw
        except ProtocolError:
            return
        assert raw == b"" or raw.endswith(b"\n\n")
