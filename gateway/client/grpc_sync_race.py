"""Races the attempts of one RPC over a synchronous channel, up to the response or to the first message of a stream.

No thread waits for a response: grpc reports it. A stream's first message is read in a thread for each attempt, which
ends with it. Another thread decides on backups (`alarm.py`). The loser's call is cancelled at once, which resets its
stream.
"""

import math
import threading
import weakref
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import grpc

from gateway.client.alarm import Alarm, Appointment
from gateway.client.attempt import ClientAttempt
from gateway.client.grpc_status import EMPTY, PUSHBACK, failure_of, forbids, outcome_of
from gateway.client.hedger import ClientRace, Failure, Hedger, safely
from gateway.hedging.outcomes import Outcome

Start = Callable[[ClientAttempt, float | None], Any]
"""Sends an attempt, with the seconds that are left for it or None; returns its call at once."""

NOTHING: Final = object()  # instead of a message: there is none
_NOT_SENT: Final = Failure(Outcome.CLIENT_GONE, error="connect")


class RpcResult(NamedTuple):
    """The result of one attempt.

    Attributes:
        call: its call; None if it could not be sent.
        first: first message of a stream, `NOTHING` without one.
        error: error, None without one.
    """

    attempt: ClientAttempt
    call: Any
    first: Any
    error: BaseException | None


class SyncGrpcRace:
    """One RPC.

    Args:
        timeout_s: time for the whole RPC; None: no limit.
        is_stream: True for a stream of responses.
    """

    def __init__(
        self,
        hedger: Hedger,
        race: ClientRace,
        alarm: Alarm,
        start: Start,
        timeout_s: float | None,
        *,
        is_stream: bool,
    ) -> None:
        self._hedger = hedger
        self._race = race
        self._alarm = alarm
        self._start = start
        self._is_stream = is_stream
        self._deadline_s = math.inf if timeout_s is None else hedger.clock() + timeout_s
        self._changed = threading.Condition()
        self._running: dict[ClientAttempt, Any] = {}
        self._failed: list[RpcResult] = []
        self._pending = 0  # attempts that are about to be sent
        self._answer: RpcResult | None = None
        self._is_cancelled = False
        self._is_over = False  # no further backup: the server forbids one, or the time is used up
        self._entry: Appointment | None = None
        self._callbacks: list[Callable[[], None]] = []

    def begin(self, primary: ClientAttempt) -> None:
        """Send the primary.

        Raises:
            Exception: that of a channel which cannot send, such as a closed one.
        """
        self._pending = 1
        self._send(primary)
        answer = self._answer
        if answer is not None and answer.call is None and answer.error is not None:
            raise answer.error
        self._set_alarm()

    def wait(self, timeout_s: float | None = None) -> RpcResult:
        """Wait for the winner; without one, for the primary with its error.

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

    def left_s(self) -> float | None:
        """Return the seconds until the end of the RPC's time; None without a limit."""
        return None if self._deadline_s == math.inf else max(0.0, self._deadline_s - self._hedger.clock())

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
        """Send an attempt that is pending."""
        call, error = None, None
        if not self._is_cancelled and self._answer is None:
            try:
                call = self._start(attempt, self.left_s())
            except Exception as raised:
                error = raised
        with self._changed:
            self._pending -= 1
            is_late = self._answer is not None
            if call is not None and not is_late:
                self._running[attempt] = call
        if call is None:
            self._on_result(RpcResult(attempt, None, NOTHING, error or grpc.FutureCancelledError()))
            return
        if is_late or self._is_cancelled:
            call.cancel()
        if not is_late:
            self._watch(attempt, call)

    def _watch(self, attempt: ClientAttempt, call: Any) -> None:
        if not self._is_stream:
            call.add_done_callback(lambda done: self._on_result(RpcResult(attempt, done, NOTHING, _error_of(done))))
            return
        thread = threading.Thread(
            target=self._read, args=(attempt, call), name=f"ttft-hedge-{attempt.label}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # no more threads
            call.cancel()
            self._on_result(RpcResult(attempt, None, NOTHING, error))

    def _read(self, attempt: ClientAttempt, call: Any) -> None:
        """Read the first message of a stream; in a thread of its own."""
        first, error = NOTHING, None
        try:
            first = next(call, NOTHING)
        except Exception as raised:
            error = raised
        self._on_result(RpcResult(attempt, call, first, error))

    def _on_result(self, answer: RpcResult) -> None:
        """Take the result of an attempt; in any thread."""
        losers: list[Any] = []
        with self._changed:
            self._running.pop(answer.attempt, None)
            if self._answer is not None:
                losers.append(answer.call)  # its message came at the same instant
            elif answer.error is None and (not self._is_empty(answer) or not (self._running or self._pending)):
                self._answer, losers = answer, list(self._running.values())
        if losers or self._answer is answer:
            for call in losers:
                if call is not None:
                    call.cancel()
            if self._answer is answer:
                safely(self._race.on_first, answer.attempt)
                self._end()
            return
        failure = self._failure(answer)
        safely(self._race.on_failed, answer.attempt, failure)
        with self._changed:
            self._failed.append(answer)
        self._end_if_all_failed()

    def _is_empty(self, answer: RpcResult) -> bool:
        return self._is_stream and answer.first is NOTHING

    def _failure(self, answer: RpcResult) -> Failure:
        """Classify a failed attempt; a pushback may forbid further ones."""
        error: Any = answer.error
        if answer.call is None or isinstance(error, grpc.FutureCancelledError):
            return _NOT_SENT
        if error is None:
            return EMPTY
        if not isinstance(error, grpc.Call):  # an error of an interceptor
            return Failure(Outcome.FAILED)
        pushback = dict(error.trailing_metadata() or ()).get(PUSHBACK)
        self._is_over = self._is_over or forbids(pushback)
        return failure_of(error.code().name, pushback)

    def _end_if_all_failed(self) -> None:
        with self._changed:
            if self._answer is not None or self._running or self._pending or not self._failed:
                return
            numbered = sorted(self._failed, key=lambda each: each.attempt.number)
            self._answer = numbered[-1 if self._is_cancelled else 0]
        self._race.close()
        self._end()

    def _end(self) -> None:
        """End the race, whose answer is known."""
        if self._entry is not None:
            self._entry.cancel()
        answer = self._answer
        assert answer is not None
        if self._race.winner is answer.attempt:
            if not self._is_stream:
                safely(self._race.on_end, answer.attempt, outcome=Outcome.FINISHED)
            else:
                _watch_end(self._race, answer)
        else:
            self._race.close()
        with self._changed:
            self._changed.notify_all()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    # backups

    def _set_alarm(self) -> None:
        due_s = self._race.due_s
        if due_s < min(math.inf, self._deadline_s) and not self._is_over:
            self._entry = self._alarm.after(max(0.0, due_s - self._hedger.clock()), self._on_due)
            if self._answer is not None:
                self._entry.cancel()

    def _on_due(self) -> None:
        """Send a backup if the policy approves; in the thread of the alarm."""
        race, due_s = self._race, self._race.due_s
        if self._hedger.clock() >= due_s:
            with self._changed:
                if self._answer is not None or self._is_over or self._is_cancelled:
                    return
                self._pending += 1  # so that a failure of the last attempt does not end the race now
            backup = safely(race.late)
            if backup is not None:
                self._send_aside(backup)
            else:
                with self._changed:
                    self._pending -= 1
                if race.due_s == due_s:
                    self._is_over = True
                self._end_if_all_failed()
        self._set_alarm()

    def _send_aside(self, backup: ClientAttempt) -> None:
        """Send a backup in a thread of its own: interceptors of a channel may block."""
        thread = threading.Thread(target=self._send, args=(backup,), name=f"ttft-hedge-{backup.label}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no more threads
            with self._changed:
                self._pending -= 1
            self._on_result(RpcResult(backup, None, NOTHING, error))


def _error_of(call: Any) -> BaseException | None:
    """Return the error of an RPC that has ended."""
    try:
        error: BaseException | None = call.exception()
    except grpc.FutureCancelledError as cancelled:
        return cancelled
    return error


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
