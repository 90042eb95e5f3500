"""Builds a race's `x-ttft-*` response headers and its record, `RequestEnded`. Pure.

Units: seconds inside, milliseconds in the header.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from gateway.events import AttemptReport, RequestEnded, Result, Role
from gateway.race.attempt import Attempt
from gateway.race.attempts import Attempts
from gateway.race.recovery import Recovery
from ttft_gateway.apis.base import Usage
from ttft_gateway.hedging.charges import Billed, Charge, Disposition, charge, costs, disposition
from ttft_gateway.hedging.measure import Instrument
from ttft_gateway.hedging.outcomes import Outcome
from ttft_gateway.limits.prices import TierPrices, money

_UNKNOWN: Final = Charge(Disposition.ABANDONED, Billed.NOTHING)
_RESULT_HEADERS: Final = {result: (b"x-ttft-result", result.value.encode()) for result in Result}
_PRIMARY, _WINNER = Result.PRIMARY, Disposition.WINNER
_PRIMARY_HEADER: Final = _RESULT_HEADERS[Result.PRIMARY]
_BROKEN: Final = (Outcome.CUT, Outcome.SILENT)
_ONE_ATTEMPT: Final = (b"x-ttft-attempts", b"1")
_MEASURED_HEADERS: Final = {each: (b"x-ttft-measured", each.value.encode()) for each in Instrument}

_encode = msgspec.json.Encoder().encode


def response_headers(attempts: Attempts, winner: Attempt) -> list[tuple[bytes, bytes]]:
    """Build the `x-ttft-*` headers of a response."""
    sent = len(attempts.sent)
    headers = [
        (b"x-ttft-replica", winner.replica.name.encode()),
        _ONE_ATTEMPT if sent == 1 else (b"x-ttft-attempts", b"%d" % _count(attempts.sent)),
        (b"x-ttft-ms", b"%.1f" % (1000 * (winner.last_s - attempts.caller.arrived_s))),
        _PRIMARY_HEADER,
    ]
    if attempts.hedges or attempts.denials:
        headers[-1] = _RESULT_HEADERS[_result_of_hedges(attempts, winner)]
    if attempts.denials:
        headers.append((b"x-ttft-denied", attempts.denials[-1].value.encode()))
    measured = attempts.measured
    if measured is not None and measured.drawn and (attempts.loser or measured.instrument is Instrument.HOLDOUT):
        headers.append(_MEASURED_HEADERS[measured.instrument])
    if winner.upstream_request_id is not None:
        headers.append((b"x-upstream-request-id", winner.upstream_request_id.encode("latin-1", "replace")))
    return headers


def _count(sent: Sequence[Attempt]) -> int:
    """Return the number of attempts that a replica may have received."""
    return sum(attempt.outcome is not Outcome.UNSUPPORTED for attempt in sent)


def _result_of_hedges(attempts: Attempts, first: Attempt | None) -> Result:
    """Return the result so far of a late request.

    Args:
        first: attempt that sent the first content, None if there is no winner.
    """
    if not attempts.hedges:
        return Result.DENIED
    return Result.BACKUP_WON if first is not None and first.role is Role.BACKUP else Result.BACKUP_LOST


def charge_of(attempts: Attempts, winner: Attempt | None, attempt: Attempt) -> Charge:
    """Return the charge of an attempt; a running winner counts as finished."""
    outcome, answer_tokens = attempt.outcome, 0.0
    if attempt is winner:
        outcome, shown = outcome or Outcome.FINISHED, _WINNER
    else:  # a recovery is never raced: if it is not the winner, its answer differed
        outcome, is_raced = outcome or Outcome.LOST, winner is not None and attempt.role is not Role.RECOVERY
        shown = disposition(outcome, is_backup=attempt.role in (Role.BACKUP, Role.GUARD), is_won=is_raced)
    if attempt.replica.bills_cancelled:
        answer_tokens = _answer_tokens(attempts, winner, attempt)
    return charge(attempt, outcome, shown, (attempt.forecast or attempts.facts).prompt_tokens, answer_tokens)


def no_charge(_attempts: Attempts, _winner: Attempt | None, _attempt: Attempt) -> Charge:
    """Return the charge of any attempt after a bug in `charge_of`."""
    return _UNKNOWN


def _answer_tokens(attempts: Attempts, winner: Attempt | None, attempt: Attempt) -> float:
    """Estimate the length of an attempt's answer in tokens: the winner's length, else the usual one."""
    if winner is None or winner is attempt or winner.outcome not in (None, Outcome.FINISHED, Outcome.EMPTY):
        return attempt.pool.answer_tokens(attempts.facts)
    reported = winner.usage.completion_tokens if winner.usage is not None else None
    return winner.events if reported is None else reported


def usage_header(attempts: Attempts, winner: Attempt | None) -> tuple[bytes, bytes]:
    """Build the header with a request's usage and cost, for a caller that asks for it."""
    billed = [charge_of(attempts, winner, attempt) for attempt in attempts.sent]
    cost = costs(billed)
    entries = [
        {"replica": attempt.replica.name, **msgspec.to_builtins(each)}
        for attempt, each in zip(attempts.sent, billed, strict=True)
    ]
    return (b"x-ttft-usage", _encode({"attempts": entries, **({"cost": money(sum(cost.values()))} if cost else {})}))


def ended(
    attempts: Attempts,
    winner: Attempt | None,
    recovery: Recovery | None,
    now_s: float,
    status: int,
    error: str | None,
    charged: Callable[[Attempts, Attempt | None, Attempt], Charge] = charge_of,
) -> RequestEnded:
    """Build the record of a request; all its attempts have ended.

    Args:
        recovery: recovery of the winner's stream, None if it was not broken.
        status, error: see `RequestEnded`.
        charged: returns the charge of an attempt.
    """
    call, caller, sent, arrived_s = attempts.call, attempts.caller, attempts.sent, attempts.caller.arrived_s
    if winner is None or recovery is not None:
        first, usage, events = _broken_stream(attempts, winner, recovery)
    else:
        first, usage, events = winner, winner.usage, winner.events
    result = _PRIMARY
    if attempts.hedges or attempts.denials:
        result = _result_of_hedges(attempts, None if winner is None else first)
    start_s, forecast, never_hedged = now_s, None, None
    if sent:
        start_s, forecast = sent[0].start_s, sent[0].forecast
        if not attempts.hedges:  # as of the first attempt's start
            never_hedged = attempts.facts.hedge_off or (None if forecast is None else forecast.never_hedged)
    reports: list[AttemptReport] = []
    malformed = 0
    for attempt in sent:
        reports.append(_report(attempt, start_s, charged(attempts, winner, attempt)))
        malformed += attempt.malformed
    content_s, work_s = (None, None) if first is None else _first_times(first, arrived_s)
    return RequestEnded(  # in the order of its fields: 28 keywords would cost as much as the whole function
        now_s,
        caller.request_id,
        caller.key_name,
        call.model,
        call.api,
        call.streaming,
        status,
        error,
        result,
        None if winner is None else winner.replica.name,
        tuple(reports),
        tuple(attempts.denials),
        attempts.denied_why,
        start_s - arrived_s - caller.queued_s,
        content_s,
        now_s - arrived_s,
        usage,
        events,
        malformed,
        attempts.beyond,
        never_hedged,
        attempts.lost_guards if recovery is None else (*attempts.lost_guards, *recovery.reports),
        caller.queued_s,
        work_s,
        caller.trace_id,
        attempts.measured,
        None if forecast is None else forecast.target_s,
        attempts.shadow,
        caller.trace,
        attempts.limit,
        None if winner is None or winner.replica.tiers is None else _usual_cost(winner.replica.tiers, reports),
    )


def _usual_cost(tiers: TierPrices, reports: Sequence[AttemptReport]) -> float | None:
    """Return what the answer would have cost on the usual tier; None after a bug in the charges."""
    won = (each.charge for each in reports if each.charge.disposition is _WINNER)
    costs = [tiers.usual.cost(each.prompt_tokens, each.cached_tokens, each.completion_tokens) for each in won]
    return money(sum(costs)) if costs else None


def _broken_stream(
    attempts: Attempts, winner: Attempt | None, recovery: Recovery | None
) -> tuple[Attempt | None, Usage | None, int]:
    """Return the attempt that the client received events of first, and usage and events of its whole answer."""
    if winner is not None and recovery is not None:  # its stream was continued
        return recovery.first, recovery.usage(winner.usage), winner.events + recovery.carried_tokens
    cut = None
    if attempts.call.streaming:
        cut = next((attempt for attempt in attempts.sent if attempt.outcome in _BROKEN), None)
    return cut, None, 0 if cut is None else cut.events


def _first_times(first: Attempt, arrived_s: float) -> tuple[float | None, float | None]:
    """Return the times from the request's arrival to its first content, and to the work that was its first token."""
    content_s, work_s = first.content_s, first.work_s
    return (
        None if content_s is None else content_s - arrived_s,
        None if work_s is None or work_s != first.first_token_s else work_s - arrived_s,
    )


def _report(attempt: Attempt, request_start_s: float, charged: Charge) -> AttemptReport:
    """Build the report of an attempt that has ended."""
    outcome, start_s, end_s = attempt.outcome, attempt.start_s, attempt.end_s
    headers_s, content_s, work_s = attempt.headers_s, attempt.content_s, attempt.work_s
    hedge_after_s, forecast = attempt.deadlines.hedge_after_s, attempt.forecast
    assert outcome is not None
    assert end_s is not None
    return AttemptReport(
        attempt.replica.name,
        attempt.role,
        start_s - request_start_s,
        None if headers_s is None else headers_s - start_s,
        None if content_s is None else content_s - start_s,
        end_s - start_s,
        outcome,
        attempt.status,
        attempt.error,
        attempt.upstream_request_id,
        attempt.usage,
        charged,
        attempt.reason,
        None if forecast is None else forecast.ttft_s,
        hedge_after_s,
        None if work_s is None or work_s != attempt.first_token_s else work_s - start_s,
        attempt.empty,
    )
