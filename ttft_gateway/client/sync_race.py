"""Races the attempts of one request in threads: `race.py` for a library that blocks.

The primary runs in the caller's thread, which needs no other thread until the request is late: its own waits end at the
time of the next decision (`sockets.py`). A backup runs in a thread of its own until its first event, at most
`max_hedges` of them. The attempt with the first event stops the other attempts; each connection is closed immediately,
by the thread that uses it. Whatever ends a thread, an exit included, ends its attempt: no caller waits for it any more.

Attempts are the same as with asyncio: their coroutines never wait, because what they call blocks. If the waits of a
transport cannot be interrupted, as of a test's fake, the primary runs in a thread, too, and the thread of a loser ends
when the transport returns.
"""

import contextlib
import logging
import math
import threading
from collections.abc import Coroutine
from contextvars import copy_context
from typing import Final, Generic, TypeVar

from ttft_gateway.client.hedger import ClientAttempt, safely
from ttft_gateway.client.race import UNSENT, Overtaken, RacedAttempts
from ttft_gateway.client.sockets import Watch, current
from ttft_gateway.client.tracing import traced

_T = TypeVar("_T")
_log: Final = logging.getLogger("ttft_gateway")


def finished(work: Coroutine[object, None, _T]) -> _T:
    """Return the result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as end:
        result: _T = end.value
        return result
    raise RuntimeError("a coroutine of a library that blocks waits for an event loop")


class SyncRace(Watch, Generic[_T]):
    """One request; it is the watch of the caller's thread.

    Args:
        attempts: send with sockets of `sockets.py`.
        threads: receives the thread of each backup until its end.
        errors: exceptions that end one attempt; any other one ends the request.
    """

    _won: _T | None = None  # response of a backup that has won
    _failed: BaseException | None = None  # error of the primary
    _broken: BaseException | None = None  # error of an attempt after it had won
    _is_left = False  # a response that comes now is closed by its thread

    def __init__(
        self, attempts: RacedAttempts[_T], threads: set[threading.Thread], errors: type[Exception] = Exception
    ) -> None:
        self._clock = attempts.race.hedger.clock
        self._attempts = traced(attempts)
        self._race = attempts.race
        self._threads = threads
        self._errors = errors
        self.due_s = attempts.race.due_s
        self._watches: list[Watch] = []  # of the backups

    def run(self) -> _T:
        """Return the winner's response; without a winner, return the primary's or raise its error."""
        try:
            return self._run()
        finally:
            self._failed = self._broken = None  # their tracebacks lead to this race: a cycle

    def _run(self) -> _T:
        attempts, race = self._attempts, self._race
        result, won = None, None
        current.watch = self
        try:
            try:
                result = finished(attempts.open(attempts.primary))
            except Overtaken:
                pass
            except self._errors as error:
                self._failed = error
                safely(race.on_failed, attempts.primary, attempts.failure(error))
            if self._watches and race.winner is not attempts.primary:
                won = self._outlast()
        except BaseException:
            race.close()
            self._close(result)
            self._close(self._leave())
            raise
        finally:
            current.watch = None
            for watch in self._watches:
                watch.stop()
            if self._watches:
                self.close()
        if won is not None:
            self._close(result)
            return won
        if self._failed is None and result is None:
            self._failed = self._broken or Overtaken()
        if self._failed is not None:
            raise self._failed
        assert result is not None
        return result

    def _outlast(self) -> _T | None:
        """Wait after the end of the primary.

        Returns:
            The response of a backup that has won; None if all have failed, or the caller's time is used up.
        """
        while not self._race.is_over and (left_s := self._race.left_s()) != 0.0:
            with contextlib.suppress(Overtaken):
                self.wait(None, 0, left_s)
        if not self._race.is_over:  # a backup that answers now has not won
            self._race.close()
        if self._race.winner is not None:  # its thread is about to set its response
            with self._changed:
                self._changed.wait_for(lambda: self._won is not None or self._broken is not None)
        return self._leave()

    def _leave(self) -> _T | None:
        """Take the response of a backup that has won; a later one is closed by its thread."""
        if not self._watches:
            return None
        with self._changed:
            self._is_left = True
            return self._won

    def _close(self, opened: _T | None) -> None:
        if opened is not None:
            finished(self._attempts.close(opened))

    def on_due(self) -> None:
        """Send a backup if the policy approves, and set the time of the next decision."""
        race = self._race
        backup = safely(race.late)
        self.due_s = race.due_s if race.due_s != self.due_s else math.inf
        if backup is not None:
            self._start(backup)

    def _start(self, attempt: ClientAttempt) -> None:
        """Run an attempt in a thread of its own."""
        if not self._watches:
            self.listen()
            self._changed = threading.Condition()
        watch = Watch(self._clock)
        watch.listen()
        self._watches.append(watch)
        context, name = copy_context(), f"ttft-hedge-{attempt.label}"
        thread = threading.Thread(target=context.run, args=(self._work, attempt, watch), name=name, daemon=True)
        self._threads.add(thread)
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:  # no more threads
            self._threads.discard(thread)
            self._end(attempt, watch, None, error)

    def _work(self, attempt: ClientAttempt, watch: Watch) -> None:
        """Run an attempt in its thread up to its response, its error, or the exit of the thread."""
        opened = None
        failed: BaseException | None = None
        current.watch = watch
        try:
            opened = finished(self._attempts.open(attempt))
        except Overtaken:
            pass
        except Exception as error:
            failed = error
            safely(self._fail, attempt, error)
        except BaseException as error:
            failed = error
            _log.warning("an attempt of a race was ended by %s", type(error).__name__)
        current.watch = None
        try:
            self._end(attempt, watch, opened, failed)
        finally:
            self._threads.discard(threading.current_thread())
            failed = None  # its traceback has this frame: a cycle

    def _fail(self, attempt: ClientAttempt, error: Exception) -> None:
        self._race.on_failed(attempt, self._attempts.failure(error))

    def _end(self, attempt: ClientAttempt, watch: Watch, opened: _T | None, failed: BaseException | None) -> None:
        """Take the response of an attempt, or its error; neither if another attempt has won."""
        if opened is None:
            safely(self._race.on_failed, attempt, UNSENT)  # if nothing else was reported
        with self._changed:
            if self._race.winner is attempt:
                if opened is None:
                    self._broken = failed or Overtaken()
                elif not self._is_left:
                    self._won, opened = opened, None
            self._changed.notify_all()
        if self._race.is_over:
            self.stop()
        watch.close()
        self._close(opened)


class ThreadedRace(SyncRace[_T]):
    """One request over a transport with waits that cannot be interrupted."""

    _primary: _T | None = None  # its response, if it has not won
    _is_ended = False  # the primary

    def _run(self) -> _T:
        race, primary = self._race, self._attempts.primary
        self._start(primary)
        try:
            while not race.is_over:
                left_s = None if primary.outcome is None else race.left_s()
                if left_s == 0.0:
                    break
                with contextlib.suppress(Overtaken):
                    self.wait(None, 0, left_s)
            if not race.is_over:
                race.close()
            with self._changed:
                self._changed.wait_for(
                    lambda: (
                        self._won is not None or self._broken is not None or (race.winner is None and self._is_ended)
                    )
                )
        except BaseException:
            race.close()
            self._close(self._leave())
            self._close(self._primary)
            raise
        finally:
            for watch in self._watches:
                watch.stop()
            self.close()
        won = self._leave()
        if won is not None:
            self._close(self._primary)
            return won
        if self._primary is None:
            raise self._failed or self._broken or Overtaken
        return self._primary

    def _end(self, attempt: ClientAttempt, watch: Watch, opened: _T | None, failed: BaseException | None) -> None:
        if attempt is not self._attempts.primary:
            super()._end(attempt, watch, opened, failed)
            return
        with self._changed:
            self._failed = failed
            if self._race.winner is None and not self._is_left:
                self._primary, opened = opened, None
            self._is_ended = True
            self._changed.notify_all()
        super()._end(attempt, watch, opened, failed)
        self.stop()
