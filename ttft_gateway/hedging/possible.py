"""Finds the replicas at which no request can ever be hedged, from the configuration of their pool. Pure.

Independent of load, health and the request: `Denial.NO_REPLICA` covers replicas that cannot be used at the moment. A
hedge needs another replica of the pool that may receive it, within the boundary that the request must not leave.
Either attempt of a race may be the cancelled one, but only the bill of the hedge's replica rules a hedge out: the
primary would have been paid for without a hedge, too. The budget counts both bills (`ttft_gateway.hedging.budget`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from ttft_gateway.hedging.outcomes import Denial
from ttft_gateway.routing.replicas import Replica
from ttft_gateway.routing.strategies import Crossing

EXPLANATIONS: Final[Mapping[Denial, str]] = {
    Denial.OFF: "hedging is switched off",
    Denial.KEY: "hedging is off for its key",
    Denial.ONE_REPLICA: "no other replica is configured in its pool and boundary",
    Denial.BILLED: "every other replica bills cancelled requests",
    Denial.BILLING_UNKNOWN: "every other replica bills cancelled requests, or may",
    Denial.HIDDEN_REASONING: "its answers begin with hidden reasoning, without an informative sign of work",
    Denial.HOLDOUT: "the hedge was withheld, to measure what hedging saves",
    Denial.SHADOW: "the hedge was decided and not sent, because the policy is shadow",
    Denial.NO_REPLICA: "no other healthy replica is available",
}


class HedgeTarget(msgspec.Struct, frozen=True):
    """A replica as a possible target of hedges.

    Attributes:
        name: unique name in its pool.
        boundary: region or vendor that a request must not leave; None if unset.
        cancel_stops_billing: True if cancelling a request stops its bill; None if that is unknown.
        allows_billed: True if the configuration accepts the bill.
    """

    name: str
    boundary: str | None = None
    cancel_stops_billing: bool | None = True
    allows_billed: bool = False

    @property
    def barred(self) -> Denial | None:
        """Reason for which hedges may not go to it; None if they may."""
        if self.cancel_stops_billing or self.allows_billed:
            return None
        return Denial.BILLING_UNKNOWN if self.cancel_stops_billing is None else Denial.BILLED


def target_of(replica: Replica) -> HedgeTarget:
    """Return a replica as a target of hedges."""
    return HedgeTarget(replica.name, replica.boundary, replica.cancel_stops_billing, replica.hedgeable)


def never_hedged(targets: Sequence[HedgeTarget], *, off: bool, crossing: Crossing) -> dict[str, Denial | None]:
    """Return for each replica of a pool the reason for which requests sent to it are never hedged; None if they can be.

    Args:
        targets: all replicas of the pool.
        off: True if the policy is off or the budget is 0.
        crossing: later attempts of a request that may cross a boundary.
    """
    if off:
        return dict.fromkeys((target.name for target in targets), Denial.OFF)
    sides = [None if crossing is Crossing.ALWAYS else target.boundary for target in targets]
    counts = Counter((side, target.barred) for target, side in zip(targets, sides, strict=True))
    reasons = {(side, barred): _why_never(counts, side, barred) for side, barred in counts}
    return {target.name: reasons[side, target.barred] for target, side in zip(targets, sides, strict=True)}


def _why_never(
    counts: Mapping[tuple[str | None, Denial | None], int], side: str | None, barred: Denial | None
) -> Denial | None:
    """Return the reason for one of the replicas that were counted.

    Args:
        counts: number of replicas by their side of a boundary, and by what bars hedges from them (None: nothing).
    """
    others = {why for (where, why), count in counts.items() if where == side and count > (why is barred)}
    if not others:
        return Denial.ONE_REPLICA
    if None in others:
        return None
    return Denial.BILLING_UNKNOWN if Denial.BILLING_UNKNOWN in others else Denial.BILLED
