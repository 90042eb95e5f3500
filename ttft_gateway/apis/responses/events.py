"""Classifies the events of OpenAI's Responses API.

Content is a `*.delta` with a non-empty delta; a `*.done`, an image, a finished item, or the output in the last event
counts if no delta came before it, for servers that send those alone. A new output item is a sign of work. The stream
ends with one of three events that carry the whole response: completed, incomplete or failed (or cancelled), and only
the first two complete an answer. The API has no `[DONE]`.

Units: bytes, tokens.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from ttft_gateway.apis.base import FirstToken, Frame, FrameKind, OnAnswerId, Phase, Usage
from ttft_gateway.apis.endings import unfinished_body, unreadable
from ttft_gateway.apis.errors import ErrorFrame
from ttft_gateway.apis.openai.errors import Problem, problem_of
from ttft_gateway.apis.responses.writer import FINISHED, events_of_answer
from ttft_gateway.apis.sse import data_of, forwardable
from ttft_gateway.apis.tolerant_json import as_count, loads

_REASONING: Final = ("response.reasoning",)
_TEXT_DELTA: Final = "response.output_text.delta"
_TOOL_CALLS: Final = ("function_call", "custom_tool_call")
_THINKING: Final = (
    "reasoning",
    *("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call"),
)
_GENERATED: Final = (".done", ".partial_image", "code.delta")  # events with generated content, with or without deltas
_FINISHES: Final = frozenset({"response.completed", "response.incomplete"})
TERMINAL: Final = _FINISHES | {"response.failed", "response.cancelled"}
_EMPTY_DONE: Final = frozenset({"response.content_part.done", "response.reasoning_summary_part.done"})
_CONTENT, _PREAMBLE = FrameKind.CONTENT, FrameKind.PREAMBLE


class _Event(msgspec.Struct, gc=False):
    type: str = ""
    delta: object = None
    response: object = None
    item: object = None
    error: object = None


_decode = msgspec.json.Decoder(_Event).decode


class ResponsesReader:
    """The `ttft_gateway.apis.base.EventReader` of the Responses API.

    Args:
        first_token: with "answer", reasoning does not count as content.
        on_answer_id: receives the owner and the response's id, None to ignore them.
        owner: see `ttft_gateway.apis.base.Call`.

    Attributes:
        complete, resumed, closed: see `EventReader`.
    """

    __slots__ = ("_content_seen", "_ignored", "_on_answer_id", "_owner", "_reasoning_seen", "closed", "complete")

    run = None
    resumed = False  # the finish closes the stream

    def __init__(
        self, first_token: FirstToken = "any", on_answer_id: OnAnswerId | None = None, owner: str = ""
    ) -> None:
        self.complete = self.closed = False
        self._content_seen = False
        self._reasoning_seen = False  # an event has shown reasoning
        self._ignored = _REASONING if first_token == "answer" else ()
        self._on_answer_id = on_answer_id
        self._owner = owner

    def read(self, event: bytes) -> Frame:
        """Classify one event; see `EventReader.read`."""
        line = event.find(b"\n")
        two_lines = event.startswith(b"event:") and event.find(b"\n", line + 1) == len(event) - 2
        if two_lines and event.startswith(b"\ndata: ", line):  # the form of nearly all events
            data, raw = event[line + 7 : -2], event
        else:
            data, raw = data_of(event) or b"", forwardable(event)
        if not data:
            return Frame(FrameKind.COMMENT, raw)
        if data.startswith(b"[DONE]"):
            self.closed = True
            return Frame(FrameKind.DONE, b"")  # not forwarded: SDKs would take it as the end of a complete answer
        try:
            found = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            value = loads(data)
            if not isinstance(value, dict):
                return unreadable(event)
            found = _Event(str(value.get("type")), *map(value.get, ("delta", "response", "item", "error")))
        return self._classified(found, data, raw)

    def close(self) -> None:
        """See `EventReader.close`: a terminal event ends every complete answer."""

    def read_body(self, body: bytes) -> Sequence[Frame]:
        """Classify the events of a stream that equals the JSON body; see `EventReader.read_body`."""
        answer = loads(body)
        failed = failure_of(answer)
        if failed is not None or not isinstance(answer, dict):
            return (Frame(FrameKind.ERROR, b"", None, failed),)
        return [self.read(event) for event in events_of_answer(answer)]

    def _classified(self, event: _Event, data: bytes, raw: bytes) -> Frame:
        kind = event.type
        if kind.startswith(_REASONING) and (event.delta or kind.endswith("text.done")):
            self._reasoning_seen = True
        phase = None if kind == _TEXT_DELTA else _phase(event)
        if kind.endswith(".delta"):
            if not event.delta or kind.startswith(self._ignored or ("\0",)):
                return Frame(_PREAMBLE, raw, None, None, phase)
            self._content_seen = True
            return Frame(FrameKind.REFUSAL if kind == "response.refusal.delta" else _CONTENT, raw, None, None, phase)
        if kind in TERMINAL:
            return self._ended(kind, event.response, raw)
        if kind == "error" or (event.error and not kind.startswith("response.")):
            problem = problem_of(loads(data)) or Problem(None)
            return Frame(FrameKind.ERROR, raw, None, problem.frame())
        if kind == "response.created" and self._on_answer_id is not None and isinstance(event.response, dict):
            self._on_answer_id(self._owner, str(event.response.get("id")))
        if not self._content_seen and self._is_generated(event):
            self._content_seen = True
            return Frame(_CONTENT, raw, None, None, phase)
        return Frame(FrameKind.WORK if kind == "response.output_item.added" else _PREAMBLE, raw, None, None, phase)

    def _is_generated(self, event: _Event) -> bool:
        """Return True for an event with generated content that came without deltas."""
        kind = event.type
        if kind in _EMPTY_DONE or not kind.endswith(_GENERATED) or kind.startswith(self._ignored or ("\0",)):
            return False
        return not (self._ignored and isinstance(event.item, dict) and event.item.get("type") == "reasoning")

    def _ended(self, kind: str, response: object, raw: bytes) -> Frame:
        self.closed = True
        answer: dict[str, object] = response if isinstance(response, dict) else {}
        failed = failure_of(answer if kind in _FINISHES else {**answer, "status": kind.rpartition(".")[2]})
        if failed is not None:
            return Frame(FrameKind.ERROR, raw, None, failed)
        self.complete = True
        filtered = reason_of(answer) == "content_filter"
        kinds = () if self._content_seen else {self.read(each).kind for each in events_of_answer(answer, ends=False)}
        usage = usage_of(answer.get("usage"), answer.get("service_tier"))
        if usage is not None and usage.reasoning_tokens and not self._reasoning_seen:
            usage = msgspec.structs.replace(usage, hidden_reasoning=True)
        if filtered or FrameKind.REFUSAL in kinds:
            return Frame(FrameKind.REFUSAL, raw, usage)
        return Frame(_CONTENT if _CONTENT in kinds else FrameKind.FINISH, raw, usage)


def _phase(event: _Event) -> Phase | None:
    """Return the phase of an event by the type of its item, or by its own."""
    kind = str(event.item.get("type")) if isinstance(event.item, dict) else event.type.removeprefix("response.")
    if kind.startswith(_TOOL_CALLS):
        return Phase.TOOL_CALL
    return Phase.THINKING if kind.startswith(_THINKING) else None


def failure_of(answer: object) -> ErrorFrame | None:
    """Return the error of a failed response, or of a value that is not a response; None for an answer."""
    if not isinstance(answer, dict) or answer.get("error") or answer.get("object", "response") != "response":
        problem = problem_of(answer) or Problem("the upstream answered 200 with neither a response nor an error")
        return problem.frame()
    if answer.get("status") in ("failed", "cancelled"):
        return ErrorFrame(f"the upstream's response is {answer['status']}")
    return None


def reason_of(answer: dict[str, object]) -> object:
    """Return the reason of an incomplete response, None if it has none."""
    details = answer.get("incomplete_details")
    return details.get("reason") if isinstance(details, dict) else None


def usage_of(value: object, tier: object = None) -> Usage | None:
    """Read a response's `usage`, None if it has none; `tier` is the `service_tier` of the response."""
    if not isinstance(value, dict) or not value:
        return None
    read, written = value.get("input_tokens_details"), value.get("output_tokens_details")
    return Usage(
        as_count(value.get("input_tokens")),
        as_count(value.get("output_tokens")),
        as_count(read.get("cached_tokens")) if isinstance(read, dict) else None,
        as_count(written.get("reasoning_tokens")) if isinstance(written, dict) else None,
        tier=tier if isinstance(tier, str) else None,
    )


def whole_answer(body: bytes) -> Frame:
    """Read an answer that was not requested as a stream; see `ttft_gateway.apis.base.WireProtocol.whole`."""
    answer = loads(body)
    failed = failure_of(answer)
    if failed is not None or not isinstance(answer, dict):
        return Frame(FrameKind.ERROR, b"", None, failed)
    if answer.get("status") not in FINISHED:
        return unfinished_body()
    return Frame(_CONTENT, body, usage_of(answer.get("usage"), answer.get("service_tier")))
