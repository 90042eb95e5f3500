"""Compares a second answer with the part of the first that a client has, for the joiners of all APIs.

A text that differs, or that continues before other texts have been repeated, ends the joining: texts of two answers are
never joined. The exception is thinking. A client that has nothing but thinking gets the second answer from its
beginning, its own thinking included, because thinking is not promised to repeat and is no part of the answer. Until
then the events of the second answer are stored; they are at most as long as the client's part.

Texts are compared as UTF-16, because a stream may split a character into its two surrogates, each a separate escape.
Sans-I/O.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Final

from ttft_gateway.apis.sse import events_of

_TEXT_MIN: Final = 2  # characters; a shorter text is likely to come twice
_REPEATED_MIN: Final = 24  # characters of a text's beginning that are no chance; some five words
_TAIL_MIN: Final = 40  # characters of a text's end that are no chance; songs repeat lines
_TAIL_MAX: Final = 200  # characters of a text's end in which a repetition may begin
_SPACES: Final = re.compile(r"\s+")


class Differs(Exception):
    """The second answer differs from the client's part of the first; caught in `ComparingJoiner.feed`."""


class Expected:
    """One text that the second answer must repeat.

    Args:
        pieces: pieces of the text, in order.
    """

    __slots__ = ("_at", "_units")

    def __init__(self, pieces: Iterable[str]) -> None:
        self._units = _units("".join(pieces))
        self._at = 0

    @property
    def done(self) -> bool:
        """The whole text was repeated."""
        return self._at == len(self._units)

    def take(self, value: str) -> str:
        """Compare the next piece; return the new part of it.

        Raises:
            Differs: the piece is another text.
        """
        units = _units(value)
        end = min(self._at + len(units), len(self._units))
        seen = end - self._at
        if self._units[self._at : end] != units[:seen]:
            raise Differs
        self._at = end
        return units[seen:].decode("utf-16-le", "surrogatepass")


class Continued(Expected):
    """The text that a continuation adds to a client's text.

    A server that ignores the beginning in the request answers anew, so that the client would get its text twice. While
    the first words of the continuation are also the first ones of the client's text, or a long part of its end, they
    are withheld. A repetition of the whole text is skipped, as by a replay; any other ends the joining. Words that end
    before that are given to the client. A text that repeats itself is not compared, because it may do so once more.

    White space at the end of a client's text is not part of the request. A model generates it again, or generates other
    white space in its place; then the client's stays.

    Args:
        text: the text in the request; empty: nothing is compared.
        rest: the white space.
        is_whole: the client has no other text, so that a repetition can be skipped.

    Attributes:
        repeated: the continuation has repeated the client's text.
    """

    __slots__ = ("_begun", "_held", "_is_whole", "_rest", "_starts", "_text", "repeated")

    def __init__(self, text: str, rest: str, *, is_whole: bool = True) -> None:
        super().__init__(())
        self._text = text
        self._rest = rest
        self._is_whole = is_whole
        self._begun = ""  # the continuation, while it is white space
        self._held = ""  # the continuation, while it may be a repetition
        self._starts = _starts(text)  # places in the text from which it may be repeated; none: it is not
        self.repeated = False

    @property
    def done(self) -> bool:
        """Nothing but white space is withheld."""
        return not self._held.strip()

    def take(self, value: str) -> str:
        """Return the part of the next piece that is new and follows the white space.

        Raises:
            Differs: the continuation has begun to repeat the client's text.
        """
        if self._starts:
            self._held += value
            value = self._compared(self._held)
        return self._after_space(value) if self._rest else value

    def _compared(self, held: str) -> str:
        """Return the new part of the continuation so far, empty while it may be a repetition."""
        text, starts = self._text, []
        for start in self._starts:
            rest = text[start:]
            if held.startswith(rest):
                self.repeated = True
                if start or not self._is_whole:
                    raise Differs
                self._starts, self._held = (), ""
                return held[len(rest) :]
            if rest.startswith(held):
                starts.append(start)
            elif start == 0 and held.startswith(text[:_REPEATED_MIN]):
                self.repeated = True
                raise Differs
        self._starts = tuple(starts)
        if starts:
            return ""
        self._held = ""
        return held

    def _after_space(self, value: str) -> str:
        self._begun += value
        if self._rest.startswith(self._begun) and self._begun != self._rest:
            return ""
        new = after_space(self._begun, self._rest)
        if new or self._begun.startswith(self._rest):
            self._rest = ""
        return new


def _starts(text: str) -> tuple[int, ...]:
    """Return the places from which a server may repeat a text: its beginning, and words at its end."""
    if len(text) < _TEXT_MIN or text.find(text[:_REPEATED_MIN], 1) >= 0:
        return ()
    last = len(text) - _TAIL_MIN
    words = (match.end() for match in _SPACES.finditer(text, max(0, last - _TAIL_MAX)))
    return (0, *(place for place in words if place <= last and text.find(text[place:]) == place))


def after_space(text: str, rest: str) -> str:
    """Return a continuation without the white space at its beginning, for which the client has `rest`."""
    return text.removeprefix(rest) if text.startswith(rest) else text.lstrip()


def is_halved(text: str) -> bool:
    """Return True if a text begins or ends in the middle of a character."""
    return any("\ud800" <= char <= "\udfff" for char in text)


class ComparingJoiner(ABC):
    """A `providers.recovery.Joiner` that compares, and restarts where the client has nothing but thinking.

    Args:
        may_restart: the client has nothing but thinking.
        continued: the text that is continued; None for a second answer.

    Attributes:
        restarted: the client gets the second answer from its beginning.
    """

    def __init__(self, *, may_restart: bool, continued: Continued | None = None) -> None:
        self.restarted = False
        self._continued = continued
        self._repeated: list[bytes] | None = [] if may_restart else None  # events with nothing new; None: no restart

    @property
    @abstractmethod
    def caught_up(self) -> bool:
        """See `Joiner.caught_up`."""

    @property
    def repeated(self) -> bool:
        """See `Joiner.repeated`."""
        return self._continued is not None and self._continued.repeated

    def feed(self, raw: bytes) -> bytes | None:
        """See `Joiner.feed`."""
        try:
            return b"".join(map(self._fed, events_of(raw)))
        except Differs:
            return None

    @abstractmethod
    def _event(self, event: bytes) -> bytes:
        """Return the client's bytes for one event.

        Raises:
            Differs: the answers differ.
        """

    @abstractmethod
    def _restart(self) -> bytes:
        """Expect nothing of the second answer any more; return the events that end the client's thinking."""

    def _fed(self, event: bytes) -> bytes:
        if self._repeated is None:
            return self._event(event)
        try:
            new = self._event(event)
        except Differs:
            repeated, self._repeated, self.restarted = [*self._repeated, event], None, True
            return self._restart() + b"".join(map(self._event, repeated))
        if self.caught_up:
            self._repeated = None
        elif not new:
            self._repeated.append(event)
        return new


def _units(text: str) -> bytes:
    return text.encode("utf-16-le", "surrogatepass")
