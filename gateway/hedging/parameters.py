"""The parameters of a pool's hedging: the settings of `hedge:`, converted for the policy. Pure data.

Units: seconds; shares are fractions of 1.
"""

import msgspec

from gateway.hedging.budget import BudgetUnit
from gateway.hedging.measure import NOT_MEASURED, MeasureShares
from gateway.hedging.plan import FirstEvent, Policy
from gateway.limits.budget import SAVED_COSTS
from gateway.routing.strategies import Crossing, Routing
from providers.base import FirstToken


class HedgeParameters(msgspec.Struct, frozen=True):
    """Parameters of a pool's hedging.

    Attributes:
        policy: method that sets the delay of a backup.
        budget: extra requests, and extra tokens or cost, as a share of the traffic that may be hedged.
        budget_unit: unit of the second budget, beside requests: prompt tokens or money.
        max_hedges: maximum number of backups per request.
        static_delay_s: delay of the policy `static`.
        hedge_delay_min_s: shortest delay of a hedge.
        cold_start_delay_s: delay while there are too few samples.
        gain_min: required gain of a backup, as a multiple of its own TTFT; None for the default of the replica's kind.
        routing: strategy that picks a primary's replica; a backup always goes to the one predicted fastest.
        crossing: later attempts of a request that may cross a boundary.
        first_token: event that is timed as the first token.
        hedge_hidden_reasoning: True to hedge also models whose answers begin with reasoning that is not shown.
        sampled_event: event whose times the policy `quantile` learns from.
        answered_by: event after which an attempt is not hedged any more.
        ttft_target_s: TTFT that hedges are to keep; None: they save as much time as possible.
        measure: shares of the hedges whose saving is measured.
        warm_samples: first contents before the learned plan is used.
        window_s: age at which samples expire, if enough newer ones are left.
        saved_hedges: hedges that the budget can pay at the first request.
        shows_replicas: True if the TTFT of each replica is shown; False: it is kept only if the policy reads it.
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
    first_token: FirstToken = "any"
    sampled_event: FirstEvent = FirstEvent.CONTENT
    answered_by: FirstEvent = FirstEvent.CONTENT
    ttft_target_s: float | None = None
    measure: MeasureShares = NOT_MEASURED
    warm_samples: int = 20
    window_s: float = 60.0
    saved_hedges: float = SAVED_COSTS
    shows_replicas: bool = True
