"""Answers of upstreams of each API that end well or badly, as the bytes of their bodies; no gateway code is used.

The text of a whole answer is `TEXT`. Bytes of an answer are in pieces, one event each.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from ttft_gateway.apis.base import Api

WORDS: Final = ("Hel", "lo", " wor", "ld")
TEXT: Final = "".join(WORDS)
DONE: Final = b"data: [DONE]\n\n"
END_MARKS: Final = (b"[DONE]", b'"message_stop"', b'"response.completed"', b'"response.incomplete"', b'"stop_reason":"')
_GIVEN_UP: Final = ("error", "abort", "insufficient_system_resource", "network_error", "cancelled")  # finish reasons
_BAD: Final = {"bad UTF-8": b"\xe4\xb8", "a NUL": b"\0"}


class Native(NamedTuple):
    """One answer in the API of its upstream.

    Attributes:
        opening: events before the text.
        words: one event for each of `WORDS`.
        finish: events with the API's finish, and those that belong to it.
        closing: closing event; for Messages and Responses, an event that only looks like the end.
        failures: events after which the answer has failed, by name.
        body: the same answer as a JSON body.
        unfinished: changes to that body after which it has no finish, by name.
    """

    opening: Sequence[bytes]
    words: Sequence[bytes]
    finish: Sequence[bytes]
    closing: bytes
    failures: Mapping[str, Sequence[bytes]]
    body: Mapping[str, Any]
    unfinished: Mapping[str, Mapping[str, Any]]


def _data(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields, separators=(",", ":")).encode() + b"\n\n"


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: " + kind.encode() + b"\n" + _data(type=kind, **fields)


def _chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return _data(id="c", object="chat.completion.chunk", created=1, model="m", choices=[choice])


def _text(text: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
    return _data(id="c", object="text_completion", created=1, model="m", choices=[choice])


def _choices(choice: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    return {
        "null": {"choices": [{**choice, "finish_reason": None}]},
        "absent": {"choices": [choice]},
        **{reason: {"choices": [{**choice, "finish_reason": reason}]} for reason in _GIVEN_UP},
    }


_ERROR: Final = _data(error={"message": "out of memory", "type": "server_error", "param": None, "code": None})
_CALL: Final = {"index": 0, "id": "t", "type": "function", "function": {"name": "f", "arguments": '{"city": "Par'}}
_MESSAGE: Final = {"index": 0, "message": {"role": "assistant", "content": TEXT}}
_CHAT: Final = Native(
    [_chunk({"role": "assistant", "content": ""})],
    [_chunk({"content": word}) for word in WORDS],
    [_chunk({}, "stop")],
    DONE,
    {
        "an error": [_ERROR],
        "half a tool call": [_chunk({"tool_calls": [_CALL]}), DONE],
        **{reason: [_chunk({}, reason), DONE] for reason in _GIVEN_UP},
    },
    {"id": "c", "object": "chat.completion", "choices": [{**_MESSAGE, "finish_reason": "stop"}]},
    _choices(_MESSAGE),
)
_COMPLETION: Final = Native(
    [],
    [_text(word) for word in WORDS],
    [_text("", "stop")],
    DONE,
    {"an error": [_ERROR], **{reason: [_text("", reason), DONE] for reason in _GIVEN_UP}},
    {"id": "c", "object": "text_completion", "choices": [{"index": 0, "text": TEXT, "finish_reason": "stop"}]},
    _choices({"index": 0, "text": TEXT}),
)

_STARTED: Final[dict[str, Any]] = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m"}
_STOP: Final = {"stop_reason": "end_turn", "stop_sequence": None}
_USAGE: Final = {"input_tokens": 5, "output_tokens": 4}
_MESSAGES: Final = Native(
    [
        _event(
            "message_start",
            message={**_STARTED, "content": [], "stop_reason": None, "stop_sequence": None, "usage": _USAGE},
        ),
        _event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    ],
    [_event("content_block_delta", index=0, delta={"type": "text_delta", "text": word}) for word in WORDS],
    [_event("content_block_stop", index=0), _event("message_delta", delta=_STOP, usage={"output_tokens": 4})],
    _event("message_stop"),
    {
        "an error": [_event("error", error={"type": "overloaded_error", "message": "Overloaded"})],
        "no stop reason": [
            _event("content_block_stop", index=0),
            _event("message_delta", delta={"stop_reason": None}, usage={"output_tokens": 4}),
            _event("message_stop"),
        ],
    },
    {**_STARTED, "content": [{"type": "text", "text": TEXT}], **_STOP, "usage": _USAGE},
    {"null": {"stop_reason": None}},
)


def _response(status: str, **fields: Any) -> dict[str, Any]:
    return {"id": "resp_1", "object": "response", "created_at": 1, "status": status, "model": "m", **fields}


_PART: Final = {"item_id": "i", "output_index": 0, "content_index": 0}
_ITEM: Final = {"id": "i", "type": "message", "role": "assistant", "status": "completed"}
_OUTPUT: Final = [{**_ITEM, "content": [{"type": "output_text", "text": TEXT, "annotations": []}]}]
_RESPONSES: Final = Native(
    [
        _event("response.created", sequence_number=0, response=_response("in_progress", output=[])),
        _event(
            "response.output_item.added",
            sequence_number=1,
            output_index=0,
            item={**_ITEM, "status": "in_progress", "content": []},
        ),
        _event("response.content_part.added", sequence_number=2, **_PART, part={"type": "output_text", "text": ""}),
    ],
    [
        _event("response.output_text.delta", sequence_number=3 + number, **_PART, delta=word)
        for number, word in enumerate(WORDS)
    ],
    [
        _event("response.output_text.done", sequence_number=7, **_PART, text=TEXT),
        _event("response.output_item.done", sequence_number=8, output_index=0, item=_OUTPUT[0]),
        _event("response.completed", sequence_number=9, response=_response("completed", output=_OUTPUT, usage=_USAGE)),
    ],
    DONE,
    {
        "failed": [
            _event(
                "response.failed",
                sequence_number=7,
                response=_response("failed", output=[], error={"code": "server_error", "message": "out of memory"}),
            )
        ],
        "failed, without a status": [_event("response.failed", sequence_number=7, response={"id": "resp_1"})],
        "failed, without a response": [_event("response.failed", sequence_number=7)],
        "cancelled": [_event("response.cancelled", sequence_number=7, response=_response("cancelled", output=[]))],
        "completed with a failure": [
            _event("response.completed", sequence_number=7, response=_response("failed", output=[]))
        ],
        "an error": [_event("error", sequence_number=7, code="server_error", message="out of memory", param=None)],
    },
    _response("completed", output=_OUTPUT, usage=_USAGE),
    {"in progress": {"status": "in_progress"}, "null": {"status": None}, "failed": {"status": "failed"}},
)

NATIVES: Final[Mapping[Api, Native]] = {
    Api.CHAT: _CHAT,
    Api.COMPLETIONS: _COMPLETION,
    Api.MESSAGES: _MESSAGES,
    Api.RESPONSES: _RESPONSES,
}


def early(api: Api) -> dict[str, list[bytes]]:
    """Beginnings of chat streams of servers with finish reasons before the end, by name; all of `TEXT` is in them."""
    chunk, opening = (_chunk, _CHAT.opening) if api is Api.CHAT else (_word, [])
    *begun, last = WORDS
    return {
        "in every chunk": [*opening, *(chunk({"content": word}, "stop") for word in WORDS)],
        "after a tool of the server": [
            *opening,
            chunk({"content": begun[0]}),
            chunk({}, "tool_calls"),
            *(chunk({"content": word}) for word in [*begun[1:], last]),
        ],
        "the word null": [*opening, *(chunk({"content": word}, "null") for word in WORDS)],
    }


def _word(delta: dict[str, Any], finish: str | None = None) -> bytes:
    return _text(delta.get("content", ""), finish)


def text_in(raw: bytes) -> str:
    """Return the text in the deltas of a stream of any API."""
    found = ""
    for line in raw.splitlines():
        data: dict[str, Any] = json.loads(line.removeprefix(b"data: ")) if line.startswith(b"data: {") else {}
        for choice in data.get("choices", ()):
            found += choice.get("text") or choice.get("delta", {}).get("content") or ""
        delta = data.get("delta") or {}
        if data.get("type") in ("content_block_delta", "response.output_text.delta"):
            found += delta if isinstance(delta, str) else delta.get("text", "")
    return found


def broken(native: Native) -> dict[str, list[bytes]]:
    """Return answers that end before their finish, or lack a piece, by name; each has begun well."""
    begun = [*native.opening, *native.words[:2]]
    rest = [native.words[3], *native.finish, native.closing]
    lost = native.words[2]
    return {
        "the end of the body": begun,
        "half an event": [*begun, lost[:-12]],
        "the closing event": [*begun, native.closing],
        **{name: [*begun, *events] for name, events in native.failures.items()},
        **{name: [*begun, lost.replace(b" wor", b" w" + bad + b"r"), *rest] for name, bad in _BAD.items()},
        "half a piece": [*begun, lost[: lost.index(b"wor")] + b"\n\n", *rest],
    }


def whole(native: Native) -> dict[str, list[bytes]]:
    """Return whole answers that end in an unusual way, or have an event that is skipped, by name."""
    said = [*native.opening, *native.words]
    last = native.finish[-1]
    return {
        "as usual": [*said, *native.finish, native.closing],
        "no closing event": [*said, *native.finish],
        "no last blank line": [*said, *native.finish[:-1], last[:-1]],
        "no last line end": [*said, *native.finish[:-1], last[:-2]],
        "an error after the finish": [*said, *native.finish, _ERROR],
        "a malformed event without text": [*said[:-1], b'data: {"id": "bro\n\n', said[-1], *native.finish],
        "blank lines first": [b"\n\n", *said, *native.finish],
    }
