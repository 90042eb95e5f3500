"""Runs a guard: an attempt that continues the client's answer beside its stream, which is silent or slow.

Whichever brings the next output goes on, and the other one is cancelled. While a guard runs, the client gets no output
of the stream beside it: the first output of a silent stream ends its guard, and the output of a slow one is held back,
for a short time, because the guard's text begins where the client's text ends. So the client's bytes are one answer's
at each moment. The pool decides when a stream is silent or slow (`pool/guards.py`) and pays; `Recovery` chooses the
step, by the rules of a broken stream.

A replay generates again what the client has, so its guard waits for as long as that has taken: then the time lost is at
most twice the least possible one. An object of this class is made at the first look at a stream, 1 s after its first
content, so shorter streams cost nothing.

Units: seconds of the loop's clock, bytes.
"""

import math
from typing import Final, NamedTuple, Protocol

from gateway.events import RecoveryResult
from gateway.race.attempt import Attempt, AttemptListener
from gateway.race.attempts import Attempts
from gateway.race.context import Runtime
from gateway.race.recovery import Recovery
from gateway.race.retry_plan import SendTo
from gateway.race.sent_events import SentEvents
from ttft_gateway.apis.errors import TimedOut, UpstreamError
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.hedging.outcomes import GuardCause, Outcome
from ttft_gateway.pool.guard_rules import may_guard, pay_guard, takes_guard
from ttft_gateway.pool.guards import LOOK_S
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import Replica

GUARDS_MAX: Final = 2  # of a request
HELD_S_MAX: Final = 2.0  # time for which the output of a slow stream is held back
HELD_BYTES_MAX: Final = 64 * 1024
_GAIN: Final = 2.0  # expected saving beside a slow stream as a multiple of the guard's expected TTFT
_LATE: Final = 4.0  # times the expected TTFT: by then a guard that has not begun has lost
_REST_MIN: Final = 32  # events that an answer is expected to have left; later, as many as it has had


class Guarded(AttemptListener, Protocol):
    """The race."""

    def on_overtaken(self, guard: "Guard", outcome: Outcome, error: TimedOut | None, new: bytes) -> None:
        """The guard has brought new output: it is the winner, and the late stream ends with this outcome."""

    def write_late(self, raw: bytes) -> None:
        """Pass on events of the winner."""


class Guard(NamedTuple):
    """One attempt beside an open stream.

    Attributes:
        attempt: the attempt.
        late: the attempt that is silent or slow.
        recovery: the client's part of the answer, and the step of the guard.
        cause: reason for the guard.
        silent_since_s: last output of the late attempt before.
        begun_by_s: time by which the guard has lost if it has no first token.
        held_until_s: time until which the output of a slow stream is held back; infinite beside a silent one.
    """

    attempt: Attempt
    late: Attempt
    recovery: Recovery
    cause: GuardCause
    silent_since_s: float
    begun_by_s: float
    held_until_s: float

    def is_over(self, now_s: float) -> bool:
        """Return True if the guard has lost, because it has brought nothing in its time."""
        is_begun = self.attempt.content_s is not None
        is_late = self.attempt.stall(now_s) is not None if is_begun else now_s >= self.begun_by_s
        return is_late or now_s >= self.held_until_s

    def is_early(self, now_s: float) -> bool:
        """Return True before the expected first token of the guard."""
        attempt = self.attempt
        expected_s = None if attempt.forecast is None else attempt.forecast.ttft_s
        is_waiting = attempt.content_s is None and attempt.outcome is None
        return is_waiting and expected_s is not None and now_s < attempt.start_s + expected_s

    def next_check_s(self, now_s: float) -> float:
        """Return the time at which it may be over."""
        attempt = self.attempt
        own_s = self.begun_by_s if attempt.content_s is None else attempt.stall_check_s(now_s)
        return min(self.held_until_s, own_s)


class Guarding:
    """The guards of one request, one at a time.

    Attributes:
        running: the guard under way, None if there is none.
    """

    __slots__ = (
        "_attempts",
        "_beside",
        "_held",
        "_new",
        "_race",
        "_recorded",
        "_runtime",
        "_sent",
        "_waits_s",
        "running",
    )

    def __init__(self, race: Guarded, attempts: Attempts, runtime: Runtime) -> None:
        self._race = race
        self._attempts = attempts
        self._runtime = runtime
        self.running: Guard | None = None
        self._sent = 0
        self._beside: Recovery | None = None  # of the present stream
        self._recorded: SentEvents | None = None  # of the late attempt, while a guard runs
        self._held = b""  # events of the late attempt that the client has not
        self._new = b""  # events of the guard after all that the client has, before its first new output
        self._waits_s = 0.0  # silence before which a replay is no use

    def check(self, winner: Attempt, recovery: Recovery | None, now_s: float) -> float:
        """Look at the client's stream, or at the guard beside it; return the time of the next look."""
        guard = self.running
        if guard is not None:
            if not guard.is_over(now_s):
                return guard.next_check_s(now_s)
            self.drop(RecoveryResult.FAILED)
        if winner.sent_events is None and recovery is None:
            return math.inf  # the stream is too long to be continued
        watch = winner.watch or winner.watched()
        cause = self._runtime.safely("guard", winner.pool.guards.look, None, winner, watch, now_s)
        if cause is None or self._sent >= GUARDS_MAX:
            return max(watch.due_s, now_s + LOOK_S / 10)
        guard = self._runtime.safely("guard", self._started, None, winner, recovery, cause, now_s)
        return max(watch.due_s, now_s + LOOK_S / 10) if guard is None else guard.next_check_s(now_s)

    # the start

    def _started(self, late: Attempt, recovery: Recovery | None, cause: GuardCause, now_s: float) -> Guard | None:
        """Send a guard if the rules of recovery allow it, and its pool pays for it."""
        attempts, facts = self._attempts, self._attempts.facts
        is_held = cause is GuardCause.SLOW
        if is_held and facts.deadline_s is not None:
            return None  # a caller with a deadline waits for each piece
        silence_s = now_s - late.output_s
        if not is_held and silence_s < self._waits_s:
            return None
        if not may_guard(late.pool, late, facts, cause, now_s) or not attempts.may_recover(late, recovery, now_s):
            return None
        beside = self._prepared(late, recovery)
        if beside is None:
            return None

        def fits(pool: Pool, facts: RequestFacts, replica: Replica) -> bool:
            is_taken = takes_guard(pool, replica, facts, late, cause, now_s)
            return is_taken and (not is_held or _gains(pool, replica, facts, late, now_s))

        target = beside.next_beside(attempts.sent, facts, now_s, self._runtime.rand(), cause, fits)
        if target is None or beside.recovery_call is None:
            return None
        if beside.repeats:
            self._waits_s = late.generated_s - (late.content_s or late.start_s)
            if silence_s < self._waits_s:
                return None
        call_facts = beside.recovery_call[1]
        uncached = target.pool.loads.uncached(call_facts, target.replica, now_s)
        if not pay_guard(late.pool, late, target.replica, call_facts, cause, uncached, now_s):
            return None
        return self._send(late, beside, cause, target, now_s)

    def _prepared(self, late: Attempt, recovery: Recovery | None) -> Recovery | None:
        """Return a recovery of the client's stream, which is kept, so that each event is read once."""
        kept = self._beside
        if kept is not None and kept.current is late:
            return kept
        if recovery is not None:
            self._beside = recovery.beside(late)
        elif late.sent_events is not None:
            self._beside = Recovery(self._attempts.model, self._attempts.call, late, late.sent_events)
        return self._beside

    def _send(self, late: Attempt, beside: Recovery, cause: GuardCause, target: SendTo, now_s: float) -> Guard:
        self._sent += 1
        silence_s, is_held = now_s - late.output_s, cause is GuardCause.SLOW
        reason = f"{late.replica.name} is slow" if is_held else f"{late.replica.name} is silent for {silence_s:.1f} s"
        attempt = self._attempts.guard(self._race, target, beside, reason)
        expected_s = attempt.forecast.ttft_s if attempt.forecast is not None else None
        begun_by_s = attempt.deadlines.give_up_s
        if expected_s is not None:
            begun_by_s = min(begun_by_s, now_s + max(LOOK_S, _LATE * expected_s))
        held_until_s = now_s + HELD_S_MAX if is_held else math.inf
        guard = self.running = Guard(attempt, late, beside, cause, late.output_s, begun_by_s, held_until_s)
        self._beside = None
        self._recorded = late.divert(self._hold if is_held else self._wait)
        self._held = self._new = b""
        return guard

    # the late stream

    def _wait(self, raw: bytes) -> None:
        """Pass on the events of a silent stream; its first output ends the guard."""
        guard = self.running
        assert guard is not None
        if guard.late.output_s > guard.silent_since_s:
            self._held = raw
            self.drop(RecoveryResult.LOST)
            return
        if self._recorded is not None:  # an event without output
            self._recorded += raw
        self._race.write_late(raw)

    def _hold(self, raw: bytes) -> None:
        """Hold back the events of a slow stream."""
        self._held += raw
        if len(self._held) > HELD_BYTES_MAX:
            self.drop(RecoveryResult.LOST)

    def drop(self, result: RecoveryResult, error: UpstreamError | None = None) -> None:
        """Cancel the guard; the late stream goes on."""
        guard = self._ended()
        if guard is None:
            return
        report = guard.recovery.lost(result, self._runtime.loop.time() - guard.silent_since_s)
        self._attempts.lost_guards += (report,)
        if result is RecoveryResult.DIVERGED:
            self._sent = GUARDS_MAX  # another replay would differ, too
        if guard.is_early(self._runtime.loop.time()):
            guard.late.pool.guards.on_lost_early(guard.cause)
        if error is None:
            self._attempts.close(guard.attempt, Outcome.LOST)
        held, self._held = self._held, b""
        if guard.late.outcome is None:
            guard.late.restore(self._race.write_late, self._recorded, held)

    def _ended(self) -> Guard | None:
        guard, self.running = self.running, None
        return guard

    # the guard

    def on_content(self, attempt: Attempt) -> bool:
        """Read the first content of a guard; return False for any other attempt."""
        guard = self.running
        if guard is None or attempt is not guard.attempt:
            return False
        self._attempts.first_content(attempt)
        attempt.forward(self._read)
        return True

    def _read(self, raw: bytes) -> None:
        """Compare events of the guard with what the client has; its first new output wins."""
        guard = self.running
        assert guard is not None
        new = self._runtime.safely("recovery", guard.recovery.read_beside, None, raw, self._runtime.loop.time())
        if new is None:
            self.drop(RecoveryResult.DIVERGED)
            return
        self._new += new
        attempt = guard.attempt
        if new and attempt.generated_s == attempt.last_s:  # else it is an event without output
            self._win(guard)

    def _win(self, guard: Guard) -> None:
        self._ended()
        late, now_s = guard.late, self._runtime.loop.time()
        guards = late.pool.guards
        self._runtime.safely("guard", guards.on_won, None, guard.attempt.watched(), late.watched(), guard.cause)
        outcome, error = Outcome.LOST, None
        if guard.cause is GuardCause.SILENT:
            outcome = Outcome.SILENT
            error = TimedOut(f"no output for {now_s - late.output_s:.3g} s, and a guard went on")
        new, self._new, self._held = self._new, b"", b""
        self._race.on_overtaken(guard, outcome, error, new)

    def on_end(self, attempt: Attempt, error: UpstreamError | None) -> bool:
        """End a guard that has failed, or ended without anything new; return False for any other attempt.

        An answer that ends here proves nothing about the late stream: a server may end a continuation at once.
        """
        guard = self.running
        if guard is None or attempt is not guard.attempt:
            return False
        if error is not None:
            self._attempts.fail(attempt, self._attempts.classify(attempt, error).outcome, error)
            guard.recovery.on_guard_rejected(attempt, error)
        self.drop(RecoveryResult.FAILED if error is not None else RecoveryResult.LOST, error)
        return True

    def adopt(self) -> tuple[Guard, bytes] | None:
        """Return the guard, for the stream beside it has failed, and its new events so far; None if there is none."""
        guard, new = self._ended(), self._new
        self._held = self._new = b""
        return None if guard is None else (guard, new)


def _gains(pool: Pool, replica: Replica, facts: RequestFacts, late: Attempt, now_s: float) -> bool:
    """Return True if a guard beside a slow stream is expected to save more than the pause that it makes."""
    ttft_s, watch = pool.picker.predict(facts, replica, now_s), late.watched()
    if ttft_s is None or ttft_s > HELD_S_MAX / 2:
        return False
    saved_s = max(_REST_MIN, late.events) * (watch.gap_s - pool.guards.gap_s(replica.name))
    return saved_s >= _GAIN * ttft_s
