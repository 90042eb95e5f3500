"""Answers taken apart into streams and put together again: nothing is lost, whatever an answer holds."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from openai_calls import STREAMED, WHOLE
from providers.openai.chat import OpenAIChat
from ttft_gateway.apis.base import Frame


def assembled(events: list[bytes]) -> Any:
    """The body made of these events."""
    assembler = OpenAIChat().assembler(WHOLE)
    for event in events:
        assembler.add(event)
    return json.loads(assembler.body())


def raw(frames: list[Frame]) -> list[bytes]:
    """The bytes that would be forwarded."""
    return [frame.raw for frame in frames]


def tool(id_: str, name: str, arguments: str) -> dict[str, Any]:
    """A whole tool call."""
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


SCALARS = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=5)
TOOLS = st.lists(
    st.builds(tool, st.uuids().map(str), st.text(min_size=1, max_size=5), st.text(max_size=9)), min_size=1, max_size=3
)
MESSAGES = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": st.text(min_size=1, max_size=9) | st.none()},
    optional={
        "refusal": st.none() | st.text(min_size=1),
        "tool_calls": TOOLS,
        "reasoning": st.text(min_size=1, max_size=5),
        "annotations": st.lists(st.dictionaries(st.text(max_size=3), SCALARS, max_size=2), max_size=2),
        "audio": st.fixed_dictionaries(
            {"id": st.text(min_size=1), "data": st.text(min_size=1), "transcript": st.text()}
        ),
        "anything": SCALARS,
    },
)
LOGPROBS = st.none() | st.fixed_dictionaries(
    {
        "content": st.lists(st.fixed_dictionaries({"token": st.text(), "logprob": st.floats(-9, 0)})),
        "refusal": st.none(),
    }
)
CHOICES = st.lists(
    st.fixed_dictionaries(
        {"message": MESSAGES, "logprobs": LOGPROBS, "finish_reason": st.sampled_from(["stop", "length", None])},
        optional={
            "stop_reason": st.none() | st.integers(1),
            "content_filter_results": st.just({"hate": {"filtered": False}}),
        },
    ),
    min_size=1,
    max_size=3,
).map(lambda choices: [{"index": index, **choice} for index, choice in enumerate(choices)])
ANSWERS = st.fixed_dictionaries(
    {"id": st.text(), "object": st.just("chat.completion"), "created": st.integers(0, 2**40), "choices": CHOICES},
    optional={
        "usage": st.dictionaries(st.text(), st.integers(0, 9), min_size=1),
        "service_tier": SCALARS,
        "citations": SCALARS,
    },
)


@given(ANSWERS)
def test_there_and_back(answer: dict[str, Any]) -> None:
    """A complete answer, taken apart into a stream and put together again, is the same answer."""
    frames = OpenAIChat().reader(WHOLE).read_body(json.dumps(answer).encode())
    assert answer == assembled(raw([*frames]))


@given(ANSWERS, st.randoms(use_true_random=False))
def test_choices_may_be_interleaved(answer: dict[str, Any], random: Any) -> None:
    """The order in which choices take turns does not matter."""
    answer.pop("usage", None)
    first, *frames, _done = OpenAIChat().reader(STREAMED).read_body(json.dumps(answer).encode())
    turns = [frames[:1], *(frames[at : at + 2] for at in range(1, len(frames), 2))]
    mixed = [first]
    while turns := [turn for turn in turns if turn]:
        mixed.append(random.choice(turns).pop(0))
    assert answer == assembled(raw(mixed))


NAMES = (
    "content tool_calls function_call audio logprobs function type text thinking index id name arguments usage error"
)
ODD = st.recursive(
    SCALARS | st.just("text"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES.split()), inner, max_size=4),
    max_leaves=12,
)
DELTAS = st.dictionaries(st.sampled_from(NAMES.split()), st.lists(ODD, max_size=3) | ODD, max_size=4)
CHUNKS = st.fixed_dictionaries(
    {
        "choices": st.lists(
            st.fixed_dictionaries({"delta": DELTAS}, optional={"index": ODD, "logprobs": ODD, "usage": ODD})
        )
    },
    optional={"x_groq": ODD, "usage": ODD, "error": ODD, "id": ODD},
)


@given(st.lists(ODD | CHUNKS, max_size=4))
def test_no_json_breaks_anything(values: list[object]) -> None:
    """Any JSON, as events or as a body, is classified, and the body assembled from it is JSON."""
    events = [b"data: " + json.dumps(value).encode() + b"\n\n" for value in values]
    reader = OpenAIChat().reader(STREAMED)
    chunks = [event for event, value in zip(events, values, strict=True) if isinstance(value, dict)]
    assert isinstance(assembled(chunks), dict)
    for event, value in zip(events, values, strict=True):
        reader.read(event)
        assert reader.read_body(json.dumps(value).replace("delta", "message").encode())
