"""The readers of answers under faults: a right answer of each API is read alike, and each wrong one is found."""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from client_reads import Malformed, error_code, read_document, read_stream
from fault_judge import judged, result_of
from fault_requests import SEEDS, Asked
from gateway.simulated.faults import parse_faults
from gateway.simulated.profile import parse_profile
from gateway.simulated.replica import RawRequest, SimulatedReplica
from marked_texts import Form, Marked, MarkedTexts, answers
from ttft_gateway.apis.base import Api

APIS = (Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES)
STRUCTURED = (Api.RESPONSES, Api.MESSAGES)
Event = dict[str, Any]


def body_of(asked: Asked, fault: str = "", seed: int = 0) -> tuple[int, bytes]:
    """Return the status and the body with which a replica answers."""
    replica = SimulatedReplica(parse_profile({}), random.Random(1), seed)
    replica._generator = MarkedTexts(*replica._generator)
    request = json.dumps(asked.marked.body(asked.api, "m", stream=asked.stream)).encode()
    script = replica.script(RawRequest(asked.api, request), parse_faults(fault) if fault else (), 0.0, 0.0)
    return script.status, b"".join(frame.raw for frame in (*script.prelude, *(step.frame for step in script.steps)))


def asked_of(api: Api, form: Form = "text", kind: str = "cut_rst", *, stream: bool = True) -> Asked:
    """Return a request."""
    return Asked(kind, api, "native", stream, "off", Marked(7, form, 9, "stop"))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("form", ["text", "thinking", "tool", "choices"])
@pytest.mark.parametrize("api", APIS)
def test_whole_answers_of_every_api_are_right(api: Api, form: Form, *, stream: bool) -> None:
    """An answer as a replica gives it is whole, from either seed."""
    if (form == "choices" and api in STRUCTURED) or (form in ("thinking", "tool") and api is Api.COMPLETIONS):
        return  # the API has none of them
    asked = asked_of(api, form, stream=stream)
    for seed in SEEDS:
        assert result_of(asked, *body_of(asked, seed=seed), ended=True) == "whole"


@pytest.mark.parametrize(
    ("fault", "stream", "result"),
    [
        ("error_event:3", True, "error"),
        ("failed_event:3", True, "error"),
        ("500", True, "error 500"),
        ("404", True, "blamed"),
        ("done:3", True, "silently cut"),
        ("short:3", True, "silently cut"),
        ("done:3", False, "silently cut"),
    ],
)
@pytest.mark.parametrize("api", STRUCTURED)
def test_faults_of_every_api_are_found(api: Api, fault: str, result: str, *, stream: bool) -> None:
    """Without a gateway, clients would see these results of a replica's faults."""
    asked = asked_of(api, stream=stream)
    assert result_of(asked, *body_of(asked, fault), ended=True) == result


@pytest.mark.parametrize("kind", ["refusal", "content_filter:4"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("api", APIS)
def test_refusals_of_every_api_are_right(api: Api, kind: str, *, stream: bool) -> None:
    """A refusal is right for its kind of fault only."""
    asked = asked_of(api, kind=kind, stream=stream)
    assert result_of(asked, *body_of(asked, kind), ended=True) == "refused"
    other = asked_of(api, stream=stream)
    assert result_of(other, *body_of(other, kind), ended=True) in ("mixed", "silently cut")


def events_of(api: Api) -> list[Event]:
    """Return the events of a whole stream."""
    _, body = body_of(asked_of(api, "thinking"))
    return [json.loads(event.partition(b"data: ")[2]) for event in body.split(b"\n\n") if event]


def written(events: Sequence[Event]) -> bytes:
    """Return the bytes of events."""
    return b"".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in events)


def renumbered(events: Sequence[Event]) -> list[Event]:
    """Return events with correct sequence numbers."""
    return [{**each, "sequence_number": number} for number, each in enumerate(events)]


def of(events: Sequence[Event], kind: str) -> Event:
    """Return the first event of a kind."""
    return next(each for each in events if each["type"] == kind)


MESSAGE_DAMAGE: dict[str, Callable[[list[Event]], list[Event]]] = {
    "an event after the end": lambda events: [*events, of(events, "message_delta")],
    "two ends": lambda events: [*events, events[-1]],
    "an event after an error": lambda events: [
        *events[:4],
        {"type": "error", "error": {"type": "api_error", "message": "x"}},
        events[4],
    ],
    "an error without a type": lambda events: [*events[:4], {"type": "error", "error": {"message": "x"}}],
    "an index again": lambda events: [{**each, **({"index": 0} if "index" in each else {})} for each in events],
    "a delta before its block": lambda events: [events[0], of(events, "content_block_delta"), *events[1:]],
    "a block that stays open": lambda events: [each for each in events if each["type"] != "content_block_stop"],
    "an event of another API": lambda events: [*events[:4], {"choices": [], "type": "chunk"}, *events[4:]],
}
RESPONSE_DAMAGE: dict[str, Callable[[list[Event]], list[Event]]] = {
    "an event after the end": lambda events: renumbered([*events, events[-2]]),
    "a number again": lambda events: [*events[:4], {**events[4], "sequence_number": 0}, *events[5:]],
    "an item with the index of another one": lambda events: [
        {**each, **({"output_index": 0} if each["type"] == "response.output_item.added" else {})} for each in events
    ],
    "a sum that differs": lambda events: [
        {**each, **({"text": "x"} if each["type"].endswith("text.done") else {})} for each in events
    ],
    "an output that differs": lambda events: [
        *events[:-1],
        {**events[-1], "response": {**events[-1]["response"], "output": []}},
    ],
    "a status that differs": lambda events: [
        *events[:-1],
        {**events[-1], "response": {**events[-1]["response"], "status": "in_progress"}},
    ],
}


@pytest.mark.parametrize(
    ("api", "damage"),
    [(Api.MESSAGES, name) for name in MESSAGE_DAMAGE] + [(Api.RESPONSES, name) for name in RESPONSE_DAMAGE],
)
def test_what_no_sdk_could_read_is_found(api: Api, damage: str) -> None:
    """A stream with one event out of order, or a text that is not the sum of its deltas, is malformed."""
    events = events_of(api)
    damages = MESSAGE_DAMAGE if api is Api.MESSAGES else RESPONSE_DAMAGE
    read_stream(api, written(events))
    with pytest.raises(Malformed):
        read_stream(api, written(damages[damage](events)))


def test_two_heads_and_two_starts_are_found() -> None:
    """A message that starts twice is doubled, and a response is mixed if its id changes."""
    right = [_whole(seed) for seed in SEEDS]
    events = events_of(Api.MESSAGES)
    assert judged(read_stream(Api.MESSAGES, written([events[0], *events])), right, [], ended=True) == "doubled"
    events = events_of(Api.RESPONSES)
    events[-1]["response"]["id"] = "resp_other"
    assert judged(read_stream(Api.RESPONSES, written(events)), right, [], ended=True) == "mixed"


def _whole(seed: int) -> Any:
    _, body = body_of(asked_of(Api.MESSAGES, "thinking"), seed=seed)
    return read_stream(Api.MESSAGES, body)


def test_errors_have_the_form_of_their_api() -> None:
    """OpenAI's error object is none of the Messages API."""
    openai = b'{"error":{"message":"m","type":"t","param":null,"code":"c"}}'
    anthropic = b'{"type":"error","error":{"type":"api_error","message":"m"}}'
    assert (error_code(Api.CHAT, openai), error_code(Api.MESSAGES, anthropic)) == ("c", "api_error")
    for api, body in ((Api.MESSAGES, openai), (Api.CHAT, anthropic), (Api.RESPONSES, b"oops")):
        with pytest.raises(Malformed):
            error_code(api, body)


def test_half_a_document_is_found() -> None:
    """A JSON answer that is no JSON is malformed, and an answer is lost if its connection was cut."""
    asked = asked_of(Api.CHAT, stream=False)
    _, body = body_of(asked, "short:3")
    with pytest.raises(Malformed):
        read_document(Api.CHAT, body)
    assert result_of(asked, 200, body, ended=False) == result_of(asked, 0, b"", ended=False) == "lost"


def test_no_two_marks_have_one_answer() -> None:
    """Texts of different numbers and of different seeds differ."""
    texts = [
        completion.choices[0].pieces
        for number in range(200)
        for completion in answers(Marked(number, "text", 9, "stop"), SEEDS)
    ]
    assert len(set(texts)) == len(texts) == 400
