"""Completions of simulated replicas: the gateway's own reader and assembler accept their events."""

import json
from typing import Any

import pytest

from gateway.simulated.completion import example_document
from openai_calls import call_of
from providers.openai.chat import OpenAIChat, OpenAICompletions
from simulated_calls import HELLO, answer_of, body_of, contents, play, replica_of, text_of
from ttft_gateway.apis.base import Api

PROTOCOLS: dict[Api, OpenAIChat | OpenAICompletions] = {Api.CHAT: OpenAIChat(), Api.COMPLETIONS: OpenAICompletions()}

REQUESTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "short": {"max_tokens": 2},
    "usage": {"stream_options": {"include_usage": True}},
    "several": {"n": 3},
    "logprobs": {"logprobs": True, "top_logprobs": 2, "max_tokens": 4},
    "tool": {
        "tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {
            "city": {"type": "string"}, "days": {"type": "integer"}}}}}],
        "tool_choice": "required",
    },
    "json": {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {
        "type": "object", "properties": {"ok": {"type": "boolean"}, "of": {"enum": ["a", "b"]}}}}}},
}  # fmt: skip


@pytest.mark.parametrize("fields", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize("profile", [{}, {"role": "with"}, {"reasoning_tokens": 3}, {"provider": "azure"}], ids=repr)
def test_reader_of_the_gateway_agrees_on_events(fields: dict[str, Any], profile: dict[str, Any]) -> None:
    """Each frame's kind and usage are those that the gateway's reader finds in its bytes."""
    script = play(replica_of(**profile), **fields)
    call = call_of(json.loads(body_of(stream=True, **fields)), include_usage=True)
    reader = PROTOCOLS[Api.CHAT].reader(call)
    frames = [*script.prelude, *(step.frame for step in script.steps)]
    assert [reader.read(frame.raw) for frame in frames] == frames
    assert reader.complete


@pytest.mark.parametrize("fields", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize("profile", [{}, {"reasoning_tokens": 3, "role": "none"}, {"role": "with"}], ids=repr)
def test_streamed_answer_is_the_json_answer(fields: dict[str, Any], profile: dict[str, Any]) -> None:
    """A stream, assembled by the gateway, is the JSON response except for the id."""
    fields = {**fields, "stream_options": {"include_usage": True}}
    assert_assembled(Api.CHAT, profile, fields)


@pytest.mark.parametrize("fields", [{}, {"n": 2, "logprobs": 1}, {"prompt": ["a", "b"]}], ids=repr)
def test_streamed_completion_is_the_json_completion(fields: dict[str, Any]) -> None:
    """A streamed completion, assembled, is the JSON completion."""
    fields = {"prompt": "once upon", "stream_options": {"include_usage": True}, **fields}
    assert_assembled(Api.COMPLETIONS, {}, fields)


def assert_assembled(api: Api, profile: dict[str, Any], fields: dict[str, Any]) -> None:
    """Assert that the assembled events of a stream are the JSON response."""
    streamed = play(replica_of(**profile), api=api, **fields)
    whole = answer_of(play(replica_of(**profile), api=api, stream=False, **fields))
    assembler = PROTOCOLS[api].assembler(call_of(json.loads(body_of(stream=True, **fields)), api))
    for frame in [*streamed.prelude, *(step.frame for step in streamed.steps)]:
        assembler.add(frame.raw)
    assembled = json.loads(assembler.body())
    assert without_nulls(assembled) == without_nulls({**whole, "id": assembled["id"]})


def without_nulls(value: Any) -> Any:
    """Return a value without its null members, which some servers omit."""
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


def test_token_counts_are_bounded() -> None:
    """max_tokens decides the length, never beyond tokens_max; without it the profile does."""
    replica = replica_of(tokens=7, tokens_max=50)
    requests: list[dict[str, Any]] = [{}, {"max_tokens": 3}, {"max_tokens": 10**9}]
    lengths = [len(contents(play(replica, **fields))) for fields in requests]
    assert lengths == [7, 3, 50]


def test_forced_tool_is_called_with_arguments_its_schema_allows() -> None:
    """A required tool is called; `auto` gives text."""
    forced = answer_of(play(replica_of(), stream=False, **REQUESTS["tool"]))["choices"][0]
    assert forced["finish_reason"] == "tool_calls"
    function = forced["message"]["tool_calls"][0]["function"]
    assert (function["name"], json.loads(function["arguments"])) == ("look", {"city": "word", "days": 7})
    named = {**REQUESTS["tool"], "tool_choice": {"type": "function", "function": {"name": "look"}}}
    assert answer_of(play(replica_of(), stream=False, **named))["choices"][0]["message"]["tool_calls"]
    auto = {**REQUESTS["tool"], "tool_choice": "auto"}
    assert answer_of(play(replica_of(), stream=False, **auto))["choices"][0]["message"]["content"]


def test_json_schema_is_answered_with_json() -> None:
    """The content is a document that the schema allows."""
    message = answer_of(play(replica_of(), stream=False, **REQUESTS["json"]))["choices"][0]["message"]
    assert json.loads(message["content"]) == {"ok": True, "of": "a"}


def test_continued_answer_continues() -> None:
    """An answer continued from any prefix of it, cut between or inside tokens, is the rest of it."""
    whole = text_of(play(replica_of(tokens=12)))
    for cut in (0, 1, 4, 9, len(whole) - 1, len(whole)):
        messages = [*HELLO, {"role": "assistant", "content": whole[:cut]}]
        rest = play(replica_of(tokens=12), messages=messages, continue_final_message=True)
        assert whole[:cut] + text_of(rest) == whole
    limited = play(
        replica_of(tokens=12),
        messages=[*HELLO, {"role": "assistant", "content": text_of(play(replica_of(), max_tokens=4))}],
        continue_final_message=True,
        max_tokens=2,
    )
    assert text_of(play(replica_of(), max_tokens=6)).endswith(text_of(limited))
    assert len(contents(limited)) == 2


def test_prefix_of_another_answer_is_not_spliced() -> None:
    """A prefix that the replica does not generate is continued with another text."""
    whole = text_of(play(replica_of(tokens=12)))
    messages = [*HELLO, {"role": "assistant", "content": "Certainly not"}]
    other = text_of(play(replica_of(tokens=12), messages=messages, continue_final_message=True))
    assert other
    assert other not in whole


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"n": 0}, "n"),
        ({"n": 10**9}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"top_logprobs": 10**9, "logprobs": True}, "top_logprobs"),
        ({"max_tokens": "many"}, None),
        ({"continue_final_message": True}, "messages"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": 3}}}}, None),
    ],
    ids=repr,
)
def test_unacceptable_request_is_a_400(fields: dict[str, Any], param: str | None) -> None:
    """An invalid request gets a 400 that names the field, and takes no slot."""
    script = play(replica_of(), **fields)
    assert (script.status, script.slot) == (400, False)
    assert json.loads(script.steps[0].frame.raw)["error"]["param"] == param


def test_continuing_can_be_unsupported() -> None:
    """With `continues` off a prefix gets a 400 that names the parameter."""
    messages = [*HELLO, {"role": "assistant", "content": "the"}]
    script = play(replica_of(continues=False), messages=messages, continue_final_message=True)
    assert json.loads(script.steps[0].frame.raw)["error"]["param"] == "continue_final_message"


@pytest.mark.parametrize(
    ("schema", "document"),
    [
        ({"$ref": "#/$defs/A", "$defs": {"A": {"type": "number"}}}, 0.5),
        ({"type": "array", "items": {"const": 3}}, [3]),
        ({"anyOf": [{"type": "null"}, {"type": "string"}]}, None),
        ({"type": "object"}, {}),
        ({}, "word"),
        (True, "word"),
    ],
    ids=repr,
)
def test_document_is_one_the_schema_allows(schema: object, document: object) -> None:
    """A common JSON schema gets a valid document."""
    assert example_document(schema) == document


def test_schema_that_refers_to_itself_ends() -> None:
    """A document is bounded for a schema that refers to itself in many branches."""
    branches = {name: {"$ref": "#/$defs/A"} for name in "abcdefgh"}
    schema = {"$ref": "#/$defs/A", "$defs": {"A": {"type": "object", "properties": branches}}}
    assert len(json.dumps(example_document(schema))) < 100_000
