"""A second stream is joined to the client's part of the first: any chunking, any cut, one answer or a difference."""

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_transcripts import (
    DONE,
    RECOVERER,
    call,
    chunk,
    content,
    continued,
    event,
    stream,
    tool,
    transcript,
)


def joined(first: Sequence[bytes], second: Sequence[bytes]) -> bytes | None:
    """The client's bytes at the end."""
    joiner = transcript(*first).joiner()
    got = list(first)
    for each in second:
        new = joiner.feed(each)
        if new is None:
            return None
        got.append(new)
    assert joiner.caught_up
    return b"".join(got)


def texts(body: bytes) -> dict[tuple[object, ...], str]:
    """Every text by choice and place, pieces joined as UTF-16 is, as clients in JavaScript do."""
    found: dict[tuple[object, ...], str] = {}

    def add(place: tuple[object, ...], text: str) -> None:
        found[place] = found.get(place, "") + text

    for each in body.split(b"\n\n"):
        if each in (b"", DONE.strip()):
            continue
        for choice in json.loads(each[6:])["choices"]:
            for key, value in choice["delta"].items():
                if key == "tool_calls":
                    for piece in value:
                        for name, text in piece.get("function", {}).items():
                            add((choice["index"], piece["index"], name), text)
                        add((choice["index"], piece["index"], "id"), piece.get("id") or "")
                elif value and key != "role":
                    add((choice["index"], key), value)
            if choice["finish_reason"]:
                add((choice["index"], "finish"), choice["finish_reason"])
    return {
        place: text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        for place, text in found.items()
        if text
    }


def answer(rng: random.Random) -> dict[tuple[object, ...], str]:
    """Generate an answer, in order: reasoning, text and tool calls of one to three choices."""
    said: dict[tuple[object, ...], str] = {}

    def words() -> str:
        return "".join(rng.choices("ab \"\\\n'é🙂日", k=rng.randint(1, 12)))

    for index in range(rng.randint(1, 3)):
        for key in rng.choice([("content",), ("reasoning", "content"), ("refusal",), ()]):
            said[index, key] = words()
        for number in range(rng.randint(0, 2)):
            said[index, number, "name"] = rng.choice(["weather", "w"])
            said[index, number, "arguments"] = words()
        said[index, "finish"] = rng.choice(["stop", "length"])
    return said


@given(st.integers(0, 2**32))
def test_any_two_streams_of_one_answer_make_one(seed: int) -> None:
    """Wherever the first stream is cut, and however the second is: all texts once, one head, one role, one end."""
    rng = random.Random(seed)
    said = answer(rng)
    first, second = stream(rng, said, "a"), stream(rng, said, "bb")
    body = joined(first[: rng.randint(1, len(first) - 2)], second)
    assert body is not None
    heard = texts(body)
    assert {place: text for place, text in heard.items() if place[-1] != "id"} == said
    assert body.endswith(DONE)
    assert body.count(DONE) == 1
    chunks = [json.loads(each[6:]) for each in body.split(b"\n\n")[:-2]]
    assert {(each["id"], each["created"], each["model"]) for each in chunks} == {("a", 1, "model-a")}
    roles = [choice["index"] for each in chunks for choice in each["choices"] if choice["delta"].get("role")]
    assert len(roles) == len(set(roles))
    assert len([each for each in chunks if each.get("usage")]) == 1
    ids = [text for place, text in heard.items() if place[-1] == "id"]
    assert all(text in ("call-a-0", "call-a-1", "call-bb-0", "call-bb-1") for text in ids)


@given(st.integers(0, 2**32), st.booleans())
def test_a_difference_is_never_passed_over(seed: int, near: bool) -> None:
    """Every text of a joined answer is from one model, else a difference is reported; thinking may be followed."""
    rng = random.Random(seed)
    one, other = answer(rng), answer(rng)
    if near:
        place = rng.choice(sorted(one, key=str))
        other = {**one, place: one[place][: rng.randint(0, len(one[place]))] + "!"}
    first, second = stream(rng, one, "a"), stream(rng, other, "bb")
    sent = first[: rng.randint(1, len(first) - 2)]
    body = joined(sent, second)
    if body is not None:
        got = {place: text for place, text in texts(body).items() if place[-1] != "id"}
        thinking, place = texts(b"".join(sent)), (0, "reasoning")
        if set(thinking) == {place} and got != other:  # restarted
            got[place] = got[place].removeprefix(thinking[place]).removeprefix("\n\n")
        assert {place: text for place, text in got.items() if text} == other


def test_texts_are_read_in_runs_and_alone() -> None:
    """Texts of events that are else alike are read together: each once, in order, whatever is in them."""
    pieces = ["a", "b", '"', '"', "\\", "é", "é", "", "c\n", "c\n", "d", '{"', "\ud83d", "\ude42"]
    first = transcript(*(content(piece) for piece in pieces))
    assert first.tokens == len(pieces) - 1
    whole = transcript(content("".join(pieces).replace("\ud83d\ude42", "🙂")))
    for made in (first, whole):
        new = made.joiner().feed(content("".join(pieces) + "!", "b"))
        assert new is not None
        assert json.loads(new[6:])["choices"][0]["delta"] == {"content": "!"}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param([content("abc")], [content("abd", "b")], id="another text"),
        pytest.param([content("abc")], [content("ab", "b"), chunk("b", (0, {}, "stop"))], id="a shorter one"),
        pytest.param([content("abc")], [content("ab", "b"), DONE], id="ends before it"),
        pytest.param([content("abc")], [chunk("b", (0, {"refusal": "no"}, None))], id="another field"),
        pytest.param(
            [chunk("a", (0, {"reasoning": "r"}, None)), content("abc")],
            [chunk("b", (0, {"reasoning": "r and more"}, None))],
            id="longer reasoning before the same text",
        ),
        pytest.param([tool("{", "a", name="f")], [tool("{", "b", name="g")], id="another tool"),
        pytest.param(
            [tool('{"a":1}', "a", name="f"), tool("{", "a", 1, "g")],
            [tool('{"a":1}', "b", name="f"), tool("{", "b", 1, "h")],
            id="another second tool",
        ),
        pytest.param([tool("{", "a", name="f")], [content("abc", "b")], id="text instead of a tool"),
        pytest.param(
            [content("x", index=0), content("y", index=1)],
            [content("x", "b", 0), content("z", "b", 1)],
            id="another choice",
        ),
        pytest.param(
            [content("x"), chunk("a", (0, {}, "stop")), content("y", index=1)],
            [content("x and more", "b")],
            id="goes on behind the end",
        ),
        pytest.param(
            [content("x"), chunk("a", (0, {}, "stop")), content("y", index=1)],
            [content("x", "b"), chunk("b", (0, {}, "length"))],
            id="another end",
        ),
        pytest.param([content("abc")], [b"data: [1]\n\n"], id="no object"),
        pytest.param([content("abc")], [event({"choices": [3]})], id="no choice"),
        pytest.param([content("abc")], [chunk("b", (0, {"audio": {"data": "x"}}, None))], id="audio"),
    ],
)
def test_differences(first: list[bytes], second: list[bytes]) -> None:
    """Each way in which a second answer can differ from the client's part is reported."""
    assert joined(first, second) is None


def test_the_ids_of_tool_calls_are_the_first_streams() -> None:
    """A call that the client has keeps its id, repeated or not; a new call gets the second stream's id."""
    first = [tool("", "a", name="f"), tool('{"ci', "a")]
    second = [tool('{"city', "b", name="f"), tool('":1}', "b", name=""), tool("{}", "b", 1, "g"), DONE]
    body = joined(first, second)
    assert body is not None
    assert texts(body) == {
        (0, 0, "id"): "call-a-0",
        (0, 0, "name"): "f",
        (0, 0, "arguments"): '{"city":1}',
        (0, 1, "id"): "call-b-1",
        (0, 1, "name"): "g",
        (0, 1, "arguments"): "{}",
    }


def test_tool_calls_that_all_have_index_0_keep_their_own_ids() -> None:
    """If a server sends the same index for every call, a call that begins after the break is a new one."""
    first = [tool("{}", "a", name="f")]
    other = chunk(
        "b", (0, {"tool_calls": [{"index": 0, "id": "call-2", "function": {"name": "g", "arguments": "[]"}}]}, None)
    )
    body = joined(first, [tool("{}", "b", name="f"), other, DONE])
    assert body is not None
    assert b'"call-2"' in body
    assert b"call-b-0" not in body


def test_tokens_of_logprobs_are_compared_and_their_rest_goes_out() -> None:
    """The event in which the client's text ends has the log probabilities of the rest only."""

    def with_logprobs(stream: str, *tokens: str, value: float = -0.5) -> bytes:
        listed: list[dict[str, Any]] = [
            {"token": token, "logprob": value, "bytes": None, "top_logprobs": []} for token in tokens
        ]
        said = {"index": 0, "delta": {"content": "".join(tokens)}, "logprobs": {"content": listed, "refusal": None}}
        return event({"id": stream, "choices": [{**said, "finish_reason": None}]})

    joiner = transcript(with_logprobs("a", "x", "y")).joiner()
    new = joiner.feed(with_logprobs("b", "x", "y", "z", value=-0.75))
    assert new is not None
    (choice,) = json.loads(new[6:])["choices"]
    assert choice["delta"] == {"content": "z"}
    assert [each["token"] for each in choice["logprobs"]["content"]] == ["z"]
    assert transcript(with_logprobs("a", "x", "y")).joiner().feed(with_logprobs("b", "xy")) is None


@pytest.mark.parametrize("name", ["audio", "reasoning_details", "annotations"])
def test_what_is_no_text_is_not_comparable(name: str) -> None:
    """An answer with parts that are no text is not replayed, and not continued."""
    made = transcript(content("abc"), chunk("a", (0, {name: [{"type": "x"}]}, None)))
    assert not made.comparable
    assert made.continuation() is None


def test_events_before_content_are_not_sent_twice() -> None:
    """Filter results, roles and comments of the second stream: comments pass, the rest is the first stream's."""
    joiner = transcript(chunk("a", (0, {"role": "assistant", "content": ""}, None)), content("ab")).joiner()
    filters = event({"id": "", "choices": [], "prompt_filter_results": [{}]})
    assert joiner.feed(filters + chunk("b", (0, {"role": "assistant"}, None)) + content("ab", "b")) == b""
    assert joiner.feed(b": ping\n\n") == b": ping\n\n"
    new = joiner.feed(content("c", "b") + filters + chunk("b", (0, {}, "stop")))
    assert new is not None
    assert new.count(b"data: ") == 3
    assert b'"role"' not in new


def test_usage_adds_up() -> None:
    """The beginning of a continued answer counts as answer again, and not as prompt."""
    found = continued(transcript(content("a"), content("b"), content("c")))
    usage = {"prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 14, "prompt_tokens_details": None}
    new = found.joiner.feed(content("d", "b") + event({"choices": [], "usage": usage}))
    assert new is not None
    (told,) = [json.loads(each[6:])["usage"] for each in new.split(b"\n\n") if b"usage" in each]
    assert told == {**usage, "prompt_tokens": 7, "completion_tokens": 7}
    assert found.prefill_tokens == 3


def test_usage_is_sent_once() -> None:
    """A client that has its token counts gets no others."""
    first = [content("a"), chunk("a", (0, {}, "stop")), chunk("a", usage={"prompt_tokens": 1})]
    body = joined(first, [content("a", "b"), chunk("b", (0, {}, "stop")), chunk("b", usage={"prompt_tokens": 1}), DONE])
    assert body == b"".join(first) + DONE


@pytest.mark.parametrize(
    ("fields", "fixed"),
    [
        ({}, False),
        ({"temperature": 0}, True),
        ({"temperature": 0.0}, True),
        ({"temperature": 1}, False),
        ({"temperature": "0"}, False),
        ({"seed": 0}, True),
    ],
    ids=repr,
)
def test_is_deterministic(fields: dict[str, Any], fixed: bool) -> None:
    """Temperature 0 or a seed ask for the same answer each time."""
    assert RECOVERER.is_deterministic(call(**fields)) is fixed
