r"""Classifies the events of OpenAI-compatible streams, for chat completions and completions alike.

Content is any truthy value under a choice's `delta` other than `role`, and any truthy `text`; unknown keys count. All
events of the winner are read here too, so an ordinary event costs one typed decode of a few fields; an event with an
unexpected type in a field is decoded again, leniently, before it counts as malformed.

`[DONE]` ends a stream, but does not complete an answer. Most content events and the usual finish are recognised by
their bytes and not decoded. Most content events equal the last one but for their text: a `ContentRun`, which the
response's stream forwards unread. The events of one answer begin alike, and end like the events
of the upstream's last answer, which had another id and date. So the first event, which has the role, is decoded, and
the other events are derived from it:

    first event    data: {"id":"c2","choices":[{"delta":{"role":"assistant"}}]}\n\n
    envelope       data: {"id":"c2","choices":[{"delta":{
    its end        "role":"assistant"}}]}\n\n         the same as in an answer before, where events ended thus:
    content        "content":" ... "}}]}\n\n          (head and suffix)
    finish         },"finish_reason":"stop"}]}\n\n

Units: bytes, tokens.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Final, Never

import msgspec

from ttft_gateway.apis.base import ContentRun, FirstToken, Frame, FrameKind, Phase, Usage
from ttft_gateway.apis.endings import frames_of_body, unreadable
from ttft_gateway.apis.errors import ErrorFrame
from ttft_gateway.apis.json_values import plain_text
from ttft_gateway.apis.openai.errors import Problem, problem_of
from ttft_gateway.apis.sse import data_of, fields, forwardable
from ttft_gateway.apis.tolerant_json import as_count, dumps, loads

Chunks = Callable[[Mapping[str, object]], Iterable[Mapping[str, object]]]
"""Splits a complete answer into the chunks of an equal stream, without the closing event."""

_THOUGHTS = frozenset({"reasoning", "reasoning_content", "reasoning_details", "thinking", "thinking_blocks"})
_REASONING = _THOUGHTS | {"channel"}  # in which Groq names the kind of the text in the same delta
_TOOLS = frozenset({"tool_calls", "function_call"})
_NOTED = _REASONING | _TOOLS | {"content"}
_KNOWN = _NOTED | {"refusal", "audio", "annotations"}
_THOUGHT_PARTS = ("thinking", "reasoning")  # types of the parts of a list under `content`: Mistral, Databricks
_UNKNOWN_MAX = 16
# The server gave up, although some end the stream as if the answer were whole: OpenRouter and Mistral; vLLM and SGLang;
# watsonx; DeepSeek; Zhipu.
_GIVEN_UP: Final = frozenset({"error", "abort", "cancelled", "insufficient_system_resource", "network_error"})
_UNFINISHED: Final = "null"  # KoboldCpp until 2025-03 sends the word in every chunk but the last one
_NONE: Final[frozenset[Never]] = frozenset()
_NO_DELTA: Final[Mapping[str, object]] = {}
_SILENT = Problem(None)
_NOT_TYPED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_ERROR, _REFUSAL, _CONTENT = FrameKind.ERROR, FrameKind.REFUSAL, FrameKind.CONTENT
_FINISH, _PREAMBLE = FrameKind.FINISH, FrameKind.PREAMBLE
_THINKING, _TOOL_CALL = Phase.THINKING, Phase.TOOL_CALL
_RANK = {kind: rank for rank, kind in enumerate(FrameKind)}  # declared in the order in which the first applies


class _Choice(msgspec.Struct, gc=False):
    index: object = 0
    delta: dict[str, object] | None = None
    text: object = None
    finish_reason: object = None
    usage: object = None  # Moonshot
    error: object = None  # OpenRouter


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | msgspec.UnsetType | None = msgspec.UNSET
    usage: object = None
    error: object = None
    x_groq: object = None
    service_tier: object = None


_decode = msgspec.json.Decoder(_Chunk).decode

_TEXT: Final = re.compile(rb'"(?:content|text|reasoning_content|reasoning)": ?"([^"\\]+)"').search
_FINISH_REASON: Final = re.compile(rb'"finish_reason": ?"').search
_LEARN_MAX: Final = 4  # learned events; a server with events that differ in more than their text has no runs
_LEARNED_BYTES_MAX: Final = 64 * 1024  # of an event that is learned
_USUAL_BYTES_MAX: Final = 4096  # of an event with an end that later answers use
_DELTA: Final = re.compile(rb'"choices": ?\[\{[^][{}]*"delta": ?\{').search
_FIRST_ENDS_MAX: Final = 8  # of an upstream; more differ because something follows `delta` that is new in each answer
_FIRST_END_BYTES_MAX: Final = 1024
DONE_EVENT: Final = b"data: [DONE]\n\n"
_DONE_FRAME: Final = Frame(FrameKind.DONE, DONE_EVENT)


def has_output(event: bytes) -> bool | None:
    """Return True for a first content of an ordinary event, with less work than `ChunkReader`, and False for a role.

    Returns:
        None for an event with anything else.
    """
    if event.startswith(b"data:") and event.find(b"\n") >= len(event) - 3:  # one data line and the blank one
        try:
            chunk = _decode(event[5:])
        except _NOT_TYPED:
            return None
        choices = chunk.choices
        if choices and len(choices) == 1 and not (choices[0].finish_reason or chunk.error or chunk.x_groq):
            for key, value in (choices[0].delta or _NO_DELTA).items():
                if value and key != "role":
                    return True
            return bool(choices[0].text)
    return None


class UsualEnds:
    """The ends of events, for all answers with one end of the first event; they follow the envelope, and have text.

    An envelope ends in `delta` of the first of `choices`, and the same first end closes as many objects: another end
    gives the same event with it as with the envelope after which it was learned.

    Attributes:
        head, suffix: the bytes before and after the text of a content event; empty if unknown.
        finish: a finish_reason without content; empty if unknown.
    """

    __slots__ = ("finish", "head", "suffix")

    def __init__(self) -> None:
        self.head = self.suffix = self.finish = b""


class LearnedEnds:
    """The ends of events that one upstream's answers share."""

    __slots__ = ("_of_first",)

    def __init__(self) -> None:
        self._of_first: dict[bytes, UsualEnds] = {}

    def after(self, first: bytes) -> tuple[bytes, UsualEnds | None]:
        """Return the envelope of an answer's first event, and the ends of its events; None if it has no `delta`."""
        found = _DELTA(first)
        if found is None:
            return b"", None
        envelope, end = first[: found.end()], first[found.end() :]
        ends = self._of_first.get(end)
        if ends is None:
            ends = UsualEnds()
            if len(end) <= _FIRST_END_BYTES_MAX:
                if len(self._of_first) >= _FIRST_ENDS_MAX:
                    self._of_first.clear()
                self._of_first[end] = ends
        return envelope, ends


class ChunkReader:
    """The `ttft_gateway.apis.base.EventReader` of OpenAI-compatible streams.

    Args:
        choices: number of choices in the answer.
        strip_usage: remove the usage chunk, which the client did not request.
        first_token: with "answer", reasoning does not count as content.
        chunks: see `Chunks`; the default is for a reader that reads no JSON body.
        learned: the ends of events that the same upstream's answers share; None if the events that follow the first
            content are not read.

    Attributes:
        complete, resumed, closed, run: see `EventReader`.
        unknown_keys: unknown keys under `delta` that counted as content, at most 16.
    """

    __slots__ = (
        "_begun",
        "_choices",
        "_chunks",
        "_ends",
        "_envelope",
        "_finished",
        "_ignored",
        "_learn_left",
        "_learned",
        "_phase",
        "_reasoning_seen",
        "_strip_usage",
        "_usual_finish",
        "closed",
        "complete",
        "resumed",
        "run",
        "unknown_keys",
    )

    def __init__(
        self,
        choices: int = 1,
        *,
        strip_usage: bool = False,
        first_token: FirstToken = "any",
        chunks: Chunks = lambda _: (),
        learned: LearnedEnds | None = None,
    ) -> None:
        self.complete = self.resumed = self.closed = False
        self.unknown_keys: frozenset[str] = _NONE
        self._begun: frozenset[int] = _NONE  # choices of which something was sent, if several are requested
        self._finished: frozenset[int] = _NONE  # those that have finished
        self._choices = choices
        self._strip_usage = strip_usage
        self._ignored = _REASONING if first_token == "answer" else _NONE
        self._chunks = chunks
        self.run: ContentRun | None = None  # of the event that was learned last
        self._learn_left = 0 if learned is None else _LEARN_MAX
        self._learned = learned if choices == 1 else None
        self._ends: UsualEnds | None = None  # of the answer's events, from its first one on
        self._envelope = b""  # the beginning of the answer's events, up to the fields of `delta`
        self._usual_finish = b""  # an event with which the answer may finish; empty if none is known
        self._phase: Phase | None = None  # of the event that is read
        self._reasoning_seen = False  # an event has shown reasoning

    def read(self, event: bytes) -> Frame:
        """Classify one event; see `EventReader.read`."""
        if event == DONE_EVENT:
            self.closed = True
            if self._begun:
                self._close()
            return _DONE_FRAME
        if event == self._usual_finish:
            self.complete, self.run = True, None
            return Frame(_FINISH, event)
        if self.run is not None and _is_of(self.run, event):
            return Frame(_CONTENT, event, None, None, self.run.phase)
        if event.startswith(b"data:") and event.find(b"\n") >= len(event) - 3:  # one data line and the blank one
            try:
                chunk = _decode(event[5:])  # JSON allows the white space around the object
            except _NOT_TYPED:
                return self._read_fields(event)
            frame = self._read_chunk(chunk, event, event)
            if frame.usage is None:
                self._learn(frame, event)
            return frame
        return self._read_fields(event)

    def read_body(self, body: bytes) -> Sequence[Frame]:
        """The events of an equal stream for a JSON body, classified; see `EventReader.read_body`."""
        answer = loads(body)
        if not isinstance(answer, dict) or not isinstance(answer.get("choices"), list) or answer.get("error"):
            problem = problem_of(answer) or Problem("the upstream answered 200 with neither a completion nor an error")
            return (Frame(_ERROR, b"", None, problem.frame()),)
        frames = [self.read(_event(dumps(chunk))) for chunk in self._chunks(answer)]
        return [*frames, self.read(_event(b"[DONE]"))]

    def close(self) -> None:
        """See `EventReader.close`: a missing `[DONE]` stays missing, because a finish_reason ends the answer."""

    def _close(self) -> None:
        """Expect no further choice after the closing event: some servers ignore `n` and send one."""
        if self._begun and self._begun == self._finished:
            self.complete = True

    def _learn(self, frame: Frame, event: bytes) -> None:
        """Remember an event without token counts, so that similar ones need no parsing."""
        if frame.kind is _CONTENT:
            if self._learn_left:
                self._learn_run(event, frame.phase)
        elif self._learned is not None:
            self._learn_ends(self._learned, frame.kind, event)

    def _learn_run(self, event: bytes, phase: Phase | None) -> None:
        """Remember a content event, so that events that differ from it only in their text need no parsing."""
        self._learn_left -= 1
        if len(event) > _LEARNED_BYTES_MAX:
            return
        found = _TEXT(event)
        if found is None or _FINISH_REASON(event) is not None:
            return
        start, end = found.span(1)
        self.run = _run_of(event[:start], event[end:], phase)
        head_at = len(self._envelope)
        if self._ends is not None and phase is None and start > head_at and self._is_usual(event):
            self._ends.head, self._ends.suffix = event[head_at:start], event[end:]

    def _learn_ends(self, learned: LearnedEnds, kind: FrameKind, event: bytes) -> None:
        """Take the answer's envelope from its first event, then expect the events that answers with such a one have."""
        ends = self._ends
        if ends is not None:
            if kind is _FINISH and self._is_usual(event):
                ends.finish = event[len(self._envelope) :]
        elif kind is _PREAMBLE and self.run is None:
            self._envelope, self._ends = envelope, ends = learned.after(event)
            if ends is not None:
                if ends.suffix:
                    self.run = _run_of(envelope + ends.head, ends.suffix)
                if ends.finish:
                    self._usual_finish = envelope + ends.finish

    def _is_usual(self, event: bytes) -> bool:
        """Return True if an equal event of another answer needs no reading: nothing in it but its kind is noted."""
        return (
            event.startswith(self._envelope)
            and len(event) <= _USUAL_BYTES_MAX
            and not self._reasoning_seen
            and not self.unknown_keys
        )

    def _read_fields(self, event: bytes) -> Frame:
        """Classify an event that is not one line of the expected JSON."""
        if event.isspace():  # a blank line
            return Frame(FrameKind.COMMENT, event)
        data, raw = data_of(event), forwardable(event)
        failed = _error_event(event)
        if failed is not None:
            return Frame(_ERROR, raw, None, failed)
        if not data:
            return Frame(FrameKind.COMMENT, raw)
        if data.startswith(b"[DONE]"):
            self.closed = True
            self._close()
            return Frame(FrameKind.DONE, raw)
        chunk = _lenient(data)
        return unreadable(event) if chunk is None else self._read_chunk(chunk, event, raw)

    def _read_chunk(self, chunk: _Chunk, event: bytes, raw: bytes) -> Frame:
        """Classify a decoded chunk: of the kinds of its choices, the first in `FrameKind`'s order."""
        choices, usage, error = chunk.choices, chunk.usage, chunk.error
        if chunk.x_groq is not None and isinstance(chunk.x_groq, dict):
            usage, error = usage or chunk.x_groq.get("usage"), error or chunk.x_groq.get("error")
        if error:
            return Frame(_ERROR, raw, self._usage(usage), _frame_error(error, event))
        if not choices:
            return self._without_choices(chunk, self._usage(usage, chunk.service_tier), event, raw)
        choice, was_complete = choices[0], self.complete
        self._phase = None
        kind = self._kind(choice)
        if len(choices) > 1:
            kind = min(kind, *map(self._kind, choices[1:]), key=_RANK.__getitem__)
        usage = usage or choice.usage
        if was_complete and kind is _CONTENT:
            self.resumed = True
        if kind is _ERROR:
            error = next((choice.error for choice in choices if choice.error), None)
            reasons = [choice.finish_reason for choice in choices]
            error = error or f"finish_reason is {next(filter(_is_given_up, reasons))!r}"
            return Frame(_ERROR, raw, self._usage(usage), _frame_error(error, event))
        return Frame(kind, raw, self._usage(usage, chunk.service_tier) if usage else None, None, self._phase)

    def _without_choices(self, chunk: _Chunk, usage: Usage | None, event: bytes, raw: bytes) -> Frame:
        """Classify a chunk without choices: token counts, Azure's filter results, or an error without `error`."""
        if usage is not None:
            return Frame(FrameKind.USAGE, b"" if self._strip_usage else raw, usage)
        if chunk.choices is msgspec.UNSET:
            problem = problem_of(loads(data_of(event) or b""))
            if problem is not None:
                return Frame(_ERROR, raw, None, problem.frame())
        return Frame(_PREAMBLE, raw)

    def _kind(self, choice: _Choice) -> FrameKind:
        kind = _CONTENT if choice.text else _PREAMBLE
        if self._choices > 1:
            self._begun |= {_index(choice)}
        if choice.finish_reason and choice.finish_reason != _UNFINISHED:
            finished = self._finish(choice)
            if finished is not _FINISH:
                return finished
            kind = _CONTENT if choice.text else _FINISH
        if choice.delta:
            for key, value in choice.delta.items():
                if not value or key == "role":
                    continue
                if key == "content" and type(value) is str:
                    kind = _CONTENT
                    continue
                if key in _NOTED:
                    self._note(key, value)
                if key in self._ignored:
                    continue
                if key == "refusal":
                    return _REFUSAL
                kind = _CONTENT
                if key not in _KNOWN and len(self.unknown_keys) < _UNKNOWN_MAX:
                    self.unknown_keys |= {key}
        return kind

    def _note(self, key: str, value: object) -> None:
        """Note the phase of a key under `delta`, and that reasoning was shown."""
        if key in _REASONING:
            self._reasoning_seen = True
        if key in _TOOLS:
            self._phase = _TOOL_CALL
        elif self._phase is None and (key in _THOUGHTS or (isinstance(value, list) and _has_thoughts(value))):
            self._phase = _THINKING

    def _finish(self, choice: _Choice) -> FrameKind:
        """Note the end of a choice; return ERROR, REFUSAL, or FINISH."""
        reason = choice.finish_reason
        if _is_given_up(reason):
            return _ERROR
        if self._choices > 1:
            self._finished |= {_index(choice)}
        if self._choices == 1 or len(self._finished) >= self._choices:
            self.complete, self.run, self._learn_left = True, None, 0  # what follows is read event by event
        is_filtered = isinstance(reason, str) and reason.startswith(("content_filter", "refusal"))  # Gemini adds to it
        return _REFUSAL if is_filtered else _FINISH

    def _usage(self, value: object, tier: object = None) -> Usage | None:
        """Read token counts; reasoning that was counted but appeared in no event is hidden."""
        usage = usage_of(value, tier)
        if usage is None or self._reasoning_seen or not usage.reasoning_tokens:
            return usage
        return msgspec.structs.replace(usage, hidden_reasoning=True)


def finish_of(choice: Mapping[str, object]) -> object:
    """Return the finish reason of a choice, None if it has none."""
    reason = choice.get("finish_reason")
    return None if reason == _UNFINISHED else reason or None


def is_finish(reason: object) -> bool:
    """Return True if an answer with this finish reason is whole."""
    return bool(reason) and reason != _UNFINISHED and not _is_given_up(reason)


def usage_of(value: object, tier: object = None) -> Usage | None:
    """Read a `usage` object in any provider's form; None if there is none.

    Args:
        tier: `service_tier` of the answer, which OpenAI, Azure and Bedrock set to the tier that was used
            (platform.openai.com/docs/guides/flex-processing and /priority-processing, read 2026-11).
    """
    if not isinstance(value, dict) or not value:
        return None
    prompt, completion = value.get("prompt_tokens_details"), value.get("completion_tokens_details")
    cached = prompt.get("cached_tokens") if isinstance(prompt, dict) else None
    reasoning = completion.get("reasoning_tokens") if isinstance(completion, dict) else None
    if cached is None:
        cached = value.get("prompt_cache_hit_tokens", value.get("cached_tokens"))  # DeepSeek, Moonshot
    if reasoning is None:
        reasoning = value.get("reasoning_tokens")  # Perplexity
    return Usage(
        as_count(value.get("prompt_tokens")),
        as_count(value.get("completion_tokens")),
        as_count(cached),
        as_count(reasoning),
        tier=tier if isinstance(tier, str) else None,
    )


def whole_body(reader: ChunkReader, body: bytes) -> Frame:
    """Read an answer that was not requested as a stream; see `ttft_gateway.apis.base.WireProtocol.whole`."""
    first = frames_of_body(reader, body)[0]
    if first.kind is _ERROR:
        return first
    answer = loads(body)
    if not isinstance(answer, dict):
        return Frame(_CONTENT, body)
    return Frame(_CONTENT, body, usage_of(answer.get("usage"), answer.get("service_tier")))


def _run_of(prefix: bytes, suffix: bytes, phase: Phase | None = None) -> ContentRun:
    """Return the form of the events with this beginning and end."""
    start = len(prefix)
    text_of_line = itemgetter(slice(start, -suffix.index(b"\n") - 1))
    return ContentRun(prefix, suffix, slice(start, -len(suffix)), text_of_line, phase)


def _is_of(run: ContentRun, event: bytes) -> bool:
    """Return True if one event has the form of a run."""
    return event.startswith(run.prefix) and event.endswith(run.suffix) and plain_text(event[run.text_at]) is not None


def _is_given_up(reason: object) -> bool:
    return isinstance(reason, str) and reason in _GIVEN_UP


def _has_thoughts(parts: Sequence[object]) -> bool:
    return any(isinstance(part, dict) and part.get("type") in _THOUGHT_PARTS for part in parts)


def _index(choice: _Choice) -> int:
    return choice.index if isinstance(choice.index, int) else 0


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def _lenient(data: bytes) -> _Chunk | None:
    """Decode the usable fields of data that the typed decoder rejected; None if it is not a JSON object."""
    value = loads(data)
    if isinstance(value, list) and value and isinstance(value[0], dict) and "error" in value[0]:  # Gemini
        value = value[0]
    if not isinstance(value, dict):
        return None
    known = _known(_Chunk, value)
    if "choices" in known:
        choices = value["choices"] if isinstance(value["choices"], list) else []
        known["choices"] = [_known_choice(choice) for choice in choices if isinstance(choice, dict)]
    return msgspec.convert(known, _Chunk)


def _known_choice(choice: Mapping[str, object]) -> dict[str, object]:
    known = _known(_Choice, choice)
    if not isinstance(known.get("delta"), dict):
        known["delta"] = None
    return known


def _known(kind: type[msgspec.Struct], value: Mapping[str, object]) -> dict[str, object]:
    """Return the struct's own fields: msgspec raises on other names with an unpaired surrogate."""
    return {name: value[name] for name in kind.__struct_fields__ if name in value}


def _frame_error(error: object, event: bytes) -> ErrorFrame:
    """Read the error in a chunk, with the fields next to it if it is only a text."""
    beside = loads(data_of(event) or b"")
    problem = problem_of({**beside, "error": error} if isinstance(beside, dict) else {"error": error})
    return (problem or _SILENT).frame()


def _error_event(event: bytes) -> ErrorFrame | None:
    """Read an event that its SSE fields mark as an error: `event: error`, or llama.cpp's `error: {...}`."""
    named = {name: value for name, value, _ in fields(event)}
    if named.get(b"event") != b"error" and b"error" not in named:
        return None
    value = loads(named.get(b"error") or data_of(event) or b"")
    return (problem_of(value) or problem_of({"error": value}) or _SILENT).frame()
