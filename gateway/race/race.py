"""One request's race: primary, timer, backup; first content wins, losers are cancelled, every outcome is reported.

A state machine with three callers: its attempts (content, failure, end), its timer, and the client (slow, gone,
drained). `states.py` has its states and the table of the transitions, so a transition that is missing there cannot
happen. The effect of a trigger is decided elsewhere: by pools for hedges, by `failures.next_step` for failed attempts,
by `RetryPlan` and `Recovery` for the next replica, by `Guarding` for a stream that is silent or slow. The race uses no
sockets, no HTTP and no wire format. Its clock is the clock of the event loop, so the same code is the simulator on a
virtual-time loop. No state of a race outlives its request, except while an attempt is measured.

Units: seconds of the loop's clock.
"""

import math
from functools import partial
from typing import Final

from msgspec.structs import replace

from gateway.errors import GatewayError, ShuttingDown
from gateway.events import RecoveryResult, Role
from gateway.race.attempt import Attempt
from gateway.race.attempts import Attempts
from gateway.race.context import Caller, Client, Model, Runtime
from gateway.race.deadlines import Due, Wakeup, request_deadlines
from gateway.race.failures import NextStep, Standing, client_error, final_error, next_step, unusable
from gateway.race.guard import Guard, Guarding
from gateway.race.recovery import Recovery, recorded
from gateway.race.report import ended, no_charge, response_headers, usage_header
from gateway.race.retry_plan import GiveUp, WaitUntil
from gateway.race.states import TRANSITIONS, State, Trigger
from ttft_gateway.apis.base import Call, Headers, Usage
from ttft_gateway.apis.errors import Diverged, EmptyAnswer, TimedOut, UpstreamError
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.hedging.outcomes import Outcome
from ttft_gateway.pool.guards import LOOK_S

_LATE_S: Final = 1.0  # a timer later than this: the process or the machine was stopped


_RACING, _STREAMING, _OVER = State.RACING, State.STREAMING, State.OVER
_FIRST_CONTENT, _COMPLETE, _FINISHED = Trigger.FIRST_CONTENT, Trigger.COMPLETE, Outcome.FINISHED
_ENDED: Final = (State.MEASURING, State.OVER)  # for the client
_MEASURED_AFTER: Final = (Trigger.COMPLETE, Trigger.CLIENT_GONE)  # ends after which an attempt is read on


class Race:
    """One request from its first attempt to its end."""

    __slots__ = (
        "_attempts",
        "_client",
        "_deadlines",
        "_guard_s",
        "_guarding",
        "_model",
        "_paused",
        "_recovery",
        "_rest_s",
        "_runtime",
        "_state",
        "_wakeup",
        "_winner",
    )

    def __init__(
        self, model: Model, call: Call, facts: RequestFacts, client: Client, caller: Caller, runtime: Runtime
    ) -> None:
        self._model = model
        self._client = client
        self._runtime = runtime
        self._attempts = Attempts(model, call, facts, caller, runtime)
        self._state = _RACING
        self._winner: Attempt | None = None  # while STREAMING
        self._recovery: Recovery | None = None  # of the stream that the client reads
        self._guarding: Guarding | None = None  # made at the first look
        self._guard_s = math.inf  # time of the next look
        self._rest_s = 0.0  # time before which nothing else of a winner is due
        self._paused = False
        self._wakeup = Wakeup(runtime.timers, self._on_time)

    # the client's calls

    def start(self) -> None:
        """Send the primary."""
        attempts, now_s = self._attempts, self._runtime.loop.time()
        start_s = now_s - attempts.caller.queued_s  # a client waits from its arrival on
        deadlines = self._deadlines = request_deadlines(attempts.call, attempts.facts, self._model.timeouts, start_s)
        primary = attempts.begin(self, start_s, now_s)
        if primary is None:
            self._next(Role.PRIMARY)
        else:
            self._wakeup.at(deadlines.next_due_s((primary.deadlines,)))

    def client_gone(self) -> None:
        """Cancel everything: the client has disconnected."""
        self._stop(Trigger.CLIENT_GONE, Outcome.CLIENT_GONE, status=499, error="client_gone")

    def shut_down(self) -> None:
        """End the request with an error: the gateway stops and the drain is over."""
        if self._state not in _ENDED and not self._finish_winner():
            error = ShuttingDown("the gateway is shutting down and its drain period is over; retry")
            self._client.fail(error)
            self._stop(Trigger.DRAINED, Outcome.DRAINED, status=error.status, error=error.code)

    def give_up(self, error: GatewayError) -> None:
        """End the request with an error: the client cannot assemble an answer from the winner's events."""
        self._fail(Trigger.UNUSABLE, error)

    def pause(self) -> None:
        """Stop reading the winner: the client is slow."""
        self._paused = True
        if self._guarding is not None:
            self._guarding.drop(RecoveryResult.LOST)  # the late stream is not read, so its silence means nothing
        if self._winner is not None:
            self._winner.pause()

    def resume(self) -> None:
        """Read the winner again."""
        self._paused = False
        if self._winner is not None:
            self._winner.resume()

    def usage(self) -> tuple[bytes, bytes] | None:
        """Return the header with usage and cost so far, None where a bug is in the way."""
        return self._runtime.safely("usage", usage_header, None, self._attempts, self._winner)

    # the attempts' calls

    def on_headers(self, attempt: Attempt, headers: Headers) -> None:
        """Pass the rate limits that a response states to its pool; end hedging if headers do."""
        if attempt.replica.read_limits is not None:
            self._runtime.safely("limits", attempt.observe_limits, None, headers)
        if attempt.pool.stops_at_headers:
            attempt.deadlines.hedge_s = math.inf

    def on_work(self, attempt: Attempt) -> None:
        """The first sign of work: if it is timed as the first token, the others are cancelled and content is awaited.

        The client is sent nothing yet, so that another attempt can follow if this one fails before its content.
        """
        if self._attempts.first_work(attempt):
            attempt.deadlines.await_content(attempt.last_s + attempt.timeouts.stall_s)  # or longer, by its phase
            self._deadlines.recovery_s = math.inf
            self._wakeup.no_later_than(attempt.deadlines.give_up_s)
            if self._state is State.RACING:
                self._attempts.close_others(attempt, keep_empty=True)
                self._enter(Trigger.FIRST_WORK, State.WORKING)
                self._deadlines.retry_s = math.inf

    def on_content(self, attempt: Attempt) -> None:
        """First content: this attempt wins, the others are cancelled now."""
        if self._guarding is not None and self._guarding.on_content(attempt):
            return
        if len(self._attempts.sent) > 1:
            self._attempts.close_others(attempt)
        self._attempts.first_content(attempt)
        self._win(_FIRST_CONTENT, attempt)

    def on_finished(self, attempt: Attempt) -> None:
        """Complete the answer; one without content wins only if no other attempt is left."""
        if self._guarding is not None:
            if self._guarding.on_end(attempt, None):
                return
            self._guarding.drop(RecoveryResult.LOST)
        if attempt.empty:
            if self._attempts.live:
                return
            if self._is_doubtful(attempt):
                self.on_failed(attempt, EmptyAnswer("the upstream added nothing to the answer, as to others before"))
                return
            self._win(Trigger.EMPTY, attempt)
        recovery = self._recovery
        if recovery is not None and recovery.catching_up and not recovery.on_end(self._now()):
            self._diverged(attempt, recovery)
        if self._state is not _STREAMING:
            return
        whole = Outcome.EMPTY if attempt.empty else _FINISHED
        self._attempts.close(attempt, Outcome.MODEL_REFUSAL if attempt.refused else whole)
        self._client.finish()
        if self._state is _STREAMING:  # the client may have given up
            self._end(_COMPLETE, status=200, error=None)

    def _is_doubtful(self, attempt: Attempt) -> bool:
        """Return True for an empty continuation by a replica with an empty answer before: it may not be the end."""
        recovery, loads = self._recovery, attempt.pool.loads
        is_continuation = recovery is not None and recovery.catching_up and not recovery.repeats
        return is_continuation and self._runtime.safely("recovery", loads.is_empty, False, attempt.replica)

    def on_failed(self, attempt: Attempt, error: UpstreamError) -> None:
        """Take the next step after an attempt that is over without a complete answer."""
        self._failed(attempt, error, Outcome.CUT)

    def _failed(self, attempt: Attempt, error: UpstreamError, outcome: Outcome) -> None:
        """End an attempt without a complete answer, and take the next step; `outcome` is the outcome of a winner."""
        if attempt.finish():
            return  # a failure after the finish costs the answer nothing
        error.redact(attempt.replica.secrets)
        if self._guarding is not None and self._guarding.on_end(attempt, error):
            return
        was_winner, attempts = attempt is self._winner, self._attempts
        failure = attempts.classify(attempt, error)
        if was_winner:
            self._deadlines.content_s = self._content_due_s(attempt)
        adopted = self._prepare_recovery(attempt)
        attempts.fail(attempt, outcome if was_winner else failure.outcome, error)
        if self._state is State.WORKING:
            self._enter(Trigger.FAILED, State.RACING)
        live = attempts.live
        standing = Standing(
            was_winner=was_winner,
            carried_on=attempt.carries_on,
            recoverable=self._recovery is not None,
            committed=self._client.committed,
            is_backup=attempt.role is Role.BACKUP,
            live=len(live),
            live_same_pool=sum(other.pool is attempt.pool for other in live),
            all_overdue=self._deadlines.retry_s == math.inf and all(other.deadlines.overdue for other in live),
        )
        step = next_step(failure, standing)
        if was_winner:
            self._winner = None
        if step is NextStep.ANSWER:
            self._fail(Trigger.FAILED, client_error(error))
            return
        if was_winner:
            self._enter(Trigger.FAILED, State.RECOVERING if step is NextStep.RECOVER else State.RACING)
        if step is NextStep.RECOVER and self._recovery is not None:
            if was_winner and not self._catching_up:
                self._deadlines.recovery_s = self._now() + self._model.timeouts.stall_s
            self._recovery.on_broken(attempt, error)
            self._deadlines.keep_alive_after(self._now())
            self._carry_on() if adopted is None else self._adopt(*adopted)
        elif step is NextStep.RETRY:
            self._carry_on()
        elif attempts.hedge_again(attempt):
            self._wakeup.no_later_than(self._now())

    def _prepare_recovery(self, failed: Attempt) -> tuple[Guard, bytes] | None:
        """Prepare the recovery of a failed attempt if the client has part of its answer; return the guard beside it."""
        guarded = None if self._guarding is None else self._guarding.adopt()
        if guarded is not None:
            self._recovery = guarded[0].recovery
        elif failed.sent_events is not None:
            call = self._attempts.call
            self._recovery = self._runtime.safely(
                "recovery", Recovery, None, self._model, call, failed, failed.sent_events
            )
        return guarded

    # beside an open stream

    def on_overtaken(self, guard: Guard, outcome: Outcome, error: TimedOut | None, new: bytes) -> None:
        """Let a guard continue the client's stream; the late stream ends."""
        self._attempts.close(guard.late, outcome, error)
        self._winner = None
        guard.recovery.on_overtaken(guard.late)
        self._recovery = guard.recovery
        self._enter(Trigger.OVERTAKEN, State.RECOVERING)
        self._go_on(guard.attempt, guard.recovery, new)

    def write_late(self, raw: bytes) -> None:
        """Pass on events of the winner while a guard runs, or of its time."""
        (self._client.write if self._recovery is None else self._join)(raw)

    def _adopt(self, guard: Guard, new: bytes) -> None:
        """Let a guard recover the stream beside it, which has failed."""
        guard.recovery.on_sent()
        if guard.attempt.content_s is not None:
            self._go_on(guard.attempt, guard.recovery, new)
        else:
            self._wakeup.no_later_than(self._deadlines.next_due_s((guard.attempt.deadlines,)))

    def _go_on(self, attempt: Attempt, recovery: Recovery, new: bytes) -> None:
        """Make an attempt with content the winner; `new` is what the client gets of it so far."""
        self._win(_FIRST_CONTENT, attempt)
        if new and self._winner is attempt:
            recovery.on_new(new, self._now())
            self._client.write(new)

    def _look(self, winner: Attempt, now_s: float) -> None:
        """Look at the client's stream for a guard, or at its guard."""
        recovery = self._recovery
        if self._paused or (recovery is not None and recovery.catching_up):
            self._guard_s = now_s + LOOK_S
            return
        guarding = self._guarding = self._guarding or Guarding(self, self._attempts, self._runtime)
        self._guard_s = guarding.check(winner, recovery, now_s)

    # winning

    def _win(self, trigger: Trigger, attempt: Attempt) -> None:
        self._enter(trigger, _STREAMING)
        self._winner = attempt
        now_s, deadlines, recovery = attempt.last_s, self._deadlines, self._recovery
        deadlines.retry_s = math.inf
        if recovery is None:
            deadlines.keep_alive_s = now_s + deadlines.interval_s
        stall_s, half_s = now_s + attempt.timeouts.stall_s, now_s + deadlines.silence_s / 2
        self._guard_s = guard_s = now_s + attempt.pool.guards.every_s
        self._rest_s = rest_s = min(stall_s, half_s, deadlines.keep_alive_s, deadlines.total_s)
        self._wakeup.at(guard_s if guard_s < rest_s else rest_s)
        if recovery is not None:
            self._rest_s = min(rest_s, deadlines.content_s)
            self._wakeup.no_later_than(deadlines.content_s)
            recovery.on_joined(attempt)
            if self._paused:
                attempt.pause()
            attempt.forward(self._join)
            return
        attempts, client = self._attempts, self._client
        client.begin(response_headers(attempts, attempt))
        sent_events = self._runtime.safely("recovery", recorded, None, self._model, attempts.call, attempt)
        attempt.forward(client.write, sent_events)

    def _join(self, raw: bytes) -> None:
        """Pass on one event of an attempt that continues a broken stream."""
        recovery, winner = self._recovery, self._winner
        if recovery is None or winner is None:
            return
        new = self._runtime.safely("recovery", recovery.join, None, raw, self._now())
        if new is None:
            self._diverged(winner, recovery)
        elif new:
            self._client.write(new)

    def _finish_winner(self) -> bool:
        """End a winner with a whole answer; return False if the answer is incomplete, or if there is no winner."""
        return self._winner is not None and self._winner.finish()

    def _diverged(self, winner: Attempt, recovery: Recovery) -> None:
        """Drop an attempt because its answer differs from the part that the client already has."""
        recovery.settle(RecoveryResult.DIVERGED, self._now())
        recovery.give_up("another replica gave another answer")
        self._attempts.close(winner, Outcome.LOST, Diverged("the answer of another replica differs"))
        self._winner = None
        self._enter(Trigger.DIVERGED, State.RECOVERING)
        self._carry_on()

    def _carry_on(self) -> None:
        """No attempt may still bring content, or all are overdue: end with an empty answer, or try another replica."""
        empty = next((attempt for attempt in self._attempts.sent if attempt.empty and attempt.outcome is None), None)
        if empty is not None and not self._attempts.live:
            self.on_finished(empty)
        elif self._deadlines.retry_s == math.inf:
            self._next(Role.FAILOVER)

    def _next(self, role: Role) -> bool:
        """Start an attempt now or after a wait, else end the request if none is live; False if none can follow."""
        attempts, recovery = self._attempts, self._recovery
        step = attempts.next(self, role) if recovery is None else attempts.recover(self, recovery)
        if isinstance(step, Attempt):
            self._wakeup.no_later_than(self._deadlines.next_due_s((step.deadlines,)))
            return True
        if isinstance(step, WaitUntil):
            self._deadlines.retry_s = step.until_s
            self._wakeup.no_later_than(self._deadlines.next_due_s())
        elif recovery is not None or not attempts.live:
            self._nothing_left(step)
        return not isinstance(step, GiveUp)

    # the timer

    def _on_time(self) -> None:
        """Do everything that is due, then set the timer for what is due next."""
        now_s, deadlines = self._runtime.loop.time(), self._deadlines
        late_s = now_s - self._wakeup.at_s
        if late_s > _LATE_S:
            self._attempts.forgive(late_s)
        winner = self._winner
        if winner is not None and now_s < self._rest_s:
            if now_s >= self._guard_s:
                self._look(winner, now_s)
            if self._winner is winner:
                self._wakeup.no_later_than(min(self._guard_s, self._rest_s))
            return
        if now_s >= deadlines.total_s:
            if self._finish_winner():
                return
            late = TimedOut(f"no complete answer within {deadlines.total_s - deadlines.start_s:g} s")
            self._fail(Trigger.TIMED_OUT, client_error(late))
            return
        if winner is not None:
            self._check_silence(winner, now_s)
            if now_s >= self._guard_s and self._winner is winner:
                self._look(winner, now_s)
        else:
            self._check_waiting(now_s)
        if now_s >= deadlines.keep_alive_s and self._state is not State.OVER:
            self._keep_alive(now_s)
        if self._state is not State.OVER:
            self._wakeup.no_later_than(self._next_due_s())

    def _keep_alive(self, now_s: float) -> None:
        """Send a keep-alive, unless the client was sent an event since the last one, or is slow to read."""
        winner = self._winner
        if winner is not None and not self._catching_up:
            self._deadlines.keep_alive_after(winner.written_s)
            if now_s < self._deadlines.keep_alive_s:
                return
        self._deadlines.keep_alive_after(now_s)
        if not self._paused:
            self._client.keep_alive()

    def _check_silence(self, winner: Attempt, now_s: float) -> None:
        """Fail a winner that has stalled; meet the caller's deadline, by a recovery after half of it."""
        if self._paused:
            winner.forgive(now_s - winner.last_s)  # the gateway does not read, so silence means nothing
            return
        stall = winner.stall(now_s)
        if stall is not None:
            self.on_failed(winner, stall)
            return
        silence_s = now_s - winner.output_s
        if now_s >= self._content_due_s(winner):
            self._end_late()
        elif silence_s >= self._deadlines.silence_s / 2 and self._may_recover(winner, now_s):
            silent = TimedOut(f"the upstream sent no output for {silence_s:.3g} s")
            self._failed(winner, silent, Outcome.SILENT)

    def _may_recover(self, winner: Attempt, now_s: float) -> bool:
        is_guarded = self._guarding is not None and self._guarding.running is not None
        return is_guarded or self._attempts.may_recover(winner, self._recovery, now_s)

    @property
    def _catching_up(self) -> bool:
        """True while an attempt is to continue the client's stream and has brought nothing new."""
        return self._recovery is not None and self._recovery.catching_up

    def _content_due_s(self, winner: Attempt) -> float:
        """Return the loop time by which the client has to receive new content from a winner."""
        return self._deadlines.content_s if self._catching_up else winner.output_s + self._deadlines.silence_s

    def _end_late(self) -> None:
        """End the request with an error: its client has received no new content within the caller's deadline."""
        if self._finish_winner():
            return
        facts, begun = self._attempts.facts, self._winner is not None or self._recovery is not None
        within_s = facts.silence_s if begun and facts.silence_s else facts.deadline_s
        late = TimedOut(f"no output within {within_s:g} s, the caller's deadline")
        if self._winner is not None and not self._catching_up:
            self._attempts.close(self._winner, Outcome.SILENT, late)
        self._fail(Trigger.TIMED_OUT, client_error(late))

    def _check_waiting(self, now_s: float) -> None:
        """Act on whatever is due of each attempt, then of the request; there is no winner."""
        if now_s >= self._deadlines.content_s:
            self._end_late()
            return
        if now_s >= self._deadlines.recovery_s:
            self._nothing_left(GiveUp())
            return
        for attempt in tuple(self._attempts.sent):
            due = attempt.deadlines.due(now_s) if attempt.live else None
            if due is Due.GIVE_UP:
                self._give_up(attempt, now_s)
            elif due is Due.FAILOVER:
                attempt.deadlines.failover_s = math.inf
                attempt.deadlines.overdue = self._next(Role.FAILOVER)
                if not attempt.deadlines.overdue and self._attempts.has_rejection:
                    self._nothing_left(GiveUp())  # the attempt that was to confirm it does not answer
            elif due is Due.HEDGE:
                self._attempts.hedge(self, attempt, now_s)  # its deadlines are in `_next_due_s`
            if self._state is State.OVER:
                return
        if now_s >= self._deadlines.retry_s:
            self._deadlines.retry_s = math.inf
            self._next(Role.FAILOVER if self._attempts.sent else Role.PRIMARY)

    def _give_up(self, attempt: Attempt, now_s: float) -> None:
        """Fail an attempt without content; while it works, it may be as silent as in the middle of its answer."""
        error: TimedOut | None = TimedOut(f"no first token within {now_s - attempt.start_s:.3g} s")
        if attempt.first_token_s is not None:
            error = attempt.stall(now_s)
            attempt.deadlines.give_up_s = attempt.stall_check_s(now_s)
        if error is not None:
            self.on_failed(attempt, error)

    def _next_due_s(self) -> float:
        winner, deadlines = self._winner, self._deadlines
        if winner is not None:
            now_s, half_s = self._now(), deadlines.silence_s / 2
            content_check_s = winner.output_s + half_s  # then a recovery may begin
            if self._catching_up or now_s >= content_check_s:
                content_check_s = now_s + half_s if self._paused else self._content_due_s(winner)
            stall_check_s = winner.stall_check_s(now_s)
            self._rest_s = min(stall_check_s, content_check_s, deadlines.total_s, deadlines.keep_alive_s)
            return min(self._rest_s, self._guard_s)
        return deadlines.next_due_s(attempt.deadlines for attempt in self._attempts.sent if attempt.live)

    # the end

    def _nothing_left(self, plan: GiveUp) -> None:
        """End the request: no attempt is live and none can be started."""
        error: GatewayError = unusable(plan.wait_s)
        if self._recovery is not None and self._recovery.error is not None:
            error = client_error(self._recovery.error)
            if self._recovery.obstacle:
                error.message += f"; the answer was not carried on, because {self._recovery.obstacle}"
        elif self._attempts.errors and plan.wait_s is None:
            error = final_error(self._attempts.errors, retry_helps=plan.retry_helps)
        self._fail(Trigger.NOTHING_LEFT, error)

    def _fail(self, trigger: Trigger, error: GatewayError) -> None:
        """End the request with an error."""
        if self._state not in _ENDED:
            self._client.fail(error)
            self._attempts.limit = error.limit
            if self._recovery is not None:
                self._recovery.settle(RecoveryResult.FAILED, self._now())
            self._stop(trigger, Outcome.LOST, status=error.status, error=error.code or error.kind)

    def _stop(self, trigger: Trigger, outcome: Outcome, status: int, error: str | None) -> None:
        """End every attempt with one outcome, and the request."""
        if self._state not in _ENDED:
            for attempt in self._attempts.sent:
                if not attempt.is_measured:
                    self._attempts.close(attempt, outcome)
            self._end(trigger, status, error)

    def _end(self, trigger: Trigger, status: int, error: str | None, end_s: float | None = None) -> None:
        """End the request; `end_s`: its end, if an attempt was read on after it."""
        attempts, winner, runtime = self._attempts, self._winner, self._runtime
        loser = attempts.loser
        if loser is not None:
            if self._state is State.STREAMING and trigger in _MEASURED_AFTER:
                self._await_loser(trigger, status, error)
                return
            loser.stop()
        self._enter(trigger, _OVER)
        self._wakeup.cancel()
        for attempt in attempts.sent:
            if attempt.outcome is None:
                attempts.close(attempt, Outcome.LOST)  # an empty answer that was held in reserve
        if winner is not None and winner.usage is not None and not winner.carries_on:
            self._learn_tokens(winner.usage)
        now_s = runtime.loop.time() if end_s is None else end_s
        if self._recovery is not None:
            self._recovery.settle(RecoveryResult.ABANDONED, now_s)
        if attempts.errors:
            runtime.safely("outcome", attempts.weigh, None, now_s)
        try:
            report = ended(attempts, winner, self._recovery, now_s, status, error)
        except Exception as bug:  # as in Runtime.safely
            runtime.report("accounting", bug)
            report = ended(attempts, winner, self._recovery, now_s, status, error, no_charge)
        runtime.emit(report)
        attempts.sent, self._winner, self._recovery, self._guarding = (
            [],
            None,
            None,
            None,
        )  # no cycle outlives a request

    def _learn_tokens(self, usage: Usage) -> None:
        """Learn the scale of the model's tokenizer from the reported size of the prompt."""
        text = self._attempts.facts.text
        if usage.prompt_tokens is not None and text is not None:
            self._runtime.safely("tokens", self._model.scale.learn, None, text, usage.prompt_tokens)

    def _await_loser(self, trigger: Trigger, status: int, error: str | None) -> None:
        """Report the request after the end of the attempt that is read on; nothing else happens until then."""
        self._enter(trigger, State.MEASURING)
        self._wakeup.cancel()
        self._attempts.call = replace(self._attempts.call, body=b"", headers=())  # which may be large
        self._attempts.on_loser_ended = partial(self._end, Trigger.MEASURED, status, error, self._now())

    def _now(self) -> float:
        return self._runtime.loop.time()

    def _enter(self, trigger: Trigger, state: State) -> None:
        """Enter a state; the table allows it, or there is a bug."""
        assert state in TRANSITIONS[self._state, trigger]
        self._state = state
