"""Chat requests translated to Anthropic's Messages API, as its public reference describes it."""

import json
from typing import Any

import pytest

from anthropic_calls import CHAT_TO_MESSAGES, USER
from openai_calls import call_of, in_one_piece
from providers.translation.chat_to_messages.translation import request_of
from ttft_gateway.apis.errors import Unsupported

FUNCTION = {"name": "get_weather", "description": "Weather", "parameters": {"type": "object", "properties": {}}}
TOOL = {"type": "function", "function": FUNCTION}
NATIVE_TOOL = {"name": "get_weather", "description": "Weather", "input_schema": FUNCTION["parameters"]}
CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Paris"}'}}
USE = {"type": "tool_use", "id": "call_1", "name": "get_weather", "input": {"city": "Paris"}}
PNG = "data:image/png;base64,iVBORw0KGgo="
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}


def parts(*each: dict[str, Any]) -> dict[str, Any]:
    """A request with these parts in the user's message."""
    return {"messages": [{"role": "user", "content": list(each)}]}


def turns(*messages: dict[str, Any]) -> dict[str, Any]:
    """A request with these messages."""
    return {"messages": list(messages)}


def picture(url: str, **more: Any) -> dict[str, Any]:
    """An image of a user's."""
    return {"type": "image_url", "image_url": {"url": url, **more}}


def file(**fields: Any) -> dict[str, Any]:
    """A file of a user's."""
    return {"type": "file", "file": fields}


# what: what a client sends (its messages are one of the user's unless given) -> what the request then has
TRANSLATED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a user's text": ({}, {"messages": [USER]}),
    "system": (turns({"role": "system", "content": "Be brief."}, USER), {"system": "Be brief.", "messages": [USER]}),
    "developer": (turns({"role": "developer", "content": "Be brief."}, USER), {"system": "Be brief."}),
    "two system messages": (
        turns({"role": "system", "content": "A"}, {"role": "system", "content": "B"}, USER),
        {"system": [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}], "messages": [USER]},
    ),
    "system in the middle": (
        turns(USER, {"role": "system", "content": "Now in French."}),
        {"messages": [USER, {"role": "system", "content": "Now in French."}]},
    ),
    "several turns": (
        turns(USER, {"role": "assistant", "content": "Hi"}, USER),
        {"messages": [USER, {"role": "assistant", "content": "Hi"}, USER]},
    ),
    "cache marks": (
        parts({"type": "text", "text": "A", "cache_control": {"type": "ephemeral"}}),
        parts({"type": "text", "text": "A", "cache_control": {"type": "ephemeral"}}),
    ),
    "an image as a data URL": (
        parts({"type": "text", "text": "What?"}, picture(PNG, detail="auto")),
        parts(
            {"type": "text", "text": "What?"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}},
        ),
    ),
    "an image by its address": (
        parts(picture("https://example.com/a.jpg")),
        parts({"type": "image", "source": {"type": "url", "url": "https://example.com/a.jpg"}}),
    ),
    "a PDF": (
        parts(file(file_data="data:application/pdf;base64,JVBERi0=", filename="a.pdf")),
        parts(
            {
                "type": "document",
                "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="},
                "title": "a.pdf",
            }
        ),
    ),
    "tools": ({"tools": [TOOL]}, {"tools": [NATIVE_TOOL]}),
    "a strict tool": (
        {"tools": [{"type": "function", "function": {**FUNCTION, "strict": True}}]},
        {"tools": [{**NATIVE_TOOL, "strict": True}]},
    ),
    "a tool without parameters": (
        {"tools": [{"type": "function", "function": {"name": "now"}}]},
        {"tools": [{"name": "now", "input_schema": {"type": "object", "properties": {}}}]},
    ),
    "tool_choice auto": ({"tools": [TOOL], "tool_choice": "auto"}, {"tool_choice": {"type": "auto"}}),
    "tool_choice none": ({"tools": [TOOL], "tool_choice": "none"}, {"tool_choice": {"type": "none"}}),
    "tool_choice required": ({"tools": [TOOL], "tool_choice": "required"}, {"tool_choice": {"type": "any"}}),
    "tool_choice of one": (
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
        {"tool_choice": {"type": "tool", "name": "get_weather"}},
    ),
    "one call at a time": (
        {"tools": [TOOL], "parallel_tool_calls": False},
        {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    ),
    "calls in parallel": ({"tools": [TOOL], "parallel_tool_calls": True}, {"tool_choice": None}),
    "a tool call": (
        turns(USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}),
        {"messages": [USER, {"role": "assistant", "content": [USE]}]},
    ),
    "a tool call behind a text": (
        turns(USER, {"role": "assistant", "content": "Let me see.", "refusal": None, "tool_calls": [CALL]}),
        {"messages": [USER, {"role": "assistant", "content": [{"type": "text", "text": "Let me see."}, USE]}]},
    ),
    "a call without arguments": (
        turns({"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "now", "arguments": ""}}]}),
        turns({"role": "assistant", "content": [{**USE, "name": "now", "input": {}}]}),
    ),
    "results of parallel calls, and what the user says then": (
        turns(
            {"role": "tool", "tool_call_id": "call_1", "content": "12"},
            {"role": "tool", "tool_call_id": "call_2", "name": "get_weather", "content": "13"},  # as LangChain does
            USER,
        ),
        turns(
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "call_1", "content": "12"},
                    {"type": "tool_result", "tool_use_id": "call_2", "content": "13"},
                    {"type": "text", "text": "Hello"},
                ],
            }
        ),
    ),
    "a call's id in foreign letters": (
        turns({"role": "tool", "tool_call_id": "functions.f:0", "content": "1"}),
        turns(
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "call_d6bdd4de328a22edd610f9548b4f419f",
                        "content": "1",
                    }
                ],
            }
        ),
    ),
    "signed thinking": (
        turns(
            {
                "role": "assistant",
                "content": "4",
                "reasoning_content": "2+2",
                "thinking_blocks": [{"index": 0, "type": "thinking", "thinking": "2+2", "signature": "sig"}],
            }
        ),
        turns(
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "2+2", "signature": "sig"},
                    {"type": "text", "text": "4"},
                ],
            }
        ),
    ),
    "max_tokens": ({"max_tokens": 5}, {"max_tokens": 5}),
    "max_tokens with a point": ({"max_tokens": 5.0}, {"max_tokens": 5}),
    "max_completion_tokens": ({"max_completion_tokens": 6, "max_tokens": 5}, {"max_tokens": 6}),
    "no max_tokens": ({}, {"max_tokens": None}),
    "sampling": ({"temperature": 0.5, "top_p": 0.9, "top_k": 5}, {"temperature": 0.5, "top_p": 0.9, "top_k": 5}),
    "stop as a text": ({"stop": "END"}, {"stop_sequences": ["END"]}),
    "stop as a list": ({"stop": ["A", "B"]}, {"stop_sequences": ["A", "B"]}),
    "user": ({"user": "u1"}, {"metadata": {"user_id": "u1"}}),
    "safety_identifier": ({"user": "u1", "safety_identifier": "s1"}, {"metadata": {"user_id": "s1"}}),
    "service_tier": ({"service_tier": "default"}, {"service_tier": "standard_only"}),
    "a schema": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}}},
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    ),
    "plain text": ({"response_format": {"type": "text"}}, {"output_config": None}),
    "reasoning_effort": (
        {"reasoning_effort": "high"},
        {"output_config": {"effort": "high"}, "thinking": {"type": "adaptive"}},
    ),
    "no reasoning": ({"reasoning_effort": "none"}, {"thinking": {"type": "disabled"}, "output_config": None}),
    "thinking in its own words": (
        {"reasoning_effort": "low", "thinking": {"type": "enabled", "budget_tokens": 2048}},
        {"thinking": {"type": "enabled", "budget_tokens": 2048}, "output_config": {"effort": "low"}},
    ),
    "what happens anyway": (
        {"n": 1, "logprobs": False, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "seed": None,
         "store": False, "modalities": ["text"], "prompt_cache_key": "k", "verbosity": "medium"},
        {"messages": [USER]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TRANSLATED, ids=str)
def test_parameters_are_translated(case: str) -> None:
    """Every parameter of the table is translated, and nothing is dropped or added."""
    body, expected = TRANSLATED[case]
    request = request_of({"model": "m", "messages": [USER], **body})
    assert request.unsupported == {}
    assert expected == {key: request.fields.get(key) for key in expected}
    assert set(request.fields) <= {"messages", "tools", *expected}


UNSUPPORTED: dict[str, dict[str, Any]] = {
    "seed": {"seed": 7},
    "temperature": {"temperature": 1.2},
    "logprobs": {"logprobs": True},
    "top_logprobs": {"top_logprobs": 3},
    "frequency_penalty": {"frequency_penalty": 0.5},
    "presence_penalty": {"presence_penalty": -1},
    "logit_bias": {"logit_bias": {"50256": -100}},
    "response_format": {"response_format": {"type": "json_object"}},
    "service_tier": {"service_tier": "flex"},
    "reasoning_effort": {"reasoning_effort": "enormous"},
    "store": {"store": True},
    "metadata": {"metadata": {"a": "b"}},
    "modalities": {"modalities": ["text", "audio"]},
    "audio": {"audio": {"voice": "alloy", "format": "wav"}},
    "prediction": {"prediction": {"type": "content", "content": "x"}},
    "web_search_options": {"web_search_options": {}},
    "verbosity": {"verbosity": "low"},
    "stop": {"stop": "\n\n"},
    "min_p": {"min_p": 0.1},
    "messages[0].name": {"messages": [{**USER, "name": "Ann"}]},
    "messages[0].content[0].image_url.detail": parts(picture(PNG, detail="low")),
    "tools[0].function.examples": {"tools": [{"type": "function", "function": {**FUNCTION, "examples": []}}]},
}


@pytest.mark.parametrize("param", UNSUPPORTED)
def test_unsupported_parameters_are_named(param: str) -> None:
    """A field without a counterpart is reported by name; the rest of the request is translated."""
    request = request_of({"model": "m", "messages": [USER], **UNSUPPORTED[param]})
    assert [param] == list(request.unsupported)
    assert param in request.unsupported[param]
    assert request.fields["messages"]


REJECTED: dict[str, dict[str, Any]] = {
    "n": {"n": 2},
    "functions": {"functions": [FUNCTION]},
    "function_call": {"function_call": "auto"},
    "messages": {"messages": None},
    "messages[0]": {"messages": ["Hello"]},
    "messages[0].role": turns({"role": "function", "name": "f", "content": "1"}),
    "messages[0].content": turns({"role": "user", "content": 5}),
    "messages[0].content[0].type": parts({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}),
    "messages[0].content[0].image_url.url": parts(picture("data:image/tiff;base64,AAAA")),
    "messages[0].content[1].image_url.url": parts({"type": "text", "text": "A"}, picture("data:nonsense")),
    "messages[0].content[0].file.file_id": parts(file(file_id="file-1")),
    "messages[0].content[0].file.file_data": parts(file(file_data="data:text/plain;base64,AAAA")),
    "messages[0].tool_calls[0].type": turns({"role": "assistant", "tool_calls": [{"type": "custom", "id": "c"}]}),
    "messages[0].tool_calls[0].function.arguments": turns(
        {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "{"}}]}
    ),
    "messages[0].tool_call_id": turns({"role": "tool", "content": "1"}),
    "tools[0].type": {"tools": [{"type": "custom", "custom": {"name": "c"}}]},
    "tool_choice": {"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}},
    "max_tokens": {"max_tokens": 5.5},
    "temperature": {"temperature": "hot"},
    "stop[1]": {"stop": ["a", 1]},
}


@pytest.mark.parametrize("param", REJECTED)
def test_fields_that_cannot_be_dropped_are_rejected(param: str) -> None:
    """A field that cannot be dropped is a 400 that names it."""
    with pytest.raises(Unsupported) as rejected:
        request_of({"model": "m", "messages": [USER], **REJECTED[param]})
    assert (param, 400) == (rejected.value.param, rejected.value.status)
    assert param in rejected.value.message


def test_the_body_that_is_sent() -> None:
    """A request carries the replica's model name, a bound on its tokens, and `stream` as asked."""
    call = call_of({"model": "m", "messages": [USER]})
    streamed = json.loads(in_one_piece(CHAT_TO_MESSAGES.build(call, "claude-opus-5", stream=True)))
    assert streamed == {"model": "claude-opus-5", "max_tokens": 32000, "stream": True, "messages": [USER]}
    bounded = call_of({"model": "m", "messages": [USER], "max_tokens": 7, "stream": True})
    assert json.loads(in_one_piece(CHAT_TO_MESSAGES.build(bounded, "x", stream=False))) == {
        "model": "x",
        "max_tokens": 7,
        "messages": [USER],
    }
