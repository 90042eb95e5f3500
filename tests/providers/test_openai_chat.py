"""Chat streams as servers really send them: what each event is, what is forwarded, and when an answer is complete.

The kinds of real servers' events are in docs/first-token-vectors.json (`test_first_token_vectors`).
"""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_calls import STREAMED, WHOLE, call_of
from providers.openai.chat import OpenAIChat
from providers.response_stream import take_run
from ttft_gateway.apis.base import FirstToken, Frame, FrameKind, Usage
from ttft_gateway.apis.openai.events import LearnedEnds


def event(**chunk: Any) -> bytes:
    """One event of a stream."""
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def text(content: str, index: int = 0, finish: str | None = None) -> bytes:
    """A chunk with text."""
    return event(choices=[{"index": index, "delta": {"content": content}, "finish_reason": finish}])


def test_the_usage_chunk_stays_where_it_is_wanted() -> None:
    """It is taken out of a stream only if the gateway alone asked for it."""
    usage = event(choices=[], usage={"prompt_tokens": 1})
    assert OpenAIChat().reader(STREAMED).read(usage).raw == b""
    assert usage == OpenAIChat(ask_usage=False).reader(STREAMED).read(usage).raw
    assert usage == OpenAIChat().reader(WHOLE).read(usage).raw


DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("n", "events", "complete"),
    [
        (1, [text("x")], False),
        (1, [text("x", finish="stop")], True),
        (1, [DONE], False),
        (1, [text("x"), DONE], False),
        (2, [text("x", finish="stop"), text("x", 1), DONE], False),
        (2, [event(choices=[{"index": 1, "delta": {"role": "assistant"}}]), text("x", finish="stop"), DONE], False),
        (2, [text("x", finish="stop"), DONE], True),  # a server that ignores `n`
        (1, [text("x", finish="")], False),
        (2, [text("x", finish="stop"), text("x", finish="stop")], False),
        (2, [text("x", finish="stop"), text("x", 1), text("x", 1, "length")], True),
        (1, [text("x", finish="content_filter")], True),
        (1, [text("x", finish="error")], False),
        (1, [event(error={"message": "x"})], False),
    ],
)
def test_complete(*, n: int, events: list[bytes], complete: bool) -> None:
    """An answer is complete when every choice has finished; with the closing event, every one that has begun."""
    reader = OpenAIChat().reader(call_of({"model": "m", "stream": True, "n": n}))
    for each in events:
        assert not reader.complete
        reader.read(each)
    assert reader.complete == complete


def test_unknown_keys_are_bounded() -> None:
    """An upstream that invents keys cannot make the reader grow."""
    reader = OpenAIChat().reader(STREAMED)
    for number in range(100):
        frame = reader.read(event(choices=[{"delta": {f"key{number}": "x"}}]))
        assert frame.kind is FrameKind.CONTENT
    assert len(reader.unknown_keys) == 16


@pytest.mark.parametrize(
    ("body", "message", "status"),
    [
        (b'{"error":{"message":"overloaded","type":"server_error"}}', "overloaded", 500),
        (b'[{"error":{"code":429,"message":"quota"}}]', "quota", 429),
        (b'{"detail":"nope"}', "nope", None),
        (b"<html>", "neither a completion nor an error", None),
        (b'{"id":"x"}', "neither a completion nor an error", None),
        (b'{"choices":null}', "neither a completion nor an error", None),
        (b'{"choices":[],"error":{"message":"x"}}', "x", None),
        (b"", "neither a completion nor an error", None),
    ],
)
def test_a_json_body_that_is_no_answer(body: bytes, message: str, status: int | None) -> None:
    """A 200 with anything but a completion is one error."""
    (frame,) = OpenAIChat().reader(STREAMED).read_body(body)
    assert frame.kind is FrameKind.ERROR
    assert frame.error is not None
    assert message in frame.error.message
    assert frame.error.status == status


ANSWER: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1753000000,
    "model": "m",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "logprobs": None, "finish_reason": "stop"}
    ],
    "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11},
    "system_fingerprint": "fp_1",
}


def test_a_json_body_becomes_a_stream() -> None:
    """A complete answer where a stream was asked for is the same answer as a stream."""
    body = {**ANSWER, "citations": ["u"], "choices": [None, *ANSWER["choices"]]}
    frames = OpenAIChat().reader(STREAMED).read_body(json.dumps(body).encode())
    assert [frame.kind.value for frame in frames] == ["content", "finish", "usage", "done"]
    head = {"id": "chatcmpl-1", "created": 1753000000, "model": "m", "system_fingerprint": "fp_1"}
    first, last = (json.loads(frame.raw.removeprefix(b"data: ")) for frame in frames[:2])
    choice = {"index": 0, "delta": {"role": "assistant", "content": "Hi"}, "logprobs": None, "finish_reason": None}
    head["object"] = "chat.completion.chunk"
    assert first == {**head, "citations": ["u"], "choices": [choice]}
    assert last == {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    assert frames[2] == Frame(FrameKind.USAGE, b"", Usage(9, 2))
    assert frames[3].raw == b"data: [DONE]\n\n"
    asked = OpenAIChat().reader(WHOLE).read_body(json.dumps(body).encode())[2]
    assert json.loads(asked.raw.removeprefix(b"data: ")) == {**head, "choices": [], "usage": ANSWER["usage"]}


def test_usage_of_an_answer() -> None:
    """An answer that was not streamed goes on as it is, its token counts read; anything else is an error."""
    chat, body = OpenAIChat(), json.dumps(ANSWER).encode()
    assert chat.whole(WHOLE, body) == Frame(FrameKind.CONTENT, body, Usage(9, 2))
    for other in (b"", b"[]", b"{}", b'{"usage":3}'):
        assert chat.whole(WHOLE, other).kind is FrameKind.ERROR


@given(st.lists(st.text(max_size=12), min_size=2, max_size=8), st.data())
def test_events_that_differ_only_in_their_text_are_read_like_any_other(texts: list[str], data: st.DataObject) -> None:
    """A reader's memory of earlier events changes no result: every event is read as with a new reader."""
    remembering = OpenAIChat().reader(STREAMED)
    for text in texts:
        delta = data.draw(st.sampled_from([{"content": text}, {"reasoning": text}, {"content": text, "refusal": ""}]))
        finish = data.draw(st.sampled_from([None, None, "stop"]))
        chunk = {"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
        ascii_only = data.draw(st.booleans())
        event = b"data: " + json.dumps(chunk, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass") + b"\n\n"
        assert remembering.read(event) == OpenAIChat().reader(STREAMED).read(event)


def test_nothing_is_a_run_before_there_was_content() -> None:
    """No run is recognised before the reader has read a content event."""
    reader = OpenAIChat().reader(STREAMED)
    reader.read(b'data: {"choices":[{"index":0,"delta":{"role":"assistant"}}]}\n\n')
    assert reader.run is None


def answer(name: str) -> list[bytes]:
    """The events of a short answer, as of vLLM, up to the last one."""
    role, content = {"role": "assistant", "content": ""}, {"content": name * 2}
    choices = [(role, None), (content, None), ({}, "stop")]
    return [
        event(id=name, created=7, choices=[{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}])
        for delta, finish in choices
    ]


def test_the_next_answer_is_known_from_its_first_event() -> None:
    """Content is a run as soon as the answer's first event equals an earlier answer's, but for the id."""
    chat = OpenAIChat()
    for name in ("a", "b"):
        reader = chat.reader(STREAMED)
        role, content, finish = answer(name)
        assert reader.read(role).kind is FrameKind.PREAMBLE
        assert (reader.run is not None) == (name == "b")
        if reader.run is not None:
            assert take_run(reader.run, content + finish) == (content, finish, 1)
        assert reader.read(content) == Frame(FrameKind.CONTENT, content)
        assert not reader.complete
        assert reader.read(finish) == Frame(FrameKind.FINISH, finish)
        assert reader.complete


COUNTED: dict[str, Any] = {"choices": [], "usage": {"completion_tokens_details": {"reasoning_tokens": 5}}}


@pytest.mark.parametrize(
    ("n", "delta", "finish"),
    [
        (1, {"content": "x"}, {}),
        (1, {"content": "x", "reasoning": "so"}, {}),
        (1, {"content": "x", "mood": "m"}, {}),
        (1, {"content": ""}, {"reasoning": "so"}),
        (2, {"content": "x"}, {}),
    ],
)
def test_an_answer_like_the_one_before_is_read_like_it(n: int, delta: dict[str, Any], finish: dict[str, Any]) -> None:
    """Reasoning, unknown keys and further choices are noted in every answer, not only in the first one."""
    chat, call = OpenAIChat(first_token="answer"), call_of({"model": "m", "stream": True, "n": n})
    seen = []
    for _ in range(3):
        reader = chat.reader(call)
        choices = [({"role": "assistant"}, None), (delta, None), (finish, "stop")]
        chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]} for delta, reason in choices]
        frames = [reader.read(event(**chunk)) for chunk in (*chunks, COUNTED)]
        seen.append((frames, reader.complete, reader.unknown_keys))
    assert seen[1:] == seen[:1] * 2


def test_the_same_ends_in_another_list_are_no_answer() -> None:
    """An end is recognised only after an envelope with the `delta` of a choice."""
    deltas = [b'{"role":"assistant"}', b'{"content":"a"}', b'{},"finish_reason":"stop"']

    def read(chat: OpenAIChat, before: bytes) -> tuple[list[Frame], bool]:
        reader = chat.reader(call_of({"model": "m", "stream": True}))
        return [reader.read(b'data: {%b[{"delta":%b}]}\n\n' % (before, delta)) for delta in deltas], reader.complete

    chat = OpenAIChat()
    assert read(chat, b'"choices":') == read(chat, b'"choices":')
    assert read(chat, b'"choices":[],"x":') == read(OpenAIChat(), b'"choices":[],"x":')


_DELTAS = st.sampled_from(
    [
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": None, "reasoning": None},
        {"content": "Hel"},
        {"content": "lo"},
        {"content": ""},
        {"reasoning": "so"},
        {"refusal": "no"},
        {"mood": "x", "content": "y"},
        {"tool_calls": [{"id": "t", "function": {"arguments": '{"delta": {"text": "x"'}}]},
        {},
    ]
)
_ENVELOPES = st.sampled_from(
    [
        {"id": "a"},
        {"id": 'b"'},
        {"text": "x"},
        {"delta": {}},
        {"usage": None},
        {"usage": {"prompt_tokens": 1, "completion_tokens_details": {"reasoning_tokens": 1}}},
        {"error": {"message": "x"}},
        {"choices": [], "x": [{"delta": {"content": "x"}}]},
    ]
)
_FINISHES = st.sampled_from([None, None, "stop", "content_filter", "error"])


@given(
    st.lists(st.lists(st.tuples(_DELTAS, _FINISHES, _ENVELOPES, st.booleans()), max_size=6), min_size=2, max_size=5),
    st.sampled_from(["any", "answer"]),
    st.integers(1, 2),
)
def test_earlier_answers_change_no_result(
    answers: list[list[tuple[dict[str, Any], str | None, dict[str, Any], bool]]], first_token: FirstToken, n: int
) -> None:
    """Every answer is read as by an upstream's first reader, however the answers before looked."""
    chat, call = OpenAIChat(first_token=first_token), call_of({"model": "m", "stream": True, "n": n})
    for events in answers:
        reader, fresh = chat.reader(call), OpenAIChat(first_token=first_token).reader(call)
        for delta, finish, envelope, has_finish in events:
            choice = {"index": 0, "delta": delta, **({"finish_reason": finish} if has_finish else {})}
            each = event(
                **{"choices": [choice], **envelope} if "choices" in envelope else {**envelope, "choices": [choice]}
            )
            assert repr(reader.read(each)) == repr(fresh.read(each))
            assert (reader.complete, reader.unknown_keys) == (fresh.complete, fresh.unknown_keys)
            if reader.run is not None and take_run(reader.run, each)[2]:
                assert fresh.read(each) == Frame(FrameKind.CONTENT, each, phase=reader.run.phase)


def test_learned_ends_are_bounded() -> None:
    """An upstream with first events that all end differently cannot make the memory grow."""
    learned = LearnedEnds()
    for number in range(100):
        learned.after(b'data: {"choices":[{"delta":{"role":"a"},"n":%d}]}' % number)
    learned.after(b'data: {"choices":[{"delta":{"role":"%b"}}]}' % (b"a" * 5000))
    assert len(learned._of_first) <= 8
    assert max(map(len, learned._of_first)) < 100
