"""Visits the texts in one choice of a chunk, field by field, and returns the choice with some text removed.

Two visitors serve the recovery of broken streams: a transcript records each text, a joiner compares it and returns
the new part. A text is any string under `delta` or in `text`, identified by choice, field and tool index. The tokens of
`logprobs` are compared too, but not their numbers. Signed blocks of thinking are compared by their number: each is sent
whole, from one answer. Other content (audio, reasoning in parts) cannot be compared.

Sans-I/O.
"""

from abc import ABC, abstractmethod
from typing import Final

from providers.comparison import Differs

Path = tuple[str | int | None, ...]
"""The place of a text in a choice: `("content",)`, `("tool_calls", 0, "function", "arguments")`."""

CONTENT: Final = ("content",)
TEXT: Final = ("text",)
SIGNED: Final = ("thinking_blocks",)
THINKING: Final = frozenset({("reasoning",), ("reasoning_content",), SIGNED})
"""Places of thinking, the last of its signed blocks."""
_BLOCK: Final = "\0"  # stands for a signed block
_LABELS: Final = frozenset({"role", "channel"})  # the kind of the text in the same delta, in any number of chunks
_CALL_LABELS: Final = frozenset({"index", "id", "type"})
_TOKEN_END: Final = "\0"  # appended to each token's text, so that "a", "b" differs from "ab"

Fields = dict[str, object]


class NotComparable(Differs):
    """The choice has content that is not text."""


class ChoiceVisitor(ABC):
    """Visits the texts in one choice of each chunk."""

    __slots__ = ()

    @abstractmethod
    def visit_text(self, path: Path, value: str) -> str:
        """Visit a text that is not empty; return the part to send."""

    @abstractmethod
    def visit_call(self, index: int | None, labels: Fields, texts: Fields, *, has_name: bool) -> Fields:
        """Visit a piece of a tool call.

        Args:
            index: index of the call, None if the server sends none.
            labels: its index, id and type, and all empty fields.
            texts: the part of its texts to send.
            has_name: `texts` has a whole name.

        Returns:
            The piece, empty to drop it.
        """

    def visit(self, choice: Fields) -> Fields:
        """Visit a choice; return it with the parts of its texts to send.

        Raises:
            NotComparable: the choice has content that is not text.
        """
        rest = dict(choice)
        delta = choice.get("delta")
        if isinstance(delta, dict):
            rest["delta"] = self._delta(delta)
        text = choice.get("text")
        if isinstance(text, str) and text:
            rest["text"] = self.visit_text(TEXT, text)
        logprobs = choice.get("logprobs")
        if isinstance(logprobs, dict):
            rest["logprobs"] = self._logprobs(logprobs)
        return rest

    def _delta(self, delta: Fields) -> Fields:
        rest: Fields = {}
        for key, value in delta.items():
            if not value or key in _LABELS:
                rest[key] = value
            elif key == "tool_calls" and isinstance(value, list):
                pieces = [piece for piece in map(self._piece, value) if piece]
                if pieces:
                    rest[key] = pieces
            elif key == "thinking_blocks" and isinstance(value, list):
                new = self.visit_text((key,), _BLOCK * len(value))
                if new:
                    rest[key] = value[-len(new) :]
            elif key == "function_call" and isinstance(value, dict):
                texts = self._texts((key,), value)
                if texts:
                    rest[key] = texts
            elif isinstance(value, str):
                new = self.visit_text((key,), value)
                if new:
                    rest[key] = new
            else:
                raise NotComparable(key)
        return rest

    def _piece(self, piece: object) -> Fields:
        if not isinstance(piece, dict):
            raise NotComparable("tool_calls")
        index = piece.get("index")
        number = index if isinstance(index, int) else None
        labels: Fields = {}
        texts: Fields = {}
        has_name = False
        for key, value in piece.items():
            if key in _CALL_LABELS or not value:
                labels[key] = value
            elif isinstance(value, dict):  # `function` or `custom`
                texts[key] = kept = self._texts(("tool_calls", number, key), value)
                has_name = has_name or bool(kept.get("name") and kept["name"] == value["name"])
            else:
                raise NotComparable(key)
        return self.visit_call(number, labels, texts, has_name=has_name)

    def _texts(self, path: Path, values: Fields) -> Fields:
        """Visit an object of texts; empty ones stay in it."""
        rest: Fields = {}
        for key, value in values.items():
            if not value:
                rest[key] = value
            elif isinstance(value, str):
                new = self.visit_text((*path, key), value)
                if new:
                    rest[key] = new
            else:
                raise NotComparable(key)
        return rest

    def _logprobs(self, logprobs: Fields) -> Fields:
        """Visit logprobs: lists of objects in chat completions, parallel lists in completions."""
        tokens = logprobs.get("tokens")
        if isinstance(tokens, list):
            seen = self._tokens("tokens", tokens)
            return {key: value[seen:] if isinstance(value, list) else value for key, value in logprobs.items()}
        rest: Fields = {}
        for key, value in logprobs.items():
            if isinstance(value, list):
                tokens = [item.get("token") if isinstance(item, dict) else None for item in value]
                rest[key] = value[self._tokens(key, tokens) :]
            else:
                rest[key] = value
        return rest

    def _tokens(self, key: str, tokens: list[object]) -> int:
        """Visit tokens; return the number of dropped ones."""
        dropped = 0
        for token in tokens:
            if not isinstance(token, str):
                raise NotComparable("logprobs")
            new = self.visit_text(("logprobs", key), token + _TOKEN_END)
            if new and new != token + _TOKEN_END:
                raise NotComparable("logprobs")  # part of a token is another token
            dropped += not new
        return dropped
