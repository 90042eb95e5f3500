"""Chat to Messages and back again: nothing is lost on the way, whatever a request or an answer holds."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from anthropic_calls import CHAT_TO_MESSAGES, DONE, ENGINE, chunk, messages_call, read_through
from openai_calls import WHOLE
from providers.openai.chat import OpenAIChat
from providers.translation.base import TranslatedProtocol
from providers.translation.chat_to_messages import translation as chat_to_messages
from providers.translation.messages_to_chat import translation as messages_to_chat
from providers.translation.messages_to_chat.translation import MessagesToChat
from ttft_gateway.apis.tolerant_json import dumps

TEXT = st.text(min_size=1, max_size=9)
IDS = st.from_regex(r"[a-zA-Z0-9_-]{1,12}", fullmatch=True)
VALUES = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | TEXT
OBJECTS = st.dictionaries(st.text(max_size=5), VALUES | st.lists(VALUES, max_size=2), max_size=3)
TEXT_PARTS = st.builds(lambda text: {"type": "text", "text": text}, TEXT)
PARTS = TEXT_PARTS | st.sampled_from(
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.jpg"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBERi0=", "filename": "a.pdf"}},
    ]
)


def several(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A text, or parts; one text alone is a text."""
    return TEXT | st.lists(parts, min_size=2, max_size=3)


def tool_call(id_: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """A tool call, its arguments as the gateway writes JSON."""
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": dumps(arguments).decode()}}


def turn(content: Any, calls: list[dict[str, Any]], results: list[Any]) -> list[dict[str, Any]]:
    """An assistant's message and the next ones: a tool's result for each call, or a user's message."""
    said: dict[str, Any] = {"role": "assistant", "content": content}
    if not calls:
        return [{**said, "content": content or "x"}, {"role": "user", "content": "go on"}]
    answers = [{"role": "tool", "tool_call_id": call["id"], "content": results[0]} for call in calls]
    return [{**said, "tool_calls": calls}, *answers]


CALLS = st.lists(st.builds(tool_call, IDS, IDS, OBJECTS), max_size=3, unique_by=lambda call: str(call["id"]))
TURNS = st.builds(turn, TEXT | st.none(), CALLS, st.lists(several(TEXT_PARTS), min_size=1, max_size=1))
MESSAGES = st.builds(
    lambda system, first, turns: [
        *system,
        {"role": "user", "content": first},
        *(each for turn in turns for each in turn),
    ],
    st.lists(st.builds(lambda text: {"role": "system", "content": text}, several(TEXT_PARTS)), max_size=1),
    several(PARTS),
    st.lists(TURNS, max_size=3),
)
FUNCTIONS = st.fixed_dictionaries(
    {"name": IDS, "parameters": OBJECTS.map(lambda schema: {"type": "object", "properties": schema})},
    optional={"description": TEXT, "strict": st.just(True)},
).map(lambda function: {"type": "function", "function": function})
SCHEMAS = OBJECTS.map(
    lambda schema: {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
)
REQUESTS = st.fixed_dictionaries(
    {"messages": MESSAGES, "max_tokens": st.integers(1, 9999)},
    optional={
        "temperature": st.floats(0, 1),
        "top_p": st.floats(0, 1),
        "top_k": st.integers(1, 99),
        "stop": st.lists(IDS, min_size=1, max_size=4),
        "user": IDS,
        "service_tier": st.sampled_from(["auto", "default"]),
        "reasoning_effort": st.sampled_from(["low", "medium", "high", "xhigh"]),
        "response_format": SCHEMAS,
        "tools": st.lists(FUNCTIONS, min_size=1, max_size=2),
        "tool_choice": st.sampled_from(["auto", "none", "required"])
        | st.builds(lambda name: {"type": "function", "function": {"name": name}}, IDS),
    },
)


@given(REQUESTS)
def test_requests_there_and_back(body: dict[str, Any]) -> None:
    """A chat request, translated to the Messages API and back, is the same request."""
    there = chat_to_messages.request_of(body)
    back = messages_to_chat.request_of({"model": "m", **there.fields}, ENGINE)
    assert (dict(there.unsupported), dict(back.unsupported)) == ({}, {})
    assert back.fields == body


USAGES = st.builds(
    lambda prompt, cached, completion: {
        "prompt_tokens": prompt + cached,
        "completion_tokens": completion,
        "total_tokens": prompt + cached + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    },
    *[st.integers(0, 9999)] * 3,
)
REASONS = st.sampled_from(["stop", "length", "content_filter"])


def answer(thoughts: list[str], texts: list[str], calls: list[dict[str, Any]], reason: str, usage: Any) -> list[bytes]:
    """The chunks of an answer; tool calls give theirs in two pieces."""
    deltas: list[dict[str, Any]] = [{"reasoning_content": each} for each in thoughts]
    deltas += [{"content": each} for each in texts]
    for index, call in enumerate(calls):
        head = {**call, "index": index, "function": {**call["function"], "arguments": ""}}
        rest = {"index": index, "function": {"arguments": call["function"]["arguments"]}}
        deltas += [{"tool_calls": [head]}, {"tool_calls": [rest]}]
    role = {"role": "assistant", "content": ""}
    last = chunk({}, "tool_calls" if calls and reason == "stop" else reason)
    return [chunk(role), *map(chunk, deltas), last, chunk(usage=usage), DONE]


def completion(events: list[bytes]) -> dict[str, Any]:
    """The completion that these chunks make."""
    assembler = OpenAIChat().assembler(WHOLE)
    for each in events:
        assembler.add(each)
    body: dict[str, Any] = json.loads(assembler.body())
    return body


@given(st.builds(answer, *[st.lists(TEXT, max_size=3)] * 2, CALLS, REASONS, USAGES))
def test_answers_there_and_back(chunks: list[bytes]) -> None:
    """Chunks, translated to Messages events and back, make the same completion."""
    protocol = TranslatedProtocol(MessagesToChat(ENGINE), OpenAIChat())
    there = read_through(protocol, messages_call(stream=True), chunks)
    back = read_through(CHAT_TO_MESSAGES, WHOLE, [there])
    assert {**completion([back]), "created": 1} == completion(chunks)
