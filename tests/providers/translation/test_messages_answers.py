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
    assert_valid,
    chunk,
    data_in,
    end,
    messages_call,
    read_through,
    start,
    text,
    thinking,
    tool,
)
from openai_calls import STREAMED, call_of
from ttft_gateway.apis.base import FrameKind, Usage
from ttft_gateway.apis.errors import ProtocolError

WITH_USAGE = call_of({"model": "m", "stream": True, "stream_options": {"include_usage": True}})
MESSAGES_CALL = messages_call(stream=True)
USAGE = {"prompt_tokens": 10, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 6}}


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
