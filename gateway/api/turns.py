"""Spreads the parsing of large bodies, so that one sender of many cannot keep the event loop from all others.

A parse runs in one piece. After a long parse, the next body waits, from any client, and the loop serves all others. A
large body that comes alone is parsed immediately. Units: seconds, bytes.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

LARGE_MIN: Final = 256 * 1024
"""Size above which a body takes a turn: a smaller one is parsed within a millisecond."""

_FREE_S: Final = 0.005  # time of a parse that needs no pause: bodies of some MB that are one text
_PAUSES: Final = 7  # pause after a parse over `_FREE_S`, as a multiple of the excess
_PAUSE_S_MAX: Final = 0.5


class Turn:
    """The place of one body in the queue."""

    __slots__ = ("_parse",)

    def __init__(self, parse: Callable[[], None]) -> None:
        self._parse: Callable[[], None] | None = parse

    def cancel(self) -> None:
        """Give up the turn, and release the body."""
        self._parse = None

    def run(self) -> bool:
        """Parse the body; False if the turn was given up."""
        if self._parse is None:
            return False
        parse, self._parse = self._parse, None
        parse()
        return True


class Turns:
    """The queue of large bodies in the order of arrival; the memory for bodies bounds it.

    Args:
        loop: event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Turn] = deque()
        self._is_busy = False  # during a parse and the pause after it

    def take(self, parse: Callable[[], None]) -> Turn:
        """Parse a body now or after the bodies in the queue; `parse` must not raise."""
        turn = Turn(parse)
        if self._is_busy:
            self._waiting.append(turn)
        else:
            self._run(turn)
        return turn

    def _run(self, turn: Turn) -> bool:
        begin_s = self._loop.time()
        if not turn.run():
            return False
        self._is_busy = True
        self._loop.call_soon(self._pause, begin_s)  # some loops read the clock once in each of their turns
        return True

    def _pause(self, begin_s: float) -> None:
        parse_s = self._loop.time() - begin_s
        pause_s = _PAUSES * max(0.0, parse_s - _FREE_S)
        self._loop.call_later(min(pause_s, _PAUSE_S_MAX), self._continue)

    def _continue(self) -> None:
        while self._waiting:
            if self._run(self._waiting.popleft()):
                return
        self._is_busy = False
