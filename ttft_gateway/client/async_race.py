"""Races the attempts of one request, with asyncio.

The primary runs in the caller's task, and one timer serves all requests of a client. A backup runs in a task of its own
until its first event. If it wins, the caller's task is cancelled as by `asyncio.timeout`, which closes the primary's
connection, and takes over the backup's response. Cancelled tasks close their connections themselves.
"""

import asyncio
import math
from collections.abc import Collection
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from ttft_gateway.client.hedger import ClientAttempt, Hedger, safely
from ttft_gateway.client.race import UNSENT, Overtaken, RacedAttempts
from ttft_gateway.client.tracing import traced

if TYPE_CHECKING:
    from concurrent.futures import Future

_T = TypeVar("_T")
_SOON_S: Final = 0.001  # precision of timers
_LOOK_S: Final = (
    2e-6  # wait for each race that the alarm looks at, so that it takes little of the time of a loaded loop
)


async def cancel_all(tasks: Collection[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait for their end; without a task, no event loop of asyncio is needed."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.gather(*tasks, return_exceptions=True)


async def wait_for(fetching: "Future[None]", limit_s: float) -> None:
    """Wait for the end of a fetch in a thread, at most for a time."""
    await asyncio.wait([asyncio.wrap_future(fetching)], timeout=limit_s)


class RaceAlarm:
    """Wakes the races of one client that are late, by one timer: a timer for each would take 33,000 instructions.

    Args:
        loop: event loop of the races.
        hedger: the policy, with the clock.

    Attributes:
        loop: the argument.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, hedger: Hedger) -> None:
        self.loop = loop
        self._hedger = hedger
        self._waiting: set[AsyncRace[Any]] = set()
        self._due_s = math.inf  # time of the timer
        self._timer: asyncio.TimerHandle | None = None

    def add(self, race: "AsyncRace[Any]") -> None:
        """Wake a race when it is due."""
        due_s = race.race.due_s
        if due_s < math.inf:
            self._waiting.add(race)
            if due_s < self._due_s:
                self._set(due_s)

    def discard(self, race: "AsyncRace[Any]") -> None:
        """Wake a race no more; the timer stays, because setting it is what costs."""
        self._waiting.discard(race)

    def close(self) -> None:
        """Drop the timer."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._due_s = None, math.inf

    def _set(self, due_s: float) -> None:
        self.close()
        if due_s < math.inf:
            self._due_s = due_s
            wait_s = max(due_s - self._hedger.clock(), _LOOK_S * len(self._waiting))
            self._timer = self.loop.call_later(wait_s, self._ring)

    def _ring(self) -> None:
        now_s = self._hedger.clock()  # which may be before the time of the timer, because the loop's clock is coarser
        for race in [each for each in self._waiting if each.race.due_s <= now_s]:
            race.on_due()
        self._set(min((each.race.due_s for each in self._waiting), default=math.inf))


def alarm_of(hedger: Hedger, last: RaceAlarm | None) -> RaceAlarm:
    """Return the alarm of the running event loop.

    Args:
        last: the client's last alarm, which is used again in the same loop.
    """
    loop = asyncio.get_running_loop()
    return last if last is not None and last.loop is loop else RaceAlarm(loop, hedger)


class AsyncRace(Generic[_T]):
    """One request.

    Args:
        tasks: receives the task of each backup until its end.
        alarm: wakes it when it is late.

    Attributes:
        race: its bookkeeping.
    """

    __slots__ = (
        "_alarm",
        "_attempts",
        "_backups",
        "_broken",
        "_cancels",
        "_context",
        "_failed",
        "_is_cancelled",
        "_main",
        "_result",
        "_tasks",
        "_waiter",
        "_won",
        "race",
    )

    def __init__(self, attempts: RacedAttempts[_T], tasks: set[asyncio.Task[None]], alarm: RaceAlarm) -> None:
        self._attempts = traced(attempts)
        self._alarm = alarm
        self.race = attempts.race
        self._tasks = tasks
        self._backups: list[asyncio.Task[None]] = []
        self._result: _T | None = None  # the primary's response
        self._won: _T | None = None  # response of a backup that has won
        self._failed: Exception | None = None  # error of the primary
        self._broken: Exception | None = None  # error of a backup after it had won
        self._waiter: asyncio.Future[None] | None = None
        self._is_cancelled = False  # the caller's task, by a backup that has won

    async def run(self) -> _T:
        """Return the winner's response; without a winner, return the primary's or raise its error."""
        alarm = self._alarm
        main = asyncio.current_task(alarm.loop)
        assert main is not None
        self._main, self._cancels = main, main.cancelling()
        self._context = copy_context()  # of the caller: the alarm rings in the context of another request
        alarm.add(self)
        try:
            return await self._primary()
        except BaseException:
            self.race.close()
            try:
                await self._close(self._result)
            finally:
                await self._close(self._won)
            raise
        finally:
            alarm.discard(self)
            for task in self._backups:
                task.cancel()
            self._failed = self._broken = None  # their tracebacks lead to this race: a cycle

    async def _primary(self) -> _T:
        """Return the response of the primary, or of the backup that has won."""
        attempts, race = self._attempts, self.race
        try:
            try:
                self._result = await attempts.open(attempts.primary)
            except Exception as error:
                self._failed = error
                safely(race.on_failed, attempts.primary, attempts.failure(error))
            if self._backups and race.winner is not attempts.primary:
                await self._outlast()
        except Overtaken:
            pass
        except asyncio.CancelledError:
            if not self._is_cancelled or self._main.uncancel() > self._cancels:
                raise
            self._is_cancelled = False
        if self._is_cancelled:  # and the client library has replaced the cancellation by an error of its own
            self._main.uncancel()
        result, self._result = self._result, None
        if self._won is None:
            self._failed = self._failed or (self._broken if result is None else None)
            if self._failed is not None:
                raise self._failed
            assert result is not None
            return result
        await self._close(result)  # if it is cancelled, `run` closes the winner
        won, self._won = self._won, None
        return won

    async def _close(self, opened: _T | None) -> None:
        if opened is not None:
            await self._attempts.close(opened)

    async def _outlast(self) -> None:
        """Wait after the primary has failed until a backup has won, all have failed, or the time is used up."""
        while not self.race.is_over and ((left_s := self.race.left_s()) is None or left_s > _SOON_S):
            self._waiter = self._alarm.loop.create_future()
            timer = None if left_s is None else self._alarm.loop.call_later(left_s, self._wake)
            try:
                await self._waiter
            finally:
                if timer is not None:
                    timer.cancel()
        if not self.race.is_over:
            self.race.close()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # backups

    def on_due(self) -> None:
        """Send a backup if the policy approves."""
        race, due_s = self.race, self.race.due_s
        backup = safely(race.late)
        if race.due_s in (due_s, math.inf):  # the same time again is a bug of the policy
            self._alarm.discard(self)
        if backup is not None:
            work, name = self._run_backup(backup), f"ttft-hedge-{backup.label}"
            task = self._context.run(self._alarm.loop.create_task, work, name=name)
            self._backups.append(task)
            self._tasks.add(task)
            task.add_done_callback(partial(self._on_backup_done, backup))

    async def _run_backup(self, attempt: ClientAttempt) -> None:
        try:
            opened = await self._attempts.open(attempt)
        except Overtaken:
            return
        except Exception as error:
            safely(self.race.on_failed, attempt, self._attempts.failure(error))
            if self.race.winner is attempt:
                self._broken = error
            return
        if self.race.winner is not attempt:
            await self._attempts.close(opened)
            return
        self._won = opened
        if self._waiter is None:
            self._is_cancelled = True
            self._main.cancel()

    def _on_backup_done(self, attempt: ClientAttempt, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()
        if self.race.winner is not attempt:
            safely(self.race.on_failed, attempt, UNSENT)  # if it was cancelled from outside
        self._wake()
