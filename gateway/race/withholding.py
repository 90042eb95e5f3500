"""Withholds a hedge that was granted: to measure what hedges save, or because the policy is `shadow`.

Its credits stay charged: else they would buy another hedge. Units: seconds of the loop's clock.
"""

import math
from typing import Final, NamedTuple

from gateway.hedging.contract import Hedge, RequestFacts
from gateway.hedging.measure import Measured, Shadow
from gateway.hedging.outcomes import Denial
from gateway.race.attempt import Attempt
from gateway.race.context import Runtime


class Withheld(NamedTuple):
    """The decision on a granted hedge.

    Attributes:
        reason: reason for which it is not sent; None if it is.
        measured: measurement of its saving; None without one.
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
