"""A second stream is joined to the client's part of the first in every API: any cut, any chunking, one answer."""

import json
import random
from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_reads import read_stream
from gateway.simulated.profile import parse_profile
from gateway.simulated.replica import RawRequest, SimulatedReplica
from providers.protocols import RECOVERERS
from providers.recovery import Joiner, Transcript
from recovering import WEATHER
from ttft_gateway.apis.base import Api, Call
from ttft_gateway.requests.parsed import NumberLimits
from ttft_gateway.requests.request import parse

MESSAGES = [{"role": "user", "content": "hello"}]
FUNCTION: Mapping[str, object] = msgspec.convert(WEATHER["function"], dict[str, object])
TOOLS: Mapping[Api, Mapping[str, object]] = {
    Api.CHAT: {"tools": [WEATHER], "tool_choice": "required"},
    Api.RESPONSES: {"tools": [{**FUNCTION, "type": "function"}], "tool_choice": "required"},
    Api.MESSAGES: {
        "tools": [{"name": "weather", "input_schema": FUNCTION["parameters"]}],
        "tool_choice": {"type": "any"},
    },
}
APIS = tuple(RECOVERERS)


def call(api: Api, form: str, **fields: object) -> Call:
    """A client's call: `form` is text, thinking or tool."""
    body: dict[str, object] = {"model": "m", "stream": True, "temperature": 0}
    if api is Api.COMPLETIONS:
        body["prompt"] = "hello"
    elif api is Api.RESPONSES:
        body |= {"input": "hello", "store": False}
    else:
        body["messages"] = MESSAGES
    if api is Api.MESSAGES:
        body["max_tokens"] = 100
    if form == "tool":
        body |= TOOLS[api]
    return parse(api, json.dumps({**body, **fields}).encode(), [], NumberLimits(16, 10_000), frozenset()).call


def events(asked: Call, form: str, name: str, *, seed: int = 0, per_event: int = 1) -> list[bytes]:
    """The events of a replica's answer."""
    tokens = 3 if form == "thinking" else 0
    profile = parse_profile({"per_event": per_event, "tokens": 20, "reasoning_tokens": tokens})
    script = SimulatedReplica(profile, random.Random(name), seed, name).script(
        RawRequest(asked.api, asked.body), (), 0.0, 0.0
    )
    assert script.status == 200, script
    return [frame.raw for frame in (*script.prelude, *(step.frame for step in script.steps))]


def transcript(asked: Call, sent: list[bytes]) -> Transcript:
    """The transcript of these events."""
    made = RECOVERERS[asked.api].transcript(asked)
    made.add(b"".join(sent))
    return made


def joined(joiner: Joiner, sent: list[bytes], second: list[bytes]) -> bytes | None:
    """The client's bytes at the end; None if the answers differ."""
    got = list(sent)
    for each in second:
        new = joiner.feed(each)
        if new is None:
            return None
        got.append(new)
    assert joiner.caught_up
    return b"".join(got)


def forms(api: Api) -> list[str]:
    """The forms of answers that an API has."""
    return ["text"] if api is Api.COMPLETIONS else ["text", "thinking", "tool"]


CASES = [(api, form) for api in APIS for form in forms(api)]


@pytest.mark.parametrize(("api", "form"), CASES)
@given(cut=st.integers(1, 60), sizes=st.tuples(st.integers(1, 4), st.integers(1, 4)))
@settings(max_examples=12)
def test_a_replay_makes_one_answer(api: Api, form: str, cut: int, sizes: tuple[int, int]) -> None:
    """Wherever the first stream is cut, and however both are chunked: the client reads the answer, once."""
    asked = call(api, form)
    first, second = (events(asked, form, name, per_event=size) for name, size in zip("ab", sizes, strict=True))
    sent = first[: 1 + cut % (len(first) - 1)]
    body = joined(transcript(asked, sent).joiner(), sent, second)
    assert body is not None
    got, whole = read_stream(api, body), read_stream(api, b"".join(first))
    assert got.texts == whole.texts
    assert (got.finishes, got.dones, len(got.heads)) == (whole.finishes, 1, 1)


@pytest.mark.parametrize(("api", "form"), CASES)
@given(cut=st.integers(1, 60), seed=st.integers(1, 50))
@settings(max_examples=12)
def test_two_answers_are_never_joined(api: Api, form: str, cut: int, seed: int) -> None:
    """Another answer is a difference, or, after thinking alone, it is sent whole; a tool call may be the same."""
    asked = call(api, form)
    first, second = events(asked, form, "a"), events(asked, form, "b", seed=seed)
    sent = first[: 1 + cut % (len(first) - 1)]
    joiner = transcript(asked, sent).joiner()
    body = joined(joiner, sent, second)
    whole, other = (read_stream(api, b"".join(each)) for each in (first, second))
    if body is None:
        assert read_stream(api, b"".join(sent)).texts
        return
    got = read_stream(api, body)
    parts = {place: text for place, text in got.texts.items() if not place.endswith((".id", ".reasoning"))}
    assert parts == {place: text for place, text in other.texts.items() if place in parts}
    assert got.finishes == other.finishes
    assert (got.dones, len(got.heads)) == (1, 1)
    reasoning = got.texts.get("0.reasoning", "")
    assert reasoning.endswith(other.texts.get("0.reasoning", ""))
    assert joiner.restarted == (reasoning != other.texts.get("0.reasoning", ""))
    if joiner.restarted:
        assert whole.texts["0.reasoning"].startswith(reasoning.removesuffix(other.texts["0.reasoning"]).rstrip("\n"))


@pytest.mark.parametrize("api", APIS)
@given(cut=st.integers(1, 60), sizes=st.tuples(st.integers(1, 4), st.integers(1, 4)), bound=st.booleans())
@settings(max_examples=12)
def test_a_continuation_makes_one_answer(api: Api, cut: int, sizes: tuple[int, int], *, bound: bool) -> None:
    """A replica that gets the text so far generates the rest; the bound on tokens holds for the whole answer."""
    name = "max_output_tokens" if api is Api.RESPONSES else "max_tokens"
    bounds: dict[str, object] = {name: 20} if bound else {}
    asked = call(api, "text", **bounds)
    first = events(asked, "text", "a", per_event=1 if bound else sizes[0])  # an event is counted as one token
    sent = first[: 1 + cut % (len(first) - 1)]
    found = transcript(asked, sent).continuation()
    if found is None:  # nothing to continue, or nothing is missing
        text = read_stream(api, b"".join(sent)).texts.get("0.content", "")
        assert len(text.split()) in (0, 20)
        return
    assert found.call.continues
    body = joined(found.joiner, sent, events(found.call, "text", "b", per_event=sizes[1]))
    assert body is not None
    got, whole = read_stream(api, body), read_stream(api, b"".join(first))
    if api is not Api.COMPLETIONS:  # the simulated text differs after another prompt
        assert got.texts == whole.texts
    assert (got.dones, len(got.heads)) == (1, 1)
