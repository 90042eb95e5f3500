"""Measures what hedges save: a granted hedge is withheld, or the attempt that lost is read until its first token.

A loser that is read on has another listener than its race, so the race and its client are not affected. It ends at the
first token, a failure, or the TTFT timeout of the attempt, whichever is first, or when the gateway stops.
The credits of a withheld hedge stay spent; otherwise they would pay for another hedge.

Units: seconds of the loop's clock.
"""

import math
from typing import Final, NamedTuple, Protocol

from gateway.events import Role
from gateway.race.attempt import Attempt
from gateway.race.context import Runtime
from gateway.race.deadlines import Wakeup
from ttft_gateway.apis.base import Headers
from ttft_gateway.apis.errors import UpstreamError
from ttft_gateway.hedging.contract import Hedge, RequestFacts
from ttft_gateway.hedging.measure import Instrument, Measured, Shadow
from ttft_gateway.hedging.outcomes import Denial

LOSERS_MAX: Final = 1024  # of a process; further losers are cancelled


class Withheld(NamedTuple):
    """The decision on a granted hedge.

    Attributes:
        reason: reason for which it is not sent; None if it is sent.
        measured: measurement of its saving; None if its saving is not measured.
        shadow: the hedge that was not sent because the policy is `shadow`; None for any other.
    """

    reason: Denial | None = None
    measured: Measured | None = None
    shadow: Shadow | None = None


_SENT: Final = Withheld()


def withhold(
    facts: RequestFacts,
    late: Attempt,
    number: int,
    hedge: Hedge,
    now_s: float,
    runtime: Runtime,
    *,
    is_first: bool,
) -> Withheld:
    """Decide if a granted hedge is sent.

    Args:
        late: attempt for which the hedge was granted.
        number: its index.
        is_first: True for the first hedge of a request with no other attempt under way, which may be measured.
    """
    pool = late.pool
    if pool.is_shadow:
        waited_s = now_s - late.start_s
        shadow = runtime.safely("shadow", pool.shadow, None, facts, late, number, hedge, waited_s, runtime.rand())
        held = Withheld(Denial.SHADOW, shadow=shadow)
    else:
        timeout_s = late.deadlines.timeout_s
        if not is_first or now_s >= timeout_s or timeout_s == math.inf:  # only times of first tokens are measured
            return _SENT
        measured = runtime.safely("measure", pool.measure, None, late, number, runtime.rand())
        if measured is None or not measured.withheld:
            return Withheld(measured=measured)
        held = Withheld(Denial.HOLDOUT, measured)
    runtime.safely("measure", pool.budget.settle, None, hedge.tickets)
    return held


class RequestAttempts(Protocol):
    """The attempts of the request."""

    def first_work(self, attempt: Attempt) -> bool:
        """Report the first sign of work; return True if it is the attempt's first token."""

    def loser_ended(self, loser: "MeasuredLoser", error: UpstreamError | None, *, observed: bool) -> None:
        """End the attempt; `observed` is False if it was stopped before its first token, failure or timeout."""


class MeasuredLoser:
    """An attempt that has lost and is read on.

    Args:
        owner: receives the end, once.
        attempt: the attempt; its listener is replaced.
        winner: the attempt that won.

    Attributes:
        won_s: time of the winner's first token.
    """

    __slots__ = ("_owner", "_runtime", "_wakeup", "attempt", "winner", "won_s")

    def __init__(self, owner: RequestAttempts, attempt: Attempt, winner: Attempt, runtime: Runtime) -> None:
        self.attempt = attempt
        self.winner = winner
        self.won_s = winner.last_s
        self._owner = owner
        self._runtime = runtime
        self._wakeup = Wakeup(runtime.timers, self._on_time)
        self._wakeup.at(attempt.deadlines.timeout_s)
        attempt.measure_for(self)
        runtime.losers.add(self)

    def stop(self) -> None:
        """End it before its first token."""
        self._end(None, observed=False)

    # the attempt's calls

    def on_headers(self, attempt: Attempt, headers: Headers) -> None:
        if attempt.replica.read_limits is not None:
            self._runtime.safely("limits", attempt.observe_limits, None, headers)

    def on_work(self, attempt: Attempt) -> None:
        if self._owner.first_work(attempt):
            self._end(None, observed=True)

    def on_content(self, attempt: Attempt) -> None:
        self._end(None, observed=True)

    def on_failed(self, attempt: Attempt, error: UpstreamError) -> None:
        error.redact(attempt.replica.secrets)
        self._end(error, observed=True)

    def on_finished(self, attempt: Attempt) -> None:
        self._end(None, observed=True)

    # inside

    def _on_time(self) -> None:
        self._end(None, observed=True)

    def _end(self, error: UpstreamError | None, *, observed: bool) -> None:
        if self in self._runtime.losers:
            self._runtime.losers.remove(self)
            self._wakeup.cancel()
            self._owner.loser_ended(self, error, observed=observed)


def measure_loser(
    owner: RequestAttempts, measured: Measured, loser: Attempt, winner: Attempt, runtime: Runtime
) -> MeasuredLoser | None:
    """Read the loser of a race on, if the measurement of its request includes it; else return None."""
    is_drawn = measured.drawn and measured.instrument is Instrument.LOSERS
    is_beaten = loser.live and winner.role is Role.BACKUP and winner.last_s < loser.deadlines.timeout_s
    if not is_drawn or not is_beaten or len(runtime.losers) >= LOSERS_MAX:
        return None
    runtime.safely("measure", loser.pool.on_loser_read, None, loser, winner)
    return MeasuredLoser(owner, loser, winner, runtime)
