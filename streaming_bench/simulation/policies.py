"""The compared policies: the gateway's own, and two published ones as pools of the same race.

`library` follows the published rules of the reference hedging library: the p90 of the winners' latencies over two
tumbling windows of 30 s, a warm-up delay of 10 ms, a token bucket filled at a *configured* request rate, response
headers counted as the answer, and backups to the same host name (any replica). `fan_out` sends a request to all other
replicas after a fixed delay. Neither is part of the gateway.

Units: seconds; shares are fractions of 1.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from ttft_gateway.estimation.window import Window
from ttft_gateway.hedging.contract import AttemptView, Denied, Hedge, HedgeTickets, RequestFacts
from ttft_gateway.hedging.outcomes import Denial
from ttft_gateway.hedging.parameters import HedgeParameters
from ttft_gateway.hedging.plan import FirstEvent, Policy
from ttft_gateway.limits.budget import Ticket
from ttft_gateway.limits.ledger import Ledger
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import Replica

PLACEBO: Final = "placebo"  # `off` with other random numbers of the gateway: the noise of a comparison with `off`
POLICY_NAMES: Final = ("adaptive", "quantile", "ttfb", "static", "library", "fan_out", "shadow", "off", PLACEBO)

UNLIMITED_BUDGET: Final = 10.0  # never binds, not even when all replicas are slow and credit accrues slowly

_WARM_UP_REQUESTS: Final = 20
_WARM_UP_DELAY_S: Final = 0.010
_DELAY_MIN_S: Final = 0.001
_WINDOW_S: Final = 30.0
_SLICES: Final = 6  # slices of a window, as in the gateway
_BURST_S: Final = 2.0  # capacity of the bucket, as a time of refill
_RELEARN_EVERY: Final = 50  # requests between two readings of the sketch, which the library reads every time


NewPool = Callable[[Sequence[Replica], HedgeParameters, Mapping[str, Ledger]], Pool]


class PolicySettings(msgspec.Struct, frozen=True):
    """Settings under which policies are compared.

    Attributes:
        hedging: settings of the gateway's policies; `policy` is replaced.
        library_rps: request rate configured for the library.
        window_s: length of the window of the survival curve; None for the gateway's.
        new_pool: makes the pool instead of `make_pool`, from the same settings; None for the policy of this name.
    """

    hedging: HedgeParameters
    library_rps: float
    window_s: float | None = None
    new_pool: NewPool | None = None


def make_pool(name: str, replicas: Sequence[Replica], settings: PolicySettings, ledgers: Mapping[str, Ledger]) -> Pool:
    """Return a pool that hedges by the policy with this name."""
    hedging = settings.hedging
    if settings.new_pool is not None:
        return settings.new_pool(replicas, hedging, ledgers)
    if name == "library":
        hedging = replace(hedging, policy=Policy.QUANTILE, answered_by=FirstEvent.HEADERS, max_hedges=1)
        return LibraryPool(replicas, hedging, ledgers, settings.library_rps)
    if name == "fan_out":
        hedges = len(replicas) - 1
        return FanOutPool(name, replicas, replace(hedging, policy=Policy.STATIC, max_hedges=hedges), ledgers)
    if name == "ttfb":  # as published: without a budget
        hedging = replace(hedging, policy=Policy.QUANTILE, sampled_event=FirstEvent.HEADERS, budget=1.0)
    else:
        hedging = replace(hedging, policy=Policy(name))
    pool = Pool(name, replicas, hedging, ledgers)
    if settings.window_s is not None:
        pool.learning.ratios = Window(slice_s=settings.window_s / _SLICES, reach_s=settings.window_s)
    return pool


class _LibraryTickets(HedgeTickets, frozen=True):
    """Tickets of a backup of the library, with the start of its request."""

    start_s: float = 0.0


class LibraryPool(Pool):
    """Hedges by the rules of the reference library.

    Args:
        replicas: replicas of one host name.
        settings: routing, budget and quantile.
        ledgers: ledgers of the quotas, which the library ignores.
        rps: configured request rate.
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

    def begin(self, facts: RequestFacts, now_s: float, rand: float) -> None:
        """Leave the primary to the general way, which asks for the delay of every attempt."""

    def delay_s(self, attempt: AttemptView, facts: RequestFacts) -> float:
        """Return the configured quantile of the winners' latencies."""
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
        """Hedge if the bucket has a token; if not, do not ask again."""
        self._bucket = min(self._refill * _BURST_S, self._bucket + (now_s - self._filled_s) * self._refill)
        self._filled_s = now_s
        if self._bucket < 1:
            return Denied(Denial.BUDGET, math.inf, "the bucket is empty")
        self._bucket -= 1
        backup = self.replicas[int(rand * len(self.replicas))]
        return Hedge(backup, _LibraryTickets(Ticket(1.0), Ticket(0.0), start_s=asking.start_s), "")

    def on_content(self, attempt: AttemptView, now_s: float) -> None:
        """Record a winner's latency since the start of its request."""
        tickets = attempt.forecast.tickets if attempt.forecast is not None else None
        start_s = tickets.start_s if isinstance(tickets, _LibraryTickets) else attempt.start_s
        self._winners.add_event(now_s - start_s, now_s)
        super().on_content(attempt, now_s)


class FanOutPool(Pool):
    """Sends a request to all other replicas after a fixed delay."""

    def begin(self, facts: RequestFacts, now_s: float, rand: float) -> None:
        """Leave the primary to the general way, which asks for the delay of every attempt."""

    def delay_s(self, attempt: AttemptView, facts: RequestFacts) -> float:
        """Return the fixed delay, or 0 after a backup."""
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
        """Hedge to the next replica not tried."""
        for replica in self.replicas:
            if replica not in tried:
                return Hedge(replica, HedgeTickets(Ticket(1.0), Ticket(0.0)), "")
        return Denied(Denial.NO_REPLICA, math.inf, "every replica was tried")
