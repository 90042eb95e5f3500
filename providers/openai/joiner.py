"""Joins a second OpenAI-compatible stream to the part of the first that the client already has: one valid stream.

Texts are compared by choice, field and tool index; events are not, because the two streams may be chunked differently.
Text that the client has is skipped; the event in which it ends is sent with the new part of its texts only. Later
events get the first stream's id, `created` and model. `comparison.py` has the rules of differences, and of the restart
of a stream that has nothing but thinking: a blank line separates both thinkings, as a message has one place for them.
Sans-I/O. Units: tokens.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from providers.comparison import ComparingJoiner, Continued, Differs, Expected
from providers.openai.choice_texts import SIGNED, THINKING, ChoiceVisitor, Fields, Path
from ttft_gateway.apis.openai.events import finish_of
from ttft_gateway.apis.sse import data_of
from ttft_gateway.apis.tolerant_json import dumps, loads

_ALWAYS: Final = ("id", "object", "created", "model")  # in every event of a stream
_IF_PRESENT: Final = ("system_fingerprint", "service_tier")
REASONING: Final = THINKING - {SIGNED}
SEPARATOR: Final = "\n\n"
"""Between the thinking of a stream that broke and the thinking of the answer that replaces it."""
_USAGE: Final = ("prompt_tokens", "completion_tokens", "total_tokens")


@dataclass(slots=True)
class Delivered:
    """The part of one choice that a client has been sent.

    Attributes:
        role: the role was sent.
        texts: pieces of text by path.
        finish: its finish_reason, None if not sent yet.
        calls: indexes of its tool calls.
        tokens: number of log probabilities among the texts.
        has_text: the last chunk had text, for counting events.
    """

    role: bool = False
    texts: dict[Path, list[str]] = field(default_factory=dict)
    finish: object = None
    calls: set[int | None] = field(default_factory=set)
    tokens: int = 0
    has_text: bool = False


class _Choice(ChoiceVisitor):
    """One choice of the second stream.

    Args:
        delivered: the part that the client has.
        only: the fields that may have new text, None for any.
        continued: the text that is continued, by its path.
        is_separated: the client has the thinking of another answer.
    """

    __slots__ = (
        "_calls",
        "_continued",
        "_expected",
        "_finish",
        "_finish_due",
        "_has_new",
        "_is_new",
        "_is_separated",
        "_only",
        "_role",
        "_unrepeated",
    )

    def __init__(
        self,
        delivered: Delivered,
        only: Collection[str] | None = None,
        continued: Mapping[Path, Continued] | None = None,
        *,
        is_separated: bool = False,
    ) -> None:
        self._expected = {path: Expected(pieces) for path, pieces in delivered.texts.items() if any(pieces)}
        self._unrepeated = len(self._expected)  # texts that were not repeated yet
        self._continued = tuple((continued or {}).values())
        self._expected |= continued or {}
        self._finish = delivered.finish
        self._finish_due = bool(delivered.finish)  # the finish_reason was not repeated yet
        self._calls = set(delivered.calls)
        self._role = delivered.role or bool(delivered.texts)
        self._only = only
        self._is_separated = is_separated
        self._is_new = False  # the current chunk has new content
        self._has_new = False  # a chunk had new content

    @property
    def has_role(self) -> bool:
        """The client has the role."""
        return self._role

    @property
    def caught_up(self) -> bool:
        """All that the client has of this choice was repeated."""
        return not self._unrepeated and not self._finish_due and all(each.done for each in self._continued)

    def take(self, choice: Fields) -> Fields | None:
        """Return the new part of one chunk's choice, None for none."""
        self._is_new = False
        rest = self.visit(choice)
        delta = rest.get("delta")
        if isinstance(delta, dict) and delta.get("role"):
            if self._role:
                del delta["role"]
            self._is_new = self._is_new or not self._role
            self._role = True
        if self._is_new and (self._unrepeated or self._finish):
            raise Differs
        finish = finish_of(choice)
        if finish:
            if self._unrepeated or self._finish not in (None, finish) or not all(each.done for each in self._continued):
                raise Differs
            self._is_new = self._is_new or self._finish is None
            self._finish, self._finish_due = finish, False
        self._has_new = self._has_new or self._is_new
        return rest if self._has_new else None

    def visit_text(self, path: Path, value: str) -> str:
        """Compare a text; return the new part."""
        expected = self._expected.get(path)
        if expected is None and path == SIGNED and not THINKING.issuperset(self._expected):
            return ""  # the signature of another answer's thinking: the client has its own thinking, and more
        is_repeated = expected is None or expected.done or isinstance(expected, Continued)
        if is_repeated and self._only is not None and path[0] not in self._only and path[0] != "logprobs":
            raise Differs  # the answer continues in another field: this server parses it differently
        if expected is not None:
            value = expected.take(value)
            self._unrepeated -= expected.done and not is_repeated
        if value:
            self._is_new = True
        if self._is_separated and path in REASONING:
            self._is_separated = False
            return SEPARATOR + value
        return value

    def visit_call(self, index: int | None, labels: Fields, texts: Fields, *, has_name: bool) -> Fields:
        """Return only the texts of a tool call that the client has: the client has the first stream's id."""
        new = {key: value for key, value in texts.items() if value}
        if index not in self._calls or has_name:
            self._is_new = self._is_new or index not in self._calls
            self._calls.add(index)
            return {**labels, **new}
        return {"index": labels["index"], **new} if new and "index" in labels else new


class StreamJoiner(ComparingJoiner):
    """The `providers.recovery.Joiner` of OpenAI-compatible streams.

    Args:
        head: fields with equal values in every event of the first stream.
        delivered: the part that the client has, by choice.
        only: the fields that may have new text, for a continuation; None for any.
        continued: the text that is continued, by its path.
        prefill_tokens: tokens of the answer's beginning, which the second stream's usage counts as prompt.
        usage_sent: the client has its token counts.
    """

    def __init__(
        self,
        head: Fields,
        delivered: Mapping[int, Delivered],
        *,
        only: Collection[str] | None = None,
        continued: Mapping[Path, Continued] | None = None,
        prefill_tokens: int = 0,
        usage_sent: bool = False,
    ) -> None:
        own = next(iter((continued or {}).values()), None)
        super().__init__(may_restart=only is None and may_restart(delivered), continued=own)
        self._head = head
        self._only = only
        self._choices = {index: _Choice(each, only, continued) for index, each in delivered.items()}
        self._prefill_tokens = prefill_tokens
        self._usage_sent = usage_sent
        self._has_new = False  # an event had new content

    @property
    def caught_up(self) -> bool:
        return all(choice.caught_up for choice in self._choices.values())

    def _restart(self) -> bytes:
        self._choices[0] = _Choice(Delivered(self._choices[0].has_role), is_separated=True)
        self._has_new = False
        return b""

    def _event(self, event: bytes) -> bytes:
        data = data_of(event)
        if not data:
            return event
        if data.startswith(b"[DONE]"):
            if not self.caught_up:
                raise Differs
            return event
        chunk = loads(data)
        if not isinstance(chunk, dict):
            raise Differs
        choices = chunk.get("choices")
        if isinstance(choices, list) and choices:
            chunk["choices"] = [rest for rest in map(self._choice, range(len(choices)), choices) if rest is not None]
            if not chunk["choices"]:
                return b""
            self._has_new = True
        elif self._usage_sent if chunk.get("usage") else not self._has_new:
            return b""  # the client has these token counts, or this event before content
        return b"data: " + dumps(self._headed(chunk)) + b"\n\n"

    def _choice(self, position: int, choice: object) -> Fields | None:
        if not isinstance(choice, dict):
            raise Differs
        index = choice.get("index", position)
        number = index if isinstance(index, int) else position
        joined = self._choices.get(number)
        if joined is None:
            joined = self._choices[number] = _Choice(Delivered(), self._only)
        return joined.take(choice)

    def _headed(self, chunk: Fields) -> Fields:
        """Give a chunk the first stream's id, date and model, and token counts of the whole answer."""
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


def may_restart(delivered: Mapping[int, Delivered]) -> bool:
    """Return True if a client has nothing but thinking, of the first choice."""
    choice = delivered.get(0, Delivered())
    return len(delivered) == 1 and not choice.finish and bool(choice.texts) and THINKING.issuperset(choice.texts)
