"""Races the attempts of one request, with asyncio.

The primary runs in the caller's task; a timer is all that a request costs before it is late. A backup runs in a task of
its own until its first event. If it wins, the caller's task is cancelled as by `asyncio.timeout`, which closes the
primary's connection, and takes over the backup's response. Cancelled tasks close their connections themselves.
"""

import asyncio
import math
from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from ttft_gateway.client.hedger import ClientAttempt, safely
from ttft_gateway.client.race import UNSENT, Overtaken, RacedAttempts
from ttft_gateway.client.tracing import traced

if TYPE_CHECKING:
    from concurrent.futures import Future

_T = TypeVar("_T")
_SOON_S: Final = 0.001  # precision of timers


async def cancel_all(tasks: Collection[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait for their end; without a task, no event loop of asyncio is needed."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.gather(*tasks, return_exceptions=True)


async def wait_for(fetching: "Future[None]", limit_s: float) -> None:
    """Wait for the end of a fetch in a thread, at most for a time."""
    await asyncio.wait([asyncio.wrap_future(fetching)], timeout=limit_s)


class AsyncRace(Generic[_T]):
    """One request.

    Args:
        tasks: receives the task of each backup until its end.
    """

    __slots__ = (
        "_attempts",
        "_backups",
        "_broken",
        "_cancels",
        "_is_cancelled",
        "_loop",
        "_main",
        "_race",
        "_result",
        "_tasks",
        "_timer",
        "_waiter",
        "_won",
    )

    def __init__(self, attempts: RacedAttempts[_T], tasks: set[asyncio.Task[None]]) -> None:
        self._attempts = traced(attempts)
        self._race = attempts.race
        self._tasks = tasks
        self._backups: list[asyncio.Task[None]] = []
        self._result: _T | None = None  # the primary's response
        self._won: _T | None = None  # response of a backup that has won
        self._broken: Exception | None = None  # error of a backup after it had won
        self._timer: asyncio.TimerHandle | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._is_cancelled = False  # the caller's task, by a backup that has won

    async def run(self) -> _T:
        """Return the winner's response; without a winner, return the primary's or raise its error."""
        self._loop = loop = asyncio.get_running_loop()
        main = asyncio.current_task(loop)
        assert main is not None
        self._main, self._cancels = main, main.cancelling()
        self._set_timer()
        try:
            return await self._primary()
        except BaseException:
            self._race.close()
            try:
                await self._close(self._result)
            finally:
                await self._close(self._won)
            raise
        finally:
            if self._timer is not None:
                self._timer.cancel()
            for task in self._backups:
                task.cancel()

    async def _primary(self) -> _T:
        """Return the response of the primary, or of the backup that has won."""
        attempts, race, failed = self._attempts, self._race, None
        try:
            try:
                self._result = await attempts.open(attempts.primary)
            except Exception as error:
                failed = error
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
            failed = failed or (self._broken if result is None else None)
            if failed is not None:
                raise failed
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
        while not self._race.is_over and ((left_s := self._race.left_s()) is None or left_s > _SOON_S):
            self._waiter = self._loop.create_future()
            timer = None if left_s is None else self._loop.call_later(left_s, self._wake)
            try:
                await self._waiter
            finally:
                if timer is not None:
                    timer.cancel()
        if not self._race.is_over:
            self._race.close()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # timer and backups

    def _set_timer(self) -> None:
        self._timer = None
        if self._race.due_s < math.inf:
            wait_s = self._race.due_s - self._race.hedger.clock()
            self._timer = self._loop.call_later(wait_s if wait_s > 0.0 else 0.0, self._on_due)

    def _on_due(self) -> None:
        """Send a backup if the policy approves, and set the timer for the next decision."""
        race, due_s = self._race, self._race.due_s
        if self._race.hedger.clock() < due_s:  # the loop's clock is coarser, or the next decision is a later one now
            self._set_timer()
            return
        backup = safely(race.late)
        if race.due_s != due_s:
            self._set_timer()
        if backup is not None:
            task = self._loop.create_task(self._run_backup(backup), name=f"ttft-hedge-{backup.label}")
            self._backups.append(task)
            self._tasks.add(task)
            task.add_done_callback(partial(self._on_backup_done, backup))

    async def _run_backup(self, attempt: ClientAttempt) -> None:
        try:
            opened = await self._attempts.open(attempt)
        except Overtaken:
            return
        except Exception as error:
            safely(self._race.on_failed, attempt, self._attempts.failure(error))
            if self._race.winner is attempt:
                self._broken = error
            return
        if self._race.winner is not attempt:
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
        if self._race.winner is not attempt:
            safely(self._race.on_failed, attempt, UNSENT)  # if it was cancelled from outside
        self._wake()
