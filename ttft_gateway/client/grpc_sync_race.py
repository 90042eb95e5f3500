"""Races the attempts of one RPC over a synchronous channel, up to the response or to the first message of a stream.

No thread waits for a response: grpc reports it. A stream's first message is read in a thread for each attempt, which
ends with it. One thread of the channel decides on backups; it exists while there is something to wait for. The loser's
call is cancelled immediately, which resets its stream. Whatever ends an attempt, an exit of its thread and an error in
the code below included, is its result: no caller waits for an attempt that has ended.
"""

import heapq
import math
import threading
import time
import weakref
from collections.abc import Callable
from contextvars import copy_context
from itertools import count
from typing import Any, Final, NamedTuple

import grpc

from ttft_gateway.client.grpc_policy import EMPTY, PUSHBACK, failure_of, outcome_of
from ttft_gateway.client.hedger import ClientAttempt, ClientRace, Failure, log_failure, safely
from ttft_gateway.client.race import UNSENT
from ttft_gateway.hedging.outcomes import Outcome

Call = Any
"""A call of grpc, for which its types have no common name: `grpc.Call`, `grpc.Future`, and an iterator for a stream."""
Start = Callable[[ClientAttempt, float | None], Call]
"""Sends an attempt, with the seconds that are left for it or None; returns its call without waiting."""

NOTHING: Final = object()  # instead of a message: there is none
_IDLE_S: Final = 1.0  # time between two searches for cancelled appointments, after the last of which the thread ends


class RpcResult(NamedTuple):
    """The result of one attempt.

    Attributes:
        call: its call; None if it could not be sent.
        first: first message of a stream, `NOTHING` if it has none.
        error: its error, None if it has none.
    """

    attempt: ClientAttempt
    call: Call
    first: object
    error: BaseException | None


class SyncGrpcRace:
    """One RPC.

    Args:
        is_stream: True for a stream of responses.

    Attributes:
        race: the race of the RPC.
    """

    def __init__(self, race: ClientRace, alarm: "Alarm", start: Start, *, is_stream: bool) -> None:
        self.race = race
        self._alarm = alarm
        self._start = start
        self._is_stream = is_stream
        self._changed = threading.Condition()
        self._running: dict[ClientAttempt, Call] = {}
        self._failed: list[RpcResult] = []
        self._answer: RpcResult | None = None
        self._is_cancelled = False
        self._entry: Appointment | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._context = copy_context()  # of the caller
        self.left_s = race.left_s

    def begin(self, primary: ClientAttempt) -> None:
        """Send the primary.

        Raises:
            Exception: raised by a channel that cannot send, such as a closed one.
        """
        self._send(primary)
        answer = self._answer
        if answer is not None and answer.call is None and answer.error is not None:
            raise answer.error
        self._set_alarm()

    def wait(self, timeout_s: float | None = None) -> RpcResult:
        """Wait for the winner; if all attempts fail, for the primary with its error.

        Raises:
            grpc.FutureTimeoutError: the time is over.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._answer is not None, timeout_s):
                raise grpc.FutureTimeoutError
            assert self._answer is not None
            return self._answer

    @property
    def answer(self) -> RpcResult | None:
        """The result; None before."""
        return self._answer

    def when_over(self, callback: Callable[[], None]) -> None:
        """Call a function at the end of the race."""
        with self._changed:
            if self._answer is None:
                self._callbacks.append(callback)
                return
        callback()

    def cancel(self) -> bool:
        """Cancel all attempts; return False if the race is over. May be called by a finalizer."""
        if self._answer is not None:
            return False
        self._is_cancelled = True
        for call in list(self._running.values()):
            call.cancel()
        return True

    # inside

    def _send(self, attempt: ClientAttempt) -> None:
        call, error = None, None
        if not self._is_cancelled and self._answer is None:
            try:
                call = self._start(attempt, self.left_s())
            except BaseException as raised:  # the caller gets it: this may be another thread
                error = raised
        if call is None:
            self._on_result(RpcResult(attempt, None, NOTHING, error or grpc.FutureCancelledError()))
            return
        with self._changed:
            is_late = self._answer is not None
            if not is_late:
                self._running[attempt] = call
        if is_late or self._is_cancelled:
            call.cancel()
        if is_late:
            return
        if self._is_stream:
            self._in_thread(attempt, call, lambda: self._on_result(_first(attempt, call)))
        else:
            call.add_done_callback(lambda done: self._on_result(_response(attempt, done)))

    def _in_thread(self, attempt: ClientAttempt, call: Call, work: Callable[[], None]) -> None:
        """Do work that blocks for an attempt in a thread of its own, with the caller's context variables."""
        run, name = self._context.copy().run, f"ttft-hedge-{attempt.label}"
        thread = threading.Thread(target=run, args=(work,), name=name, daemon=True)
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:  # no more threads
            if call is not None:
                call.cancel()
            self._on_result(RpcResult(attempt, None, NOTHING, error))

    def _on_result(self, answer: RpcResult) -> None:
        """Take the result of an attempt; in any thread. An error here ends the race like a failure of the attempt."""
        try:
            self._take(answer)
        except Exception as error:
            log_failure()
            attempt = answer.attempt
            with self._changed:
                self._failed.append(answer if answer.error is not None else answer._replace(call=None, error=error))
            race = self.race
            safely(race.on_failed, attempt, UNSENT)
            if race.winner is attempt or (race.winner is None and race.is_over):  # a winner that cannot be returned
                self._end(None)
                safely(race.close)

    def _take(self, answer: RpcResult) -> None:
        race, attempt = self.race, answer.attempt
        is_empty = self._is_stream and answer.first is NOTHING
        if answer.error is None and (not is_empty or race.is_alone(attempt)):
            safely(race.on_first, attempt)
            if race.winner is attempt:
                self._end(answer)
            else:
                answer.call.cancel()  # its message came at the same instant
            return
        with self._changed:
            self._running.pop(attempt, None)
            self._failed.append(answer)
        safely(race.on_failed, attempt, _failure(answer))
        if race.winner is None and race.is_over:
            self._end(None)

    def _end(self, answer: RpcResult | None) -> None:
        """End the race with its winner; None: all attempts have failed."""
        race = self.race
        with self._changed:
            if self._answer is not None:
                return
            if answer is None:
                numbered = sorted(self._failed, key=lambda each: each.attempt.number)
                answer = numbered[-1 if self._is_cancelled else 0]
            self._running.pop(answer.attempt, None)
            self._answer, losers = answer, list(self._running.values())
        for call in losers:
            safely(call.cancel)
        if self._entry is not None:
            self._entry.cancel()
        if race.winner is answer.attempt and answer.call is not None:
            if self._is_stream:
                safely(_watch_end, race, answer)
            else:
                safely(race.on_end, answer.attempt, outcome=Outcome.FINISHED)
        with self._changed:
            self._changed.notify_all()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            safely(callback)

    # backups

    def _set_alarm(self) -> None:
        due_s = self.race.due_s
        if due_s < math.inf:
            self._entry = self._alarm.after(max(0.0, due_s - self.race.hedger.clock()), self._on_due)
            if self._answer is not None:
                self._entry.cancel()

    def _on_due(self) -> None:
        """Send a backup if the policy approves; in the thread of the alarm."""
        race, due_s = self.race, self.race.due_s
        if self._is_cancelled:
            return
        if race.hedger.clock() >= due_s:
            backup = safely(race.late)
            if backup is not None:  # interceptors of a channel may block
                self._in_thread(backup, None, lambda: self._send(backup))
            if race.due_s == due_s:
                return
        self._set_alarm()


def _first(attempt: ClientAttempt, call: Call) -> RpcResult:
    """Read the first message of a stream."""
    try:
        return RpcResult(attempt, call, next(call, NOTHING), None)
    except Exception as error:
        return RpcResult(attempt, call, NOTHING, error)
    except BaseException as error:  # the caller waits in another thread, and gets it
        safely(call.cancel)
        return RpcResult(attempt, None, NOTHING, error)


def _response(attempt: ClientAttempt, call: Call) -> RpcResult:
    """Return the result of a call with one response that has ended."""
    try:
        return RpcResult(attempt, call, NOTHING, call.exception())
    except grpc.FutureCancelledError as cancelled:
        return RpcResult(attempt, call, NOTHING, cancelled)
    except BaseException as error:
        return RpcResult(attempt, None, NOTHING, error)


def _failure(answer: RpcResult) -> Failure:
    error = answer.error
    if answer.call is None or isinstance(error, grpc.FutureCancelledError):
        return UNSENT
    if error is None:
        return EMPTY
    if not isinstance(error, grpc.Call) or error.code() is None:  # an error of an interceptor, or of grpc itself
        return Failure(Outcome.FAILED)
    return failure_of(error.code().name, dict(error.trailing_metadata() or ()).get(PUSHBACK))


def _watch_end(race: ClientRace, answer: RpcResult) -> None:
    """Report the end of a winner's stream when its status arrives, or when its caller drops it."""
    attempt = answer.attempt
    found = weakref.ref(answer.call)  # else the call would refer to itself, and outlive its caller

    def report() -> None:
        call = found()
        outcome = Outcome.CLIENT_GONE if call is None else outcome_of(call.code().name)
        safely(race.on_end, attempt, outcome=outcome)

    if not answer.call.add_callback(report):
        report()


class Appointment:
    """One call to come.

    Attributes:
        function: the function; None after the call, or if it was cancelled.
    """

    __slots__ = ("due_s", "function", "number")

    def __init__(self, due_s: float, number: int, function: Callable[[], None]) -> None:
        self.due_s = due_s
        self.number = number
        self.function: Callable[[], None] | None = function

    def __lt__(self, other: "Appointment") -> bool:
        return (self.due_s, self.number) < (other.due_s, other.number)

    def cancel(self) -> None:
        """Call nothing."""
        self.function = None


class Alarm:
    """Calls functions, none of which waits, in a thread of its own."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._entries: list[Appointment] = []
        self._numbers = count()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def after(self, delay_s: float, function: Callable[[], None]) -> Appointment:
        """Call a function after a time."""
        entry = Appointment(time.monotonic() + delay_s, next(self._numbers), function)
        with self._changed:
            if self._is_closed:
                return entry
            heapq.heappush(self._entries, entry)
            if self._thread is None or not self._thread.is_alive():  # none yet, or the parent's before a fork
                self._thread = threading.Thread(target=self._run, name="ttft-hedge-alarm", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:  # no more threads: the function is not called
                    self._thread = None
            elif self._entries[0] is entry:
                self._changed.notify()
        return entry

    def close(self) -> None:
        """End the thread; later calls are not made."""
        with self._changed:
            self._is_closed = True
            self._entries.clear()
            self._changed.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        while (function := self._next()) is not None:
            safely(function)

    def _next(self) -> Callable[[], None] | None:
        """Wait for the next function; None: there are no more, and the thread ends."""
        with self._changed:
            while True:
                now_s = time.monotonic()
                self._entries = [entry for entry in self._entries if entry.function is not None]
                heapq.heapify(self._entries)
                if not self._entries:
                    self._thread = None
                    return None
                first = self._entries[0]
                if first.due_s <= now_s:
                    function, first.function = first.function, None
                    return function
                self._changed.wait(min(_IDLE_S, first.due_s - now_s))
