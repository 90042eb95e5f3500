"""What each event of an OpenAI-compatible stream is, for chat completions and completions alike.

Content is any truthy value under a choice's `delta` other than `role`, and any truthy `text`; a key never seen before
counts. Every event of the winner passes here too, so the usual one costs one typed decode of the few fields that
matter; whatever has an unexpected type in it is looked at again, leniently, before it is called malformed.

Knows nothing of requests, races or assembling. Units: bytes, tokens.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from providers.base import Call, Frame, FrameKind, Usage
from providers.errors import ErrorFrame
from providers.openai_errors import Problem, problem_of
from providers.sse import data_of, fields, forwardable
from providers.tolerant_json import dumps, loads

FirstToken = Literal["any", "answer"]
"""Whether the first content may be reasoning, or must belong to the answer."""

Chunks = Callable[[Mapping[str, object]], Iterable[Mapping[str, object]]]
"""Turns a complete answer into the chunks of an equal stream, usage and closing event left out."""

_REASONING = frozenset({"reasoning", "reasoning_content", "reasoning_details", "thinking", "thinking_blocks"})
_KNOWN = _REASONING | {"content", "refusal", "tool_calls", "function_call", "audio", "annotations"}
_UNKNOWN_MAX = 16


class _Choice(msgspec.Struct, gc=False):
    index: object = 0
    delta: object = None
    text: object = None
    finish_reason: object = None
    usage: object = None  # Moonshot
    error: object = None  # OpenRouter


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None | msgspec.UnsetType = msgspec.UNSET
    usage: object = None
    error: object = None
    x_groq: object = None


_decode = msgspec.json.Decoder(_Chunk).decode


class ChunkReader:
    """The `providers.base.EventReader` of OpenAI-compatible streams.

    Args:
        call: the client's call.
        strip_usage: take out the usage chunk, which the client did not ask for.
        first_token: what counts as content.
        chunks: see `Chunks`.

    Attributes:
        complete: see `EventReader.complete`.
        unknown_keys: names under `delta` that counted as content without being known, at most 16.
    """

    __slots__ = ("_choices", "_chunks", "_finished", "_ignored", "_strip_usage", "complete", "unknown_keys")

    def __init__(self, call: Call, *, strip_usage: bool, first_token: FirstToken, chunks: Chunks) -> None:
        self.complete = False
        self.unknown_keys: set[str] = set()
        self._choices = call.choices
        self._finished: set[int] = set()
        self._strip_usage = strip_usage
        self._ignored = _REASONING if first_token == "answer" else frozenset[str]()
        self._chunks = chunks

    def read(self, event: bytes) -> Frame:
        """Classify one event; see `EventReader.read`."""
        data = data_of(event)
        raw = event
        if data is None or not _is_bare(event, data):
            raw = forwardable(event)
            failed = _error_event(event)
            if failed is not None:
                return Frame(FrameKind.ERROR, raw, None, failed)
        if not data:
            return Frame(FrameKind.COMMENT, raw)
        if data.startswith(b"[DONE]"):
            self.complete = True
            return Frame(FrameKind.DONE, raw)
        try:
            chunk = _decode(data)
        except (msgspec.DecodeError, ValueError, RecursionError):
            lenient = _lenient(data)
            if lenient is None:
                return Frame(FrameKind.MALFORMED, b"")
            chunk = lenient
        if not chunk.choices or chunk.error or chunk.x_groq:
            return self._unusual(chunk, data, raw)
        return self._choices_frame(chunk.choices, raw, usage_of(chunk.usage))

    def read_body(self, body: bytes) -> Sequence[Frame]:
        """The events of an equal stream for a JSON body, classified; see `EventReader.read_body`."""
        answer = loads(body)
        if not isinstance(answer, dict) or not isinstance(answer.get("choices"), list) or answer.get("error"):
            problem = problem_of(answer) or Problem("the upstream answered 200 with neither a completion nor an error")
            return (Frame(FrameKind.ERROR, b"", None, problem.frame()),)
        frames = [self.read(_event(dumps(chunk))) for chunk in self._chunks(answer)]
        if answer.get("usage"):
            head = {key: answer[key] for key in ("id", "object", "created", "model") if key in answer}
            frames.append(self.read(_event(dumps({**head, "choices": [], "usage": answer["usage"]}))))
        frames.append(self.read(_event(b"[DONE]")))
        return frames

    def _choices_frame(self, choices: list[_Choice], raw: bytes, usage: Usage | None) -> Frame:
        """A chunk with choices: the most telling thing in any of them decides."""
        content = refusal = finished = False
        for choice in choices:
            if isinstance(choice.delta, dict):
                for key, value in choice.delta.items():
                    if not value or key == "role":
                        continue
                    if key == "refusal":
                        refusal = True
                    elif key not in self._ignored:
                        content = True
                        if key not in _KNOWN and len(self.unknown_keys) < _UNKNOWN_MAX:
                            self.unknown_keys.add(key)
            if choice.text:
                content = True
            if choice.finish_reason:
                if choice.finish_reason == "error":
                    return Frame(FrameKind.ERROR, raw, usage, _problem(choice.error).frame())
                finished = True
                refusal = refusal or _is_filter(choice.finish_reason)
                self._finish(choice.index)
            if choice.usage is not None:
                usage = usage_of(choice.usage) or usage
        if refusal:
            return Frame(FrameKind.REFUSAL, raw, usage)
        if content:
            return Frame(FrameKind.CONTENT, raw, usage)
        return Frame(FrameKind.FINISH if finished else FrameKind.PREAMBLE, raw, usage)

    def _unusual(self, chunk: _Chunk, data: bytes, raw: bytes) -> Frame:
        """A chunk with an error or without choices, or one of Groq's."""
        groq = chunk.x_groq if isinstance(chunk.x_groq, dict) else {}
        if chunk.error or groq.get("error"):
            return Frame(FrameKind.ERROR, raw, None, _problem(chunk.error or groq["error"], data).frame())
        usage = usage_of(chunk.usage) or usage_of(groq.get("usage"))
        if chunk.choices:
            return self._choices_frame(chunk.choices, raw, usage)
        if usage is not None:
            return Frame(FrameKind.USAGE, b"" if self._strip_usage else raw, usage)
        if chunk.choices is msgspec.UNSET:
            problem = problem_of(loads(data))
            if problem is not None:
                return Frame(FrameKind.ERROR, raw, None, problem.frame())
        return Frame(FrameKind.PREAMBLE, raw)

    def _finish(self, index: object) -> None:
        """A choice has its finish_reason."""
        self._finished.add(index if isinstance(index, int) else 0)
        self.complete = self.complete or len(self._finished) >= self._choices


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
        _count(value.get("prompt_tokens")),
        _count(value.get("completion_tokens")),
        _count(cached),
        _count(reasoning),
    )


def body_usage(body: bytes) -> Usage | None:
    """Token counts of an answer that was not streamed."""
    answer = loads(body)
    return usage_of(answer.get("usage")) if isinstance(answer, dict) else None


def _is_bare(event: bytes, data: bytes) -> bool:
    """Whether an event is one data line, so that it is forwarded as it is; told by its length alone.

    `data: ` and LF LF make 8 bytes around the data, CRLF CRLF 10. A field more makes 11 behind `data: `, and at least 10
    (`id`, LF, `data:`, LF LF) anywhere else.
    """
    around = len(event) - len(data)
    return around < 10 or (around == 10 and event.startswith(b"data: "))


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def _count(value: object) -> int | None:
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return int(value) if whole and value >= 0 else None


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
    if "choices" in value:
        choices = value["choices"] if isinstance(value["choices"], list) else []
        value["choices"] = [choice for choice in choices if isinstance(choice, dict)]
    return msgspec.convert(value, _Chunk)


def _problem(error: object, data: bytes = b"{}") -> Problem:
    """What an error in a chunk says, with what stands beside it where it is only a text."""
    beside = loads(data)
    found = problem_of({**beside, "error": error} if isinstance(beside, dict) else {"error": error})
    return found or Problem("the upstream ended its stream with finish_reason 'error'")


def _error_event(event: bytes) -> ErrorFrame | None:
    """The error of an event that says by its fields that it is one: `event: error`, or llama.cpp's `error: {...}`."""
    named = {name: value for name, value, _ in fields(event)}
    if named.get(b"event") != b"error" and b"error" not in named:
        return None
    value = loads(named.get(b"error") or data_of(event) or b"")
    problem = problem_of(value) or problem_of({"error": value})
    return (problem or Problem("the upstream sent an error event without a message")).frame()
