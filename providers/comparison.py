"""Compares a second answer with the part of the first that a client has, for the joiners of all APIs.

A text that differs, or that continues before other texts have been repeated, ends the joining: texts of two answers are
never joined. The exception is thinking. A client that has nothing but thinking gets the second answer from its
beginning, its own thinking included, because thinking is not promised to repeat and is no part of the answer. Until
then the events of the second answer are stored; they are at most as long as the client's part.

Texts are compared as UTF-16, because a stream may split a character into its two surrogates, each a separate escape.
Sans-I/O.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable

from ttft_gateway.apis.sse import events_of


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


class Space(Expected):
    """White space at the end of a client's text, which is not part of the request that continues the text.

    A model generates it again, or generates other white space in its place; then the client's stays.

    Args:
        rest: the white space.
    """

    __slots__ = ("_begun", "_rest")

    def __init__(self, rest: str) -> None:
        super().__init__(())
        self._rest = rest
        self._begun = ""  # the continuation, while it is white space

    def take(self, value: str) -> str:
        """Return the part of the next piece that follows the white space."""
        if not self._rest:
            return value
        self._begun += value
        if self._rest.startswith(self._begun) and self._begun != self._rest:
            return ""
        new = after_space(self._begun, self._rest)
        if new or self._begun.startswith(self._rest):
            self._rest = ""
        return new


def after_space(text: str, rest: str) -> str:
    """Return a continuation without the white space at its beginning, for which the client has `rest`."""
    return text.removeprefix(rest) if text.startswith(rest) else text.lstrip()


class ComparingJoiner(ABC):
    """A `providers.recovery.Joiner` that compares, and restarts where the client has nothing but thinking.

    Args:
        may_restart: the client has nothing but thinking.

    Attributes:
        restarted: the client gets the second answer from its beginning.
    """

    def __init__(self, *, may_restart: bool) -> None:
        self.restarted = False
        self._repeated: list[bytes] | None = [] if may_restart else None  # events with nothing new; None: no restart

    @property
    @abstractmethod
    def caught_up(self) -> bool:
        """See `Joiner.caught_up`."""

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
