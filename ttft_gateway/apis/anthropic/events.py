"""Classifies the events of Messages streams.

Content is generated output: a delta with text, thinking or a piece of a tool's input, the start of a tool call (its
name is generated), a block that is sent whole. Not content: `message_start`, `ping`, empty blocks and deltas,
signatures. The start of an empty block is a sign of work. Unknown event types are passed on. Sans-I/O. Units: tokens,
HTTP status codes.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from ttft_gateway.apis.anthropic.usage import Counts
from ttft_gateway.apis.anthropic.writer import events_of_message
from ttft_gateway.apis.base import FirstToken, Frame, FrameKind, OnAnswerId, Phase, Usage
from ttft_gateway.apis.endings import unreadable
from ttft_gateway.apis.errors import ErrorFrame
from ttft_gateway.apis.json_fields import dict_or_empty
from ttft_gateway.apis.openai.errors import problem_of
from ttft_gateway.apis.sse import data_of, forwardable
from ttft_gateway.apis.tolerant_json import loads

# The usual delta, valid JSON if its bytes are UTF-8.
_delta: Final = re.compile(
    rb'event: content_block_delta\ndata: \{"type":"content_block_delta","index":\d+,"delta":\{"type":'
    rb'"(?:text_delta","text|(thinking_delta","thinking)|(input_json_delta","partial_json))":'
    rb'"(?!")[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+"\}\}\n\n'
).fullmatch
_PHASES: Final[Mapping[int | None, Phase | None]] = {None: None, 1: Phase.THINKING, 2: Phase.TOOL_CALL}  # by group
_THINKING = frozenset({"thinking", "redacted_thinking", "thinking_delta"})
_TOOL_CALLS = frozenset({"tool_use", "input_json_delta"})
TEXTS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
_STATUS: Final = {  # types of errors -> the status they imply
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "conflict_error": 409,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}


class MessageReader:
    """The `ttft_gateway.apis.base.EventReader` of Messages streams.

    Args:
        first_token: with "answer", thinking does not count as content.
        on_answer_id: receives the owner and the message's id, None to ignore them.
        owner: see `ttft_gateway.apis.base.Call`.

    Attributes:
        complete, resumed, closed: see `EventReader`.
    """

    __slots__ = (
        *("_content_seen", "_counts", "_ignored", "_on_answer_id", "_owner", "_thinking_seen", "_thinking_signed"),
        *("closed", "complete"),
    )

    run = None
    resumed = False  # nothing follows a `stop_reason`

    def __init__(
        self, first_token: FirstToken = "any", on_answer_id: OnAnswerId | None = None, owner: str = ""
    ) -> None:
        self.complete = False
        self.closed = False
        self._content_seen = False
        self._thinking_seen = False  # an event has shown thinking
        self._thinking_signed = False  # a block of thinking has ended
        self._counts = Counts()
        self._on_answer_id = on_answer_id
        self._owner = owner
        self._ignored = _THINKING if first_token == "answer" else frozenset[str]()

    def read(self, event: bytes) -> Frame:
        """Classify one event; see `EventReader.read`."""
        if (
            self._content_seen  # after content, deltas need no parsing
            and (delta := _delta(event)) is not None
            and (event.isascii() or _is_utf8(event))
        ):
            return Frame(FrameKind.CONTENT, event, None, None, _PHASES[delta.lastindex])
        data, raw = data_of(event), forwardable(event)
        if not data:
            return Frame(FrameKind.COMMENT, raw)
        value = loads(data)
        if not isinstance(value, dict):
            return unreadable(event)
        kind = self._kind(value)
        if kind is FrameKind.ERROR:
            return Frame(kind, raw, None, _failure(data))
        self._content_seen = self._content_seen or kind is FrameKind.CONTENT
        usage = value.get("usage") or dict_or_empty(value.get("message")).get("usage")
        if not usage:
            return Frame(kind, raw, None, None, _phase(value))
        self._counts.add(usage)
        return Frame(kind, raw, self._with_hidden(self._counts.usage()))

    def close(self) -> Frame | None:
        """See `EventReader.close`: a missing `message_stop` stays missing."""
        return None

    def read_body(self, body: bytes) -> Sequence[Frame]:
        """Classify the events of a stream that equals the JSON body; see `EventReader.read_body`."""
        message = loads(body)
        if not isinstance(message, dict) or not isinstance(message.get("content"), list):
            failed = _failure(body) if isinstance(message, dict) and message.get("error") else _NEITHER
            return (Frame(FrameKind.ERROR, b"", None, failed),)
        return [self.read(event) for event in events_of_message(message)]

    def _kind(self, event: Mapping[str, object]) -> FrameKind:
        name = event.get("type")
        if name == "content_block_delta":
            return self._delta(dict_or_empty(event.get("delta")))
        if name == "content_block_start":
            return self._start(dict_or_empty(event.get("content_block")))
        if name == "message_delta":
            reason = dict_or_empty(event.get("delta")).get("stop_reason")
            self.complete = self.complete or bool(reason)
            if reason == "refusal":
                return FrameKind.REFUSAL
            return FrameKind.FINISH if reason else FrameKind.USAGE
        if name == "message_stop":
            self.closed = True
            return FrameKind.DONE
        if name == "error" or (name is None and event.get("error")):
            return FrameKind.ERROR
        if name == "message_start" and self._on_answer_id is not None:
            self._on_answer_id(self._owner, str(dict_or_empty(event.get("message")).get("id")))
        return FrameKind.PREAMBLE

    def _start(self, block: Mapping[str, object]) -> FrameKind:
        """Classify the start of a block: text and thinking are usually empty there, other blocks have content."""
        kind = str(block.get("type"))
        if kind in ("text", "thinking") and not block.get(kind):
            return FrameKind.WORK
        self._thinking_seen = self._thinking_seen or kind == "thinking"
        return FrameKind.PREAMBLE if kind in self._ignored else FrameKind.CONTENT

    def _delta(self, delta: Mapping[str, object]) -> FrameKind:
        kind = str(delta.get("type"))
        if kind == "signature_delta":
            self._thinking_signed = True
            return FrameKind.PREAMBLE
        if kind in TEXTS and not delta.get(TEXTS[kind]):
            return FrameKind.PREAMBLE
        self._thinking_seen = self._thinking_seen or kind == "thinking_delta"
        return FrameKind.PREAMBLE if kind in self._ignored else FrameKind.CONTENT

    def _with_hidden(self, usage: Usage | None) -> Usage | None:
        """Mark thinking of which no event had any text: it was signed, or its tokens were counted."""
        if usage is None or self._thinking_seen or not (self._thinking_signed or usage.reasoning_tokens):
            return usage
        return msgspec.structs.replace(usage, hidden_reasoning=True)


def _failure(data: bytes) -> ErrorFrame:
    problem = problem_of(loads(data))
    if problem is None:
        return ErrorFrame("the upstream sent an error without a message")
    error = problem.frame()
    error.status = _STATUS.get(error.kind or "", error.status)
    return error


def _phase(event: Mapping[str, object]) -> Phase | None:
    """Return the phase of an event by the type of its block or delta."""
    kind = str(dict_or_empty(event.get("content_block") or event.get("delta")).get("type"))
    if kind in _TOOL_CALLS:
        return Phase.TOOL_CALL
    return Phase.THINKING if kind in _THINKING or kind == "signature_delta" else None


def _is_utf8(event: bytes) -> bool:
    try:
        event.decode()
    except UnicodeDecodeError:
        return False
    return True


_NEITHER = ErrorFrame("the upstream answered 200 with neither a message nor an error", kind="api_error")
