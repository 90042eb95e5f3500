"""Sends the asks of one process to its engine in batches, and decides when the engine is away.

The only place with a time limit for the engine. A reply after 90 ms is late; its answers are still used, because the
engine has executed the asks. Pauses of this process do not count: on a busy machine the reply has come, and is read
late. Three late or lost batches in a row, each sent after the one before was given up, mean
that the engine is away; a reply in time means that it is back. Units: seconds of the loop's clock.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final, Literal

from gateway.share.fleet import ASK_S_MAX, Fleet, Requester, WaitAllowance
from gateway.share.messages import SILENT_S, Ask, Engine, Lost, Reply

TICK_S: Final = 0.1
BATCH_MAX: Final = 256  # asks
_STRIKES_MAX: Final = 3
_LOOK_S: Final = 0.01  # between looks at a batch under way
_COUNTED_S_MAX: Final = (
    1.2 * _LOOK_S
)  # between two looks; more is a pause of this process, during which no reply is read
_SILENCE_S: Final = 1.0  # longest time without an ask, so that the engine counts this process
_AWAY_PING_S: Final = 0.25  # between checks of an engine that is away
_JITTER: Final = 0.1  # of each tick, so that processes do not ask at the same time

AskResult = Literal["ok", "late", "lost"]


@dataclass(slots=True, eq=False)
class _Batch:
    """A batch under way.

    Attributes:
        allowance: time until it is late.
    """

    requesters: Sequence[Requester]
    sent_s: float
    is_ping: bool
    allowance: WaitAllowance
    is_late: bool = False
    timer: asyncio.Handle | None = None


class Asker:
    """The asks of one process.

    Args:
        engine: connection to the engine.
        fleet: state that replies change.
        loop: event loop.
        rand: returns uniform random numbers in [0, 1).
        on_away: called when the engine is away.
        on_back: called when it is back.
        on_error: called with what a requester raised, a bug; it is then given up.

    Attributes:
        ticks: functions called with the time at least every 0.11 s while the engine answers, and when it is back.
        is_up: False while the engine is away.
        since_s: loop time of the last change of `is_up`.
        replied_s: loop time of the last reply in time; None before the first.
        on_result: called with the result of each batch, "ok", "late" or "lost", and with the time to the reply if it is
            "ok".
    """

    def __init__(
        self,
        engine: Engine,
        fleet: Fleet,
        loop: asyncio.AbstractEventLoop,
        rand: Callable[[], float],
        on_away: Callable[[], object],
        on_back: Callable[[], object],
        on_error: Callable[[Exception], None],
    ) -> None:
        self._engine = engine
        self._fleet = fleet
        self._loop = loop
        self._rand = rand
        self._on_away = on_away
        self._on_back = on_back
        self._on_error = on_error
        self.ticks: list[Callable[[float], None]] = []
        self.is_up = True
        self.since_s = loop.time()
        self.replied_s: float | None = None
        self.on_result: Callable[[AskResult, float | None], object] = _nothing
        self._wanting: dict[Requester, None] = {}
        self._is_flushing = False
        self._strikes = 0
        self._strike_s = self._sent_s = self.since_s
        self._processes_s = self.since_s  # time at which the number of processes was last confirmed
        self._pings = 0  # under way
        self._pending = 0  # batches under way that are not late
        self._first: asyncio.Future[None] | None = loop.create_future()
        self._timer: asyncio.Handle | None = None
        fleet.want = self.want
        fleet.alone_since_s = self.since_s

    async def start(self) -> None:
        """Ask for the first time, and return after the reply, or after its time limit."""
        self._ping(self._loop.time())
        self._timer = self._loop.call_later(TICK_S, self._tick)
        if self._first is not None:
            await asyncio.wait({self._first}, timeout=ASK_S_MAX)

    def close(self) -> None:
        """Stop asking, and close the connection."""
        if self._timer is not None:
            self._timer.cancel()
        self._wanting.clear()
        self._fleet.leave(self._loop.time())
        self._fleet.want = self._drop
        self._engine.close()

    def want(self, requester: Requester) -> None:
        """Send a requester's ask with the next batch, in the next iteration of the loop."""
        self._wanting[requester] = None
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def _drop(self, requester: Requester) -> None:
        requester.lost(self._loop.time())

    def _flush(self) -> None:
        self._is_flushing = False
        now_s = self._loop.time()
        requesters = list(islice(self._wanting, BATCH_MAX))
        for requester in requesters:
            del self._wanting[requester]
        if self._wanting:
            self._is_flushing = True
            self._loop.call_soon(self._flush)
        if self.is_up:
            self._send(requesters, now_s)
        else:
            for requester in requesters:
                requester.lost(now_s)

    def _ping(self, now_s: float) -> None:
        self._pings += 1
        self._send((), now_s, is_ping=True)

    def _send(self, requesters: Sequence[Requester], now_s: float, *, is_ping: bool = False) -> None:
        asks = [(requester, ask) for requester in requesters if (ask := self._ask(requester, now_s)) is not None]
        if not asks and not is_ping:
            return
        self._sent_s = now_s
        self._pending += 1
        batch = _Batch([requester for requester, _ in asks], now_s, is_ping, WaitAllowance(ASK_S_MAX, _COUNTED_S_MAX))
        self._look(batch)
        self._engine.ask([ask for _, ask in asks], partial(self._answered, batch))

    def _ask(self, requester: Requester, now_s: float) -> Ask | None:
        try:
            return requester.ask(now_s)
        except Exception as error:  # a bug in one requester must not stop the asks of others
            self._on_error(error)
            return None

    def _look(self, batch: _Batch) -> None:
        """Count the time that a batch has waited, and give it up at the limit."""
        if batch.allowance.lasts(self._loop.time()):
            batch.timer = self._loop.call_later(_LOOK_S, self._look, batch)
            return
        batch.is_late, batch.timer = True, None
        self._pending -= 1
        self.on_result("late", None)
        self._strike(batch)

    def _answered(self, batch: _Batch, reply: Reply | None) -> None:
        now_s = self._loop.time()
        if batch.timer is not None:
            batch.timer.cancel()
            batch.timer = None
            self._pending -= 1
        self._pings -= batch.is_ping
        if reply is not None and len(reply.answers) == len(batch.requesters):
            self._count_processes(reply.processes, now_s)
            for requester, answer in zip(batch.requesters, reply.answers, strict=True):
                try:
                    if isinstance(answer, Lost):
                        requester.lost(now_s)
                    else:
                        requester.answered(answer, now_s)
                except Exception as error:  # a bug in one requester must not cost the others their answers
                    self._on_error(error)
            if not batch.is_late:
                self._in_time(now_s, now_s - batch.sent_s)
            return
        for requester in batch.requesters:
            requester.lost(now_s)
        if not batch.is_late:
            self.on_result("lost", None)
            self._strike(batch)

    def _count_processes(self, processes: int, now_s: float) -> None:
        """Record the number of processes; a lower one counts after 5 s: an engine without data has to count first."""
        fleet = self._fleet
        is_counted = not fleet.is_alone and now_s >= max(self._processes_s, fleet.back_since_s) + SILENT_S
        if processes >= fleet.processes or is_counted:
            fleet.processes, self._processes_s = max(1, processes), now_s

    def _in_time(self, now_s: float, took_s: float) -> None:
        """Record a reply in time: the engine is there."""
        self.on_result("ok", took_s)
        self.replied_s = now_s
        self._strikes = 0
        if self._first is not None:
            if not self._first.done():
                self._first.set_result(None)
            self._first = None
        if self._fleet.is_alone:
            self._fleet.come_back(now_s)
            if not self.is_up:
                self.is_up, self.since_s = True, now_s
                self._on_back()
            self._call_ticks(now_s)

    def _strike(self, batch: _Batch) -> None:
        """Count a late or lost batch, unless it was sent before the last one was given up."""
        now_s = self._loop.time()
        self._fleet.leave(now_s)
        if batch.sent_s < self._strike_s or not self.is_up:
            return
        self._strikes += 1
        self._strike_s = now_s
        if self._strikes >= _STRIKES_MAX:
            self.is_up, self.since_s = False, now_s
            self._fleet.is_away = True
            self._on_away()

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK_S * (1 + _JITTER * (2 * self._rand() - 1)), self._tick)
        now_s = self._loop.time()
        if not self.is_up:
            is_due = now_s >= self._sent_s + _AWAY_PING_S and self._pings <= _STRIKES_MAX
        else:  # after a strike, a batch under way decides
            is_due = not self._pending if self._strikes else now_s >= self._sent_s + _SILENCE_S
        if is_due:
            self._ping(now_s)
        if not self._fleet.is_alone:
            self._call_ticks(now_s)

    def _call_ticks(self, now_s: float) -> None:
        for tick in self.ticks:
            try:
                tick(now_s)
            except Exception as error:  # as above
                self._on_error(error)


def _nothing(_result: AskResult, _took_s: float | None) -> None:
    """Count nothing."""
