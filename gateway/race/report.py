"""Builds a race's `x-ttft-*` response headers and its `RequestEnded` event. Pure.

Units: seconds inside, milliseconds in the header.
"""

from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

import msgspec

from gateway.events import RequestEnded, Result, Role
from gateway.hedging.charges import Billed, Charge, Disposition, charge, costs, disposition
from gateway.hedging.contract import RequestFacts
from gateway.hedging.outcomes import Denial, Outcome
from gateway.limits.prices import money
from gateway.pool.pool import Pool
from gateway.race.attempt import Attempt
from gateway.race.context import Caller
from gateway.race.recovery import Recovery
from gateway.routing.replicas import Replica
from providers.base import Call
from providers.errors import UpstreamError

_UNKNOWN = Charge(Disposition.ABANDONED, Billed.NOTHING)  # after a bug in `charges`, which has an event of its own

_encode = msgspec.json.Encoder().encode


class RaceSnapshot(NamedTuple):
    """A race's state so far; `recovery` is None if the winner's stream cannot be recovered."""

    caller: Caller
    facts: RequestFacts
    attempts: Sequence[Attempt]
    winner: Attempt | None
    hedges: int
    denials: Sequence[Denial]
    denied_why: str | None
    recovery: Recovery | None = None

    @property
    def result(self) -> Result:
        """Result so far."""
        if self.hedges:
            first = self.recovery.first if self.recovery is not None else self.winner
            won = self.winner is not None and first is not None and first.role is Role.BACKUP
            return Result.BACKUP_WON if won else Result.BACKUP_LOST
        return Result.DENIED if self.denials else Result.PRIMARY


def why_started(role: Role, errors: Sequence[UpstreamError]) -> str:
    """Return the reason for a primary or a failover, as text; `errors` are those of the attempts before it."""
    if role is Role.PRIMARY:
        return "first choice"
    return f"after {errors[-1].label}" if errors else "the previous attempt is overdue"


def response_headers(course: RaceSnapshot) -> list[tuple[bytes, bytes]]:
    """Build the `x-ttft-*` headers of a response; the race has a winner."""
    winner = course.winner
    assert winner is not None
    headers = [
        (b"x-ttft-replica", winner.replica.name.encode()),
        (b"x-ttft-attempts", b"%d" % len(course.attempts)),
        (b"x-ttft-ms", b"%.1f" % (1000 * (winner.last_s - course.caller.arrived_s))),
        (b"x-ttft-result", course.result.value.encode()),
    ]
    if course.denials:
        headers.append((b"x-ttft-denied", course.denials[-1].value.encode()))
    if winner.upstream_request_id is not None:
        headers.append((b"x-upstream-request-id", winner.upstream_request_id.encode("latin-1", "replace")))
    return headers


def beyond_boundary(pools: Sequence[Pool], tried: Sequence[Replica]) -> tuple[str, ...]:
    """Return the names of the replicas that a boundary excludes from a failover, given those already tried."""
    return tuple(
        replica.name
        for pool in pools
        for replica in pool.replicas
        if replica not in tried and replica not in pool.picker.reachable(tried)
    )


def charges(course: RaceSnapshot) -> list[Charge]:
    """Return the charge of each attempt, in the order sent; a running winner counts as finished."""
    return [_charge(course, attempt) for attempt in course.attempts]


def usage_header(course: RaceSnapshot) -> tuple[bytes, bytes]:
    """Build the header with a request's usage and cost, for a caller that asks for it."""
    billed = charges(course)
    cost = costs(billed)
    entries = [
        {"replica": attempt.replica.name, **msgspec.to_builtins(each)}
        for attempt, each in zip(course.attempts, billed, strict=True)
    ]
    return (b"x-ttft-usage", _encode({"attempts": entries, **({"cost": money(sum(cost.values()))} if cost else {})}))


def _charge(course: RaceSnapshot, attempt: Attempt) -> Charge:
    winner, role = course.winner, attempt.role
    outcome = attempt.outcome or (Outcome.FINISHED if attempt is winner else Outcome.LOST)
    if attempt is winner:
        attempt_disposition = Disposition.WINNER
    else:  # a recovery is never raced: if it is not the winner, its answer differed
        is_raced = winner is not None and role is not Role.RECOVERY
        attempt_disposition = disposition(outcome, is_backup=role is Role.BACKUP, is_won=is_raced)
    prompt_tokens = (attempt.forecast or course.facts).prompt_tokens
    answer_tokens = _answer_tokens(course, attempt) if attempt.replica.bills_cancelled else 0.0
    return charge(attempt, outcome, attempt_disposition, prompt_tokens, answer_tokens)


def _answer_tokens(course: RaceSnapshot, attempt: Attempt) -> float:
    """Estimate the length of an attempt's answer in tokens: the winner's length, else the usual one."""
    winner = course.winner
    if winner is None or winner is attempt or winner.outcome not in (None, Outcome.FINISHED):
        return attempt.pool.answer_tokens(course.facts)
    reported = winner.usage.completion_tokens if winner.usage is not None else None
    return winner.events if reported is None else reported


def ended(
    course: RaceSnapshot,
    call: Call,
    billed: Sequence[Charge],
    now_s: float,
    status: int,
    error: str | None,
    beyond: tuple[str, ...] = (),
) -> RequestEnded:
    """Build the event that ends every request; all its attempts have ended.

    Args:
        billed: `charges` of the course; empty if they could not be computed.
        status, error: see `RequestEnded`.
        beyond: see `RequestEnded.beyond_boundary`.
    """
    caller, facts, attempts, winner, _, denials, denied_why, recovery = course
    start_s = attempts[0].start_s if attempts else now_s
    streamed = winner if winner is not None or not call.streaming else _cut_attempt(attempts)
    first, events = streamed, 0 if streamed is None else streamed.events
    usage = winner.usage if winner is not None else None
    if winner is not None and recovery is not None and recovery.error is not None:  # its stream was carried on
        first, usage, events = recovery.first, recovery.usage(usage), events + recovery.carried_tokens
    content_s = None if first is None else first.content_s
    return RequestEnded(
        at_s=now_s,
        request_id=caller.request_id,
        key_name=caller.key_name,
        model=call.model,
        api=call.api,
        streaming=call.streaming,
        status=status,
        error=error,
        result=course.result,
        winner=winner.replica.name if winner is not None else None,
        attempts=tuple(map(Attempt.report, attempts, repeat(start_s), billed or repeat(_UNKNOWN))),
        denials=tuple(denials),
        denied_why=denied_why,
        queued_s=caller.queued_s,
        trace_id=caller.trace_id,
        gateway_s=start_s - caller.arrived_s - caller.queued_s,
        ttft_s=None if content_s is None else content_s - caller.arrived_s,
        work_s=_timed_work_s(first, caller.arrived_s),
        total_s=now_s - caller.arrived_s,
        usage=usage,
        events=events,
        malformed=sum(attempt.malformed for attempt in attempts),
        beyond_boundary=beyond,
        recoveries=() if recovery is None else tuple(recovery.reports),
        never_hedged=_never_hedged(facts, attempts[0]) if attempts and not course.hedges else None,
    )


def _timed_work_s(first: Attempt | None, arrived_s: float) -> float | None:
    """Return the time of the sign of work after the request's arrival; None if content was timed.

    Args:
        first: attempt whose content was sent first.
    """
    if first is None or first.work_s is None or first.first_token_s != first.work_s:
        return None
    return first.work_s - arrived_s


def _cut_attempt(attempts: Sequence[Attempt]) -> Attempt | None:
    """Return the attempt whose stream the client received when it broke, None if none broke."""
    return next((attempt for attempt in attempts if attempt.outcome is Outcome.CUT), None)


def _never_hedged(facts: RequestFacts, first: Attempt) -> Denial | None:
    """Return the reason for which no hedge was possible, as of the first attempt's start; None if one was."""
    return facts.hedge_off or (None if first.forecast is None else first.forecast.never_hedged)
