"""The texts in one choice of a chunk: what it says, field by field, and the same choice with part of that taken out.

Both readers of broken streams walk a choice in the same way: a transcript notes each text, a joiner compares it and
keeps what is new. A text is any string under `delta` or in `text`, by choice, field and tool index; the tokens of
`logprobs` are compared, too, their numbers are not. What is neither (audio, reasoning in parts) cannot be compared.

Knows nothing of events, calls or races. Sans-I/O.
"""

from abc import ABC, abstractmethod
from typing import Final

Path = tuple[str | int | None, ...]
"""Where a text stands in a choice: `("content",)`, `("tool_calls", 0, "function", "arguments")`."""

CONTENT: Final = ("content",)
TEXT: Final = ("text",)
_LABELS: Final = frozenset({"role", "channel"})  # say what the text beside them is, in as many chunks as they like
_CALL_LABELS: Final = frozenset({"index", "id", "type"})
_TOKEN_END: Final = "\0"  # behind each token's text, so that "a", "b" is not "ab"

Fields = dict[str, object]


class NotComparable(Exception):
    """Something was said that is no text."""


class ChoiceVisitor(ABC):
    """Goes through one choice of each chunk."""

    __slots__ = ()

    @abstractmethod
    def visit_text(self, path: Path, value: str) -> str:
        """A text that is not empty; returns what of it stays."""

    @abstractmethod
    def visit_call(self, index: int | None, labels: Fields, texts: Fields, *, has_name: bool) -> Fields:
        """A piece of a tool call.

        Args:
            index: of the call, None where the server gives none.
            labels: its index, id and type, and whatever is empty.
            said: what stays of its texts.
            named: a whole name is among that.

        Returns:
            The piece, empty to drop it.
        """

    def visit(self, choice: Fields) -> Fields:
        """The choice with what stays of its texts.

        Raises:
            NotComparable: It says something that is none.
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
            elif key == "function_call" and isinstance(value, dict):
                said = self._texts((key,), value)
                if said:
                    rest[key] = said
            elif isinstance(value, str):
                left = self.visit_text((key,), value)
                if left:
                    rest[key] = left
            else:
                raise NotComparable(key)
        return rest

    def _piece(self, piece: object) -> Fields:
        """One piece of a tool call."""
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
        """An object of texts with what stays of them; empty ones stay."""
        rest: Fields = {}
        for key, value in values.items():
            if not value:
                rest[key] = value
            elif isinstance(value, str):
                left = self.visit_text((*path, key), value)
                if left:
                    rest[key] = left
            else:
                raise NotComparable(key)
        return rest

    def _logprobs(self, logprobs: Fields) -> Fields:
        """Of chat completions: lists of objects; of completions: lists that run in parallel."""
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
        """How many of the tokens do not stay."""
        dropped = 0
        for token in tokens:
            if not isinstance(token, str):
                raise NotComparable("logprobs")
            left = self.visit_text(("logprobs", key), token + _TOKEN_END)
            if left and left != token + _TOKEN_END:
                raise NotComparable("logprobs")  # half of a token: another token
            dropped += not left
        return dropped
