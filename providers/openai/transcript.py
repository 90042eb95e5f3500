"""Records the text of one OpenAI-compatible answer that a client has been sent, by choice, field and tool index.

Built only after a stream broke, from the forwarded events. It makes the joiner that compares a second answer, and the
request that continues the first one. Sans-I/O. Units: tokens are counted as content events, or as log probabilities if
there are any: an event is at least a token.
"""

import re
from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from providers.comparison import Continued, is_halved
from providers.openai.choice_texts import CONTENT, TEXT, THINKING, ChoiceVisitor, Fields, NotComparable, Path
from providers.openai.event_runs import runs_of
from providers.openai.joiner import REASONING, SEPARATOR, Delivered, StreamJoiner, may_restart
from providers.openai.request import edited, lowered, value_of
from providers.recovery import Continuation
from ttft_gateway.apis.base import Api, Call, Prefix
from ttft_gateway.apis.errors import ProtocolError
from ttft_gateway.apis.openai.events import finish_of
from ttft_gateway.apis.sse import data_of, object_in
from ttft_gateway.apis.tolerant_json import dumps, loads

_CHOICES_OF_TOOLS: Final = frozenset({b"null", b'"auto"', b'"none"'})  # with others an answer begins with a call
_HEAD: Final = ("id", "object", "created", "model", "system_fingerprint", "service_tier")
_LIMITS: Final = ("max_tokens", "max_completion_tokens")
_NO_EFFECT: Final = frozenset(
    {b"null", b"false", b"[]", b"{}", b'"none"', b'"text"', b'{"type":"text"}', b'{"type": "text"}'}
)
# Fields with which a server would parse a continuation as the beginning of an answer (grammars, parsers of tool calls),
# with other values in a continuation (logprobs of completions have offsets in the text), or that add a prefill.
_NOT_CONTINUABLE: Final = frozenset(
    {
        "add_generation_prompt",
        "best_of",
        "continue_final_message",
        "ebnf",
        "echo",
        "function_call",
        "functions",
        "guided_choice",
        "guided_grammar",
        "guided_json",
        "guided_regex",
        "json_schema",
        "prompt_logprobs",
        "regex",
        "response_format",
        "return_token_ids",
        "structural_tag",
        "structured_outputs",
        "suffix",
        "use_beam_search",
    }
)


_TEXT: Final = re.compile(rb'"(?:content|text|reasoning_content|reasoning|arguments)": ?"([^"\\]+)"').search


class OpenAIRecoverer:
    """The `providers.recovery.Recoverer` of chat completions and completions."""

    continues = "only one text, without a format, can be continued from its beginning"

    def is_deterministic(self, call: Call) -> bool:
        """Temperature 0, or a seed; see `Recoverer.is_deterministic`."""
        if "seed" in call.spans and _active_value(call, "seed") is not None:
            return True
        temperature = _active_value(call, "temperature") if "temperature" in call.spans else None
        return temperature is not None and loads(temperature) == 0

    def prefix(self, call: Call) -> Prefix | None:
        """One choice of plain text; see `Recoverer.prefix`."""
        if call.choices != 1 or not call.repeatable:
            return None
        if "logprobs" in call.spans and call.api is Api.COMPLETIONS and _active_value(call, "logprobs") is not None:
            return None
        if any(_active_value(call, key) is not None for key in _NOT_CONTINUABLE if key in call.spans):
            return None
        has_tools = _active_value(call, "tools") is not None
        if has_tools and "tool_choice" in call.spans and value_of(call, "tool_choice") not in _CHOICES_OF_TOOLS:
            return None
        return call.api, has_tools

    def transcript(self, call: Call) -> "OpenAITranscript":
        return OpenAITranscript(call, self.prefix(call))


class OpenAITranscript(ChoiceVisitor):
    """A `providers.recovery.Transcript`.

    Args:
        call: the call that was answered.
        prefix: see `Recoverer.prefix`.
    """

    __slots__ = (
        "_call",
        "_choices",
        "_current",
        "_head",
        "_is_separated",
        "_prefix",
        "comparable",
        "events",
        "usage_sent",
    )

    def __init__(self, call: Call, prefix: Prefix | None) -> None:
        self._call = call
        self._prefix = prefix
        self._is_separated = False  # a separator precedes the next thinking
        self._head: Fields = {}
        self._choices: dict[int, Delivered] = {}
        self._current = Delivered()  # the choice that is being visited
        self.comparable = True
        self.events = 0
        self.usage_sent = False

    @property
    def tokens(self) -> int:
        listed = sum(delivered.tokens for delivered in self._choices.values())
        return max(self.events, listed)

    @property
    def restartable(self) -> bool:
        return self.comparable and may_restart(self._choices)

    def abandon(self) -> None:
        for delivered in self._choices.values():
            delivered.texts = {path: text for path, text in delivered.texts.items() if path not in THINKING}
        self._is_separated = True

    def add(self, raw: bytes) -> None:
        for event, events in runs_of(raw, _TEXT):
            self._event(event, events)

    def _event(self, event: bytes, events: int) -> None:
        """Read one event, made of `events` events of the upstream."""
        try:
            chunk = object_in(data_of(event))
        except ProtocolError:  # bytes that are no UTF-8 in a field that is not read
            self.comparable = False
            return
        if chunk is not None:
            self._chunk(chunk)
            self.events += events - 1

    def joiner(self) -> StreamJoiner:
        return StreamJoiner(self._head, self._choices, usage_sent=self.usage_sent)

    def continuation(self) -> Continuation | None:
        """See `Transcript.continuation`.

        White space at the end is not sent: chat templates remove it.
        """
        chat = self._call.api is Api.CHAT
        path = CONTENT if chat else TEXT
        delivered = self._choices.get(0)
        if (
            self._prefix is None
            or not self.comparable
            or len(self._choices) != 1
            or delivered is None
            or delivered.finish
        ):
            return None
        text = "".join(delivered.texts.get(path, ()))
        sent = text.rstrip() if chat else text
        paths = {
            key for key in delivered.texts if key[0] != "logprobs" or sent != text
        }  # the log probabilities of unsent white space would come twice
        if paths != {path} or not sent:
            return None
        unsent = 1 if len(sent) < len(text) else 0
        values = self._values(sent, self.tokens - unsent)
        if values is None:
            return None
        rest = {0: Delivered(delivered.role or bool(text))}
        only = {path[0], "tool_calls"} if self._prefix[1] else path
        compared = "" if delivered.tokens else sent  # log probabilities cannot be withheld
        continued: dict[Path, Continued] = {path: Continued(compared, text[len(sent) :])}
        joiner = StreamJoiner(self._head, rest, only=only, continued=continued, prefill_tokens=self.tokens - unsent)
        call = replace(edited(self._call, values), continues=True)
        return Continuation(call, joiner, self.tokens - unsent)

    def _values(self, sent: str, tokens: int) -> Mapping[str, bytes] | None:
        """Return the values to change in the client's body, None if a continuation is impossible."""
        values = lowered(self._call, _LIMITS, self.tokens, tokens)
        if values is None:
            return None
        if is_halved(sent):
            return None  # the text ends in the middle of a character
        if self._call.api is Api.COMPLETIONS:
            prompt = value_of(self._call, "prompt")
            if not prompt.startswith(b'"'):
                return None
            return {**values, "prompt": prompt[:-1] + dumps(sent)[1:]}
        messages = value_of(self._call, "messages")
        turns = loads(messages)
        last = turns[-1] if isinstance(turns, list) and turns else None
        if not isinstance(last, dict) or last.get("role") == "assistant":
            return None  # the client's own request has a prefill
        turn = dumps({"role": "assistant", "content": sent})
        prefill = {"continue_final_message": b"true", "add_generation_prompt": b"false"}
        return {**values, **prefill, "messages": messages[:-1] + b"," + turn + b"]"}

    def _chunk(self, chunk: Fields) -> None:
        for key in _HEAD:
            if chunk.get(key) and key not in self._head:
                self._head[key] = chunk[key]
        choices = chunk.get("choices")
        if not choices and chunk.get("usage"):
            self.usage_sent = True
        events = 0
        for position, choice in enumerate(choices if isinstance(choices, list) else ()):
            if isinstance(choice, dict):
                events += self._add(position, choice)
        self.events += events

    def _add(self, position: int, choice: Fields) -> int:
        """Record one choice of a chunk; return True if it has text."""
        index = choice.get("index", position)
        self._current = self._choices.setdefault(index if isinstance(index, int) else position, Delivered())
        self._current.has_text = False
        try:
            self.visit(choice)
        except NotComparable:
            self.comparable = False
        delta = choice.get("delta")
        self._current.role = self._current.role or (isinstance(delta, dict) and bool(delta.get("role")))
        self._current.finish = finish_of(choice) or self._current.finish
        return self._current.has_text

    # ChoiceVisitor

    def visit_text(self, path: Path, value: str) -> str:
        """Record a text, and return all of it."""
        if self._is_separated and path in REASONING:
            value, self._is_separated = value.removeprefix(SEPARATOR), False
        self._current.texts.setdefault(path, []).append(value)
        if path[0] == "logprobs":
            self._current.tokens += 1
        elif path[0] != "thinking_blocks":
            self._current.has_text = True
        return value

    def visit_call(self, index: int | None, labels: Fields, texts: Fields, *, has_name: bool) -> Fields:
        """Record a tool call, and return all of it."""
        self._current.calls.add(index)
        return {**labels, **texts}


def _active_value(call: Call, key: str) -> bytes | None:
    """Return the JSON of a top-level value, None if it is absent or has no effect."""
    span = call.spans.get(key)
    if span is None:
        return None
    value = call.body[span[0] : span[1]]
    return None if value in _NO_EFFECT else value
