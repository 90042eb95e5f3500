"""One attempt of a client's request, with the fields that the policy reads (`hedging.contract.AttemptView`).

Times are those of the hedger's clock, in seconds.
"""

import math

from gateway.client.targets import Target
from gateway.hedging.contract import Forecast
from gateway.hedging.outcomes import Outcome
from gateway.routing.replicas import Replica
from providers.base import Usage


class ClientAttempt:
    """One attempt.

    Attributes:
        replica: the target in the policy.
        target: the target; None: the request's own address.
        label: name in the statistics.
        number: number of the attempt in its request; 0 is the primary.
        hedge_s: time of the next decision on a backup; infinite for none.
        outcome: its end, None while it runs.
        headers_s: None: no policy of a client reads the times of headers.

    All others are those of `AttemptView`.
    """

    hedge_s = math.inf
    headers_s: float | None = None
    content_s: float | None = None
    first_token_s: float | None = None
    forecast: Forecast | None = None
    outcome: Outcome | None = None
    status: int | None = None
    error: str | None = None
    usage: Usage | None = None
    events = 0
    empty = False

    def __init__(self, replica: Replica, target: Target | None, label: str, number: int, start_s: float) -> None:
        self.replica = replica
        self.target = target
        self.label = label
        self.number = number
        self.start_s = self.last_s = start_s
