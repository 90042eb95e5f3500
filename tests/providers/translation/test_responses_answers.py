"""Answers of chat completions as answers of the Responses API."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_calls import call_of
from providers.protocols import ProtocolOptions, protocols
from providers.responses.protocol import OpenAIResponses, ResponseAssembler
from ttft_gateway.apis.base import Api, Call, FrameKind, WireProtocol
from ttft_gateway.apis.catalog import CATALOG
from ttft_gateway.apis.sse import data_of, events_of

CHAT_ONLY = frozenset({Api.CHAT})


def protocol(*, drop: list[tuple[str, ...]] | None = None) -> WireProtocol:
    """The Responses API over an upstream that has only chat completions."""
    options = ProtocolOptions() if drop is None else ProtocolOptions(on_dropped=lambda names: drop.append(tuple(names)))
    return protocols(CATALOG["vllm"], CHAT_ONLY, options)[Api.RESPONSES]


CALL = call_of({"model": "m", "input": "hi", "stream": True, "metadata": {"a": "b"}}, Api.RESPONSES)


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    """One chunk of the upstream's."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish, **more}
    return b"data: %s\n\n" % json.dumps({"id": "x1", "created": 7, "model": "up", "choices": [choice]}).encode()


COUNTS = {
    "prompt_tokens": 3,
    "completion_tokens": 2,
    "prompt_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 2},
}
USAGE = b"data: %s\n\n" % json.dumps({"id": "x1", "choices": [], "usage": COUNTS}).encode()
DONE = b"data: [DONE]\n\n"


def answer(*chunks: bytes, done: bool = True, call: Call = CALL) -> list[dict[str, Any]]:
    """The events that a client gets for these chunks; they are well-formed and numbered."""
    reader = protocol().reader(call)
    raw = b"".join(reader.read(each).raw for each in chunks + ((DONE,) if done else ()))
    last = reader.close()
    assert (last is None) == done
    events = []
    for number, event in enumerate(events_of(raw + (b"" if last is None else last.raw))):
        value = json.loads(data_of(event) or b"")
        assert event.startswith(b"event: %s\ndata: " % value["type"].encode())
        assert value["sequence_number"] == number
        events.append(value)
    return events


def kinds(events: list[dict[str, Any]]) -> str:
    """Their types in short."""
    return " ".join(event["type"].removeprefix("response.") for event in events)


def test_a_text_answer() -> None:
    """Text becomes a message with one part, begun and ended as OpenAI does, and the last event carries everything."""
    events = answer(
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "He"}),
        chunk({"content": "y"}),
        chunk({}, "stop"),
        USAGE,
    )
    assert kinds(events) == (
        "created in_progress output_item.added content_part.added output_text.delta output_text.delta "
        "output_text.done content_part.done output_item.done completed"
    )
    final = events[-1]["response"]
    message = {
        "id": "msg_x1_0",
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Hey", "annotations": []}],
    }
    assert final["output"] == [message]
    assert (final["id"], final["created_at"], final["model"], final["status"]) == ("resp_x1", 7, "up", "completed")
    assert (final["metadata"], final["store"]) == ({"a": "b"}, False)
    assert final["usage"] == {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 2},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 5,
    }


def test_reasoning_then_text_then_two_tool_calls() -> None:
    """Each kind of content is an item of its own, in order; pieces of tool calls may come mixed."""

    def call(index: int, more: str, **named: Any) -> bytes:
        return chunk(
            {"tool_calls": [{"index": index, **named, "function": {"name": named.get("name"), "arguments": more}}]}
        )

    events = answer(
        chunk({"reasoning_content": "hm"}),
        chunk({"content": "so"}),
        call(0, "", id="c0", name="f"),
        call(1, "{", id="c1", name="g"),
        call(0, "{}"),
        call(1, "}"),
        chunk({}, "tool_calls"),
    )
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call", "function_call"]
    assert output[0]["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert [(item["call_id"], item["name"], item["arguments"], item["status"]) for item in output[2:]] == [
        ("c0", "f", "{}", "completed"),
        ("c1", "g", "{}", "completed"),
    ]
    for index, item in enumerate(output):
        begun = [each for each in events if each["type"].endswith("item.added") and each["output_index"] == index]
        ended = [each for each in events if each["type"].endswith("item.done") and each["output_index"] == index]
        assert [each["item"]["id"] for each in begun + ended] == [item["id"]] * 2


def test_a_call_of_a_tool_in_a_group_has_the_group() -> None:
    """A call names the group and the tool as the request does, not the joined name that the replica was sent."""
    grouped = {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "f"}]}
    body = call_of({"model": "m", "input": "hi", "tools": [grouped]}, Api.RESPONSES)
    called = {"index": 0, "id": "c0", "function": {"name": "agents__f", "arguments": "{}"}}
    events = answer(chunk({"tool_calls": [called]}), call=body)
    items = [event["item"] for event in events if "item" in event] + events[-1]["response"]["output"]
    assert [(item["namespace"], item["name"]) for item in items] == [("agents", "f")] * 3


@pytest.mark.parametrize(("finish", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
def test_an_answer_that_was_cut_short_is_incomplete(finish: str, reason: str) -> None:
    """The answer has the reason, and its last item is incomplete too."""
    events = answer(chunk({"content": "He"}), chunk({}, finish))
    final = events[-1]["response"]
    assert (events[-1]["type"], final["status"]) == ("response.incomplete", "incomplete")
    assert final["incomplete_details"] == {"reason": reason}
    assert final["output"][0]["status"] == "incomplete"


def test_other_content() -> None:
    """Refusals, log probabilities, sources and Mistral's parts have their places."""
    refused = answer(chunk({"refusal": "no"}), chunk({}, "stop"))[-1]["response"]["output"]
    assert refused[0]["content"] == [{"type": "refusal", "refusal": "no"}]
    logprob = {"token": "a", "logprob": -0.1, "bytes": [97], "top_logprobs": []}
    likely = answer(chunk({"content": "a"}, logprobs={"content": [logprob]}), chunk({}, "stop"))[-1]["response"][
        "output"
    ]
    assert likely[0]["content"][0]["logprobs"] == [logprob]
    place = {"url": "u", "title": "t", "start_index": 0, "end_index": 1}
    source = {"type": "url_citation", "url_citation": place}
    cited = answer(chunk({"content": "a"}), chunk({"annotations": [source]}), chunk({}, "stop"))[-1]["response"][
        "output"
    ]
    assert cited[0]["content"][0]["annotations"] == [{"type": "url_citation", **place}]
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "so"}]
    mistral = answer(chunk({"content": parts}), chunk({}, "stop"))[-1]["response"]["output"]
    assert [item["content"][0]["text"] for item in mistral] == ["hm", "so"]


def test_the_end_comes_without_a_closing_event_too() -> None:
    """A stream that ends after its finish_reason is complete."""
    assert kinds(answer(chunk({"content": "a"}), chunk({}, "stop"), done=False)).endswith("output_item.done completed")


def test_an_empty_answer_is_an_answer() -> None:
    """Nothing but a finish_reason is a response without output."""
    assert answer(chunk({}, "stop"))[-1]["response"]["output"] == []


def test_a_body_where_a_stream_was_asked_for() -> None:
    """It gives the events of an equal stream, and put together the response that they carry."""
    body = {
        "id": "x1",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hey"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    }
    frames = protocol().reader(CALL).read_body(json.dumps(body).encode())
    assembler = ResponseAssembler()
    for frame in frames:
        assembler.add(frame.raw)
    whole = protocol().whole(CALL, json.dumps(body).encode())
    assert json.loads(assembler.body()) == json.loads(whole.raw)
    assert json.loads(whole.raw)["output"][0]["content"][0]["text"] == "Hey"


def test_an_answer_is_not_assembled_without_its_output() -> None:
    """A text that is neither in the terminal event nor in a finished item is lost; nothing generated is no loss."""
    end = b'data: {"type":"response.completed","response":{"id":"r","object":"response","status":"completed"%b}}\n\n'
    piece = b'data: {"type":"response.output_text.delta","output_index":0,"content_index":0,"delta":"a"}\n\n'
    lost, empty = ResponseAssembler(), ResponseAssembler()
    lost.add(piece + end % b',"output":[]')
    empty.add(end % b"")
    assert json.loads(empty.body())["status"] == "completed"
    with pytest.raises(LookupError, match="neither in the terminal event"):
        lost.body()


@given(
    st.lists(st.sampled_from(["a", "é🙂", "r:x", "t:0", "t:1", "n"]), max_size=12),
    st.sampled_from(["stop", "length", "tool_calls"]),
)
def test_translated_events_read_as_native(pieces: list[str], finish: str) -> None:
    """The native reader finds in translated events the kinds of the chunks that they were made of."""
    chunks = []
    for piece in pieces:
        if piece.startswith("t:"):
            call = {"index": int(piece[2:]), "id": f"c{piece[2:]}", "function": {"name": "f", "arguments": "1"}}
            chunks.append(chunk({"tool_calls": [call]}))
        elif piece.startswith("r:"):
            chunks.append(chunk({"reasoning": piece[2:]}))
        else:
            chunks.append(chunk({"content": piece} if piece != "n" else {}))
    reader, native = protocol().reader(CALL), OpenAIResponses().reader(CALL)
    for each in (*chunks, chunk({}, finish), DONE):
        ours = reader.read(each)
        theirs = [native.read(event).kind for event in events_of(ours.raw)]
        assert (FrameKind.CONTENT in theirs) == (ours.kind is FrameKind.CONTENT)
    assert native.complete
    assert native.closed
