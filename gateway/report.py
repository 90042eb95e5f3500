"""What is told of a race: the gateway's own response headers, and the event for logs and metrics. Pure.

Units: seconds inside, milliseconds in the header.
"""

from collections.abc import Sequence
from typing import NamedTuple

from gateway.attempt import Attempt
from gateway.events import RequestEnded, Result, Role
from gateway.hedging.outcomes import Denial
from gateway.hedging.pool import Pool
from gateway.hedging.terms import Facts
from gateway.request import Caller
from gateway.routing.replicas import Replica
from providers.base import Call
from providers.errors import UpstreamError


class Course(NamedTuple):
    """How a race has gone so far."""

    caller: Caller
    attempts: Sequence[Attempt]
    winner: Attempt | None
    hedges: int
    denials: Sequence[Denial]
    denied_why: str | None

    @property
    def result(self) -> Result:
        """How it stands, or went."""
        if self.hedges:
            won = self.winner is not None and self.winner.role is Role.BACKUP
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
        if replica not in tried and replica not in pool.reachable(tried)
    )


def ended(
    course: Course,
    call: Call,
    facts: Facts,
    now_s: float,
    status: int,
    error: str | None,
    beyond: tuple[str, ...] = (),
) -> RequestEnded:
    """The one event every request ends with; all its attempts have ended."""
    caller, attempts, winner, _, denials, denied_why = course
    start_s = attempts[0].start_s if attempts else now_s
    content_s = winner.content_s if winner is not None else None
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
        attempts=tuple(attempt.report(start_s) for attempt in attempts),
        denials=tuple(denials),
        denied_why=denied_why,
        gateway_s=start_s - caller.arrived_s,
        ttft_s=None if content_s is None else content_s - caller.arrived_s,
        total_s=now_s - caller.arrived_s,
        usage=winner.usage if winner is not None else None,
        events=winner.events if winner is not None else 0,
        malformed=sum(attempt.malformed for attempt in attempts),
        beyond_boundary=beyond,
        never_hedged=_never_hedged(facts, attempts[0].pool) if attempts else None,
    )


def _never_hedged(facts: Facts, pool: Pool) -> Denial | None:
    """Why no timer for a hedge was armed, whatever had come: by the request, by the settings."""
    if facts.hedge_off is not None:
        return facts.hedge_off
    if not pool.max_hedges:
        return Denial.OFF
    return Denial.ALONE if len(pool.replicas) < 2 else None
