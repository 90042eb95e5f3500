"""Races the attempts of one request over an asynchronous transport, with asyncio.

The primary runs in the caller's task; a timer is all that a request costs before it is late. A backup runs in a task of
its own until its first event. If it wins, the caller's task is cancelled as by `asyncio.timeout`, which closes the
primary's connection, and takes over the backup's response. Cancelled tasks close their connections themselves.
"""

import asyncio
import math
from typing import Any, Final

from gateway.client.attempt import ClientAttempt
from gateway.client.first import HELD_MAX, First, Verdict, detector, failure_by, failure_of, is_error
from gateway.client.hedger import Failure, Hedger, log_failure, safely
from gateway.client.racing import Entrant, Opened, Overtaken
from gateway.hedging.outcomes import Outcome

_NO_ANSWER: Final = Failure(Outcome.FAILED)  # an empty stream, or one that begins with an error
_WAIT, _FIRST, _ERROR = Verdict.WAIT, Verdict.FIRST, Verdict.ERROR

Result = Opened | Exception


class AsyncRace:
    """One request.

    Args:
        inner: transport that sends.
        first: event that ends the race.
        tasks: receives the task of each backup until its end.
    """

    __slots__ = (
        "_backups",
        "_cancels",
        "_entrant",
        "_first",
        "_hedger",
        "_inner",
        "_is_cancelled",
        "_loop",
        "_main",
        "_race",
        "_results",
        "_tasks",
        "_timer",
        "_waiter",
    )

    def __init__(
        self, inner: Any, hedger: Hedger, entrant: Entrant, first: First, tasks: set[asyncio.Task[None]]
    ) -> None:
        self._inner = inner
        self._hedger = hedger
        self._entrant = entrant
        self._race = entrant.race
        self._first = first
        self._tasks = tasks
        self._backups: list[asyncio.Task[None]] = []
        self._results: list[tuple[ClientAttempt, Opened]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._is_cancelled = False  # the caller's task, by a backup that has won

    async def run(self) -> Opened:
        """Return the winner's response; without a winner that of the primary, or raise its error."""
        race = self._race
        self._loop = loop = asyncio.get_running_loop()
        main = asyncio.current_task(loop)
        assert main is not None
        self._main, self._cancels = main, main.cancelling()
        self._set_timer()
        try:
            result = await self._primary()
        except BaseException:
            race.close()
            for _, opened in self._results:
                await opened.body.aclose()
            raise
        finally:
            if self._timer is not None:
                self._timer.cancel()
            for task in self._backups:
                task.cancel()
        if isinstance(result, Exception):
            raise result
        return result

    async def _primary(self) -> Result:
        """Return the result of the primary, or of the backup that has won."""
        result: Result | None = None
        try:
            result = await self._attempt(self._entrant.primary)
            if self._backups and self._race.winner is not self._entrant.primary:
                await self._outlast()
        except Overtaken:
            pass
        except asyncio.CancelledError:
            if not self._is_cancelled or self._main.uncancel() > self._cancels:
                raise
            self._is_cancelled = False
        if self._is_cancelled:  # and the inner transport has replaced the cancellation by an error of its own
            self._main.uncancel()
        results = self._results
        won = next((opened for attempt, opened in results if attempt is self._race.winner), None) if results else None
        if won is None:
            assert result is not None
            return result
        if isinstance(result, Opened):
            await result.body.aclose()
        results.clear()
        return won

    async def _attempt(self, attempt: ClientAttempt) -> Result:
        """Send an attempt and read it up to its first event, to its end, or to its error.

        Raises:
            Overtaken: another attempt has won.
        """
        body = None
        try:
            response = await self._inner.handle_async_request(self._entrant.request_to(attempt))
            body = response.stream
            opened = Opened(attempt, response, body, [], aiter(body))
            await self._read(opened)
        except Exception as error:
            safely(self._race.on_failed, attempt, failure_by(error))
            if body is not None:
                await body.aclose()
            return error
        except BaseException:
            if body is not None:
                await body.aclose()
            raise
        return opened

    async def _read(self, opened: Opened) -> None:
        attempt, response, race, asked = opened.attempt, opened.response, self._race, self._entrant.asked
        status, headers = response.status_code, response.headers.raw
        try:
            race.on_headers(attempt, status, headers)
        except Exception:
            log_failure()
        if is_error(asked, status):
            safely(race.on_failed, attempt, failure_of(status, headers))
            return
        finder, held = detector(asked, self._first, headers), 0
        verdict = _FIRST if finder is None else _ERROR  # without an event
        if finder is not None:
            async for chunk in opened.rest:
                opened.chunks.append(chunk)
                held += len(chunk)
                verdict = finder.feed(chunk) if held <= HELD_MAX else _FIRST
                if verdict is not _WAIT:
                    break
        if verdict is _FIRST:
            if not race.on_first(attempt):
                raise Overtaken
        else:
            safely(race.on_failed, attempt, _NO_ANSWER)

    async def _outlast(self) -> None:
        """Wait after the primary has failed until a backup has won or all have failed."""
        while not self._results and any(not task.done() for task in self._backups):
            self._waiter = self._loop.create_future()
            await self._waiter

    # timer and backups

    def _set_timer(self) -> None:
        self._timer = None
        if self._race.due_s < math.inf:
            wait_s = self._race.due_s - self._hedger.clock()
            self._timer = self._loop.call_later(wait_s if wait_s > 0.0 else 0.0, self._on_due)

    def _on_due(self) -> None:
        """Send a backup if the policy approves, and set the timer for the next decision."""
        race, due_s = self._race, self._race.due_s
        if self._hedger.clock() < due_s:  # the loop's clock is coarser
            self._set_timer()
            return
        backup = safely(race.late)
        if race.due_s != due_s:
            self._set_timer()
        if backup is not None:
            task = self._loop.create_task(self._run_backup(backup), name=f"ttft-hedge-{backup.label}")
            self._backups.append(task)
            self._tasks.add(task)
            task.add_done_callback(self._backup_done)

    async def _run_backup(self, attempt: ClientAttempt) -> None:
        try:
            result = await self._attempt(attempt)
        except Overtaken:
            return
        if not isinstance(result, Opened):
            return
        if self._race.winner is not attempt:
            await result.body.aclose()
            return
        self._results.append((attempt, result))
        if self._waiter is None:
            self._is_cancelled = True
            self._main.cancel()

    def _backup_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
