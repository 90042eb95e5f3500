"""Answers of scripted replicas (`client_replicas`) in the Messages and Responses APIs, under the names of `CHAT`."""

import json
from collections.abc import Mapping
from typing import Any

from client_replicas import ANY, CHAT, Answer, whole, writing


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def _answers(
    opening: bytes, pieces: tuple[bytes, bytes], closing: bytes, error: bytes, body: bytes
) -> dict[str, Answer]:
    """Build the answers of an API.

    Args:
        opening: events before the content.
        error: the event of an error.
        body: the body of an error status.
    """
    return {
        **ANY,
        "quick": writing(opening, *pieces, closing),
        "cut": writing(opening, pieces[0], silent=True),
        "role": writing(opening, silent=True),
        "only_done": writing(opening, closing),
        "error_event": writing(error),
        "error_500": whole(b"500 Internal Server Error", body),
        "error_400": whole(b"400 Bad Request", body),
        "limited": whole(b"429 Too Many Requests", body),
        "dies": writing(opening, dies=True),
    }


def _messages() -> dict[str, Answer]:
    usage = {"input_tokens": 3, "output_tokens": 1}
    message = {"id": "m1", "type": "message", "role": "assistant", "content": [], "model": "m", "usage": usage}
    opening = _event("message_start", message={**message, "stop_reason": None, "stop_sequence": None}) + _event("ping")
    start = _event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    first, second = (
        _event("content_block_delta", index=0, delta={"type": "text_delta", "text": text}) for text in ("Hel", "lo")
    )
    stop = {"stop_reason": "end_turn", "stop_sequence": None}
    closing = _event("message_delta", delta=stop, usage={"output_tokens": 2}) + _event("message_stop")
    error = {"type": "api_error", "message": "broken"}
    body = json.dumps({"type": "error", "error": error}).encode()
    end = _event("content_block_stop", index=0)
    return _answers(opening, (start + first, second + end), closing, _event("error", error=error), body)


def _responses() -> dict[str, Answer]:
    response: dict[str, Any] = {
        "id": "r1",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
    where: dict[str, Any] = {"output_index": 0, "content_index": 0, "item_id": "i1"}
    item: dict[str, Any] = {"id": "i1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": []}
    done = {**item, "status": "completed", "content": [{**part, "text": "Hello"}]}
    opening = _event("response.created", sequence_number=0, response={**response, "status": "in_progress"}) + _event(
        "response.output_item.added", sequence_number=1, output_index=0, item=item
    )
    begin = _event("response.content_part.added", sequence_number=2, part=part, **where)
    first, second = (
        _event("response.output_text.delta", sequence_number=number, delta=text, logprobs=[], **where)
        for number, text in ((3, "Hel"), (4, "lo"))
    )
    end = _event("response.output_item.done", sequence_number=5, output_index=0, item=done)
    full = {**response, "status": "completed", "output": [done]}
    closing = _event("response.completed", sequence_number=6, response=full)
    error = {"message": "broken", "type": "server_error", "code": "server_error", "param": None}
    answers = _answers(
        opening,
        (begin + first, second + end),
        closing,
        _event("error", sequence_number=1, **{**error, "type": "error"}),
        json.dumps({"error": error}).encode(),
    )
    empty = {**response, "status": "completed"}
    return answers | {"only_done": writing(opening, _event("response.completed", sequence_number=6, response=empty))}


DIALECTS: Mapping[str, Mapping[str, Answer]] = {"chat": CHAT, "messages": _messages(), "responses": _responses()}
"""Answers by the name of an API."""
