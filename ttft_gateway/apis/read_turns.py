"""Shares the event loop between streams that are read as fast as they can be sent, and everything else.

A stream with many bytes in each read takes turns with all other such streams. One of them reads at a time, each API
key as often as any other, and after each turn none of them is read for a multiple of the turn's duration. Streams of
tokens never wait here: a read brings a few of them. Units: seconds of the loop's clock, bytes.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

MANY_BYTES: Final = 16 * 1024
"""Size above which a read belongs to a turn: it has some hundred tokens."""

TURN_S: Final = 0.002
"""Duration after which a turn ends; one event, or a slice of a document, is finished first."""

_PAUSES: Final = 3  # the pause after a turn, in durations of the turn
_PAUSE_S_MIN: Final = 0.001
_PAUSE_S_MAX: Final = 0.25


class Loop(Protocol):
    """The part of an event loop that turns need; the client library without a loop imports this module, too."""

    def time(self) -> float:
        """Return the loop's time."""

    def call_at(self, when: float, callback: Callable[["Loop"], None], loop: "Loop", /) -> object:
        """Call a function at this time."""


class ReadTurns:
    """The queue of the streams that wait for their turn, by API key; one for each event loop."""

    __slots__ = ("_is_timed", "_next_s", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Callable[[], None]]] = {}  # the key with the next turn comes first
        self._next_s = 0.0
        self._is_timed = False

    def wait(self, owner: str, go_on: Callable[[], None], turn_s: float, loop: Loop) -> None:
        """Wait after a turn.

        Args:
            owner: name of the API key.
            go_on: called once, when the next turn begins; must not raise. It may have nothing to do any more.
            turn_s: duration of the last turn.
            loop: the event loop, always the same.
        """
        now_s = loop.time()
        pause_s = min(max(_PAUSES * turn_s, _PAUSE_S_MIN), _PAUSE_S_MAX)
        self._next_s = max(self._next_s, now_s) + pause_s
        self._waiting.setdefault(owner, deque()).append(go_on)
        if not self._is_timed:
            self._is_timed = True
            loop.call_at(self._next_s, self._begin, loop)

    def _begin(self, loop: Loop) -> None:
        """Begin the next turn; a stream that reads its socket in this turn calls `wait` in a later turn of the loop."""
        now_s = loop.time()
        if now_s < self._next_s:  # a turn ended after the timer was set
            loop.call_at(self._next_s, self._begin, loop)
            return
        owner = next(iter(self._waiting))
        queue = self._waiting.pop(owner)
        go_on = queue.popleft()
        if queue:
            self._waiting[owner] = queue
        self._is_timed = bool(self._waiting)
        if self._is_timed:
            self._next_s = now_s + _PAUSE_S_MIN
            loop.call_at(self._next_s, self._begin, loop)
        go_on()
