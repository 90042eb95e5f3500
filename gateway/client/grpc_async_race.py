"""Races the attempts of one RPC over `grpc.aio`, up to the response or to the first message of a stream.

Each attempt runs in a task of its own until then. The loser's call is cancelled at once, which resets its
stream.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from grpc.aio import EOF, AioRpcError

from gateway.client.attempt import ClientAttempt
from gateway.client.grpc_status import EMPTY, PUSHBACK, failure_of, forbids, outcome_of
from gateway.client.hedger import ClientRace, Failure, Hedger, safely
from gateway.hedging.outcomes import Outcome

Start = Callable[[ClientAttempt, float | None], Awaitable[Any]]
"""Sends an attempt, with the seconds that are left for it or None; returns its call."""
Read = Callable[[Any], Awaitable[Any]]
"""Returns the first message of a call."""


class Answer(NamedTuple):
    """The result of one attempt.

    Attributes:
        call: its call; None if there was none.
        first: response, or first message; EOF for a stream without a message; None after an error.
        error: error, None without one.
    """

    attempt: ClientAttempt
    call: Any
    first: Any
    error: Exception | None


class GrpcRace:
    """One RPC.

    Args:
        timeout_s: time for the whole RPC; None: no limit.
        tasks: receives each task until its end.
    """

    def __init__(
        self,
        hedger: Hedger,
        race: ClientRace,
        start: Start,
        read: Read,
        timeout_s: float | None,
        tasks: set[asyncio.Task[Any]],
    ) -> None:
        self._hedger = hedger
        self._race = race
        self._start = start
        self._read = read
        self._deadline_s = math.inf if timeout_s is None else hedger.clock() + timeout_s
        self._tasks = tasks
        self._running: list[asyncio.Task[Answer]] = []
        self._is_over = False  # no further backup: the server forbids one, or the time is used up

    async def run(self, primary: ClientAttempt) -> Answer:
        """Return the winner; without one the primary, with its error."""
        failed: list[Answer] = []
        self._send(primary)
        try:
            while True:
                await asyncio.wait(self._running, timeout=self._wait_s(), return_when=asyncio.FIRST_COMPLETED)
                for task in [each for each in self._running if each.done()]:
                    self._running.remove(task)
                    if task.cancelled():
                        continue
                    answer = task.result()
                    if self._is_won(answer):
                        return answer
                    failed.append(answer)
                if not self._running:
                    if not failed:
                        raise asyncio.CancelledError
                    return min(failed, key=lambda each: each.attempt.number)
                self._back_up()
        finally:
            for task in self._running:
                if task.done() and not task.cancelled():
                    lost = task.result()
                    if lost.call is not None:
                        lost.call.cancel()  # its message came at the same instant
                task.cancel()

    def _wait_s(self) -> float | None:
        due_s = self._race.due_s
        return None if self._is_over or due_s == math.inf else max(0.0, due_s - self._hedger.clock())

    def _back_up(self) -> None:
        """Send a backup if one is due and the policy approves."""
        now_s = self._hedger.clock()
        self._is_over = self._is_over or now_s >= self._deadline_s
        if not self._is_over and now_s >= self._race.due_s:
            due_s = self._race.due_s
            backup = safely(self._race.late)
            self._is_over = backup is None and self._race.due_s == due_s
            if backup is not None:
                self._send(backup)

    def _send(self, attempt: ClientAttempt) -> None:
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._attempt(attempt), name=f"ttft-hedge-{attempt.label}")
        self._running.append(task)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _attempt(self, attempt: ClientAttempt) -> Answer:
        """Send an attempt and wait for its first message."""
        left_s = None if self._deadline_s == math.inf else max(0.0, self._deadline_s - self._hedger.clock())
        call = None
        try:
            call = await self._start(attempt, left_s)
            return Answer(attempt, call, await self._read(call), None)
        except asyncio.CancelledError:
            if call is not None:
                call.cancel()
            raise
        except Exception as error:
            return Answer(attempt, call, None, error)

    def _is_won(self, answer: Answer) -> bool:
        """Report a result to the policy; return True if it ends the race."""
        attempt, error = answer.attempt, answer.error
        if error is None and (answer.first is not EOF or not self._running):
            safely(self._race.on_first, attempt)
            return True
        failure = EMPTY
        if isinstance(error, AioRpcError):
            pushback = dict(error.trailing_metadata() or ()).get(PUSHBACK)
            failure = failure_of(error.code().name, pushback)
            self._is_over = self._is_over or forbids(pushback)
        elif error is not None:
            failure = Failure(Outcome.FAILED)
        safely(self._race.on_failed, attempt, failure)
        return False


async def end_stream(race: ClientRace, attempt: ClientAttempt, call: Any) -> None:
    """Report the end of a winner's stream."""
    safely(race.on_end, attempt, outcome=outcome_of((await call.code()).name))
