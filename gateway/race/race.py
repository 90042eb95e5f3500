"""One request's race: primary, timer, backup; first content wins, losers are cancelled, every outcome is reported.

A state machine driven by three callers: its attempts (content, failure, finish), its timer, and the client (disconnect,
slow, drain). The pool decides on hedges, the race applies its decisions. Independent of sockets, HTTP and the client's
API; times come from the event loop's clock, so on a virtual-time loop the same code is the simulator.

    racing --first content--> won --end--> over        racing, won --disconnect, drain--> over
       ^----- failed, nothing sent yet -----|          racing --nothing left to try--> over, with the error

Units: seconds of the loop's clock.
"""

import math
from collections.abc import Sequence

from gateway.errors import GatewayError, RateLimited, ShuttingDown
from gateway.events import RecoveryResult, Role
from gateway.hedging.charges import Charge
from gateway.hedging.contract import RequestFacts
from gateway.hedging.outcomes import Outcome
from gateway.race.attempt import Attempt
from gateway.race.attempts import Attempts
from gateway.race.context import Caller, Client, Model, Runtime
from gateway.race.failures import Remedy, answer, judge, last_word
from gateway.race.recovery import Recovery, watch
from gateway.race.report import Course, charges, ended, response_headers, usage_header
from gateway.race.retry_plan import Nothing, Wait
from gateway.race.timers import Timer
from providers.base import Call, Headers
from providers.errors import Diverged, TimedOut, UpstreamError

_DEADLINE_SHARE = 0.8  # of a client's timeout, until a keep-alive is sent: it needs time to arrive
_KEEP_ALIVE_S_MIN = 0.1  # however short the client's timeout: keep-alives must not become a stream


class Race:
    """One request from its first attempt to its end."""

    __slots__ = (
        "_attempts",
        "_call",
        "_caller",
        "_client",
        "_facts",
        "_final_s",
        "_keep_alive_at_s",
        "_model",
        "_over",
        "_paused",
        "_recovery",
        "_retry_at_s",
        "_runtime",
        "_start_s",
        "_timer",
        "_timer_at_s",
        "_winner",
    )

    def __init__(
        self, model: Model, call: Call, facts: RequestFacts, client: Client, caller: Caller, runtime: Runtime
    ) -> None:
        self._model = model
        self._call = call
        self._facts = facts
        self._client = client
        self._caller = caller
        self._runtime = runtime
        self._attempts = Attempts(model, call, facts, caller, runtime)
        self._winner: Attempt | None = None
        self._recovery: Recovery | None = None  # of the stream that the client receives
        self._over = False
        self._paused = False
        self._start_s = self._final_s = self._keep_alive_at_s = 0.0
        self._retry_at_s = math.inf
        self._timer: Timer | None = None
        self._timer_at_s = math.inf

    # the client's calls

    def start(self) -> None:
        """Send the primary."""
        now_s = self._start_s = self._runtime.loop.time() - self._caller.queued_s  # the client waits since it arrived
        timeouts, client_timeout_s = self._model.timeouts, self._facts.deadline_s or math.inf
        if self._call.streaming:  # the client's timeout starts anew with every byte
            self._final_s = now_s + timeouts.total_s
            self._keep_alive_at_s = now_s + min(timeouts.commit_status_after_s, _DEADLINE_SHARE * client_timeout_s)
        else:
            self._final_s = now_s + min(timeouts.total_s, client_timeout_s)
            self._keep_alive_at_s = math.inf
        self._runtime.safely("budget", self._model.retries.earn, None, now_s)
        self._next(Role.PRIMARY)

    def client_gone(self) -> None:
        """Cancel everything: the client disconnected."""
        self._stop(Outcome.CLIENT_GONE, status=499, error="client_gone")

    def shut_down(self) -> None:
        """End the request: the gateway is stopping and the drain period is over."""
        if not self._over:
            error = ShuttingDown("the gateway is shutting down and its drain period is over; retry")
            self._client.fail(error)
            self._stop(Outcome.DRAINED, status=error.status, error=error.code)

    def give_up(self, error: GatewayError) -> None:
        """Fail with this error: the events received cannot be made into a response."""
        self._fail(error)

    def pause(self) -> None:
        """Stop reading the winner: the client is slow."""
        self._paused = True
        if self._winner is not None:
            self._winner.pause()

    def resume(self) -> None:
        """Read the winner again: the client has caught up."""
        self._paused = False
        if self._winner is not None:
            self._winner.resume()

    def usage(self) -> tuple[bytes, bytes] | None:
        """Return usage and cost so far as a header, None if they cannot be computed."""
        return self._runtime.safely("usage", usage_header, None, self._course())

    # the attempts' calls

    def on_headers(self, attempt: Attempt, headers: Headers) -> None:
        """Pass the rate limits of the headers to the pool."""
        if attempt.replica.read_limits is not None:
            self._runtime.safely("limits", attempt.observe_limits, None, headers)
        if attempt.pool.stops_at_headers:
            attempt.hedge_at_s = math.inf

    def on_content(self, attempt: Attempt) -> None:
        """First content: this attempt wins, all others are cancelled now."""
        attempts = self._attempts
        for other in attempts.sent:
            if other is not attempt:
                attempts.close(other, Outcome.LOST)
        attempts.first_content(attempt)
        self._win(attempt)

    def on_finished(self, attempt: Attempt) -> None:
        """End the request with a complete answer."""
        if attempt.empty:
            if self._attempts.live:
                return  # nothing was generated: it wins only if no other attempt is left
            self._win(attempt)
        recovery = self._recovery
        if recovery is not None and recovery.catching_up and not recovery.on_end(self._now()):
            self._diverged(attempt, recovery)
        if self._over:
            return
        self._attempts.close(attempt, Outcome.MODEL_REFUSAL if attempt.refused else Outcome.FINISHED)
        self._client.finish()
        if not self._over:  # finish() may have called give_up()
            self._end(status=200, error=None)

    def on_failed(self, attempt: Attempt, error: UpstreamError) -> None:
        """Handle an attempt that ended without a complete answer."""
        error.redact(attempt.replica.secrets)
        verdict = judge(error)
        won = attempt is self._winner
        outcome = Outcome.CUT if won else verdict.outcome
        self._attempts.fail(attempt, outcome, error)
        if won or attempt.role is Role.RECOVERY:
            self._winner_failed(attempt, error)
            return
        live = self._attempts.live
        final = verdict.answers and verdict.remedy is Remedy.NONE
        if final and (outcome is Outcome.MODEL_REFUSAL or not live or _would_fail_alike(attempt, live)):
            self._fail(answer(error))
        elif not live:
            self._none_live()
        elif all(other.overdue for other in live) and self._retry_at_s == math.inf:
            self._next(Role.FAILOVER)  # all live attempts are overdue, so the client should not depend on them

    # winning and ending

    def _win(self, attempt: Attempt) -> None:
        self._winner = attempt
        attempt.hedge_at_s = attempt.overdue_at_s = attempt.give_up_at_s = math.inf
        self._retry_at_s = math.inf
        self._arm(attempt.last_s + self._model.timeouts.stall_s)
        if self._recovery is not None:
            self._recovery.on_joined(attempt)
            if self._paused:
                attempt.pause()
            attempt.forward(self._join)
            return
        self._keep_alive_at_s = math.inf
        self._client.begin(response_headers(self._course()))
        self._recovery = self._runtime.safely(
            "recovery", watch, None, self._model, self._call, attempt, self._client.write
        )
        attempt.forward(self._client.write if self._recovery is None else self._recovery.sink)

    def _winner_failed(self, attempt: Attempt, error: UpstreamError) -> None:
        """Handle the failure of the winner, or of an attempt that was to continue its stream."""
        self._winner = None
        if self._recovery is not None:
            self._recovery.on_broken(attempt, error)
            self._keep_alive_at_s = self._now() + self._keep_alive_s
        elif self._client.committed:
            self._fail(answer(error))
            return
        self._none_live()

    def _join(self, raw: bytes) -> None:
        """Join one event of an attempt that continues a broken stream."""
        recovery, winner = self._recovery, self._winner
        if recovery is None or winner is None:
            return  # the race is over
        new = self._runtime.safely("recovery", recovery.join, None, raw, self._now())
        if new is None:
            self._diverged(winner, recovery)
        elif new:
            self._client.write(new)
        if not recovery.catching_up:
            self._keep_alive_at_s = math.inf

    def _diverged(self, winner: Attempt, recovery: Recovery) -> None:
        """Give up a recovery whose answer differs from the part that the client already has."""
        recovery.settle(RecoveryResult.DIVERGED, self._now())
        recovery.given_up = True
        self._attempts.close(winner, Outcome.LOST, Diverged("the answer of another replica differs"))
        self._winner = None
        self._none_live()

    def _none_live(self) -> None:
        """End with a valid empty answer, else try again, else fail: no live attempt is left."""
        empty = next((attempt for attempt in self._attempts.sent if attempt.empty and attempt.outcome is None), None)
        if empty is not None:
            self.on_finished(empty)
        elif self._retry_at_s == math.inf:
            self._next(Role.FAILOVER)

    def _nothing_left(self, nothing: Nothing) -> None:
        if self._recovery is not None and self._recovery.error is not None:
            self._fail(answer(self._recovery.error))
        elif self._attempts.errors:
            self._fail(last_word(self._attempts.errors, spent=nothing.spent))
        else:
            message = "every replica of this model is rate-limited by its provider; retry later"
            self._fail(RateLimited(message, retry_after_s=nothing.wait_s))

    def _fail(self, error: GatewayError) -> None:
        """End the request with an error: nothing is left to try, or the error is an answer."""
        if not self._over:
            self._client.fail(error)
            if self._recovery is not None:
                self._recovery.settle(RecoveryResult.FAILED, self._now())
            self._stop(Outcome.LOST, status=error.status, error=error.code or error.kind)

    def _stop(self, outcome: Outcome, status: int, error: str | None) -> None:
        if self._over:
            return
        for attempt in self._attempts.sent:
            self._attempts.close(attempt, outcome)
        self._end(status, error)

    def _end(self, status: int, error: str | None) -> None:
        self._over = True
        usage = self._winner.usage if self._winner is not None and self._winner.role is not Role.RECOVERY else None
        if usage is not None and usage.prompt_tokens is not None and self._facts.text is not None:
            self._runtime.safely("tokens", self._model.scale.learn, None, self._facts.text, usage.prompt_tokens)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for attempt in self._attempts.sent:
            if attempt.outcome is None:
                self._attempts.close(attempt, Outcome.LOST)  # a parked empty answer
        now_s = self._now()
        if self._recovery is not None:
            self._recovery.settle(RecoveryResult.ABANDONED, now_s)
        course, unknown = self._course(), list[Charge]()
        billed = self._runtime.safely("accounting", charges, unknown, course)
        self._runtime.emit(ended(course, self._call, billed, now_s, status, error, self._attempts.beyond))
        self._attempts.sent, self._winner, self._recovery = [], None, None  # no cycle outlives a request

    def _course(self) -> Course:
        attempts = self._attempts
        return Course(
            self._caller,
            self._facts,
            attempts.sent,
            self._winner,
            attempts.hedges,
            attempts.denials,
            attempts.denied_why,
            self._recovery,
        )

    # starting attempts

    def _next(self, role: Role) -> bool:
        """Start an attempt now or after a wait and return True; else False, and fail if no attempt is live."""
        attempts, recovery = self._attempts, self._recovery
        step = attempts.next(self, role) if recovery is None else attempts.recover(self, recovery)
        if isinstance(step, Attempt):
            self._started(step)
        elif isinstance(step, Wait):
            self._retry_at_s = step.until_s
            self._arm(min(step.until_s, self._final_s, self._keep_alive_at_s))
        elif recovery is not None or not attempts.live:
            self._nothing_left(step)
        return not isinstance(step, Nothing)

    def _started(self, attempt: Attempt) -> None:
        due_s = min(attempt.hedge_at_s, attempt.overdue_at_s, attempt.give_up_at_s)
        self._arm(min(due_s, self._final_s, self._keep_alive_at_s))

    # timers

    def _now(self) -> float:
        return self._runtime.loop.time()

    def _arm(self, at_s: float) -> None:
        """Make the timer run no later than at_s; if it runs earlier, it finds nothing due and is set again."""
        if at_s < self._timer_at_s:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at_s = at_s
            self._timer = self._runtime.timers.set(at_s, self._tick)

    def _tick(self) -> None:
        """Do everything that is due, then set the timer for the next deadline."""
        self._timer, self._timer_at_s = None, math.inf
        if self._over:
            return
        now_s = self._now()
        if now_s >= self._final_s:
            self._fail(answer(TimedOut(f"no complete answer within {self._final_s - self._start_s:g} s")))
            return
        if self._winner is not None:
            self._check_stall(self._winner, now_s)
        else:
            self._check_waiting(now_s)
        if now_s >= self._keep_alive_at_s and not self._over:
            self._keep_alive_at_s = now_s + self._keep_alive_s
            self._client.keep_alive()
        if not self._over:
            self._arm(self._next_due())

    def _check_stall(self, winner: Attempt, now_s: float) -> None:
        stall_s = self._model.timeouts.stall_s
        if self._paused:
            winner.last_s = now_s  # while reading is paused, silence is not a stall
        elif now_s >= winner.last_s + stall_s:
            self.on_failed(winner, TimedOut(f"the upstream sent nothing for {stall_s:g} s in the middle of its answer"))

    def _check_waiting(self, now_s: float) -> None:
        """Handle the due deadlines of each attempt, then of the request, while there is no winner."""
        for attempt in tuple(self._attempts.sent):
            if not attempt.live:
                continue
            if now_s >= attempt.give_up_at_s:
                self.on_failed(attempt, TimedOut(f"no first token within {now_s - attempt.start_s:.3g} s"))
            elif now_s >= attempt.overdue_at_s:
                attempt.overdue_at_s = math.inf
                attempt.overdue = self._next(Role.FAILOVER)
            elif now_s >= attempt.hedge_at_s:
                backup = self._attempts.hedge(self, attempt, now_s)
                if backup is not None:
                    self._started(backup)
            if self._over:
                return
        if now_s >= self._retry_at_s:
            self._retry_at_s = math.inf
            self._next(Role.FAILOVER if self._attempts.sent else Role.PRIMARY)

    @property
    def _keep_alive_s(self) -> float:
        client_timeout_s = _DEADLINE_SHARE * (self._facts.deadline_s or math.inf)
        return min(self._model.timeouts.keepalive_interval_s, max(_KEEP_ALIVE_S_MIN, client_timeout_s))

    def _next_due(self) -> float:
        if self._winner is not None:
            return min(self._winner.last_s + self._model.timeouts.stall_s, self._final_s, self._keep_alive_at_s)
        times_s = [
            min(attempt.hedge_at_s, attempt.overdue_at_s, attempt.give_up_at_s)
            for attempt in self._attempts.sent
            if attempt.live
        ]
        return min(self._final_s, self._retry_at_s, self._keep_alive_at_s, *times_s)


def _would_fail_alike(failed: Attempt, live: Sequence[Attempt]) -> bool:
    """Return True if the live attempts would fail alike: the failed one is no backup, and its pool has a live one."""
    return failed.role is not Role.BACKUP and any(other.pool is failed.pool for other in live)
