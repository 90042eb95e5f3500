"""Generates the answers of one replica after their first tokens, at a speed that its own load and spells may change.

All answers of a replica advance together: one token takes `gap_s`, and `per_stream_s` more for each other answer that
is generated at the same time. Tokens are sent five times a second and at the end. Owns no random numbers and no first
tokens.

Units: seconds of the loop's clock, tokens.
"""

import asyncio
import heapq
import itertools
from collections.abc import Callable
from typing import Final

from streaming_bench.simulation.speed_timeline import SpeedTimeline

_SEND_S: Final = 0.2


class Generation:
    """One answer that is generated.

    Args:
        start: position of the replica at its start.
        slowness: positions that one token takes.
        send: called with a number of tokens.
        end: called at its end.

    Attributes:
        is_over: True after its end, or after it was cancelled.
    """

    __slots__ = ("_send", "_sent", "_slowness", "_start", "end", "is_over")

    def __init__(self, start: float, slowness: float, send: Callable[[int], None], end: Callable[[], None]) -> None:
        self._start = start
        self._slowness = slowness
        self._send = send
        self._sent = 0
        self.end = end
        self.is_over = False

    def send(self, position: float) -> None:
        """Send the tokens until a position that were not sent."""
        tokens = int((position - self._start) / self._slowness) - self._sent
        if tokens > 0:
            self._sent += tokens
            self._send(tokens)


class Decoder:
    """The answers that a replica generates.

    Args:
        timeline: speed of the replica over time.
        gap_s: time between two tokens of an answer that is generated alone.
        per_stream_s: additional time for each other answer.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, timeline: SpeedTimeline, gap_s: float, per_stream_s: float = 0.0
    ) -> None:
        self._loop = loop
        self._timeline = timeline
        self._gap_s = gap_s
        self._per_stream_s = per_stream_s
        self._ends: list[tuple[float, int, Generation]] = []  # position of the end of each answer; a heap
        self._numbers = itertools.count()
        self._position = 0.0  # tokens that an answer of the usual speed would have got since the start
        self._work = 0.0  # work of the timeline until then
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._sender: asyncio.TimerHandle | None = None

    def start(self, tokens: float, slowness: float, send: Callable[[int], None], end: Callable[[], None]) -> Generation:
        """Generate an answer.

        Args:
            slowness: factor of the time of each token.
            send: called with a number of tokens that are generated, from time to time.
            end: called at its end.
        """
        self._advance()
        answer = Generation(self._position, slowness, send, end)
        self._count += 1
        heapq.heappush(self._ends, (self._position + tokens * slowness, next(self._numbers), answer))
        self._schedule()
        if self._sender is None:
            self._sender = self._loop.call_later(_SEND_S, self._send)
        return answer

    def cancel(self, answer: Generation) -> None:
        """Stop an answer before its end."""
        if not answer.is_over:
            self._advance()
            answer.is_over = True
            self._count -= 1
            self._schedule()

    @property
    def _token_s(self) -> float:
        return self._gap_s + self._per_stream_s * (self._count - 1)

    def _advance(self) -> None:
        work = self._timeline.done(self._loop.time())
        if self._count:
            self._position += (work - self._work) / self._token_s
        self._work = work

    def _schedule(self) -> None:
        """Set the timer to the next end."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._ends and self._ends[0][2].is_over:
            heapq.heappop(self._ends)
        if self._ends:
            work_s = max(0.0, self._ends[0][0] - self._position) * self._token_s
            end_s = self._timeline.finish_s(self._loop.time(), work_s)
            self._timer = self._loop.call_at(end_s, self._end)

    def _end(self) -> None:
        """End the next answer."""
        self._timer = None
        self._advance()
        position, _, answer = heapq.heappop(self._ends)
        self._position = max(self._position, position)  # rounding
        answer.is_over = True
        self._count -= 1
        self._schedule()
        answer.end()

    def _send(self) -> None:
        """Send the tokens of all answers."""
        self._sender = None
        self._advance()
        for _, _, answer in self._ends:
            if not answer.is_over:
                answer.send(self._position)
        if self._count:
            self._sender = self._loop.call_later(_SEND_S, self._send)
