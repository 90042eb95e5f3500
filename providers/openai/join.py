"""Joins a second OpenAI-compatible stream to what a client already has of the first: one valid stream.

Texts are compared by choice, field and tool index, not events: the two streams may be cut into chunks differently. What
the client has is skipped, and the event in which it ends goes out with the rest of its texts only. Whatever follows
takes the first stream's id, `created` and model. A text that is another one than the client's, or goes on behind texts
that have not been said again yet, ends the joining: never is text put together that no model has said.

Texts are compared as UTF-16, because streams may cut a character between its two halves, each an escape of its own.
Knows nothing of races, calls or why the first stream broke. Sans-I/O. Units: tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from providers.openai.choice_texts import ChoiceVisitor, Fields, NotComparable, Path
from providers.sse import data_of, events_of
from providers.tolerant_json import dumps, loads

_ALWAYS: Final = ("id", "object", "created", "model")  # in every event of a stream
_IF_PRESENT: Final = ("system_fingerprint", "service_tier")
_USAGE: Final = ("prompt_tokens", "completion_tokens", "total_tokens")


class _Differs(Exception):  # never leaves this file
    """The streams do not say the same."""


@dataclass(slots=True)
class Delivered:
    """What a client has of one choice.

    Attributes:
        role: it was told a role.
        texts: pieces by path.
        finish: its finish_reason, None before.
        calls: indexes of its tool calls.
        tokens: log probabilities among the texts.
        said: a chunk has said something, for whoever counts.
    """

    role: bool = False
    texts: dict[Path, list[str]] = field(default_factory=dict)
    finish: object = None
    calls: set[int | None] = field(default_factory=set)
    tokens: int = 0
    has_text: bool = False


class Expected:
    """One text that must be said again."""

    __slots__ = ("_at", "_units")

    def __init__(self, pieces: list[str]) -> None:
        self._units = _units("".join(pieces))
        self._at = 0

    @property
    def done(self) -> bool:
        """All of it was."""
        return self._at == len(self._units)

    def take(self, value: str) -> str:
        """Compare the next piece; returns what of it is new."""
        units = _units(value)
        end = min(self._at + len(units), len(self._units))
        seen = end - self._at
        if self._units[self._at : end] != units[:seen]:
            raise _Differs
        self._at = end
        return units[seen:].decode("utf-16-le", "surrogatepass")


class _Choice(ChoiceVisitor):
    """One choice of the second stream.

    Args:
        delivered: what the client has of it.
        only: the one text that may be new, None for any.
    """

    __slots__ = ("_calls", "_expected", "_finish", "_finish_due", "_has_new", "_is_new", "_left", "_only", "_role")

    def __init__(self, delivered: Delivered, only: Path | None) -> None:
        self._expected = {path: Expected(pieces) for path, pieces in delivered.texts.items() if any(pieces)}
        self._left = len(self._expected)  # texts that were not said again yet
        self._finish = delivered.finish
        self._finish_due = bool(delivered.finish)  # and that was not said again yet
        self._calls = set(delivered.calls)
        self._role = delivered.role or bool(delivered.texts)
        self._only = only
        self._is_new = False
        self._has_new = False  # something new has been said

    @property
    def caught_up(self) -> bool:
        """All that the client has of it was said again."""
        return not self._left and not self._finish_due

    def take(self, choice: Fields) -> Fields | None:
        """What of one chunk's choice is new, None for nothing."""
        self._is_new = False
        rest = self.visit(choice)
        delta = rest.get("delta")
        if isinstance(delta, dict) and delta.get("role"):
            if self._role:
                del delta["role"]
            self._is_new = self._is_new or not self._role
            self._role = True
        if self._is_new and (self._left or self._finish):
            raise _Differs
        finish = choice.get("finish_reason")
        if finish:
            if self._left or self._finish not in (None, finish):
                raise _Differs
            self._is_new = self._is_new or self._finish is None
            self._finish, self._finish_due = finish, False
        self._has_new = self._has_new or self._is_new
        return rest if self._has_new else None

    def visit_text(self, path: Path, value: str) -> str:
        """Compare a text; what is new stays."""
        expected = self._expected.get(path)
        if expected is None or expected.done:
            if self._only not in (None, path) and path[0] != "logprobs":
                raise _Differs  # an answer goes on with another kind of text: a server that reads it otherwise
            self._is_new = True
            return value
        rest = expected.take(value)
        self._left -= expected.done
        self._is_new = self._is_new or bool(rest)
        return rest

    def visit_call(self, index: int | None, labels: Fields, texts: Fields, *, has_name: bool) -> Fields:
        """A piece of a tool call the client has keeps its texts only: the call's id is the first stream's."""
        new = {key: value for key, value in texts.items() if value}
        if index not in self._calls or has_name:
            self._is_new = self._is_new or index not in self._calls
            self._calls.add(index)
            return {**labels, **new}
        return {"index": labels["index"], **new} if new and "index" in labels else new


class StreamJoiner:
    """The `providers.base.Joiner` of OpenAI-compatible streams.

    Args:
        head: what every event of the first stream says.
        delivered: what the client has, by choice.
        only: the one text that may be new, where an answer goes on; None for any.
        prefill_tokens: of the answer's beginning, which the second stream's usage counts as prompt.
        usage_sent: the client has had its token counts.
    """

    def __init__(
        self,
        head: Fields,
        delivered: Mapping[int, Delivered],
        *,
        only: Path | None = None,
        prefill_tokens: int = 0,
        usage_sent: bool = False,
    ) -> None:
        self._head = head
        self._only = only
        self._choices = {index: _Choice(each, only) for index, each in delivered.items()}
        self._prefill_tokens = prefill_tokens
        self._usage_sent = usage_sent
        self._has_new = False  # something new has been said

    @property
    def caught_up(self) -> bool:
        """See `Joiner.caught_up`."""
        return all(choice.caught_up for choice in self._choices.values())

    def feed(self, raw: bytes) -> bytes | None:
        """See `Joiner.feed`."""
        try:
            return b"".join(map(self._event, events_of(raw)))
        except (_Differs, NotComparable):
            return None

    def _event(self, event: bytes) -> bytes:
        """What the client gets of one event."""
        data = data_of(event)
        if not data:
            return event
        if data.startswith(b"[DONE]"):
            if not self.caught_up:
                raise _Differs
            return event
        chunk = loads(data)
        if not isinstance(chunk, dict):
            raise _Differs
        choices = chunk.get("choices")
        if isinstance(choices, list) and choices:
            chunk["choices"] = [rest for rest in map(self._choice, range(len(choices)), choices) if rest is not None]
            if not chunk["choices"]:
                return b""
            self._has_new = True
        elif self._usage_sent if chunk.get("usage") else not self._has_new:
            return b""  # the client has had its token counts, or what comes before content
        return b"data: " + dumps(self._headed(chunk)) + b"\n\n"

    def _choice(self, position: int, choice: object) -> Fields | None:
        if not isinstance(choice, dict):
            raise _Differs
        index = choice.get("index", position)
        number = index if isinstance(index, int) else position
        taker = self._choices.get(number)
        if taker is None:
            taker = self._choices[number] = _Choice(Delivered(), self._only)
        return taker.take(choice)

    def _headed(self, chunk: Fields) -> Fields:
        """The chunk as one of the first stream, with token counts that add up."""
        for key in _ALWAYS:
            if key in self._head:
                chunk[key] = self._head[key]
        for key in _IF_PRESENT:
            if key in chunk and key in self._head:
                chunk[key] = self._head[key]
            else:
                chunk.pop(key, None)
        usage = chunk.get("usage")
        if self._prefill_tokens and isinstance(usage, dict):
            prompt, completion, _ = (usage.get(key) for key in _USAGE)
            if isinstance(prompt, int) and isinstance(completion, int):
                moved = min(self._prefill_tokens, prompt)
                usage["prompt_tokens"], usage["completion_tokens"] = prompt - moved, completion + moved
        return chunk


def _units(text: str) -> bytes:
    return text.encode("utf-16-le", "surrogatepass")
