"""Endings that faults give to responses, in the form of each API: failures, and ends without a finish. Pure.

A failure is an event after the content, or a whole JSON document. An unfinished document has half of each text and no
finish reason, as from a server that writes the end of an answer in any case.
"""

from collections.abc import Sequence

from gateway.simulated.render import DONE, error_body
from ttft_gateway.apis.base import Api, Frame, FrameKind
from ttft_gateway.apis.errors import ErrorFrame
from ttft_gateway.apis.json_fields import dict_or_empty
from ttft_gateway.apis.responses.writer import EventWriter
from ttft_gateway.apis.sse import data_of
from ttft_gateway.apis.tolerant_json import dumps, loads

_CODE = "server_error"
_STOP = Frame(FrameKind.DONE, b'event: message_stop\ndata: {"type":"message_stop"}\n\n')
_TEXTS = frozenset({"content", "text", "refusal", "arguments"})
_UNSAID = frozenset({"finish_reason", "stop_reason", "incomplete_details"})


def bare_end(api: Api) -> Frame:
    """Return the closing event of an API, which alone is no finish: `message_stop`, otherwise `[DONE]`."""
    return _STOP if api is Api.MESSAGES else DONE


def error_event(api: Api, message: str, before: Sequence[Frame]) -> Frame:
    """Return an event named error.

    Args:
        api: API of the request.
        message: message of the error.
        before: all earlier events.
    """
    error = ErrorFrame(message, kind=_CODE, code="internal_error")
    if api is Api.RESPONSES:
        fields = {"code": error.code, "message": message, "param": None}
        return Frame(FrameKind.ERROR, EventWriter(len(_events(before))).event("error", **fields), error=error)
    raw = b"event: error\ndata: " + error_body(message, _CODE, error.code) + b"\n\n"
    return Frame(FrameKind.ERROR, raw, error=error)


def failed_event(api: Api, status: str, before: Sequence[Frame]) -> Frame:
    """Return the event of a response that failed or was cancelled.

    In the Responses API it has the response as it was created; elsewhere it is a chunk with an error.

    Args:
        api: API of the request.
        status: "failed" or "cancelled".
        before: all earlier events.
    """
    error = _error(status)
    if api is not Api.RESPONSES:
        error.kind = None
        choice = {"index": 0, "delta": {}, "finish_reason": "error"}
        raw = b"data: " + dumps({"choices": [choice], "error": {"code": _CODE, "message": error.message}}) + b"\n\n"
        return Frame(FrameKind.ERROR, raw, error=error)
    events = _events(before)
    created = dict_or_empty(loads(data_of(events[0]) or b"")) if events else {}
    raw = EventWriter(len(events)).lifecycle(status, _ended(created.get("response"), status))
    return Frame(FrameKind.ERROR, raw, error=error)


def failed_document(status: str, raw: bytes) -> Frame:
    """Return the document of the Responses API for a response that failed or was cancelled after half of its text."""
    return Frame(FrameKind.ERROR, dumps(_ended(_halved(loads(raw)), status)), error=_error(status))


def unfinished_document(raw: bytes) -> bytes:
    """Return a document with half of each text, without a finish reason; the Responses API has a status instead."""
    document = _halved(loads(raw))
    if isinstance(document, dict) and "status" in document:
        document["status"] = "in_progress"
    return dumps(document)


def _events(before: Sequence[Frame]) -> list[bytes]:
    return [event for frame in before for event in frame.raw.split(b"\n\n") if data_of(event)]


def _error(status: str) -> ErrorFrame:
    return ErrorFrame(f"The response is {status}", kind=_CODE, code=_CODE)


def _ended(response: object, status: str) -> dict[str, object]:
    error = {"code": _CODE, "message": "The model failed"} if status == "failed" else None
    return {**dict_or_empty(response), "status": status, "error": error}


def _halved(value: object) -> object:
    if isinstance(value, list):
        return [_halved(each) for each in value]
    if not isinstance(value, dict):
        return value
    halved: dict[str, object] = {"input": {}} if value.get("type") == "tool_use" else {}
    halved |= {key: each[: len(each) // 2] for key, each in value.items() if key in _TEXTS and isinstance(each, str)}
    return {**{key: _halved(each) for key, each in value.items()}, **halved, **dict.fromkeys(_UNSAID & value.keys())}
