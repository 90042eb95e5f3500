"""What each event of an OpenAI-compatible stream is, for chat completions and completions alike.

Content is any truthy value under a choice's `delta` other than `role`, and any truthy `text`; a key never seen before
counts. Every event of the winner passes here too, so the usual one costs one typed decode of the few fields that
matter; whatever has an unexpected type in it is looked at again, leniently, before it is called malformed.

Knows nothing of requests, races or assembling. Units: bytes, tokens.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from providers.base import Call, Frame, FrameKind, Usage
from providers.errors import ErrorFrame
from providers.openai.errors import Problem, problem_of
from providers.sse import data_of, fields, forwardable
from providers.tolerant_json import as_count, dumps, loads

FirstToken = Literal["any", "answer"]
"""Whether the first content may be reasoning, or must belong to the answer."""

Chunks = Callable[[Mapping[str, object]], Iterable[Mapping[str, object]]]
"""Turns a complete answer into the chunks of an equal stream, all but the closing event."""

# Reasoning, and Groq's name of what kind of text it is, which stands beside it.
_REASONING = frozenset(
    {"reasoning", "reasoning_content", "reasoning_details", "thinking", "thinking_blocks", "channel"}
)
_KNOWN = _REASONING | {"content", "refusal", "tool_calls", "function_call", "audio", "annotations"}
_UNKNOWN_MAX = 16
_SILENT = Problem(None)
_NOT_TYPED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
# Looking a member up in its class costs more than half as much as decoding a chunk, on Python 3.11.
_ERROR, _REFUSAL, _CONTENT = FrameKind.ERROR, FrameKind.REFUSAL, FrameKind.CONTENT
_FINISH, _PREAMBLE = FrameKind.FINISH, FrameKind.PREAMBLE
_RANK = {kind: rank for rank, kind in enumerate(FrameKind)}  # declared in the order in which the first applies


class _Choice(msgspec.Struct, gc=False):
    index: object = 0
    delta: object = None
    text: object = None
    finish_reason: object = None
    usage: object = None  # Moonshot
    error: object = None  # OpenRouter


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | msgspec.UnsetType | None = msgspec.UNSET
    usage: object = None
    error: object = None
    x_groq: object = None


_decode = msgspec.json.Decoder(_Chunk).decode


_TEXT: Final = re.compile(rb'"(?:content|text|reasoning_content|reasoning)": ?"([^"\\]+)"')
_PLAIN: Final = re.compile(rb"[ !#-\[\]-\x7f]+").fullmatch  # of a JSON string, in ASCII
_LEARN_MAX: Final = 4  # content events looked at closely; a server whose events differ in more than their text has none
_DONE_EVENT: Final = b"data: [DONE]\n\n"
_DONE_FRAME: Final = Frame(FrameKind.DONE, _DONE_EVENT)


class ChunkReader:
    """The `providers.base.EventReader` of OpenAI-compatible streams.

    Args:
        call: the client's call.
        strip_usage: take out the usage chunk, which the client did not ask for.
        first_token: what counts as content.
        chunks: see `Chunks`.

    Attributes:
        complete, closed: see `EventReader`.
        unknown_keys: names under `delta` that counted as content without being known, at most 16.
    """

    __slots__ = (
        "_choices",
        "_chunks",
        "_finished",
        "_ignored",
        "_learn_left",
        "_prefix",
        "_reasoning_seen",
        "_separator",
        "_strip_usage",
        "_suffix",
        "_text_at",
        "closed",
        "complete",
        "unknown_keys",
    )

    def __init__(self, call: Call, *, strip_usage: bool, first_token: FirstToken, chunks: Chunks) -> None:
        self.complete = self.closed = False
        self.unknown_keys: set[str] = set()
        self._choices = call.choices
        self._finished: set[int] = set()
        self._strip_usage = strip_usage
        self._ignored = _REASONING if first_token == "answer" else frozenset[str]()
        self._chunks = chunks
        self._prefix = self._suffix = b"\0"  # no event ends so
        self._separator = b""  # the two together, once there was a content event
        self._text_at = slice(0)  # between them
        self._learn_left = _LEARN_MAX
        self._reasoning_seen = False  # an event has shown reasoning

    def read(self, event: bytes) -> Frame:
        """Classify one event; see `EventReader.read`."""
        if event.startswith(self._prefix) and event.endswith(self._suffix) and _PLAIN(event[self._text_at]):
            return Frame(_CONTENT, event)  # the last content event with another text in it
        if event == _DONE_EVENT:
            self.complete = self.closed = True
            return _DONE_FRAME
        if event.startswith(b"data:") and len(event) - event.find(b"\n") <= 3:  # one data line and the blank one
            try:
                chunk = _decode(event[5:])  # white space around it is JSON's
            except _NOT_TYPED:
                return self._read_fields(event)
            frame = self._read_chunk(chunk, event, event)
            if frame.kind is _CONTENT and frame.usage is None and self._learn_left:
                self._learn_run(event)
            return frame
        return self._read_fields(event)

    def content_run(self, data: bytes) -> tuple[int, int]:
        """Content events that differ from the last one in nothing but their text; see `EventReader.content_run`."""
        prefix, suffix, separator = self._prefix, self._suffix, self._separator
        if not separator or not data.startswith(prefix):
            return 0, 0
        if data.endswith(suffix) and _PLAIN(data[self._text_at]):
            return len(data), 1
        texts = data[len(prefix) :].split(separator)
        last = texts[-1]
        end = last.find(suffix)
        if end < 0:
            texts.pop()  # another kind of event, or not whole
        else:
            texts[-1] = last[:end]
        text = b"".join(texts)
        if not texts or b"" in texts or not _PLAIN(text):
            return 0, 0
        return len(text) + len(texts) * len(separator), len(texts)

    def read_body(self, body: bytes) -> Sequence[Frame]:
        """The events of an equal stream for a JSON body, classified; see `EventReader.read_body`."""
        answer = loads(body)
        if not isinstance(answer, dict) or not isinstance(answer.get("choices"), list) or answer.get("error"):
            problem = problem_of(answer) or Problem("the upstream answered 200 with neither a completion nor an error")
            return (Frame(_ERROR, b"", None, problem.frame()),)
        frames = [self.read(_event(dumps(chunk))) for chunk in self._chunks(answer)]
        return [*frames, self.read(_event(b"[DONE]"))]

    def close(self) -> None:
        """A missing closing event is not made up: a finish_reason is the end of an answer."""

    def _learn_run(self, event: bytes) -> None:
        """Remember a content event around its text, so that events which differ in nothing else need no parsing.

        Such an event is the same JSON with another string in one place, not empty as before, so it says the same.
        """
        self._learn_left -= 1
        found = _TEXT.search(event)
        if found is not None and b'"finish_reason":"' not in event and b'"finish_reason": "' not in event:
            self._prefix, self._suffix = event[: found.start(1)], event[found.end(1) :]
            self._separator = self._suffix + self._prefix
            self._text_at = slice(found.start(1), -len(self._suffix))

    def _read_fields(self, event: bytes) -> Frame:
        """An event that is not one line of the usual JSON."""
        data, raw = data_of(event), forwardable(event)
        failed = _error_event(event)
        if failed is not None:
            return Frame(_ERROR, raw, None, failed)
        if not data:
            return Frame(FrameKind.COMMENT, raw)
        if data.startswith(b"[DONE]"):
            self.complete = self.closed = True
            return Frame(FrameKind.DONE, raw)
        chunk = _lenient(data)
        return Frame(FrameKind.MALFORMED, b"") if chunk is None else self._read_chunk(chunk, event, raw)

    def _read_chunk(self, chunk: _Chunk, event: bytes, raw: bytes) -> Frame:
        """A decoded chunk: the most telling thing in any of its choices decides."""
        usage, error = chunk.usage, chunk.error
        if isinstance(chunk.x_groq, dict):
            usage, error = usage or chunk.x_groq.get("usage"), error or chunk.x_groq.get("error")
        if error:
            return Frame(_ERROR, raw, self._usage(usage), _frame_error(error, event))
        choices = chunk.choices
        if not choices:
            return self._without_choices(chunk, self._usage(usage), event, raw)
        kind = self._kind(choices[0])
        if len(choices) > 1:
            kind = min(kind, *map(self._kind, choices[1:]), key=_RANK.__getitem__)
        usage = usage or choices[0].usage
        if kind is _ERROR:
            told = next((choice.error for choice in choices if choice.error), "finish_reason is 'error'")
            return Frame(_ERROR, raw, self._usage(usage), _frame_error(told, event))
        return Frame(kind, raw, self._usage(usage) if usage else None)

    def _without_choices(self, chunk: _Chunk, usage: Usage | None, event: bytes, raw: bytes) -> Frame:
        """Token counts, Azure's filter results, or an error that does not call itself one."""
        if usage is not None:
            return Frame(FrameKind.USAGE, b"" if self._strip_usage else raw, usage)
        if chunk.choices is msgspec.UNSET:
            problem = problem_of(loads(data_of(event) or b""))
            if problem is not None:
                return Frame(_ERROR, raw, None, problem.frame())
        return Frame(_PREAMBLE, raw)

    def _kind(self, choice: _Choice) -> FrameKind:
        """What one choice of a chunk tells."""
        kind = _PREAMBLE
        if choice.finish_reason:
            if choice.finish_reason == "error":
                return _ERROR
            self._finished.add(choice.index if isinstance(choice.index, int) else 0)
            self.complete = self.complete or len(self._finished) >= self._choices
            if _is_filter(choice.finish_reason):
                return _REFUSAL
            kind = _FINISH
        if choice.text:
            kind = _CONTENT
        if isinstance(choice.delta, dict):
            for key, value in choice.delta.items():
                if not value or key == "role":
                    continue
                if key in _REASONING:
                    self._reasoning_seen = True
                if key in self._ignored:
                    continue
                if key == "refusal":
                    return _REFUSAL
                kind = _CONTENT
                if key not in _KNOWN and len(self.unknown_keys) < _UNKNOWN_MAX:
                    self.unknown_keys.add(key)
        return kind

    def _usage(self, value: object) -> Usage | None:
        """Token counts; reasoning that was counted and never shown is told as hidden."""
        usage = usage_of(value)
        if usage is None or self._reasoning_seen or not usage.reasoning_tokens:
            return usage
        return msgspec.structs.replace(usage, hidden_tokens=usage.reasoning_tokens)


def usage_of(value: object) -> Usage | None:
    """Token counts from a `usage` object in any provider's dialect; None when there is none."""
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
    )


def whole_body(reader: ChunkReader, body: bytes) -> Frame:
    """An answer that was not asked as a stream; see `providers.base.WireProtocol.whole`."""
    error = next((frame for frame in reader.read_body(body) if frame.kind is _ERROR), None)
    answer = loads(body)
    return error or Frame(_CONTENT, body, usage_of(answer.get("usage")) if isinstance(answer, dict) else None)


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def _is_filter(finish_reason: object) -> bool:
    """Whether a finish_reason says that a policy ended the answer; Gemini adds its reason behind a colon."""
    return isinstance(finish_reason, str) and finish_reason.startswith(("content_filter", "refusal"))


def _lenient(data: bytes) -> _Chunk | None:
    """What can be understood of data that the typed decoder refused; None when it is no JSON object."""
    value = loads(data)
    if isinstance(value, list) and value and isinstance(value[0], dict) and "error" in value[0]:  # Gemini
        value = value[0]
    if not isinstance(value, dict):
        return None
    known = _known(_Chunk, value)
    if "choices" in known:
        choices = value["choices"] if isinstance(value["choices"], list) else []
        known["choices"] = [_known(_Choice, choice) for choice in choices if isinstance(choice, dict)]
    return msgspec.convert(known, _Chunk)


def _known(kind: type[msgspec.Struct], said: Mapping[str, object]) -> dict[str, object]:
    """What there is a field for; in other names half a surrogate pair may stand, over which msgspec stumbles."""
    return {name: said[name] for name in kind.__struct_fields__ if name in said}


def _frame_error(error: object, event: bytes) -> ErrorFrame:
    """What an error in a chunk says, with what stands beside it where it is only a text."""
    beside = loads(data_of(event) or b"")
    problem = problem_of({**beside, "error": error} if isinstance(beside, dict) else {"error": error})
    return (problem or _SILENT).frame()


def _error_event(event: bytes) -> ErrorFrame | None:
    """The error of an event that says by its fields that it is one: `event: error`, or llama.cpp's `error: {...}`."""
    named = {name: value for name, value, _ in fields(event)}
    if named.get(b"event") != b"error" and b"error" not in named:
        return None
    value = loads(named.get(b"error") or data_of(event) or b"")
    return (problem_of(value) or problem_of({"error": value}) or _SILENT).frame()
