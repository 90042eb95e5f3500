"""Starts the attempts of one request and reports their outcomes to their pools.

The race decides the time of an attempt; `RetryPlan` and the pools choose its replica and decide on hedges. This module
sends the attempt and sets its deadlines. It does not decide which attempt wins, and owns no client and no timer. A bug
in a policy costs no attempt.

Units: seconds of the loop's clock.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from gateway.errors import Limit
from gateway.events import AttemptFailed, BreakerChanged, HedgeDenied, HedgeFired, RecoveryReport, Role
from gateway.race.attempt import Attempt, AttemptListener
from gateway.race.context import Caller, Model, Runtime
from gateway.race.deadlines import attempt_deadlines, recovery_deadlines
from gateway.race.measuring import MeasuredLoser, measure_loser, withhold
from gateway.race.recovery import Recovery, can_recover
from gateway.race.retry_plan import (
    FIRST_CHOICE,
    GiveUp,
    RetryPlan,
    SendTo,
    WaitUntil,
    attempt_limit,
    beyond_boundary,
    why_started,
)
from ttft_gateway.apis.account_errors import rejects_token
from ttft_gateway.apis.base import Call
from ttft_gateway.apis.errors import Unsupported, UpstreamError
from ttft_gateway.hedging.contract import ATTEMPTS_MAX, Denied, Hedge, HedgeTickets, Primary, RequestFacts
from ttft_gateway.hedging.failures import FailureClass, RetryHint, asks_others, classify, limits_tokens
from ttft_gateway.hedging.measure import Measured, Shadow
from ttft_gateway.hedging.outcomes import Denial, Outcome
from ttft_gateway.hedging.possible import EXPLANATIONS
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import COOL_DOWN_S_MAX, BreakerState, Replica

_HEDGED: Final = (None, Denial.KEY)  # a key's denial is reported if the request is late
_AGAIN_S_MIN: Final = 0.0001  # shortest time between two hedge decisions about one attempt, whatever the settings
_RENEWED_S: Final = 1.0  # wait for a new token after a rejected one, if no other replica can be used
_DIGEST_BYTES: Final = 65_536  # of each end of a body; hashing all of a large one would hold the loop
_PRIMARY: Final = Role.PRIMARY
_CUT_SHORT: Final = (Outcome.LOST, Outcome.CLIENT_GONE, Outcome.DRAINED)  # ended by the gateway, not by the replica


class Attempts(msgspec.Struct, eq=False):
    """All attempts of one request.

    Attributes:
        model, call, facts, caller: the model, the client's call, the facts that policies use, and the client.
        runtime: clock, random numbers and event receiver.
        sent: attempts in the order in which they were sent.
        errors: errors of the failed attempts, in order.
        hedges: number of backups.
        denials: distinct reasons for which a hedge was denied, in order.
        denied_why: text of the last denial with its numbers, None before a denial.
        beyond: names of replicas that were not tried because of a boundary.
        measured: measurement of the first granted hedge; None if it is not measured.
        shadow: hedge that the policy `shadow` would have sent; None for any other policy.
        is_withheld: True if a granted hedge was not sent; no further hedge is sent then.
        limit: limit that the request has met, None if it has met none.
        loser: attempt that has lost and is read on to be measured, None if there is none.
        on_loser_ended: called after the end of `loser`; None while nothing waits for it.
        lost_guards: reports of the guards that did not win, in order.
    """

    model: Model
    call: Call
    facts: RequestFacts
    caller: Caller
    runtime: Runtime
    sent: list[Attempt] = msgspec.field(default_factory=list)
    errors: list[UpstreamError] = msgspec.field(default_factory=list)
    hedges: int = 0
    denials: list[Denial] = msgspec.field(default_factory=list)
    denied_why: str | None = None
    beyond: tuple[str, ...] = ()
    measured: Measured | None = None
    shadow: Shadow | None = None
    is_withheld: bool = False
    limit: Limit | None = None
    loser: MeasuredLoser | None = None
    on_loser_ended: Callable[[], None] | None = None
    lost_guards: tuple[RecoveryReport, ...] = ()
    _rejecting: tuple[tuple[Attempt, bool], ...] = ()  # with True for a rejection that most likely blames the request
    _plan: RetryPlan | None = None  # until `begin` cannot choose, or an attempt fails
    _now_s: float = 0.0  # time of the current decision
    _rand: float | None = None  # drawn for `begin`; the first pick uses it where `begin` did not

    @property
    def has_rejection(self) -> bool:
        """True if a replica sent a rejection that most likely concerns the request."""
        return any(map(asks_others, self.errors))

    @property
    def live(self) -> list[Attempt]:
        """Attempts for which content may still arrive."""
        return [attempt for attempt in self.sent if attempt.live]

    def begin(self, racer: AttemptListener, arrived_s: float, now_s: float) -> Attempt | None:
        """Send the primary if its pool can choose in one step; None if `next` must."""
        pool, runtime, rand = self.model.pools[0], self.runtime, None
        self._now_s = now_s
        try:
            self.model.retries.earn(arrived_s)
            rand = runtime.rand()
            primary = pool.begin(self.facts, now_s, rand)
        except Exception as error:  # as in Runtime.safely
            runtime.report("routing", error)
            primary = None
        if primary is None:
            self._rand = rand
            return None
        return self._launch(racer, pool, primary.replica, _PRIMARY, FIRST_CHOICE, primary=primary)

    def next(self, racer: AttemptListener, role: Role) -> Attempt | WaitUntil | GiveUp:
        """Send a primary or failover if possible now; otherwise return the time to wait for, or `GiveUp`."""
        runtime, sent = self.runtime, self.sent
        now_s = self._now_s = runtime.loop.time()
        plan = self._retry_plan()
        step = runtime.safely("tries", plan.next, None, self._pick, sent, self.errors, now_s, runtime.rand)
        if step is None:
            step = self._any_replica()
        if isinstance(step, SendTo):
            if step.replica.backup_only and role is Role.PRIMARY:  # no other replica can be used
                return self._launch(racer, step.pool, step.replica, Role.FAILOVER, "no other replica is usable")
            return self._launch(racer, step.pool, step.replica, role, why_started(role, self.errors))
        if isinstance(step, GiveUp):
            tried = [attempt.replica for attempt in sent]
            self.beyond = runtime.safely("routing", beyond_boundary, (), self.model.pools, tried)
        return step

    def recover(self, racer: AttemptListener, recovery: Recovery) -> Attempt | WaitUntil | GiveUp:
        """Send an attempt that continues a broken stream, if possible now; otherwise as `next`."""
        now_s, rand = self.runtime.loop.time(), self.runtime.rand()

        def choose() -> SendTo | None:
            return recovery.next(self.sent, self.facts, now_s, rand)

        step: SendTo | WaitUntil | GiveUp = GiveUp()
        if not recovery.given_up:
            plan = self._retry_plan()
            step = self.runtime.safely("tries", plan.recover, step, self.sent, choose, now_s)
        if not isinstance(step, SendTo):
            return step
        recovery.on_sent()
        reason = why_started(Role.RECOVERY, self.errors)
        return self._launch(racer, step.pool, step.replica, Role.RECOVERY, reason, recovery_call=recovery.recovery_call)

    def guard(self, racer: AttemptListener, target: SendTo, recovery: Recovery, reason: str) -> Attempt:
        """Send an attempt that continues a stream which is still open."""
        call = recovery.recovery_call
        return self._launch(racer, target.pool, target.replica, Role.GUARD, reason, recovery_call=call)

    def may_recover(self, winner: Attempt, recovery: Recovery | None, now_s: float) -> bool:
        """Return True if another attempt may carry on the stream of a winner that is still open."""
        if attempt_limit(self.sent, self.facts, now_s) is not None:
            return False
        return self.runtime.safely("recovery", can_recover, False, self.model, self.sent, winner, recovery, now_s)

    def hedge(self, racer: AttemptListener, late: Attempt, now_s: float) -> Attempt | None:
        """Send a backup for a late attempt if its pool approves; None if it does not."""
        pool, runtime = late.pool, self.runtime
        late.deadlines.hedge_s = math.inf
        if self._raced() >= pool.max_hedges or self.is_withheld:
            return None
        limit = attempt_limit(self.sent, self.facts, now_s)
        if limit is not None and self.facts.hedge_off is None:  # else the pool reports why
            late.deadlines.hedge_s = limit.until_s if isinstance(limit, WaitUntil) else math.inf
            return None
        tried, live = [other.replica for other in self.sent], self.live
        default: Hedge | Denied = Denied(Denial.OFF, math.inf, "the gate failed")
        decision = runtime.safely("gate", pool.decide, default, self.facts, late, live, tried, now_s, runtime.rand())
        waited_s, request_id, name = now_s - late.start_s, self.caller.request_id, self.model.name
        if isinstance(decision, Denied):
            self.denied_why = decision.why
            late.deadlines.hedge_s = now_s + max(_AGAIN_S_MIN, decision.again_after_s)
            if decision.reason not in self.denials:
                self.denials.append(decision.reason)
                runtime.emit(HedgeDenied(now_s, request_id, name, decision.reason, waited_s))
            return None
        if pool.withholds:
            number, is_first = self.sent.index(late), self.measured is None and not self.hedges and len(live) == 1
            held = withhold(self.facts, late, number, decision, now_s, runtime, is_first=is_first)
            self.measured, self.shadow = self.measured or held.measured, held.shadow
            if held.reason is not None:
                self.is_withheld, self.denied_why = True, EXPLANATIONS[held.reason]
                self.denials.append(held.reason)
                runtime.emit(HedgeDenied(now_s, request_id, name, held.reason, waited_s))
                return None
        self.hedges += 1
        backup = self._launch(racer, pool, decision.replica, Role.BACKUP, decision.why, decision.tickets)
        runtime.emit(HedgeFired(now_s, request_id, name, late.replica.name, decision.replica.name, waited_s))
        return backup

    def hedge_again(self, failed: Attempt) -> bool:
        """Request another backup in place of one that got no response; return True if an attempt waits for it."""
        live = self.live
        if not live or failed.role is not Role.BACKUP or not _is_unreached(failed):
            return False
        late = live[0]
        if late.deadlines.hedge_after_s is None or (late.pool.stops_at_headers and late.headers_s is not None):
            return False
        late.deadlines.hedge_s = self.runtime.loop.time()
        return True

    def first_work(self, attempt: Attempt) -> bool:
        """Report the first sign of work to the attempt's pool; return True if it is the attempt's first token.

        Before the pool's first complete answer nothing is known about reasoning: a sign that is apart from the headers
        then ends hedging and nothing else.
        """
        is_first_token = self.runtime.safely(
            "work", attempt.pool.on_work, False, attempt, self.facts.api, attempt.last_s
        )
        if is_first_token:
            attempt.first_token_s = attempt.last_s
        elif attempt.headers_s is not None and attempt.pool.first_token.shows_work(attempt.last_s - attempt.headers_s):
            attempt.deadlines.hedge_s = math.inf
        return is_first_token

    def first_content(self, attempt: Attempt) -> None:
        """Report first content to the attempt's pool; it proves replicas wrong that rejected the request."""
        if self._rejecting and not attempt.refused:
            self.runtime.safely("outcome", self.weigh, None, attempt.last_s, disproved=True)
        if attempt.refused:
            self.runtime.safely("content", attempt.pool.on_refusal, None, attempt)
            return
        try:
            state = attempt.pool.on_content(attempt, attempt.last_s)
        except Exception as error:  # as in Runtime.safely
            self.runtime.report("content", error)
        else:
            if state is not None:
                self._emit_breaker_change(attempt, state)
        if attempt.first_token_s is None:
            attempt.first_token_s = attempt.last_s

    def forgive(self, late_s: float) -> None:
        """Restart every silence: the gateway did not run, for longer than its timer was late."""
        for attempt in self.sent:
            attempt.forgive(math.inf)
            attempt.deadlines.forgive(late_s)

    def close_others(self, winner: Attempt, *, keep_empty: bool = False) -> None:
        """Cancel all other attempts: they have lost; `keep_empty`: except complete answers without content."""
        for other in self.sent:
            if other is winner or (keep_empty and other.empty) or other.is_measured:
                continue
            if self.measured is None or not self._is_read_on(self.measured, other, winner):
                self.close(other, Outcome.LOST)

    def loser_ended(self, loser: MeasuredLoser, error: UpstreamError | None, *, observed: bool) -> None:
        """End an attempt that had lost and was read on; learn from the attempt if it was observed."""
        attempt, self.loser = loser.attempt, None
        if observed and self.measured is not None:
            self.measured = msgspec.structs.replace(self.measured, observed=True)
        if attempt.content_s is not None:
            self.first_content(attempt)
        self.close(attempt, Outcome.LOST, error)
        if observed and attempt.end_s is not None:
            self.runtime.safely(
                "measure", attempt.pool.on_saving_measured, None, loser.winner, attempt.end_s - loser.won_s
            )
        ended, self.on_loser_ended = self.on_loser_ended, None
        if ended is not None:
            ended()

    def close(self, attempt: Attempt, outcome: Outcome, error: UpstreamError | None = None) -> None:
        """End an attempt, once, and settle its reservations."""
        if attempt.content_s is None and outcome in _CUT_SHORT and self._is_overdue(attempt):
            outcome = Outcome.TTFT_TIMEOUT
        if attempt.close(outcome, error):
            assert attempt.end_s is not None
            try:
                by_tokens = error is not None and limits_tokens(error)
                state = attempt.pool.on_end(attempt, outcome, attempt.end_s, attempt.retry_after_s, by_tokens=by_tokens)
            except Exception as bug:  # as in Runtime.safely
                self.runtime.report("outcome", bug)
            else:
                if state is not None:
                    self._emit_breaker_change(attempt, state)

    def fail(self, attempt: Attempt, outcome: Outcome, error: UpstreamError) -> None:
        """End an attempt without a complete answer."""
        self.errors.append(error)
        attempt.transient = classify(error).hint is RetryHint.SAME
        self.close(attempt, outcome, error)
        if attempt.replica.renew is not None and rejects_token(error):
            attempt.replica.renew(attempt.start_s)
            attempt.retry_after_s = _RENEWED_S
        if outcome is Outcome.UNCLEAR_4XX and not attempt.carries_on:  # which is another request
            self._rejecting = (*self._rejecting, (attempt, classify(error).hint is RetryHint.CONFIRM))
        now_s, name, replica = self.runtime.loop.time(), self.model.name, attempt.replica.name
        self.runtime.emit(
            AttemptFailed(now_s, self.caller.request_id, name, replica, outcome, error.label, attempt.status)
        )

    def classify(self, attempt: Attempt, error: UpstreamError) -> FailureClass:
        """Classify a failure; a replica that is out because it rejects requests is itself at fault for one more.

        A wait that is longer than the gateway's own is shortened to it, so that no caller waits for longer.
        """
        if error.retry_after_s is not None:
            error.retry_after_s = min(error.retry_after_s, COOL_DOWN_S_MAX)
        failure = classify(error)
        is_judged = failure.outcome is Outcome.UNCLEAR_4XX and attempt.replica.breaker.rejecting
        if is_judged and not attempt.carries_on:
            error.judged = True
            again = attempt.pool.rejections(attempt.replica).on_rejected_again
            self.runtime.safely("outcome", again, None, self._digest(), self.caller.key_name)
            return classify(error)
        return failure

    def weigh(self, now_s: float, *, disproved: bool = False) -> None:
        """Count the rejections of the request against their replicas, once.

        Args:
            disproved: True if another replica answers the request. Otherwise the rejections that most likely blame the
                request do not count.
        """
        rejecting, self._rejecting = self._rejecting, ()
        judges = {attempt: attempt.pool.rejections(attempt.replica) for attempt, _ in rejecting}
        # A request that was answered is not sent again, so the next one with the same bytes is another one.
        request, key_name = object() if disproved else self._digest(), self.caller.key_name
        for attempt, by_request in rejecting:
            judge = judges[attempt]
            if disproved:
                attempt.outcome = Outcome.WRONG_4XX
            if by_request and (not disproved or judge.is_answering(now_s)):
                continue
            state = judge.on_rejected(request, key_name, tuple(judges.values()), now_s, disproved=disproved)
            if attempt.replica.breaker.rejecting:
                attempt.outcome = Outcome.MISCONFIGURED
            if state is not None:
                self._emit_breaker_change(attempt, state)

    # inside

    def _raced(self) -> int:
        """Return the number of backups that a replica may have received."""
        return self.hedges and self.hedges - sum(each.role is Role.BACKUP and _is_unreached(each) for each in self.sent)

    def _digest(self) -> int:
        """Return a digest of the request: an SDK that repeats a request sends the same bytes."""
        body = self.call.body
        return hash((self.call.api, len(body), body[:_DIGEST_BYTES], body[-_DIGEST_BYTES:]))

    def _retry_plan(self) -> RetryPlan:
        """Return the request's plan, made at the first call."""
        if self._plan is None:
            deadline_s = self.facts.deadline_s
            until_s = math.inf if deadline_s is None else self.caller.arrived_s + deadline_s
            self._plan = RetryPlan(self.model, self.facts, until_s)
        return self._plan

    def _is_overdue(self, attempt: Attempt) -> bool:
        """Return True if an attempt has used up its TTFT timeout; a client's own timeout is no fault of it."""
        return attempt.deadlines.overdue and self.runtime.loop.time() >= attempt.deadlines.timeout_s

    def _is_read_on(self, measured: Measured, loser: Attempt, winner: Attempt) -> bool:
        """Read a loser on if it is measured, until `loser_ended`; return True if it is read on."""
        if loser is self.sent[measured.attempt]:
            self.loser = measure_loser(self, measured, loser, winner, self.runtime)
        return loser is self.sent[measured.attempt] and self.loser is not None

    def _emit_breaker_change(self, attempt: Attempt, state: BreakerState) -> None:
        now_s = self.runtime.loop.time()
        self.runtime.emit(BreakerChanged(now_s, self.model.name, attempt.replica.name, state.value))

    def _pick(self, pool: Pool, tried: Sequence[Replica], *, ignore_breakers: bool) -> Replica | None:
        """Ask a pool for a replica; if the pool raises, use any reachable one.

        A source that gave no response, not even a status, is asked again by another of its replicas, as a tier is one,
        only where no other source is usable. Where no replica is usable, one that is out because it rejects other
        callers' requests is tried before anything else.
        """
        runtime, picker, now_s = self.runtime, pool.picker, self._now_s
        drawn, self._rand = self._rand, None
        try:
            rand = runtime.rand() if drawn is None else drawn
            picked = None
            if not ignore_breakers:
                away = _unreachable(self.sent) if tried else ()
                able = (lambda replica: replica.source not in away) if away else None
                picked = picker.pick(self.facts, tried, now_s, rand, able=able)
                if picked is None and away:
                    picked = picker.pick(self.facts, tried, now_s, rand)
            key_name = None if ignore_breakers else self.caller.key_name
            return picked or picker.pick_ignoring_breakers(self.facts, tried, now_s, rand, key_name)
        except Exception as error:  # as in Runtime.safely
            runtime.report("routing", error)
        # If boundaries cannot be computed either, none is crossed: only a primary, which cannot cross one, is sent.
        reachable = runtime.safely("routing", pool.picker.reachable, [] if tried else list(pool.replicas), tried)
        return next((replica for replica in reachable if not replica.out), None)

    def _any_replica(self) -> SendTo | GiveUp:
        """Choose any replica, when the retry plan has raised."""
        tried = [attempt.replica for attempt in self.sent]
        for pool in self.model.pools if len(tried) < (self.facts.attempts_max or ATTEMPTS_MAX) else ():
            replica = self._pick(pool, tried, ignore_breakers=False)
            if replica is not None:
                return SendTo(pool, replica)
        return GiveUp()

    def _launch(
        self,
        racer: AttemptListener,
        pool: Pool,
        replica: Replica,
        role: Role,
        reason: str,
        tickets: HedgeTickets | None = None,
        recovery_call: tuple[Call, RequestFacts] | None = None,
        primary: Primary | None = None,
    ) -> Attempt:
        """Send an attempt and set its deadlines.

        Args:
            recovery_call: replaces the client's call for a recovery.
            primary: pool's decisions, if the pool has counted the attempt.
        """
        runtime, model, trace = self.runtime, self.model, self.caller.trace
        timeouts = model.fallback_timeouts.get(pool.name, model.timeouts)
        start_s = runtime.loop.time() if primary is None else self._now_s  # as in its forecast
        if recovery_call is None:
            call, facts = self.call, self.facts
            deadlines = attempt_deadlines(call, facts, timeouts, start_s)
        else:
            call, facts = recovery_call
            deadlines = recovery_deadlines(facts, timeouts, start_s)
        attempt = Attempt(racer, pool, replica, role, reason, deadlines, timeouts, runtime.loop)
        self.sent.append(attempt)
        if primary is not None:
            attempt.forecast = primary.forecast
        else:
            self._count(attempt, facts, tickets, is_recovery=recovery_call is not None)
        if pool.first_token.hides_reasoning and pool.waits_for_hidden(attempt) and call.timed:
            expected_s = 0.0 if attempt.forecast is None else attempt.forecast.ttft_s or 0.0
            deadlines.await_reasoning(expected_s, timeouts, facts.deadline_s)
        try:
            attempt.open(call if trace is None else trace.carried_by(call, len(self.sent) - 1))
        except Exception as error:  # a bug must cost this attempt, not the race, and is not the replica's fault
            runtime.report("open", error)
            message = "the request could not be translated for this upstream"
            failure = Unsupported(message, code="unsupported_parameter")
            runtime.loop.call_soon(attempt.on_end, failure)
        if recovery_call is None and facts.hedge_off in _HEDGED and self.hedges < pool.max_hedges:
            deadlines.hedge_after(
                runtime.safely("plan", pool.delay_s, math.inf, attempt, facts) if primary is None else primary.delay_s
            )
        return attempt

    def _count(self, attempt: Attempt, facts: RequestFacts, tickets: HedgeTickets | None, *, is_recovery: bool) -> None:
        """Report an attempt that is sent to its pool."""
        sent, pool = self.sent, attempt.pool
        is_first = tickets is None and not is_recovery and (len(sent) == 1 or sent[-2].pool is not pool)
        try:
            pool.on_sent(attempt, facts, tickets, is_first=is_first)
        except Exception as error:  # as in Runtime.safely
            self.runtime.report("routing", error)


def _unreachable(sent: Sequence[Attempt]) -> set[str]:
    """Return the sources that gave no response to an attempt."""
    return {each.replica.source for each in sent if _is_unreached(each)}


def _is_unreached(attempt: Attempt) -> bool:
    """Return True if an attempt failed without a response, not even a status."""
    return attempt.outcome is Outcome.FAILED and attempt.status is None
