"""A second stream is joined to the client's part of the first: any chunking, any cut, one answer or a difference."""

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.inbound.parsed import NumberLimits
from gateway.inbound.request import parse
from providers.base import Api, Call, Continuation
from providers.openai.transcript import OpenAIRecoverer, OpenAITranscript

Piece = tuple[int, dict[str, Any], str | None]
"""Choice, delta, finish_reason."""

DONE = b"data: [DONE]\n\n"
RECOVERER = OpenAIRecoverer()


def call(api: Api = Api.CHAT, **fields: object) -> Call:
    """A client's call."""
    asked: dict[str, object] = {"messages": [{"role": "user", "content": "hi"}]}
    if api is Api.COMPLETIONS:
        asked = {"prompt": 'He said "hi"\n'}
    body = {"model": "m", "stream": True, **asked, **fields}
    body = {key: value for key, value in body.items() if value is not None}
    return parse(api, json.dumps(body, ensure_ascii=False).encode(), [], NumberLimits(16, 10_000), frozenset()).call


def event(chunk: dict[str, Any]) -> bytes:
    """One event."""
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def chunk(stream: str, *choices: Piece, **more: object) -> bytes:
    """An event of a stream."""
    said = [{"index": index, "delta": delta, "finish_reason": finish} for index, delta, finish in choices]
    return event({"id": stream, "created": len(stream), "model": f"model-{stream}", "choices": said, **more})


def transcript(*events: bytes, of: Call | None = None) -> OpenAITranscript:
    """The transcript of these events."""
    made = RECOVERER.transcript(of or call())
    made.add(b"".join(events))
    return made


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


def stream(rng: random.Random, said: dict[tuple[object, ...], str], name: str) -> list[bytes]:
    """The answer as a server could cut it up: characters apart or in halves, choices interleaved, role alone or not."""
    queues: dict[int, list[Piece]] = {}
    apart = rng.random() < 0.5
    for place, text in said.items():
        index = place[0]
        assert isinstance(index, int)
        queue = queues.setdefault(index, [(index, {"role": "assistant", "content": ""}, None)] if apart else [])
        if place[1] == "finish":
            queue.append((index, {}, text))
        elif place[-1] == "name":
            start = {"index": place[1], "id": f"call-{name}-{place[1]}", "type": "function"}
            queue.append((index, {"tool_calls": [{**start, "function": {"name": text, "arguments": ""}}]}, None))
        else:
            for part in _parts(rng, text):
                piece = {"index": place[1], "function": {"arguments": part}}
                delta = {"tool_calls": [piece]} if place[-1] == "arguments" else {str(place[1]): part}
                queue.append((index, delta, None))
        if not apart:
            queue[0][1]["role"] = "assistant"
    events = []
    while queues:
        index = rng.choice(sorted(queues))
        events.append(chunk(name, queues[index].pop(0)))
        if not queues[index]:
            del queues[index]
    return [*events, chunk(name, usage={"prompt_tokens": 3, "completion_tokens": 4}), DONE]


def _parts(rng: random.Random, text: str) -> Iterator[str]:
    """A text in pieces; a character may be cut between its two halves."""
    units = text.encode("utf-16-le")
    while units:
        size = 2 * rng.randint(1, 5)
        yield units[:size].decode("utf-16-le", "surrogatepass")
        units = units[size:]


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
    """Every text of a joined answer is from one model, else a difference is reported."""
    rng = random.Random(seed)
    one, other = answer(rng), answer(rng)
    if near:
        place = rng.choice(sorted(one, key=str))
        other = {**one, place: one[place][: rng.randint(0, len(one[place]))] + "!"}
    first, second = stream(rng, one, "a"), stream(rng, other, "bb")
    body = joined(first[: rng.randint(1, len(first) - 2)], second)
    if body is not None:
        assert {place: text for place, text in texts(body).items() if place[-1] != "id"} == other


def content(text: str, stream: str = "a", index: int = 0) -> bytes:
    """A piece of a choice's text."""
    return chunk(stream, (index, {"content": text}, None))


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


def tool(arguments: str, stream: str, index: int = 0, name: str | None = None) -> bytes:
    """A piece of a tool call."""
    piece: dict[str, Any] = {"index": index, "function": {"arguments": arguments}}
    if name is not None:
        piece |= {"id": f"call-{stream}-{index}", "type": "function"}
        piece["function"]["name"] = name
    return chunk(stream, (0, {"tool_calls": [piece]}, None))


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


def continued(made: OpenAITranscript) -> Continuation:
    """Its continuation, which there must be."""
    found = made.continuation()
    assert found is not None
    return found


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
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
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
    """A call whose rest a server would parse differently from the whole is not continued."""
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
