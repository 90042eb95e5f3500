"""Assembling: the body made of a stream equals the one the upstream would have sent without streaming."""

import json
from typing import Any

import pytest

from openai_calls import WHOLE
from providers.openai.chat import OpenAIChat
from ttft_gateway.apis.errors import ProtocolError

HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1753000000, "model": "m"}
BODY = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1753000000, "model": "m"}


def assembled(*events: bytes) -> Any:
    """The body made of these events."""
    assembler = OpenAIChat().assembler(WHOLE)
    for event in events:
        assembler.add(event)
    return json.loads(assembler.body())


def event(**chunk: Any) -> bytes:
    """One event, with the usual head where the chunk has none."""
    return b"data: " + json.dumps({**HEAD, **chunk}).encode() + b"\n\n"


def delta(index: int = 0, finish: str | None = None, choice: dict[str, Any] | None = None, **fields: Any) -> bytes:
    """One event with one choice."""
    return event(choices=[{"index": index, "delta": fields, "finish_reason": finish, **(choice or {})}])


def message_of(*deltas: dict[str, Any]) -> Any:
    """The message made of these deltas."""
    return assembled(*(delta(**fields) for fields in deltas), delta(finish="stop"))["choices"][0]["message"]


@pytest.mark.parametrize("data", [b"not json", b"[1]", b'{"choices":[],"logprobs":"\xff"}'])
def test_an_event_that_cannot_be_read_is_no_part_to_leave_out(data: bytes) -> None:
    """An event that the reader has passed on, and that is no JSON object, fails the assembling."""
    with pytest.raises(ProtocolError):
        assembled(b"data: %b\n\n" % data)


def test_a_text_answer() -> None:
    """Text is joined, head and usage are kept, nulls stay null, and keys keep the upstream's order."""
    top = {"service_tier": "default", "system_fingerprint": "fp_1", "usage": None, "obfuscation": "xy"}
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}
    body = assembled(
        event(
            choices=[
                {
                    "delta": {"role": "assistant", "content": "", "refusal": None},
                    "logprobs": None,
                    "finish_reason": None,
                }
            ],
            **top,
        ),
        b": comment\n\n",
        b"",
        *(delta(content=text) for text in ('{"a"', ": 1", "}")),
        delta(finish="stop"),
        event(choices=[], **{**top, "usage": usage}),
        b"data: [DONE]\n\n",
    )
    message = {"role": "assistant", "content": '{"a": 1}', "refusal": None}
    assert body == {
        **BODY,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        "usage": usage,
        "service_tier": "default",
        "system_fingerprint": "fp_1",
    }
    assert list(body)[:6] == ["id", "object", "created", "model", "choices", "usage"]


CALL = {"role": "assistant", "content": None}


def piece(index: int | None, arguments: str | None, name: str | None = None, id_: str | None = None) -> dict[str, Any]:
    """A delta with one piece of a tool call."""
    place = {} if index is None else {"index": index}
    begin = {**({"id": id_} if id_ else {}), "type": "function"} if name else ({"id": id_} if id_ else {})
    function = {**({"name": name} if name else {}), **({} if arguments is None else {"arguments": arguments})}
    return {"tool_calls": [{**place, **begin, "function": function}]}


def tool(id_: str, name: str, arguments: str) -> dict[str, Any]:
    """A whole tool call."""
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize(
    "deltas",
    [
        # OpenAI: one after the other
        [CALL, piece(0, "", "f", "a"), piece(0, '{"x"'), piece(0, ":1}"), piece(1, "", "g", "b"), piece(1, "{}")],
        # interleaved, with an empty text first as vLLM sends it
        [
            {"role": "assistant", "content": ""},
            piece(1, "", "g", "b"),
            piece(0, '{"x"', "f", "a"),
            piece(1, "{}"),
            piece(0, ":1}"),
        ],
        # the id in every piece
        [piece(0, "", "f", "a"), piece(0, '{"x"', None, "a"), piece(0, ":1}", None, "a"), piece(1, "{}", "g", "b")],
        # and the name, too
        [piece(0, "", "f", "a"), piece(0, '{"x"', "f", "a"), piece(0, ":1}", "f", "a"), piece(1, "{}", "g", "b")],
        # older vLLM: another id in every piece
        [piece(0, None, "f", "a"), piece(0, '{"x"', None, "r1"), piece(0, ":1}", None, "r2"), piece(1, "{}", "g", "b")],
        # index 0 for all
        [piece(0, '{"x":1}', "f", "a"), piece(0, "{}", "g", "b")],
        # Gemini: no index, also in pieces
        [piece(None, '{"x"', "f", "a"), piece(None, ":1}"), piece(None, "{}", "g", "b")],
        # all in one delta, as Ollama sends them
        [
            {
                "content": "",
                "tool_calls": [{"index": 0, **tool("a", "f", '{"x":1}')}, {"index": 1, **tool("b", "g", "{}")}],
            }
        ],
        # odd things between
        [
            piece(0, '{"x"', "f", "a"),
            {"tool_calls": None},
            {"tool_calls": [None, 3]},
            piece(0, ":1}"),
            piece(1, "{}", "g", "b"),
        ],
    ],
    ids=["openai", "interleaved", "id repeated", "name repeated", "ids random", "index 0", "no index", "whole", "odd"],
)
def test_parallel_tool_calls(deltas: list[dict[str, Any]]) -> None:
    """Two tool calls come out as two, in order, whatever the server's way to number the pieces."""
    calls = [tool("a", "f", '{"x":1}'), tool("b", "g", "{}")]
    assert message_of(*deltas) == {"role": "assistant", "content": None, "tool_calls": calls}


def test_what_stands_in_a_tool_call_stays() -> None:
    """Unknown fields of a call are kept, and a custom tool's input is joined."""
    extra = {"extra_content": {"google": {"thought_signature": "Cs4B"}}}
    custom = {"id": "c", "type": "custom", "custom": {"name": "sh", "input": "ls"}}
    message = message_of(
        {"tool_calls": [{"index": 0, **tool("a", "f", "{}"), **extra}]},
        {"tool_calls": [{"index": 1, **custom}]},
        {"tool_calls": [{"index": 1, "custom": {"input": " -l"}}]},
    )
    assert message["tool_calls"][0] == {**tool("a", "f", "{}"), **extra}
    assert message["tool_calls"][1] == {**custom, "custom": {"name": "sh", "input": "ls -l"}}


@pytest.mark.parametrize(
    ("deltas", "message"),
    [
        (
            [{"content": "a", "reasoning": "x"}, {"reasoning": "y"}, {"content": "b"}],
            {"content": "ab", "reasoning": "xy"},
        ),
        (
            [{"content": "", "reasoning_content": None}, {"reasoning_content": "x"}],
            {"content": None, "reasoning_content": "x"},
        ),
        ([{"content": None, "reasoning_content": "x"}, {"content": "a"}], {"content": "a", "reasoning_content": "x"}),
        (
            [{"content": "", "refusal": None}, {"refusal": "I'm"}, {"refusal": " sorry"}],
            {"content": None, "refusal": "I'm sorry"},
        ),
        ([{"content": ""}], {"content": ""}),
        ([{"content": None}], {"content": None}),
        ([{"role": None}, {}], {"content": None}),
        ([{"role": "tool", "content": "a"}, {"role": "assistant"}], {"role": "tool", "content": "a"}),
        (
            [{"function_call": {"name": "f", "arguments": "{"}}, {"function_call": {"arguments": "}"}}],
            {"content": None, "function_call": {"name": "f", "arguments": "{}"}},
        ),
        (
            [{"content": "a", "function_call": None, "tool_calls": None}],
            {"content": "a", "function_call": None, "tool_calls": None},
        ),
        (
            [
                {"audio": {"id": "au", "transcript": "H"}},
                {"audio": {"data": "AA", "transcript": "i"}},
                {"audio": {"data": "BB", "expires_at": 9}},
            ],
            {"content": None, "audio": {"id": "au", "transcript": "Hi", "data": "AABB", "expires_at": 9}},
        ),
        (
            [{"reasoning_details": [{"text": "a"}]}, {"reasoning_details": [{"text": "b"}]}, {"annotations": []}],
            {"content": None, "reasoning_details": [{"text": "a"}, {"text": "b"}], "annotations": []},
        ),
        (
            [{"thought": "a"}, {"thought": "b", "seq": 1}, {"seq": 2}, {"flag": False}],
            {"content": None, "thought": "ab", "seq": 2, "flag": False},
        ),
        ([{"content": "\ud83d"}, {"content": "\ude00"}], {"content": "\U0001f600"}),
    ],
)
def test_messages(deltas: list[dict[str, Any]], message: dict[str, Any]) -> None:
    """Each field of a message is put together in its own way; what is unknown is joined, extended or the last."""
    assert message_of(*deltas) == {"role": "assistant", **message}


def test_content_in_parts() -> None:
    """Parts that go on with the kind before them are one part, as the upstream sends them unstreamed."""

    def thinking(text: str) -> dict[str, Any]:
        return {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": text}]}]}

    message = message_of(
        {"content": ""},
        thinking("a"),
        thinking("b"),
        {"content": "c"},
        {"content": "d"},
        {"content": [{"type": "image", "url": "u"}, {"type": "image", "url": "v"}, "odd"]},
    )
    assert message["content"] == [
        *thinking("ab")["content"],
        {"type": "text", "text": "cd"},
        {"type": "image", "url": "u"},
        {"type": "image", "url": "v"},
        "odd",
    ]
    odd = [{"type": ["x"]}, {"type": ["x"]}, {"type": "text", "text": 1}, {"type": "text"}]
    assert message_of({"content": odd})["content"] == odd


def test_choices_are_kept_apart() -> None:
    """Interleaved choices come out complete and in the order of their index, or of their place if they have none."""
    body = assembled(
        delta(1, content="x"), delta(0, content="a"), delta(1, "length", content="y"), delta(0, "stop", content="b")
    )
    told = [(choice["index"], choice["message"]["content"], choice["finish_reason"]) for choice in body["choices"]]
    assert told == [(0, "ab", "stop"), (1, "xy", "length")]
    body = assembled(event(choices=[{"delta": {"content": "a"}}, {"index": "1", "delta": {"content": "x"}}, None]))
    assert [choice["message"]["content"] for choice in body["choices"]] == ["a", "x"]


def test_logprobs_and_other_fields_of_a_choice() -> None:
    """Lists of log probabilities are joined, filter results updated, the last of anything else kept."""
    safe, bad = {"hate": {"filtered": False}}, {"violence": {"filtered": True}}
    body = assembled(
        delta(choice={"logprobs": {"content": [{"token": "a"}], "refusal": None}, "content_filter_results": {}}),
        delta(choice={"logprobs": {"content": [{"token": "b"}], "refusal": None}, "content_filter_results": safe}),
        delta(choice={"logprobs": None, "content_filter_results": bad, "token_ids": [1], "native_finish_reason": None}),
        delta(finish="stop", choice={"token_ids": [2, 3], "native_finish_reason": "end_turn", "stop_reason": None}),
        delta(finish=""),
    )
    choice = body["choices"][0]
    assert choice["logprobs"] == {"content": [{"token": "a"}, {"token": "b"}], "refusal": None}
    assert choice["content_filter_results"] == {**safe, **bad}
    assert choice["token_ids"] == [1, 2, 3]
    assert (choice["finish_reason"], choice["native_finish_reason"], choice["stop_reason"]) == (
        "stop",
        "end_turn",
        None,
    )


@pytest.mark.parametrize(
    "last",
    [
        event(choices=[], usage={"prompt_tokens": 3}),
        event(choices=[{"index": 0, "delta": {}, "usage": {"prompt_tokens": 3}}]),
        event(choices=[], x_groq={"id": "req_1", "usage": {"prompt_tokens": 3}}),
    ],
    ids=["openai", "moonshot", "groq"],
)
def test_usage_is_found_where_servers_put_it(last: bytes) -> None:
    """Usage is at the top of the body only, wherever the stream had it."""
    first, nothing = event(choices=[], usage={"prompt_tokens": 1}), event(choices=[], usage=None)
    body = assembled(delta(content="x"), first, last, nothing)
    assert body["usage"] == {"prompt_tokens": 3}
    assert "usage" not in body["choices"][0]
    assert body.get("x_groq") in (None, {"id": "req_1"})


def test_an_empty_head_does_not_replace_a_real_one() -> None:
    """Azure's first and filter chunks have an empty id and model: what is not empty counts."""
    empty = {"id": "", "created": 0, "model": "", "object": ""}
    body = assembled(
        event(choices=[], **empty, prompt_filter_results=[{"prompt_index": 0}]),
        delta(content="x"),
        event(choices=[], **empty),
    )
    assert {key: body[key] for key in body if key != "choices"} == {
        **BODY,
        "prompt_filter_results": [{"prompt_index": 0}],
    }
