"""Requests to Anthropic's Messages API translated to chat completions."""

import json
from typing import Any

import pytest

from anthropic_calls import ENGINE, MESSAGES_TO_CHAT, USER, messages_call
from openai_calls import in_one_piece
from providers.translation.messages_to_chat.translation import Dialect, request_of
from ttft_gateway.apis.errors import Unsupported

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"name": "get_weather", "description": "Weather", "input_schema": SCHEMA}
FUNCTION = {"name": "get_weather", "description": "Weather", "parameters": SCHEMA}
CHAT_TOOL = {"type": "function", "function": FUNCTION}
USE = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Paris"}}
CALL = {"id": "toolu_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Paris"}'}}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
MARK = {"cache_control": {"type": "ephemeral"}}
TEXT = {"type": "text", "text": "A"}
PDF = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    """A request with these blocks in the user's message."""
    return {"messages": [{"role": "user", "content": list(blocks)}]}


def assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    """A request with an earlier answer of these blocks."""
    return {"messages": [USER, {"role": "assistant", "content": list(blocks)}]}


def result(**fields: Any) -> dict[str, Any]:
    """A tool's result."""
    return {"type": "tool_result", "tool_use_id": "toolu_1", **fields}


def sent(*messages: dict[str, Any]) -> dict[str, Any]:
    """The messages that go out."""
    return {"messages": list(messages)}


TRANSLATED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a user's text": ({}, {"messages": [USER], "max_tokens": 64}),
    "system": ({"system": "Be brief."}, sent({"role": "system", "content": "Be brief."}, USER)),
    "system in blocks": (
        {"system": [{**TEXT, **MARK}, {"type": "text", "text": "B"}]},
        sent({"role": "system", "content": [TEXT, {"type": "text", "text": "B"}]}, USER),
    ),
    "system in the middle": (
        {"messages": [USER, {"role": "system", "content": [{**TEXT, **MARK}]}]},
        sent(USER, {"role": "system", "content": "A"}),
    ),
    "one block of text": (user({**TEXT, **MARK}), sent({"role": "user", "content": "A"})),
    "an image": (user(TEXT, IMAGE), sent({"role": "user", "content": [TEXT, PICTURE]})),
    "an image by its address": (
        user({"type": "image", "source": {"type": "url", "url": "https://example.com/a.jpg"}}),
        sent(
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": "https://example.com/a.jpg"}}],
            }
        ),
    ),
    "a PDF": (
        user({"type": "document", "source": PDF, "title": "a.pdf"}),
        sent(
            {
                "role": "user",
                "content": [
                    {
                        "type": "file",
                        "file": {"file_data": "data:application/pdf;base64,JVBERi0=", "filename": "a.pdf"},
                    }
                ],
            }
        ),
    ),
    "a plain document": (
        user(
            {
                "type": "document",
                "title": "T",
                "source": {"type": "text", "media_type": "text/plain", "data": "D"},
            }
        ),
        sent({"role": "user", "content": "T\nD"}),
    ),
    "tools": (
        {"tools": [{**TOOL, **MARK, "type": "custom"}]},
        {"tools": [CHAT_TOOL]},
    ),
    "a strict tool": (
        {"tools": [{**TOOL, "strict": True, "eager_input_streaming": True}]},
        {"tools": [{"type": "function", "function": {**FUNCTION, "strict": True}}]},
    ),
    "tool_choice auto": ({"tool_choice": {"type": "auto"}}, {"tool_choice": "auto"}),
    "tool_choice any": ({"tool_choice": {"type": "any"}}, {"tool_choice": "required"}),
    "tool_choice none": ({"tool_choice": {"type": "none"}}, {"tool_choice": "none"}),
    "tool_choice of one": (
        {"tool_choice": {"type": "tool", "name": "f"}},
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
    ),
    "one call at a time": (
        {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        {"tool_choice": "auto", "parallel_tool_calls": False},
    ),
    "a tool call": (
        assistant(TEXT, USE),
        sent(USER, {"role": "assistant", "content": "A", "tool_calls": [CALL]}),
    ),
    "nothing but a tool call": (
        assistant(USE),
        sent(USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}),
    ),
    "thinking, signed and sealed": (
        assistant(
            {"type": "thinking", "thinking": "2+2", "signature": "s"},
            {"type": "redacted_thinking", "data": "x"},
            TEXT,
        ),
        sent(USER, {"role": "assistant", "content": "A", "reasoning_content": "2+2"}),
    ),
    "a tool's result": (
        user(result(content="12")),
        sent({"role": "tool", "tool_call_id": "toolu_1", "content": "12"}),
    ),
    "a tool's result in blocks, and what the user says": (
        user(result(content=[{**TEXT, **MARK}]), {"type": "text", "text": "Go on"}),
        sent({"role": "tool", "tool_call_id": "toolu_1", "content": "A"}, {"role": "user", "content": "Go on"}),
    ),
    "results of parallel calls": (
        user(result(content="12"), {**result(content="13"), "tool_use_id": "toolu_2"}),
        sent(
            {"role": "tool", "tool_call_id": "toolu_1", "content": "12"},
            {"role": "tool", "tool_call_id": "toolu_2", "content": "13"},
        ),
    ),
    "a tool's result without content": (
        user(result()),
        sent({"role": "tool", "tool_call_id": "toolu_1", "content": ""}),
    ),
    "a tool's failure": (
        user(result(content="no such city", is_error=True)),
        sent({"role": "tool", "tool_call_id": "toolu_1", "content": "Error: no such city"}),
    ),
    "a tool's image": (
        user(result(content=[TEXT, IMAGE])),
        sent(
            {"role": "tool", "tool_call_id": "toolu_1", "content": "A"}, {"role": "user", "content": [PICTURE]}
        ),
    ),
    "sampling": (
        {"temperature": 1, "top_p": 0.5, "top_k": 3},
        {"temperature": 1, "top_p": 0.5, "top_k": 3},
    ),
    "stop_sequences": ({"stop_sequences": ["A", "B"]}, {"stop": ["A", "B"]}),
    "user_id": ({"metadata": {"user_id": "u1"}}, {"user": "u1"}),
    "a long user_id": (
        {"metadata": {"user_id": "u" * 65}},
        {"user": "f20e249d15fa4b9f44ba21d154f62e1efa76ddfdce5d25139a33a4787cee5a8b"},
    ),
    "service_tier": ({"service_tier": "standard_only"}, {"service_tier": "default"}),
    "a schema": (
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True},
            }
        },
    ),
    "effort": ({"output_config": {"effort": "max"}}, {"reasoning_effort": "xhigh"}),
    "a small budget": ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"reasoning_effort": "low"}),
    "a budget": ({"thinking": {"type": "enabled", "budget_tokens": 8192}}, {"reasoning_effort": "medium"}),
    "a large budget": ({"thinking": {"type": "enabled", "budget_tokens": 32000}}, {"reasoning_effort": "high"}),
    "adaptive thinking": ({"thinking": {"type": "adaptive", "display": "omitted"}}, {"reasoning_effort": None}),
    "no thinking": ({"thinking": {"type": "disabled"}}, {"reasoning_effort": None}),
    "what happens anyway": (
        {"speed": "standard", "mcp_servers": [], "cache_control": {"type": "ephemeral"}, "container": None,
         "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
        {"messages": [USER]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TRANSLATED, ids=str)
def test_parameters_are_translated(case: str) -> None:
    """Every parameter of the table is translated, and nothing is dropped or added."""
    body, expected = TRANSLATED[case]
    request = request_of({"model": "m", "max_tokens": 64, "messages": [USER], **body}, ENGINE)
    assert request.unsupported == {}
    assert {key: request.fields.get(key) for key in expected} == expected
    assert set(request.fields) <= {"messages", "max_tokens", *expected}


UNSUPPORTED: dict[str, dict[str, Any]] = {
    "container": {"container": "c"},
    "inference_geo": {"inference_geo": "us"},
    "speed": {"speed": "fast"},
    "mcp_servers": {"mcp_servers": [{"type": "url"}]},
    "context_management": {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
    "service_tier": {"service_tier": "priority"},
    "thinking": {"thinking": {"type": "between_tools"}},
    "output_config.effort": {"output_config": {"effort": "wild"}},
    "tools[0].input_examples": {"tools": [{**TOOL, "input_examples": [{}]}]},
    "tools[0].defer_loading": {"tools": [{**TOOL, "defer_loading": True}]},
    "messages[0].content[0].citations": user({"type": "document", "source": PDF, "citations": {"enabled": True}}),
    "messages[0].content[0].context": user({"type": "document", "source": PDF, "context": "c"}),
    "anything": {"anything": 1},
}


@pytest.mark.parametrize("param", UNSUPPORTED)
def test_unsupported_parameters_are_named(param: str) -> None:
    """A field without a counterpart is reported by name; the rest of the request is translated."""
    request = request_of({"model": "m", "max_tokens": 64, "messages": [USER], **UNSUPPORTED[param]}, ENGINE)
    assert list(request.unsupported) == [param]
    assert request.fields["messages"]


REJECTED: dict[str, dict[str, Any]] = {
    "max_tokens": {"max_tokens": 0},
    "messages": {"messages": None},
    "thread": {"thread": {"type": "create"}},
    "messages[0].role": {"messages": [{"role": "tool", "content": "x"}]},
    "messages[0].content": {"messages": [{"role": "user", "content": None}]},
    "messages[0].content[0].type": user({"type": "search_result"}),
    "messages[0].content[0].source.type": user({"type": "image", "source": {"type": "file", "file_id": "f"}}),
    "messages[0].content[0].content[0].type": user(result(content=[{"type": "tool_reference"}])),
    "messages[1].content[0].type": assistant({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}),
    "messages[1].content[0].input": assistant({**USE, "input": "x"}),
    "tools[0].type": {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
    "tools[0].input_schema": {"tools": [{"name": "f"}]},
    "tool_choice.type": {"tool_choice": {"type": "some"}},
    "output_config.format.type": {"output_config": {"format": {"type": "regex"}}},
}


@pytest.mark.parametrize("param", REJECTED)
def test_fields_that_cannot_be_dropped_are_rejected(param: str) -> None:
    """A field that cannot be dropped is a 400 that names it."""
    with pytest.raises(Unsupported) as rejected:
        request_of({"model": "m", "max_tokens": 64, "messages": [USER], **REJECTED[param]}, ENGINE)
    assert rejected.value.param == param


def test_dialects() -> None:
    """A server gets only fields that it supports, with its own names."""
    body = {"max_tokens": 5, "top_k": 3, **assistant({"type": "thinking", "thinking": "t", "signature": "s"}, TEXT)}
    request = request_of(body, Dialect(max_tokens="max_completion_tokens"))
    answered = {"role": "assistant", "content": "A"}
    assert (request.fields["max_completion_tokens"], request.fields["messages"]) == (5, [USER, answered])
    assert list(request.unsupported) == ["top_k"]


def test_the_body_that_is_sent() -> None:
    """A request carries the replica's model name, `stream` as asked, and asks for token counts."""
    body = json.loads(in_one_piece(MESSAGES_TO_CHAT.build(messages_call(stream=True), "served", stream=True)))
    expected = {
        "model": "served",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [USER],
        "max_tokens": 64,
    }
    assert body == expected
