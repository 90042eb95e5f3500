"""Requests that continue a broken answer of the OpenAI APIs."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from openai_transcripts import (
    call,
    chunk,
    content,
    continued,
    event,
    tool,
    transcript,
)
from ttft_gateway.apis.base import Api
from ttft_gateway.requests.parsed import NumberLimits
from ttft_gateway.requests.request import parse


@given(spaces=st.sampled_from(["", " ", "\n", ": "]), model=st.sampled_from(["m", None]), text=st.text(min_size=1))
@example(spaces="", model="m", text=" x\n\n")
def test_a_continuation_asks_for_the_rest(spaces: str, model: str | None, text: str) -> None:
    """The client's own body goes on with the answer's beginning, whatever its layout, and its spans stay right."""
    turns = [{"role": "user", "content": "hé {[,"}]
    said = {"model": model or "other", "messages": turns, "max_tokens": 9}
    body = json.dumps(said, separators=("," + spaces.strip(":"), ":" + spaces.strip(":")), ensure_ascii=False).encode()
    asked = parse(Api.CHAT, body, [], NumberLimits(16, 100), frozenset()).call
    found = transcript(content(text), of=asked).continuation()
    if not text.rstrip():
        assert found is None
        return
    assert found is not None
    told = json.loads(found.call.body)
    kept = text.rstrip()
    assert told == {
        **said,
        "max_tokens": 8 if kept == text else 9,
        "messages": [*turns, {"role": "assistant", "content": kept}],
        "continue_final_message": True,
        "add_generation_prompt": False,
    }
    for key, (start, end) in found.call.spans.items():
        assert json.loads(found.call.body[start:end]) == told[key]
    new = found.joiner.feed(content(text[len(kept) :] + "new", "b"))
    assert new is not None
    assert json.loads(new[6:]) == json.loads(content("new")[6:])


def test_completions_are_continued_by_their_prompt() -> None:
    """The answer's beginning is appended to a prompt that is a text; other prompts are not continued."""
    said = event({"id": "a", "choices": [{"index": 0, "text": 'x "\n ', "finish_reason": None}]})
    found = continued(transcript(said, of=call(Api.COMPLETIONS)))
    assert json.loads(found.call.body)["prompt"] == 'He said "hi"\nx "\n '
    assert transcript(said, of=call(Api.COMPLETIONS, prompt=["hi"])).continuation() is None


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"},
        {"response_format": {"type": "json_object"}},
        {"guided_json": {}, "guided_regex": "a*"},
        {"structured_outputs": {"regex": "a*"}},
        {"store": True},
        {"max_tokens": 1},
        {"continue_final_message": True},
        {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "I"}]},
    ],
    ids=repr,
)
def test_what_is_not_continued(fields: dict[str, Any]) -> None:
    """A call is not continued if a server would parse its continuation differently from the whole."""
    assert transcript(content("abc"), of=call(**fields)).continuation() is None


@pytest.mark.parametrize(
    "event_",
    [
        chunk("a", (0, {"reasoning_content": "hm"}, None)),
        chunk("a", (0, {"refusal": "no"}, None)),
        tool("{", "a", name="f"),
        chunk("a", (0, {}, "stop")),
    ],
    ids=["reasoning", "refusal", "tool", "finished"],
)
def test_only_plain_text_is_continued(event_: bytes) -> None:
    """Nothing is continued of which the client has more than unfinished text."""
    assert transcript(content("abc"), event_).continuation() is None


def test_a_continuation_says_text_only() -> None:
    """A server that takes the rest for reasoning, or for a tool call, is not joined."""
    for said in (chunk("b", (0, {"reasoning_content": "hm"}, None)), tool("{", "b", name="f")):
        assert continued(transcript(content("abc"))).joiner.feed(said) is None
