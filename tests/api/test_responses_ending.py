"""The last events of a failed stream of the Responses API."""

import json
import sys
from typing import Any

import pytest

from gateway.api.dialects.endings import ResponsesTerminator
from gateway.errors import ShuttingDown, UpstreamFailed
from ttft_gateway.apis.responses.writer import EventWriter

CUT = UpstreamFailed("the connection ended", status=502, code="upstream_cut")


def ended(*raws: bytes, error: UpstreamFailed | ShuttingDown = CUT) -> dict[str, Any]:
    """The last event after these; the one before it is the error, which OpenAI's SDKs raise."""
    ending = ResponsesTerminator("req_1")
    for raw in raws:
        ending.note(raw)
    raised, event, rest = ending.error(error).split(b"\n\n")
    assert raised.startswith(b"event: error\ndata: ")
    assert event.startswith(b"event: response.failed\ndata: ")
    assert not rest
    problem = json.loads(raised.partition(b"data: ")[2])
    value: dict[str, Any] = json.loads(event.partition(b"data: ")[2])
    number = value["sequence_number"] - 1
    assert problem == {"type": "error", "sequence_number": number, "error": value["response"]["error"]}
    return value


def test_it_goes_on_with_what_had_begun() -> None:
    """Numbers continue after the last event, and the response is the one created first, also within bursts."""
    writer = EventWriter()
    begun = writer.lifecycle("created", {"id": "resp_9", "model": "m", "output": []}) + writer.event("response.x", a=1)
    burst = writer.event("response.output_text.delta", delta="a") + writer.event(
        "response.output_text.delta", delta="b"
    )
    event = ended(begun, burst)
    assert event["sequence_number"] == 5
    assert (event["response"]["id"], event["response"]["model"]) == ("resp_9", "m")
    assert event["response"]["status"] == "failed"
    assert event["response"]["error"]["code"] == "upstream_cut"


@pytest.mark.parametrize("line_end", [b"\r\n", b"\r"])
def test_line_ends_with_carriage_returns(line_end: bytes) -> None:
    """Events of a server that ends lines with CR LF or CR are separated, also in one piece."""
    writer = EventWriter()
    begun = writer.lifecycle("created", {"id": "resp_9", "model": "m", "output": []}) + writer.event("response.x", a=1)
    event = ended(begun.replace(b"\n", line_end))
    assert (event["sequence_number"], event["response"]["id"]) == (3, "resp_9")


@pytest.mark.parametrize(
    "form", [b"data:%b\nevent: response.x\n\n", b"data: %b\n: a comment\n\n", b"id: 7\ndata:\ndata:%b\n\n"]
)
def test_fields_in_any_order(form: bytes) -> None:
    """The fields and lines of an event may have any order that the format of events allows."""
    created = {"type": "response.created", "sequence_number": 4, "response": {"id": "resp_9"}}
    event = ended(form % json.dumps(created).encode())
    assert (event["sequence_number"], event["response"]["id"]) == (6, "resp_9")


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("joined", [False, True])
def test_comments_have_no_number(line_end: bytes, *, joined: bool) -> None:
    """A replica's comments around the events change neither the number nor the response, in one piece or in several."""
    writer, ping = EventWriter(), b": ping\n\n"
    raws = [ping, writer.lifecycle("created", {"id": "resp_9"}), ping, writer.event("response.x", a=1), ping]
    pieces = [raw.replace(b"\n", line_end) for raw in raws]
    event = ended(*([b"".join(pieces)] if joined else pieces))
    assert (event["sequence_number"], event["response"]["id"]) == (3, "resp_9")


def test_no_run_is_kept_for_its_last_event() -> None:
    """Of a large read only the first event of the response and the last of the read are stored."""
    writer = EventWriter()
    begun = writer.lifecycle("created", {"id": "resp_9"})
    run = begun + b"".join(writer.event("response.output_text.delta", delta="a") for _ in range(1000))
    ending = ResponsesTerminator("req_1")
    before = sys.getrefcount(run)
    ending.note(run)
    assert sys.getrefcount(run) == before


def test_nothing_had_come() -> None:
    """A stream that got its 200 and no event has a response of the gateway's own."""
    event = ended(error=ShuttingDown("bye"))
    assert (event["sequence_number"], event["response"]["id"]) == (1, "resp_req_1")
    assert event["response"]["error"]["message"] == "bye"


def test_what_cannot_be_read_does_not_matter() -> None:
    """Events of any other form do not change the last event."""
    assert ended(b"data: {\n\n", b": comment\n\n")["sequence_number"] == 1
