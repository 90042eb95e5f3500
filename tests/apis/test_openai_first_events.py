"""The first events of usual answers are recognised by their bytes, and classified as if they were decoded."""

import json

from hypothesis import given
from hypothesis import strategies as st

from checkout import DOCS
from openai_calls import call_of
from ttft_gateway.apis.base import FIRST_CONTENT, Frame, FrameKind, Usage
from ttft_gateway.apis.openai.events import ChunkReader, usual_first

CALL = call_of({"model": "m", "stream": True})
UNUSUAL = b'data: {"choices":[],"usage":{}}\n\n'  # after which every event is decoded
EVENTS = [row["event"].encode() for row in json.loads((DOCS / "first-token-vectors.json").read_text(encoding="utf-8"))]
MEMBERS = (
    *('"id":"c"', '"created":1', '"created":01', '"created":1.5', '"created":-1', '"model":"a\\n"', '"model":"\u00e9"'),
    *('"usage":null', '"usage":{"prompt_tokens":1}', '"usage":1', '"error":null', '"error":"x"', '"error":{}'),
    *(
        '"choices":null',
        '"choices":[]',
        '"x_groq":null',
        '"x_groq":{"error":"x"}',
        '"x_groq":true',
        '"a b":1',
        '"id":"c',
    ),
)
OF_CHOICE = (
    *(
        '"index":0',
        '"index":1',
        '"index":"0"',
        '"index":00',
        '"logprobs":null',
        '"logprobs":{}',
        '"finish_reason":null',
    ),
    *('"finish_reason":"stop"', '"finish_reason":"error"', '"delta":null', '"text":null', '"text":"a"', '"error":"x"'),
)
OF_DELTA = (
    *('"role":"assistant"', '"role":null', '"content":"a"', '"content":""', '"content":null', '"content":" "'),
    *('"content":"\\n"', '"content":"\u00e9"', '"content":"a\x7f"', '"refusal":""', '"refusal":"no"', '"refusal":null'),
    *('"reasoning":"hm"', '"reasoning":""', '"tool_calls":[]', '"tool_calls":[{}]', '"tool_calls":null'),
)


def _decoded(event: bytes) -> tuple[FrameKind, bytes, Usage | None]:
    reader = ChunkReader(CALL)
    assert reader.read(UNUSUAL).kind is not FrameKind.CONTENT
    return _facts(reader.read(event))


def _facts(frame: Frame) -> tuple[FrameKind, bytes, Usage | None]:
    return frame.kind, frame.raw, frame.usage


def _some(members: tuple[str, ...]) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(members), max_size=1)


@given(
    around=st.tuples(_some(MEMBERS), _some(MEMBERS)),
    of_choice=st.tuples(_some(OF_CHOICE), _some(OF_CHOICE)),
    delta=st.tuples(st.sampled_from(('"role":"assistant"', '"content":"a"')), _some(OF_DELTA)),
    wide=st.booleans(),
)
def test_composed_events(
    *,
    around: tuple[list[str], list[str]],
    of_choice: tuple[list[str], list[str]],
    delta: tuple[str, list[str]],
    wide: bool,
) -> None:
    """An event of members in any order and number has the frame that decoding gives."""
    comma = ", " if wide else ","
    fields = f'"delta":{{{comma.join([delta[0], *delta[1]])}}}'
    choice = f'"choices":[{{{comma.join([*of_choice[0], fields, *of_choice[1]])}}}]'
    event = f"data: {{{comma.join([*around[0], choice, *around[1]])}}}\n\n".encode()
    assert _facts(ChunkReader(CALL).read(event)) == _decoded(event)


@given(event=st.sampled_from(EVENTS), at=st.integers(0, 600), drop=st.integers(0, 3), piece=st.binary(max_size=3))
def test_damaged_events(event: bytes, at: int, drop: int, piece: bytes) -> None:
    """A recorded event with other bytes in one place has the frame that decoding gives."""
    at %= len(event) + 1
    damaged = event[:at] + piece + event[at + drop :]
    if damaged != UNUSUAL:
        assert _facts(ChunkReader(CALL).read(damaged)) == _decoded(damaged)


def test_recorded_events() -> None:
    """A recorded event that is recognised has text if and only if it is the first content."""
    found = [(event, usual) for event in EVENTS if (usual := usual_first(event)) is not None]
    assert len(found) >= 30
    assert [usual[1] is not None for _, usual in found] == [_decoded(event)[0] in FIRST_CONTENT for event, _ in found]


def test_usual_forms_are_recognised() -> None:
    """The first events of OpenAI and of vLLM need no decoding, with or without spaces."""
    role: dict[str, object] = {"role": "assistant", "content": ""}
    for delta, text in ((role, None), ({"content": "Hi"}, b"Hi"), ({**role, "content": "Hi"}, b"Hi")):
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "choices": [choice], "usage": None}
        for separators in ((",", ":"), (", ", ": ")):
            usual = usual_first(b"data: " + json.dumps(chunk, separators=separators).encode() + b"\n\n")
            assert usual is not None
            assert usual[1] == text
