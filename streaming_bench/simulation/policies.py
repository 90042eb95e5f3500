"""The policies that are compared: the gateway's own, and two published ones as pools of the same race.

`library` is what the reference hedging library does by its published rules: the p90 of winners' latencies, two
tumbling windows of 30 s, ten fixed warm-up milliseconds, a token bucket filled by a *configured* request rate, headers
taken for the answer, the backup to the same host name (any replica behind it). `fan_out` asks all other replicas at
once after a fixed delay. Neither ships with the gateway.

Units: seconds; shares are fractions of 1.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gateway.estimation.window import Window
from gateway.hedging.contract import AttemptView, Denied, Hedge, HedgeTickets, RequestFacts
from gateway.hedging.outcomes import Denial
from gateway.hedging.parameters import HedgeParameters
from gateway.hedging.plan import FirstEvent, Policy
from gateway.limits.budget import Ticket
from gateway.limits.ledger import Ledger
from gateway.pool.pool import Pool
from gateway.routing.replicas import BreakerState, Replica

POLICY_NAMES: Final = ("adaptive", "quantile", "ttfb", "static", "library", "fan_out", "off")

UNLIMITED_BUDGET: Final = 10.0  # a budget that never binds, not even a fleet that is slow as a whole and earns slower

_WARM_UP_REQUESTS: Final = 20
_WARM_UP_DELAY_S: Final = 0.010
_DELAY_MIN_S: Final = 0.001
_WINDOW_S: Final = 30.0
_SLICES: Final = 6  # of a window, as in the gateway
_BURST_S: Final = 2.0  # of its refill is what the bucket holds
_RELEARN_EVERY: Final = 50  # requests between two readings of the sketch, which the library reads every time


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """On what terms policies compete.

    Attributes:
        settings: of the gateway's policies; `policy` is replaced.
        library_rps: what the library is told to expect.
        reach_s: how far the curve's window reaches back; None: as in the gateway.
    """

    settings: HedgeParameters
    library_rps: float
    reach_s: float | None = None


def make_pool(name: str, replicas: Sequence[Replica], terms: PolicySettings, ledgers: Mapping[str, Ledger]) -> Pool:
    """A pool that hedges by the policy of that name."""
    settings = terms.settings
    if name == "library":
        return LibraryPool(
            replicas,
            replace(settings, policy=Policy.QUANTILE, answered_by=FirstEvent.HEADERS, max_hedges=1),
            ledgers,
            terms.library_rps,
        )
    if name == "fan_out":
        hedges = len(replicas) - 1
        return FanOutPool(name, replicas, replace(settings, policy=Policy.STATIC, max_hedges=hedges), ledgers)
    if name == "ttfb":  # as it was published: nothing binds its budget
        settings = replace(settings, policy=Policy.QUANTILE, sampled_event=FirstEvent.HEADERS, budget=1.0)
    else:
        settings = replace(settings, policy=Policy(name))
    pool = Pool(name, replicas, settings, ledgers)
    if terms.reach_s is not None:
        pool.learning.ratios = Window(slice_s=terms.reach_s / _SLICES, reach_s=terms.reach_s)
    return pool


class _LibraryTickets(HedgeTickets, frozen=True):
    """What a backup of the library's carries: when its request began."""

    start_s: float


class LibraryPool(Pool):
    """Hedges as the reference library does.

    Args:
        replicas: behind one host name.
        settings: routing, budget and the quantile.
        ledgers: of the quotas, which it does not ask.
        rps: the configured request rate.
    """

    def __init__(
        self, replicas: Sequence[Replica], settings: HedgeParameters, ledgers: Mapping[str, Ledger], rps: float
    ) -> None:
        super().__init__("library", replicas, settings, ledgers)
        self._winners = Window(slice_s=_WINDOW_S, reach_s=_WINDOW_S, samples_min=0)
        self._requests = 0
        self._delay_s = _WARM_UP_DELAY_S
        self._refill = rps * settings.budget
        self._bucket = self._refill * _BURST_S
        self._filled_s = 0.0

    def delay_s(self, attempt: AttemptView, facts: RequestFacts) -> float:
        """The p90 of what winners took."""
        self._requests += 1
        if self._requests > _WARM_UP_REQUESTS and self._requests % _RELEARN_EVERY == 0:
            learned_s = self._winners.quantile(self.settings.quantile, attempt.start_s)
            self._delay_s = max(_DELAY_MIN_S, learned_s or _WARM_UP_DELAY_S)
        return self._delay_s

    def decide(
        self,
        facts: RequestFacts,
        asking: AttemptView,
        live: Iterable[AttemptView],
        tried: Collection[Replica],
        now_s: float,
        rand: float,
    ) -> Hedge | Denied:
        """Hedge if the bucket has a token; an empty one is not asked again."""
        self._bucket = min(self._refill * _BURST_S, self._bucket + (now_s - self._filled_s) * self._refill)
        self._filled_s = now_s
        if self._bucket < 1:
            return Denied(Denial.BUDGET, math.inf, "the bucket is empty")
        self._bucket -= 1
        backup = self.replicas[int(rand * len(self.replicas))]
        return Hedge(backup, _LibraryTickets(Ticket(1.0), Ticket(0.0), asking.start_s), "")

    def on_content(self, attempt: AttemptView, now_s: float) -> BreakerState | None:
        """A winner: its time counts from the request's start."""
        tickets = attempt.forecast.tickets if attempt.forecast is not None else None
        start_s = tickets.start_s if isinstance(tickets, _LibraryTickets) else attempt.start_s
        self._winners.add_event(now_s - start_s, now_s)
        return super().on_content(attempt, now_s)


class FanOutPool(Pool):
    """Asks everyone else at once when a fixed delay is over."""

    def delay_s(self, attempt: AttemptView, facts: RequestFacts) -> float:
        """The fixed delay; a backup is followed by the next one at once."""
        is_backup = attempt.forecast is not None and attempt.forecast.tickets is not None
        return 0.0 if is_backup else self.settings.static_delay_s

    def decide(
        self,
        facts: RequestFacts,
        asking: AttemptView,
        live: Iterable[AttemptView],
        tried: Collection[Replica],
        now_s: float,
        rand: float,
    ) -> Hedge | Denied:
        """The next one not tried."""
        for replica in self.replicas:
            if replica not in tried:
                return Hedge(replica, HedgeTickets(Ticket(1.0), Ticket(0.0)), "")
        return Denied(Denial.NO_REPLICA, math.inf, "all were asked")
