"""What is told of a race: the gateway's own response headers, and the event for logs and metrics. Pure.

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

_UNKNOWN = Charge(Disposition.ABANDONED, Billed.NOTHING)  # where a bug was in the way, which has an event of its own

_encode = msgspec.json.Encoder().encode


class Course(NamedTuple):
    """How a race has gone so far; `recovery` where the winner's stream may be carried on."""

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
        """How it stands, or went."""
        if self.hedges:
            first = self.recovery.first if self.recovery is not None else self.winner
            won = self.winner is not None and first is not None and first.role is Role.BACKUP
            return Result.BACKUP_WON if won else Result.BACKUP_LOST
        return Result.DENIED if self.denials else Result.PRIMARY


def why_started(role: Role, errors: Sequence[UpstreamError]) -> str:
    """Why a primary or a failover is started, for people; errors are those of the attempts before it."""
    if role is Role.PRIMARY:
        return "first choice"
    return f"after {errors[-1].label}" if errors else "the attempt before it is overdue"


def response_headers(course: Course) -> list[tuple[bytes, bytes]]:
    """The `x-ttft-*` headers of an answer; its winner is known."""
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
    """Names of the replicas that a failover may not go to because the request was sent to another side."""
    return tuple(
        replica.name
        for pool in pools
        for replica in pool.replicas
        if replica not in tried and replica not in pool.picker.reachable(tried)
    )


def charges(course: Course) -> list[Charge]:
    """What each attempt is billed for, in the order they were sent; a winner under way counts as finished."""
    return [_charge(course, attempt) for attempt in course.attempts]


def usage_header(course: Course) -> tuple[bytes, bytes]:
    """What a request has used and cost, for a caller who asks for it."""
    billed = charges(course)
    cost = costs(billed)
    told = [
        {"replica": attempt.replica.name, **msgspec.to_builtins(each)}
        for attempt, each in zip(course.attempts, billed, strict=True)
    ]
    return (b"x-ttft-usage", _encode({"attempts": told, **({"cost": money(sum(cost.values()))} if cost else {})}))


def _charge(course: Course, attempt: Attempt) -> Charge:
    winner, role = course.winner, attempt.role
    outcome = attempt.outcome or (Outcome.FINISHED if attempt is winner else Outcome.LOST)
    if attempt is winner:
        stood = Disposition.WINNER
    else:  # nobody raced what was to carry on a broken stream: it said something else
        is_raced = winner is not None and role is not Role.RECOVERY
        stood = disposition(outcome, is_backup=role is Role.BACKUP, is_won=is_raced)
    prompt_tokens = (attempt.forecast or course.facts).prompt_tokens
    answer_tokens = _answer_tokens(course, attempt) if attempt.replica.bills_cancelled else 0.0
    return charge(attempt, outcome, stood, prompt_tokens, answer_tokens)


def _answer_tokens(course: Course, attempt: Attempt) -> float:
    """How long an attempt's answer would have been: as long as the winner's, else what is usual."""
    winner = course.winner
    if winner is None or winner is attempt or winner.outcome not in (None, Outcome.FINISHED):
        return attempt.pool.answer_tokens(course.facts)
    told = winner.usage.completion_tokens if winner.usage is not None else None
    return winner.events if told is None else told


def ended(
    course: Course,
    call: Call,
    billed: Sequence[Charge],
    now_s: float,
    status: int,
    error: str | None,
    beyond: tuple[str, ...] = (),
) -> RequestEnded:
    """The one event every request ends with; all its attempts have ended.

    Args:
        course: how it went.
        call: the client's.
        billed: `charges` of the course; empty where these could not be told.
        now_s: the time.
        status, error: as in `RequestEnded`.
        beyond: as in `RequestEnded.beyond_boundary`.
    """
    caller, facts, attempts, winner, _, denials, denied_why, recovery = course
    start_s = attempts[0].start_s if attempts else now_s
    shown = winner if winner is not None or not call.streaming else _broken(attempts)
    content_s, events = (shown.content_s, shown.events) if shown is not None else (None, 0)
    usage = winner.usage if winner is not None else None
    if winner is not None and recovery is not None:
        content_s, usage, events = recovery.content_s, recovery.usage(usage), events + recovery.carried_tokens
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
        gateway_s=start_s - caller.arrived_s - caller.queued_s,
        ttft_s=None if content_s is None else content_s - caller.arrived_s,
        total_s=now_s - caller.arrived_s,
        usage=usage,
        events=events,
        malformed=sum(attempt.malformed for attempt in attempts),
        beyond_boundary=beyond,
        recoveries=() if recovery is None else tuple(recovery.reports),
        never_hedged=_never_hedged(facts, attempts[0].pool) if attempts else None,
    )


def _broken(attempts: Sequence[Attempt]) -> Attempt | None:
    """Whose stream the client had when it broke for good; what is not streamed goes out whole or not at all."""
    return next((attempt for attempt in attempts if attempt.outcome is Outcome.CUT), None)


def _never_hedged(facts: RequestFacts, pool: Pool) -> Denial | None:
    """Why no timer for a hedge was armed, whatever had come: by the request, by the settings."""
    if facts.hedge_off is not None:
        return facts.hedge_off
    if not pool.max_hedges:
        return Denial.OFF
    return Denial.NO_REPLICA if len(pool.replicas) < 2 else None
