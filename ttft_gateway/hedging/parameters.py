"""The parameters of a pool's hedging, and the only place of their defaults. Pure data.

The settings of `hedge:`, the client library and the bench take each default from `DEFAULTS`.

Units: seconds; shares are fractions of 1.
"""

import enum
import math
from typing import Final

import msgspec

from ttft_gateway.apis.base import FirstToken
from ttft_gateway.estimation.window import REACH_S
from ttft_gateway.hedging.budget import BudgetUnit
from ttft_gateway.hedging.contract import ATTEMPTS_MAX
from ttft_gateway.hedging.measure import NOT_MEASURED, MeasureShares
from ttft_gateway.hedging.plan import FirstEvent, Policy
from ttft_gateway.limits.budget import SAVED_COSTS
from ttft_gateway.routing.strategies import Crossing, Routing

_SMALL_BUDGET: Final = 0.20  # up to it, each hedge has to be worth its cost: no credit is left for others (W2)
_LARGE_BUDGET: Final = 0.30  # granted to be used: a hedge costs nothing until it is spent

HEDGES_MAX: Final = ATTEMPTS_MAX - 1
"""Largest value of `max_hedges`."""


class Prefer(enum.Enum):
    """The quantity that the choice of a replica keeps low; the value is the name in the settings."""

    FIRST_TOKEN = "first_token"  # the time to the first token only
    BALANCED = "balanced"  # both; a second of the first token counts as much as three of the answer
    ANSWER = "answer"  # the time to the end of the answer
    COST = "cost"  # none: the lowest bill that keeps the TTFT target


class GuardMode(enum.Enum):
    """Use of guards beside streams that are silent or slow; the value is the name in the settings."""

    AUTO = "auto"  # within the hedge budget
    OFF = "off"


ANSWER_WEIGHTS: Final = {Prefer.FIRST_TOKEN: 0.0, Prefer.BALANCED: 0.3, Prefer.ANSWER: 1.0, Prefer.COST: 0.0}
"""Weight of a second of the answer after its first token, relative to a second of waiting for the token."""


class HedgeParameters(msgspec.Struct, frozen=True):
    """Parameters of a pool's hedging.

    Attributes:
        policy: method that sets the delay of a backup.
        budget: extra requests, and extra tokens or cost, as a share of the traffic that may be hedged.
        budget_unit: unit of the second budget, in addition to requests: prompt tokens or money.
        max_hedges: maximum number of backups per request.
        static_delay_s: delay of the policy `static`.
        hedge_delay_min_s: shortest delay of a hedge.
        cold_start_delay_s: delay while there are too few samples.
        gain_min: required gain of a backup at a provider, as a multiple of its own TTFT.
        gain_min_engine: the same at an own engine, where a backup slows other requests down
            (docs/evaluation/hedging.md, W5).
        routing: strategy that picks a primary's replica; a backup always goes to the one predicted fastest.
        prefer: time that the choice of a replica keeps short, or the bill.
        guard: use of guards beside streams that are silent or slow.
        crossing: later attempts of a request that may cross a boundary.
        first_token: event that is timed as the first token.
        hedge_hidden_reasoning: True to hedge also where answers begin with reasoning that is not shown.
        sampled_event: event that the policy `quantile` learns from.
        answered_by: event after which an attempt is not hedged any more.
        ttft_target_s: TTFT that hedges aim at; None: hedges save as much time as possible.
        ttft_target_share: share of the requests that keep the target at the lowest bill.
        measure: shares of the hedges of which the saving is measured.
        warm_samples: first contents before the learned plan is used.
        window_s: age at which samples expire, if enough newer ones are left.
        saved_hedges: hedges that the budget can pay at the first request.
        shows_replicas: True if the TTFT of each replica is shown; False: it is recorded only if the policy reads it.
    """

    policy: Policy = Policy.ADAPTIVE
    budget: float = 0.10
    budget_unit: BudgetUnit = BudgetUnit.TOKENS
    max_hedges: int = 1
    static_delay_s: float = math.inf
    quantile: float = 0.9
    hedge_delay_min_s: float = 0.020
    cold_start_delay_s: float = 2.0
    gain_min: float = 0.25
    gain_min_engine: float = 5.0
    routing: Routing = Routing.PREDICTED
    prefer: Prefer = Prefer.BALANCED
    guard: GuardMode = GuardMode.AUTO
    crossing: Crossing = Crossing.NEVER
    hedge_hidden_reasoning: bool = False
    first_token: FirstToken = "any"
    sampled_event: FirstEvent = FirstEvent.CONTENT
    answered_by: FirstEvent = FirstEvent.CONTENT
    ttft_target_s: float | None = None
    ttft_target_share: float = 0.99
    measure: MeasureShares = NOT_MEASURED
    warm_samples: int = 20
    window_s: float = REACH_S
    saved_hedges: float = SAVED_COSTS
    shows_replicas: bool = True


DEFAULTS: Final = HedgeParameters()


def thrift_of(settings: HedgeParameters, *, has_engines: bool) -> float:
    """Return the share of the required gain that is required at the budget of a pool: 1 up to 20 %, 0 from 30 % on.

    The whole gain is required where own engines pay for hedges with the time of other requests, and if another gain
    than the default is configured.
    """
    if has_engines or settings.gain_min != DEFAULTS.gain_min:
        return 1.0
    thrift = (_LARGE_BUDGET - settings.budget) / (_LARGE_BUDGET - _SMALL_BUDGET)
    return max(0.0, min(1.0, thrift))
