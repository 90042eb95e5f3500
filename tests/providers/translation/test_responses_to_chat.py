"""The Responses API over upstreams of chat completions: requests, events and rejected fields."""

import json
from typing import Any

import pytest

from openai_calls import call_of, in_one_piece
from providers.openai.chat import OpenAIChat
from providers.protocols import ProtocolOptions, protocols
from providers.translation.responses_to_chat.translation import request_of
from ttft_gateway.apis.base import Api, WireProtocol
from ttft_gateway.apis.catalog import CATALOG
from ttft_gateway.apis.errors import Unsupported

CHAT_ONLY = frozenset({Api.CHAT})


def protocol(*, drop: list[tuple[str, ...]] | None = None) -> WireProtocol:
    """The Responses API over an upstream that has only chat completions."""
    options = ProtocolOptions() if drop is None else ProtocolOptions(on_dropped=lambda names: drop.append(tuple(names)))
    return protocols(CATALOG["vllm"], CHAT_ONLY, options)[Api.RESPONSES]


def built(**fields: Any) -> dict[str, Any]:
    """The body sent to the upstream."""
    made: dict[str, Any] = json.loads(
        in_one_piece(protocol().build(call_of({"model": "m", **fields}, Api.RESPONSES), "up", stream=True))
    )
    return made


USER = {"role": "user", "content": "hi"}
FUNCTION = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
REQUESTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "text": ({"input": "hi"}, {}),
    "instructions": (
        {"instructions": "be brief", "input": "hi"},
        {"messages": [{"role": "system", "content": "be brief"}, USER]},
    ),
    "easy messages": ({"input": [USER]}, {}),
    "developer": (
        {"input": [{"role": "developer", "content": "x"}, USER]},
        {"messages": [{"role": "system", "content": "x"}, USER]},
    ),
    "parts": (
        {
            "input": [
                {
                    "type": "message",
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "look"},
                        {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"},
                        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AA=="},
                    ],
                }
            ]
        },
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "look"},
                        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}},
                        {
                            "type": "file",
                            "file": {"file_data": "data:application/pdf;base64,AA==", "filename": "a.pdf"},
                        },
                    ],
                }
            ]
        },
    ),
    "earlier answer with parallel tool calls": (
        {
            "input": [
                USER,
                {"type": "reasoning", "id": "rs_1", "summary": []},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "well"}]},
                {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
                {"type": "custom_tool_call", "call_id": "c2", "name": "g", "input": "ls"},
                {"type": "function_call_output", "call_id": "c1", "output": "1"},
                {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "2"}]},
            ]
        },
        {
            "messages": [
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
            ]
        },
    ),
    "a message between calls and their results": (
        {
            "input": [
                USER,
                {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "well"}]},
                {"type": "custom_tool_call", "call_id": "c2", "name": "g", "input": "ls"},
                {"role": "assistant", "content": "now"},
                {"type": "function_call_output", "call_id": "c1", "output": "1"},
                {"type": "custom_tool_call_output", "call_id": "c2", "output": "2"},
            ]
        },
        {
            "messages": [
                USER,
                {
                    "role": "assistant",
                    "content": "wellnow",
                    "tool_calls": [
                        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                        {"id": "c2", "type": "custom", "custom": {"name": "g", "input": "ls"}},
                    ],
                },
                {"role": "tool", "tool_call_id": "c1", "content": "1"},
                {"role": "tool", "tool_call_id": "c2", "content": "2"},
            ]
        },
    ),
    "a tool call without words": (
        {"input": [{"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}]},
        {
            "messages": [
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
                }
            ]
        },
    ),
    "an earlier refusal": (
        {"input": [{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}]},
        {"messages": [{"role": "assistant", "content": None, "refusal": "no"}]},
    ),
    "limits": (
        {"input": "hi", "max_output_tokens": 5, "temperature": 0.5, "top_p": 0.9},
        {"max_tokens": 5, "temperature": 0.5, "top_p": 0.9},
    ),
    "tools": (
        {
            "input": "hi",
            "tools": [FUNCTION],
            "tool_choice": {"type": "function", "name": "f"},
            "parallel_tool_calls": False,
        },
        {
            "tools": [{"type": "function", "function": {name: FUNCTION[name] for name in FUNCTION if name != "type"}}],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
            "parallel_tool_calls": False,
        },
    ),
    "custom tool with a grammar": (
        {
            "input": "hi",
            "tools": [
                {"type": "custom", "name": "g", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}}
            ],
        },
        {
            "tools": [
                {
                    "type": "custom",
                    "custom": {
                        "name": "g",
                        "format": {"type": "grammar", "grammar": {"definition": "x", "syntax": "lark"}},
                    },
                }
            ]
        },
    ),
    "groups of tools": (
        {
            "input": [
                {"role": "user", "content": "hi"},
                {"type": "function_call", "call_id": "c", "namespace": "agents", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "x"},
            ],
            "tools": [
                {"type": "namespace", "name": "agents", "description": "d", "tools": [FUNCTION]},
                {"type": "namespace", "name": "mcp__files__", "tools": [{"type": "function", "name": "g"}]},
            ],
            "tool_choice": {"type": "function", "namespace": "agents", "name": "f"},
        },
        {
            "messages": [
                USER,
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {"id": "c", "type": "function", "function": {"name": "agents__f", "arguments": "{}"}}
                    ],
                },
                {"role": "tool", "tool_call_id": "c", "content": "x"},
            ],
            "tools": [
                {
                    "type": "function",
                    "function": {name: FUNCTION[name] for name in FUNCTION if name != "type"} | {"name": "agents__f"},
                },
                {"type": "function", "function": {"name": "mcp__files__g"}},
            ],
            "tool_choice": {"type": "function", "function": {"name": "agents__f"}},
        },
    ),
    "allowed tools": (
        {
            "input": "hi",
            "tools": [FUNCTION],
            "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
        },
        {
            "tools": [{"type": "function", "function": {name: FUNCTION[name] for name in FUNCTION if name != "type"}}],
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]},
            },
        },
    ),
    "no tools": ({"input": "hi", "tools": [], "tool_choice": "auto"}, {}),
    "schema": (
        {
            "input": "hi",
            "text": {"format": {"type": "json_schema", "name": "n", "schema": {}, "strict": True}, "verbosity": "low"},
        },
        {
            "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "strict": True}},
            "verbosity": "low",
        },
    ),
    "json": (
        {"input": "hi", "text": {"format": {"type": "json_object"}}},
        {"response_format": {"type": "json_object"}},
    ),
    "plain text": ({"input": "hi", "text": {"format": {"type": "text"}}}, {}),
    "effort": (
        {"input": "hi", "reasoning": {"effort": "low", "summary": "auto", "mode": "standard"}},
        {"reasoning_effort": "low"},
    ),
    "logprobs": (
        {"input": "hi", "include": ["message.output_text.logprobs"], "top_logprobs": 2},
        {"logprobs": True, "top_logprobs": 2},
    ),
    "hints": (
        {
            "input": "hi",
            "prompt_cache_key": "k",
            "safety_identifier": "s",
            "metadata": {"a": "b"},
            "client_metadata": {"a": "b"},
            "store": False,
            "service_tier": "auto",
        },
        {},
    ),
    "what nobody here knows": (
        {"input": "hi", "top_k": 5, "chat_template_kwargs": {"x": 1}},
        {"top_k": 5, "chat_template_kwargs": {"x": 1}},
    ),
}


@pytest.mark.parametrize("case", REQUESTS)
def test_requests(case: str) -> None:
    """Every request is translated to chat completions."""
    given_fields, expected = REQUESTS[case]
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    assert built(**given_fields) == {"messages": [USER], **expected, "model": "up", **stream}


UNSUPPORTED: dict[str, dict[str, Any]] = {
    "store": {"store": True},
    "previous_response_id": {"previous_response_id": "resp_1"},
    "conversation": {"conversation": "conv_1"},
    "prompt": {"prompt": {"id": "pmpt_1"}},
    "truncation": {"truncation": "auto"},
    "reasoning.summary": {"reasoning": {"summary": "detailed"}},
    "reasoning.mode": {"reasoning": {"mode": "pro"}},
    "reasoning.new": {"reasoning": {"new": 1}},
    "text.new": {"text": {"new": {}}},
    "include": {"include": ["file_search_call.results"]},
    "tools[0]": {"tools": [{"type": "web_search"}]},
    "tools[0].tools[0]": {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "web_search"}]}]},
    "tool_choice": {"tool_choice": {"type": "file_search"}},
    "context_management": {"context_management": [{"type": "compaction"}]},
}
REJECTED: dict[str, Any] = {
    "input[0]": [{"type": "item_reference", "id": "msg_1"}],
    "input[0].content": [{"role": "user", "content": [{"type": "input_image", "file_id": "file_1"}]}],
    "input[0].output": [
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": "x"}]}
    ],
}


@pytest.mark.parametrize("param", UNSUPPORTED)
def test_unsupported_fields_are_rejected_or_dropped(param: str) -> None:
    """An unsupported field is rejected by name, or dropped and reported if that is allowed."""
    call = call_of({"model": "m", "input": "hi", **UNSUPPORTED[param]}, Api.RESPONSES)
    with pytest.raises(Unsupported) as rejected:
        protocol().build(call, "up", stream=True)
    assert rejected.value.param == param
    dropped: list[tuple[str, ...]] = []
    made = json.loads(in_one_piece(protocol(drop=dropped).build(call, "up", stream=False)))
    assert (dropped, made) == ([(param,)], {"messages": [USER], "model": "up"})


TOOL: dict[str, Any] = {"type": "function", "name": "f", "parameters": {}}
SAID: dict[str, Any] = {"role": "user", "content": "hi"}
FILE: dict[str, Any] = {"type": "input_file", "file_data": "d"}
RESULT: dict[str, Any] = {"type": "function_call_output", "call_id": "c", "output": "x"}
UNKNOWN: dict[str, dict[str, Any]] = {
    "tools[0].defer_loading": {"tools": [{**TOOL, "defer_loading": True}]},
    "tools[0].allowed_callers": {"tools": [{**TOOL, "allowed_callers": ["programmatic"]}]},
    "tools[0].output_schema": {"tools": [{**TOOL, "output_schema": {"type": "object"}}]},
    "tools[0].tools[0].new": {"tools": [{"type": "namespace", "name": "n", "tools": [{**TOOL, "new": 1}]}]},
    "input[0].new": {"input": [{**SAID, "new": 1}]},
    "input[0].content[0].detail": {"input": [{**SAID, "content": [{**FILE, "detail": "low"}]}]},
    "input[1].new": {"input": [SAID, {**RESULT, "new": 1}]},
}
WITHOUT_EFFECT: dict[str, dict[str, Any]] = {
    "defaults of a tool": {"tools": [{**TOOL, "defer_loading": False, "allowed_callers": ["direct"]}]},
    "a cache mark": {
        "input": [{**SAID, "content": [{"type": "input_text", "text": "hi", "prompt_cache_breakpoint": {}}]}]
    },
    "an earlier answer": {
        "input": [SAID, {"role": "assistant", "content": "A", "phase": "commentary", "new": 1}, SAID]
    },
    "a result": {
        "input": [SAID, {**RESULT, "id": "1", "status": "completed", "name": "f", "caller": {"type": "direct"}}]
    },
}


@pytest.mark.parametrize("param", UNKNOWN)
def test_fields_inside_tools_and_items_are_named(param: str) -> None:
    """A field of a tool, of a message or of a part without a counterpart is unsupported, too."""
    assert list(request_of({"model": "m", "input": "hi", **UNKNOWN[param]}).unsupported) == [param]


@pytest.mark.parametrize("case", WITHOUT_EFFECT)
def test_fields_without_effect_are_omitted(case: str) -> None:
    """Defaults, hints, and further fields of earlier answers, are no reason to reject a request."""
    assert request_of({"model": "m", "input": "hi", **WITHOUT_EFFECT[case]}).unsupported == {}


def test_tools_with_one_joined_name_are_rejected() -> None:
    """A tool cannot be told apart in the answer if its name with its group equals the name of another tool."""
    tool = {"type": "function", "name": "f"}
    plain, group = {**tool, "name": "g__f"}, {"type": "namespace", "name": "g", "tools": [tool]}
    for tools, param in (
        ([plain, group], "tools[1].tools[0]"),
        ([group, plain], "tools[1]"),
        ([group, {**group, "name": "g__"}], "tools[1].tools[0]"),
    ):
        call = call_of({"model": "m", "input": "hi", "tools": tools}, Api.RESPONSES)
        with pytest.raises(Unsupported, match="rename one of them") as rejected:
            protocol().build(call, "up", stream=True)
        assert rejected.value.param == param


@pytest.mark.parametrize("param", REJECTED)
def test_a_conversation_is_never_shortened(param: str) -> None:
    """An item that has no form there is refused, even where fields may be dropped."""
    call = call_of({"model": "m", "input": REJECTED[param]}, Api.RESPONSES)
    with pytest.raises(Unsupported) as rejected:
        protocol(drop=[]).build(call, "up", stream=True)
    assert rejected.value.param == param


def test_chat_readers_stay_as_they_were() -> None:
    """A replica that has the client's API is not translated."""
    assert type(protocols(CATALOG["vllm"], CHAT_ONLY, ProtocolOptions())[Api.CHAT]) is OpenAIChat
