"""Two published rules with a fixed delay, as pools of the simulation.

`fixed`: one backup to another replica after a configured delay, without a budget, as gateways that race requests do.
`baseten`: the rule of Baseten's performance client (basetenlabs/truss, `baseten-performance-client`): one backup to
another endpoint after `hedge_delay`, at least 45 ms, until a share of the requests of its batch, 10 % by default and
rounded up, plus one, is used up. Its client races responses; here first tokens are raced, which is better for it.

Units: seconds; shares are fractions of 1.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from gateway.hedging.contract import AttemptView, Denied, Hedge, HedgeTickets, Primary, RequestFacts
from gateway.hedging.outcomes import Denial
from gateway.hedging.parameters import HedgeParameters
from gateway.limits.budget import Ticket
from gateway.limits.ledger import Ledger
from gateway.pool.pool import Pool
from gateway.routing.replicas import Replica

BASETEN_DELAY_S_MIN: Final = 0.045
BASETEN_SHARE: Final = 0.10


def baseten_hedges(requests: int) -> int:
    """Return the number of hedges that Baseten's client allows in a batch of requests."""
    return max(2, 1 + math.ceil(requests * BASETEN_SHARE))


class DelayPool(Pool):
    """Sends one backup after a fixed delay.

    Args:
        name: name of the rule.
        replicas: replicas of the pool.
        settings: routing, and the delay.
        ledgers: ledgers of the quotas, which the rules ignore.
        hedges_left: number of hedges that may be sent; infinite without a budget.
    """

    def __init__(
        self,
        name: str,
        replicas: Sequence[Replica],
        settings: HedgeParameters,
        ledgers: Mapping[str, Ledger],
        *,
        hedges_left: float = math.inf,
    ) -> None:
        super().__init__(name, replicas, settings, ledgers)
        self._hedges_left = hedges_left

    def begin(self, facts: RequestFacts, now_s: float, rand: float) -> Primary | None:
        """Choose the primary as the gateway does."""
        primary = super().begin(facts, now_s, rand)
        return None if primary is None else Primary(primary.replica, primary.forecast, self.settings.static_delay_s)

    def delay_s(self, attempt: AttemptView, facts: RequestFacts) -> float:
        """Return the fixed delay."""
        return self.settings.static_delay_s

    def decide(
        self,
        facts: RequestFacts,
        asking: AttemptView,
        live: Iterable[AttemptView],
        tried: Collection[Replica],
        now_s: float,
        rand: float,
    ) -> Hedge | Denied:
        """Hedge to a random replica that was not tried, if hedges are left."""
        untried = [replica for replica in self.replicas if replica not in tried]
        if not untried:
            return Denied(Denial.NO_REPLICA, math.inf, "")
        if self._hedges_left < 1:
            return Denied(Denial.BUDGET, math.inf, "")
        self._hedges_left -= 1
        return Hedge(untried[int(rand * len(untried))], HedgeTickets(Ticket(1.0), Ticket(0.0)), "")
