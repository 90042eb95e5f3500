"""Endings of responses that an SDK reads: any of HTTP (`response_endings`), and some of its API. Data only."""

import json
from collections.abc import Mapping

from client_dialects import DIALECTS
from client_replicas import ROLE, Answer, delta, event
from response_endings import ANSWERS, answering, sized, stream

_JSON = b"content-type: application/json\r\n"
_DONE = b"data: [DONE]\n\n"
_SHOWN = ("quick", "only_done", "error_event", "error_500", "error_400", "limited", "dies", "reset")
"""Answers of each dialect that end."""
_ERROR = event({"error": {"message": "overloaded", "type": "server_error"}})


def _of_chat(finish_reason: str | None = None, usage: object = None, **fields: object) -> bytes:
    choices = [{"index": 0, "delta": fields, "finish_reason": finish_reason}] if usage is None else []
    chunk = {"choices": choices, "usage": usage, "id": "c1", "object": "chat.completion.chunk", "created": 1}
    return event({**chunk, "model": "m"})


def _tool(arguments: str, **fields: object) -> bytes:
    return _of_chat(tool_calls=[{"index": 0, "function": {"arguments": arguments}, **fields}])


def _of_messages(kind: str, **fields: object) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


_USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
_CHAT = {
    "an error after content": stream(ROLE, delta(content="Hel"), _ERROR, _DONE),
    "an error with status 200": sized(b"200 OK", b'{"error": {"message": "bad", "type": "x"}}', _JSON),
    "a stream with no end": stream(ROLE, delta(content="Hel"), delta("stop")),
    "a stream with no reason": stream(ROLE, delta(content="Hel")),
    "a call of a tool": stream(_tool("", id="t", type="function"), _tool("{}"), _of_chat("tool_calls"), _DONE),
    "usage": stream(ROLE, delta(content="x"), delta("stop"), _of_chat(usage=_USAGE), _DONE),
    "401": sized(b"401 Unauthorized", b'{"error": {"message": "key", "type": "auth"}}', _JSON),
    "308": sized(b"308 Permanent Redirect", b"moved", b"location: /v1/there\r\n"),
}

_MESSAGE = {"id": "m1", "type": "message", "role": "assistant", "content": [], "model": "m", "usage": {}}
_OPENING = (
    _of_messages("message_start", message={**_MESSAGE, "usage": {"input_tokens": 1, "output_tokens": 1}}),
    _of_messages("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    _of_messages("ping"),
)
_PIECES = tuple(
    _of_messages("content_block_delta", index=0, delta={"type": "text_delta", "text": text}) for text in ("Hel", "lo")
)
_CLOSING = (
    _of_messages("content_block_stop", index=0),
    _of_messages("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 2}),
    _of_messages("message_stop"),
)
_OVERLOADED = _of_messages("error", error={"type": "overloaded_error", "message": "Overloaded"})
_MESSAGES = {
    "a message": stream(*_OPENING, *_PIECES, *_CLOSING),
    "a message in one piece": stream(b"".join((*_OPENING, *_PIECES, *_CLOSING))),
    "an error after the start": stream(*_OPENING, _OVERLOADED),
    "an error after content": stream(*_OPENING, _PIECES[0], _OVERLOADED),
    "cut after the start": stream(*_OPENING, end=b""),
    "cut within content": stream(*_OPENING, _PIECES[0], end=b""),
    "a message with no end": stream(*_OPENING, *_PIECES),
    "529": sized(b"529 Overloaded", b'{"type": "error", "error": {"type": "overloaded_error", "message": "o"}}', _JSON),
}
_OWN: Mapping[str, Mapping[str, bytes]] = {"chat": _CHAT, "messages": _MESSAGES, "responses": {}}


def answers_of(dialect: str) -> dict[str, Answer]:
    """Return the answers with which an API may end, by their names."""
    own = {name: answering(name, response) for name, response in _OWN[dialect].items()}
    return {**ANSWERS, **{name: DIALECTS[dialect][name] for name in _SHOWN}, **own}
