"""How a pool hedges: the numbers of `hedge:` in the configuration, as the brain takes them. Pure data.

Units: seconds; shares are fractions of 1.
"""

from dataclasses import dataclass

from gateway.hedging.budget import BudgetUnit
from gateway.hedging.plan import FirstEvent, Policy
from gateway.routing.strategies import Crossing, Routing


@dataclass(frozen=True, slots=True)
class HedgeParameters:
    """How a pool hedges.

    Attributes:
        policy: how it is decided when a first token is late.
        budget: extra requests, and extra tokens or spend, as a share of the traffic that may be hedged.
        budget_unit: whether it is prompt tokens or money that this is a share of, besides requests.
        max_hedges: backups a request may have.
        static_delay_s: for the policy `static`.
        quantile: for the policy `quantile`.
        hedge_delay_min_s: no hedge is considered earlier.
        cold_start_delay_s: when one is considered while too little is known.
        gain_min: what a backup must be expected to save, as a multiple of its own TTFT; None: by the replica's kind.
        routing: how the replica of a primary is chosen; a backup's is always the one predicted fastest.
        crossing: which later attempts of a request may leave the side of a boundary that it was sent to.
        hedge_hidden_reasoning: hedge also where answers begin with reasoning that is not shown.
        sampled_event: the event whose times the policy `quantile` learns from.
        answered_by: the event after which no hedge of an attempt is considered.
    """

    policy: Policy
    budget: float
    budget_unit: BudgetUnit
    max_hedges: int
    static_delay_s: float
    quantile: float
    hedge_delay_min_s: float
    cold_start_delay_s: float
    gain_min: float | None
    routing: Routing
    crossing: Crossing
    hedge_hidden_reasoning: bool
    sampled_event: FirstEvent = FirstEvent.CONTENT
    answered_by: FirstEvent = FirstEvent.CONTENT
