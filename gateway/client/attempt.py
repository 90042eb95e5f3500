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

    __slots__ = (
        "content_s",
        "empty",
        "error",
        "events",
        "first_token_s",
        "forecast",
        "headers_s",
        "hedge_s",
        "label",
        "last_s",
        "number",
        "outcome",
        "replica",
        "start_s",
        "status",
        "target",
        "usage",
    )

    def __init__(self, replica: Replica, target: Target | None, label: str, number: int, start_s: float) -> None:
        self.replica = replica
        self.target = target
        self.label = label
        self.number = number
        self.start_s = self.last_s = start_s
        self.hedge_s = math.inf
        self.headers_s: float | None = None
        self.content_s: float | None = None
        self.first_token_s: float | None = None
        self.forecast: Forecast | None = None
        self.outcome: Outcome | None = None
        self.status: int | None = None
        self.error: str | None = None
        self.usage: Usage | None = None
        self.events = 0
        self.empty = False
