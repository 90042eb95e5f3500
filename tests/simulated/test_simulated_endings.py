"""Failures and unfinished answers of simulated replicas, in the form of each API, as streams and as JSON."""

import json
from typing import Any

import pytest

from gateway.simulated.script import Script
from simulated_calls import HELLO, answer_of, play, replica_of
from ttft_gateway.apis.base import Api

ASKED: dict[Api, dict[str, Any]] = {
    Api.CHAT: {"max_tokens": 4},
    Api.COMPLETIONS: {"max_tokens": 4, "prompt": "hello"},
    Api.RESPONSES: {"max_output_tokens": 4, "input": HELLO},
    Api.MESSAGES: {"max_tokens": 4},
}


def play_in(api: Api, fault: str, **fields: Any) -> Script:
    """Return the script of a request of an API."""
    return play(replica_of(), api=api, fault=fault, **ASKED[api], **fields)


def events(script: Script) -> list[Any]:
    """Return the events of a stream: its JSON, or the text of `[DONE]`."""
    raw = b"".join(frame.raw for frame in (*script.prelude, *(step.frame for step in script.steps)))
    data = [event.partition(b"data: ")[2] for event in raw.split(b"\n\n") if event]
    return [each.decode() if each == b"[DONE]" else json.loads(each) for each in data]


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_response_fails_after_its_events(status: str) -> None:
    """The last event has the id of the response, its status, an error only if it failed, and the next number."""
    *before, last = events(play_in(Api.RESPONSES, f"{status}_event:2"))
    response = last["response"]
    assert [each["type"] for each in before].count("response.output_text.delta") == 2
    assert (last["type"], response["status"]) == (f"response.{status}", status)
    assert response["id"] == before[0]["response"]["id"]
    assert (response["error"] is not None) == (status == "failed")
    assert [each["sequence_number"] for each in (*before, last)] == [*range(len(before) + 1)]


def test_response_fails_before_its_first_event() -> None:
    """A response without a role event before it fails with the first number."""
    script = play(replica_of(role="none"), api=Api.RESPONSES, fault="failed_event", **ASKED[Api.RESPONSES])
    assert [each["sequence_number"] for each in events(script)] == [0]


@pytest.mark.parametrize("fault", ["failed_event:2", "cancelled_event:2", "error_event:2", "error_event:2+coalesce:3"])
@pytest.mark.parametrize("api", [Api.CHAT, Api.COMPLETIONS, Api.MESSAGES])
def test_other_apis_end_with_an_error(api: Api, fault: str) -> None:
    """After its events a stream of another API ends with an error object."""
    last = events(play_in(api, fault))[-1]
    assert last["error"]["message"]
    assert (last.get("type") == "error") == (api is Api.MESSAGES)


@pytest.mark.parametrize("fault", ["finish_error:2+coalesce:4", "error_frame:2+crlf", "500+split:7"])
def test_odd_bytes_keep_the_form_of_an_error(fault: str) -> None:
    """Edits of bytes change nothing in an error of the Messages API but its bytes."""
    script = play_in(Api.MESSAGES, fault)
    raw = b"".join(step.frame.raw for step in script.steps)
    error = json.loads(raw.rpartition(b"data: ")[2])
    assert (error["type"], error["error"]["type"]) == ("error", "api_error")
    assert script.length in (0, len(raw))
    assert (b"\r\n" in raw.rpartition(b"data: ")[2]) == ("crlf" in fault)


def test_response_has_an_error_event() -> None:
    """The event named error has the fields of the Responses API and the next number."""
    *before, last = events(play_in(Api.RESPONSES, "error_event:2"))
    assert (last["type"], last["sequence_number"], last["code"]) == ("error", len(before), "internal_error")


def test_finish_reason_error_of_a_response_is_its_status() -> None:
    """The Responses API has no finish reason, so the response has failed."""
    assert events(play_in(Api.RESPONSES, "finish_error:2"))[-1]["type"] == "response.failed"


@pytest.mark.parametrize(
    ("api", "last"),
    [(Api.CHAT, "[DONE]"), (Api.COMPLETIONS, "[DONE]"), (Api.RESPONSES, "[DONE]"), (Api.MESSAGES, "message_stop")],
)
def test_bare_end_claims_no_finish(api: Api, last: str) -> None:
    """The closing event of the API follows the content, and no earlier event has a finish."""
    seen = events(play_in(api, "done:2"))
    assert last in (seen[-1], seen[-1]["type"] if isinstance(seen[-1], dict) else "")
    before = json.dumps(seen[:-1])
    assert not any(word in before for word in ('"stop"', '"length"', '"max_tokens"', '"incomplete"', '"completed"'))


def text_of(api: Api, document: Any) -> str:
    """Return the text of a JSON answer."""
    if api is Api.RESPONSES:
        return str(document["output"][0]["content"][0]["text"])
    if api is Api.MESSAGES:
        return str(document["content"][0]["text"])
    choice = document["choices"][0]
    return str(choice["text"] if api is Api.COMPLETIONS else choice["message"]["content"])


@pytest.mark.parametrize("api", ASKED)
def test_unfinished_document_has_half_a_text(api: Api) -> None:
    """A JSON answer with a bare end is valid JSON of the stated length, with half of the text and no finish."""
    whole, script = (play_in(api, fault, stream=False) for fault in ("", "done:2"))
    text, document = text_of(api, answer_of(whole)), answer_of(script)
    assert text_of(api, document) == text[: len(text) // 2]
    assert script.length == len(script.steps[0].frame.raw)
    finish = document if api in (Api.RESPONSES, Api.MESSAGES) else document["choices"][0]
    assert finish.get("finish_reason") is finish.get("stop_reason") is None
    assert document.get("status", "in_progress") == "in_progress"


SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


@pytest.mark.parametrize(
    ("api", "tool", "choice"),
    [
        (Api.CHAT, {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}, "required"),
        (Api.RESPONSES, {"type": "function", "name": "weather", "parameters": SCHEMA}, "required"),
        (Api.MESSAGES, {"name": "weather", "input_schema": SCHEMA}, {"type": "any"}),
    ],
)
def test_unfinished_tool_call_has_no_whole_arguments(api: Api, tool: object, choice: object) -> None:
    """The arguments of a call are cut in the middle, or an empty object where they are no text."""
    whole, cut = (
        json.dumps(answer_of(play_in(api, fault, stream=False, tools=[tool], tool_choice=choice)))
        for fault in ("", "done:2")
    )
    assert ("word" in whole, "word" in cut) == (True, False)


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_failed_document_has_its_status(status: str) -> None:
    """The Responses API reports a failure in the document, other APIs an error object."""
    document = answer_of(play_in(Api.RESPONSES, f"{status}_event:2", stream=False))
    assert (document["status"], document["error"] is not None) == (status, status == "failed")
    for api in (Api.CHAT, Api.COMPLETIONS, Api.MESSAGES):
        assert answer_of(play_in(api, f"{status}_event:2", stream=False))["error"]["message"]


@pytest.mark.parametrize("fault", ["short:2", "cut_fin:2"])
def test_half_a_document_is_not_json(fault: str) -> None:
    """A body that ends early, with its own length or without any, is no JSON document."""
    script = play_in(Api.CHAT, fault, stream=False)
    whole = play_in(Api.CHAT, "", stream=False)
    raw = script.steps[0].frame.raw
    assert len(raw) == len(whole.steps[0].frame.raw) // 2
    assert script.length == (len(raw) if fault == "short:2" else whole.length)
    with pytest.raises(json.JSONDecodeError):
        json.loads(raw)
