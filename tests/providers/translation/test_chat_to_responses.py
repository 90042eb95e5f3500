"""Chat completions over upstreams that have only the Responses API: requests, chunks and rejected fields."""

import json
from typing import Any

import pytest

from openai_calls import call_of, in_one_piece
from providers.protocols import ProtocolOptions, protocols
from providers.translation.responses_to_chat.translation import messages_of
from ttft_gateway.apis.base import Api, Frame, FrameKind, Usage, WireProtocol
from ttft_gateway.apis.catalog import CATALOG
from ttft_gateway.apis.errors import Unsupported
from ttft_gateway.apis.responses.writer import EventWriter, events_of_answer
from ttft_gateway.apis.sse import data_of, events_of

USER = {"role": "user", "content": "hi"}
FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}


def protocol() -> WireProtocol:
    """Chat completions over an upstream that has only the Responses API."""
    return protocols(CATALOG["openai"], {Api.RESPONSES}, ProtocolOptions())[Api.CHAT]


def built(**fields: Any) -> dict[str, Any]:
    """The body sent to the upstream."""
    call = call_of({"model": "m", "messages": [USER], **fields})
    made: dict[str, Any] = json.loads(in_one_piece(protocol().build(call, "up", stream=True)))
    return made


def message(role: str, content: Any) -> dict[str, Any]:
    """An input item."""
    return {"type": "message", "role": role, "content": content}


REQUESTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "system and developer": (
        {"messages": [{"role": "system", "content": "s"}, {"role": "developer", "content": "d"}, USER]},
        {"input": [message("system", "s"), message("developer", "d"), message("user", "hi")]},
    ),
    "parts": (
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "look"},
                        {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
                        {"type": "file", "file": {"file_id": "file_1"}},
                    ],
                }
            ]
        },
        {
            "input": [
                message(
                    "user",
                    [
                        {"type": "input_text", "text": "look"},
                        {"type": "input_image", "image_url": "https://x/y.png", "detail": "auto"},
                        {"type": "input_file", "file_id": "file_1"},
                    ],
                )
            ]
        },
    ),
    "limits": (
        {"max_completion_tokens": 20, "temperature": 0, "top_p": 1},
        {"max_output_tokens": 20, "temperature": 0, "top_p": 1},
    ),
    "old limit": ({"max_tokens": 20, "n": 1, "stop": None, "seed": None}, {"max_output_tokens": 20}),
    "penalties of nothing": ({"frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}}, {}),
    "kept": ({"store": True, "metadata": {"a": "b"}}, {"store": True, "metadata": {"a": "b"}}),
    "tools": (
        {
            "tools": [{"type": "function", "function": FUNCTION}, {"type": "custom", "custom": {"name": "g"}}],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
        },
        {
            "tools": [{"type": "function", **FUNCTION}, {"type": "custom", "name": "g"}],
            "tool_choice": {"type": "function", "name": "f"},
        },
    ),
    "a function that is not strict": (
        {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"},
        {"tools": [{"type": "function", "name": "f", "parameters": None, "strict": False}], "tool_choice": "required"},
    ),
    "schema": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}, "verbosity": "low"},
        {"text": {"format": {"type": "json_schema", "name": "n", "schema": {}}, "verbosity": "low"}},
    ),
    "json": ({"response_format": {"type": "json_object"}}, {"text": {"format": {"type": "json_object"}}}),
    "effort": ({"reasoning_effort": "low"}, {"reasoning": {"effort": "low"}}),
    "logprobs": (
        {"logprobs": True, "top_logprobs": 2},
        {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
    ),
    "what nobody here knows": ({"truncation": "auto"}, {"truncation": "auto"}),
}


@pytest.mark.parametrize("case", REQUESTS)
def test_requests(case: str) -> None:
    """Every request is translated to the Responses API; answers are stored only on request."""
    given, expected = REQUESTS[case]
    plain = {"input": [message("user", "hi")], "store": False, "model": "up", "stream": True}
    assert built(**given) == {**plain, **expected}


CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "be brief"},
    USER,
    {
        "role": "assistant",
        "content": "well",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            {"id": "c2", "type": "custom", "custom": {"name": "g", "input": "ls"}},
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "1"},
    {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "2"}]},
    {"role": "assistant", "content": None, "refusal": "no"},
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u", "detail": "low"}}]},
]


def test_a_conversation_there_and_back() -> None:
    """Messages become items, and the same messages again."""
    assert messages_of(built(messages=CONVERSATION)) == CONVERSATION


def test_the_name_of_a_tools_result_is_dropped() -> None:
    """LangChain repeats the tool's name in the result; an item with a result has no field for the name."""
    results = [{"role": "tool", "tool_call_id": "c1", **more, "content": "1"} for more in ({"name": "f"}, {})]
    named, plain = (built(messages=[USER, result])["input"] for result in results)
    assert named == plain


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("n", {"n": 2}),
        ("seed", {"seed": 1}),
        ("stop", {"stop": ["x"]}),
        ("frequency_penalty", {"frequency_penalty": 0.5}),
        ("logit_bias", {"logit_bias": {"1": 2}}),
        ("modalities", {"modalities": ["text", "audio"]}),
        ("functions", {"functions": [{"name": "f"}]}),
        ("web_search_options", {"web_search_options": {}}),
        ("tools[0].new", {"tools": [{"type": "function", "function": {"name": "f"}, "new": 1}]}),
        ("messages[0].new", {"messages": [{**USER, "new": 1}]}),
        ("messages[0].content[0].new", {"messages": [{**USER, "content": [{"type": "text", "text": "x", "new": 1}]}]}),
        (
            "messages[0].content[0].image_url.new",
            {"messages": [{**USER, "content": [{"type": "image_url", "image_url": {"new": 1}}]}]},
        ),
        ("messages[0]", {"messages": [{**USER, "name": "eve"}]}),
        ("messages[0]", {"messages": [{"role": "user", "content": [{"type": "video_url"}]}]}),
    ],
)
def test_unsupported_fields_are_rejected_by_name(param: str, fields: dict[str, Any]) -> None:
    """The field is named."""
    with pytest.raises(Unsupported) as rejected:
        built(**fields)
    assert rejected.value.param == param


ANSWER: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 7,
    "model": "up",
    "status": "completed",
    "output": [
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Hey", "annotations": []}],
        },
        {"id": "fc_1", "type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"id": "ct_1", "type": "custom_tool_call", "call_id": "c2", "name": "g", "input": "ls"},
    ],
    "usage": {
        "input_tokens": 3,
        "output_tokens": 2,
        "total_tokens": 5,
        "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 2},
    },
}


def chunks_of(*events: bytes, **fields: Any) -> tuple[list[dict[str, Any]], list[Frame]]:
    """The chunks that a client gets for these events, all but the closing one, and the frames."""
    reader = protocol().reader(call_of({"model": "m", "messages": [USER], "stream": True, **fields}))
    frames = [reader.read(event) for event in events]
    assert reader.closed
    *chunks, done = events_of(b"".join(frame.raw for frame in frames))
    assert done == b"data: [DONE]\n\n"
    return [json.loads(data_of(chunk) or b"") for chunk in chunks], frames


def test_an_answer_as_chunks() -> None:
    """Text and tool calls keep their order, the last chunk has the finish_reason, usage comes on request."""
    chunks, frames = chunks_of(*events_of_answer(ANSWER), stream_options={"include_usage": True})
    assert {chunk["id"] for chunk in chunks} == {"chatcmpl-1"}
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": "Hey"}
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert (chunks[-1]["usage"]["total_tokens"], frames[-1].usage) == (5, Usage(3, 2, 1))
    assert chunks[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 1, "cache_write_tokens": 2}
    without, _ = chunks_of(*events_of_answer(ANSWER))
    assert without == chunks[:-1]


REASONING: dict[str, Any] = {
    "id": "rs_1",
    "type": "reasoning",
    "summary": [{"type": "summary_text", "text": "In short. "}, {"type": "summary_text", "text": "Or not. "}],
    "content": [{"type": "reasoning_text", "text": "At length."}],
}


def test_reasoning_of_an_answer_in_one_piece() -> None:
    """The reasoning of a JSON answer comes before its text, as deltas that add up to the item."""
    answer = {**ANSWER, "output": [REASONING, ANSWER["output"][0]]}
    chunks, _ = chunks_of(*events_of_answer(answer))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "In short. Or not. At length."
    assert [delta["content"] for delta in deltas if delta.get("content")] == ["Hey"]
    frame = protocol().whole(call_of({"model": "m", "messages": [USER]}), json.dumps(answer).encode())
    assert json.loads(frame.raw)["choices"][0]["message"]["reasoning_content"] == "In short. Or not. At length."


def test_reasoning_of_an_answer_as_its_own_events() -> None:
    """The parts of a summary and of the content have their own events, inside the events of the item."""
    events = [json.loads(data_of(event) or b"") for event in events_of_answer({**ANSWER, "output": [REASONING]})]
    assert [event["type"].removeprefix("response.") for event in events[2:-1]] == [
        "output_item.added",
        *(f"reasoning_summary_{each}" for each in ("part.added", "text.delta", "text.done", "part.done") * 2),
        *("content_part.added", "reasoning_text.delta", "reasoning_text.done", "content_part.done"),
        "output_item.done",
    ]
    assert events[2]["item"] == {**REASONING, "status": "in_progress", "summary": [], "content": []}
    assert [event["summary_index"] for event in events if event["type"].endswith("summary_text.delta")] == [0, 1]


def test_an_answer_in_one_piece() -> None:
    """A body is translated as its events are."""
    body = json.dumps(ANSWER).encode()
    frame = protocol().whole(call_of({"model": "m", "messages": [USER]}), body)
    made = json.loads(frame.raw)
    assert (made["object"], made["created"], made["usage"]["prompt_tokens"]) == ("chat.completion", 7, 3)
    assert made["choices"][0]["message"] == {
        "role": "assistant",
        "content": "Hey",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            {"id": "c2", "type": "custom", "custom": {"name": "g", "input": "ls"}},
        ],
    }


@pytest.mark.parametrize(("reason", "finish"), [("max_output_tokens", "length"), ("content_filter", "content_filter")])
def test_an_incomplete_answer(reason: str, finish: str) -> None:
    """The reason of an incomplete answer is the finish_reason."""
    answer = {
        **ANSWER,
        "output": ANSWER["output"][:1],
        "status": "incomplete",
        "incomplete_details": {"reason": reason},
    }
    chunks, _ = chunks_of(*events_of_answer(answer))
    assert chunks[-1]["choices"][0]["finish_reason"] == finish


def test_done_events_without_deltas() -> None:
    """Text, reasoning and arguments without deltas become one chunk each, and none comes twice."""
    writer, place = EventWriter(), {"item_id": "i", "output_index": 0}
    item = {"type": "function_call", "call_id": "c", "name": "f"}
    chunks, frames = chunks_of(
        writer.event("response.reasoning_summary_text.delta", **place, summary_index=0, delta="hm"),
        writer.event("response.reasoning_summary_text.done", **place, summary_index=0, text="hm"),
        writer.event("response.output_text.done", **place, content_index=0, text="so"),
        writer.event("response.output_item.added", output_index=1, item=item),
        writer.event("response.function_call_arguments.done", item_id="f", output_index=1, arguments="{}"),
        writer.lifecycle("completed", ANSWER),
    )
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert [delta.get("reasoning_content") for delta in deltas] == ["hm", None, None, None, None]
    assert deltas[1] == {"content": "so"}
    assert deltas[3] == {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}
    assert frames[0].kind is FrameKind.CONTENT


def test_an_output_that_comes_only_at_the_end() -> None:
    """Calls in finished items alone, and an output in the last event alone, are content and become chunks."""
    writer = EventWriter()
    whole, _ = chunks_of(*events_of_answer(ANSWER))
    chunks, frames = chunks_of(
        writer.lifecycle("created", {**ANSWER, "output": []}), writer.lifecycle("completed", ANSWER)
    )
    assert (chunks, frames[-1].kind, frames[-1].usage) == (whole, FrameKind.CONTENT, Usage(3, 2, 1))
    _, frames = chunks_of(writer.lifecycle("completed", {**ANSWER, "output": []}))
    assert frames[-1].kind is FrameKind.FINISH
    items = [
        writer.event("response.output_item.done", output_index=index, item=item)
        for index, item in enumerate(ANSWER["output"])
        if item["type"] != "message"
    ]
    chunks, frames = chunks_of(*items, writer.lifecycle("completed", ANSWER))
    calls = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", ())]
    assert [call.get("function", call.get("custom")) for call in calls] == [
        {"name": "f", "arguments": ""},
        {"arguments": "{}"},
        {"name": "g", "input": ""},
        {"input": "ls"},
    ]
    assert frames[0].kind is FrameKind.CONTENT
