"""Races the attempts of one request over a synchronous transport of httpx.

The primary runs in the caller's thread, which needs no other thread until the request is late: its own waits end at the
time of the next decision (`sockets.py`). A backup runs in a thread of its own until its first event, at most
`max_hedges` of them. The attempt with the first event stops the others; each connection is closed at once, by the
thread that uses it.
"""

import contextlib
import math
import threading
from collections.abc import Callable
from typing import Any, Final

from gateway.client.attempt import ClientAttempt
from gateway.client.first import HELD_MAX, First, Verdict, detector, failure_by, failure_of, is_error
from gateway.client.hedger import ClientRace, Failure, Hedger, log_failure, safely
from gateway.client.racing import Entrant, Opened, Overtaken
from gateway.client.sockets import Watch, bind
from gateway.hedging.outcomes import Outcome

_NO_ANSWER: Final = Failure(Outcome.FAILED)  # an empty stream, or one that begins with an error
_NOT_STARTED: Final = Failure(Outcome.CLIENT_GONE, error="connect")
_WAIT, _FIRST, _ERROR = Verdict.WAIT, Verdict.FIRST, Verdict.ERROR

Result = Opened | Exception


class SyncRace:
    """One request.

    Args:
        inner: transport that sends, with sockets of `sockets.py`.
        first: event that ends the race.
        threads: receives the thread of each backup.
    """

    __slots__ = ("_backups", "_entrant", "_first", "_hedger", "_inner", "_main", "_race", "_threads")

    def __init__(
        self, inner: Any, hedger: Hedger, entrant: Entrant, first: First, threads: set[threading.Thread]
    ) -> None:
        self._inner = inner
        self._hedger = hedger
        self._entrant = entrant
        self._race = entrant.race
        self._first = first
        self._threads = threads
        self._main = Watch(hedger.clock, entrant.race.due_s, self._on_due)
        self._backups: _Backups | None = None  # until the request is late

    def run(self) -> Opened:
        """Return the winner's response; without a winner that of the primary, or raise its error."""
        primary, main, race = self._entrant.primary, self._main, self._race
        bind(main)
        try:
            try:
                result = self._attempt(primary)
                if self._backups is not None and race.winner is not primary:
                    result = self._backups.outlast(main, result)
            except Overtaken:
                assert self._backups is not None
                result = self._backups.won()
        except BaseException:
            race.close()
            if self._backups is not None:
                self._backups.abandon()
            raise
        finally:
            bind(None)
            if self._backups is not None:
                self._backups.stop()
            main.close()
        if isinstance(result, Exception):
            raise result
        return result

    def _attempt(self, attempt: ClientAttempt) -> Result:
        """Send an attempt and read it up to its first event, to its end, or to its error; in any thread.

        Raises:
            Overtaken: another attempt has won.
        """
        body = None
        try:
            response = self._inner.handle_request(self._entrant.request_to(attempt))
            body = response.stream
            opened = Opened(attempt, response, body, [], iter(body))
            self._read(opened)
        except Exception as error:
            safely(self._race.on_failed, attempt, failure_by(error))
            if body is not None:
                body.close()
            return error
        except BaseException:
            if body is not None:
                body.close()
            raise
        return opened

    def _read(self, opened: Opened) -> None:
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
            for chunk in opened.rest:
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

    def _on_due(self) -> None:
        """Send a backup if the policy approves, and set the time of the next decision; in the caller's thread."""
        race, main = self._race, self._main
        backup = safely(race.late)
        main.due_s = race.due_s if race.due_s != main.due_s else math.inf
        if backup is None:
            return
        main.listen()
        if self._backups is None:
            self._backups = _Backups(main)
        watch = self._backups.add(self._hedger.clock)
        thread = threading.Thread(
            target=self._run_backup, args=(backup, watch), name=f"ttft-hedge-{backup.label}", daemon=True
        )
        self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError:  # no more threads
            self._threads.discard(thread)
            safely(race.on_failed, backup, _NOT_STARTED)
            self._backups.end(race, backup, watch, None)

    def _run_backup(self, attempt: ClientAttempt, watch: Watch) -> None:
        result: Result | None = None
        bind(watch)
        try:
            with contextlib.suppress(Overtaken):
                result = self._attempt(attempt)
        finally:
            bind(None)
            assert self._backups is not None
            self._backups.end(self._race, attempt, watch, result)
            self._threads.discard(threading.current_thread())


class _Backups:
    """The backups of one request and their results.

    Args:
        main: watch of the caller's thread.
    """

    def __init__(self, main: Watch) -> None:
        self._main = main
        self._changed = threading.Condition()
        self._watches: list[Watch] = []
        self._running = 0
        self._winner: Opened | None = None
        self._is_awaited = False  # the primary has failed
        self._is_over = False

    def add(self, clock: Callable[[], float]) -> Watch:
        """Return the watch of another backup."""
        watch = Watch(clock, math.inf)
        watch.listen()
        with self._changed:
            self._watches.append(watch)
            self._running += 1
        return watch

    def end(self, race: ClientRace, attempt: ClientAttempt, watch: Watch, result: Result | None) -> None:
        """Take the result of a backup; in its thread."""
        watch.close()
        unused = None
        with self._changed:
            self._running -= 1
            if isinstance(result, Opened):
                if race.winner is attempt and not self._is_over:
                    self._winner = result
                else:
                    unused = result
            if self._winner is not None or (self._is_awaited and not self._running):
                self._main.stop()
            self._changed.notify_all()
        if unused is not None:
            unused.body.close()

    def outlast(self, main: Watch, result: Result) -> Result:
        """Wait for the backups after the primary has failed; return the primary's result if they fail too."""
        with self._changed:
            self._is_awaited = True
            if not self._running and self._winner is None:
                return result
        while True:
            with contextlib.suppress(Overtaken):
                main.wait(None, 0, None)
            with self._changed:
                winner = self._winner
                if winner is not None or not self._running:
                    break
                main.resume()  # the last one has failed while the next one was sent
        if winner is None:
            return result
        if isinstance(result, Opened):
            result.body.close()
        return winner

    def won(self) -> Opened:
        """Return the response of the backup that has won, which its thread is about to hand over."""
        with self._changed:
            while self._winner is None:
                self._changed.wait()
            return self._winner

    def abandon(self) -> None:
        """Close the response of a winner that no caller takes any more."""
        with self._changed:
            self._is_over = True
            winner, self._winner = self._winner, None
        if winner is not None:
            winner.body.close()

    def stop(self) -> None:
        """Stop those that still run."""
        with self._changed:
            self._is_over = True
            watches = list(self._watches)
        for watch in watches:
            watch.stop()
