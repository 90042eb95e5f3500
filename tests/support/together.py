"""Pools and quotas of several gateways, and the engine between them, without timers."""

from collections.abc import Sequence

from gateway.share.hub import ShareHub
from gateway.share.pools import UsageExchange, exchanges_of
from gateway.share.sync import Exchange
from pooled import pool
from ttft_gateway.apis.base import Resource
from ttft_gateway.limits.bucket import Limit
from ttft_gateway.limits.budget import RetryBudget
from ttft_gateway.limits.ledger import Ledger
from ttft_gateway.pool.pool import Pool

PERIOD_S = 0.1


class Together:
    """Gateways with one pool each, of replicas a, b and c.

    Attributes:
        pools: the pool of each gateway.
        retries: the retry budget of each.
    """

    def __init__(self, gateways: int, *, batches: bool = False) -> None:
        self.hub = ShareHub()
        self.pools: list[Pool] = []
        self.retries: list[RetryBudget] = []
        self._parts: list[Sequence[Exchange]] = []
        for _ in range(gateways):
            self.join(batches=batches)

    def join(self, *, batches: bool = False) -> Pool:
        """Add a gateway, and return its pool."""
        self.pools.append(pool(None, None, None, batches=batches))
        self.retries.append(RetryBudget())
        self._parts.append(exchanges_of([([self.pools[-1]], self.retries[-1])], {}))
        return self.pools[-1]

    def reload(self, process: int) -> None:
        """Replace the pool of a gateway by one that takes over what was learned."""
        old, new = self.pools[process], pool(None, None, None)
        new.learning.adopt_state(old.learning, [replica.name for replica in new.replicas])
        self.pools[process] = new
        self._parts[process] = exchanges_of([([new], self.retries[process])], {}, self._parts[process])

    def exchange(self, now_s: float, processes: Sequence[int] | None = None, period_s: float = PERIOD_S) -> None:
        """Let each gateway, or some, ask once and get the answer immediately."""
        for process in range(len(self.pools)) if processes is None else processes:
            for part in self._parts[process]:
                if asks := part.asks(now_s, period_s):
                    part.answered(self.hub.answer(now_s, str(process), asks).answers, now_s)

    def replace(self, process: int) -> None:
        """Replace a gateway's pool after a change of its replicas: c is another one."""
        old = self.pools[process]
        replicas = (*old.replicas[:2], pool(None, None, None).replicas[2])
        self.pools[process] = Pool(old.name, replicas, old.settings, {}, old)
        self._parts[process] = exchanges_of([([self.pools[process]], self.retries[process])], {}, self._parts[process])

    def parts(self, process: int) -> Sequence[Exchange]:
        """Return the parts of a gateway."""
        return self._parts[process]

    def settle(self, now_s: float, rounds: int = 2) -> None:
        """Exchange until each gateway has what all had at the start."""
        for round_ in range(rounds):
            self.exchange(now_s + round_ * PERIOD_S)


class Mirrors:
    """The mirrors of one quota of 600 requests a minute."""

    def __init__(self, count: int, *, configured: bool = True) -> None:
        limits = [Limit(Resource.REQUESTS, 600.0)] if configured else []
        self.ledgers = [Ledger(limits) for _ in range(count)]
        self.quotas = [UsageExchange("q", ledger) for ledger in self.ledgers]
        self.hub = ShareHub()

    def exchange(self, now_s: float, processes: Sequence[int] | None = None) -> None:
        """Let each, or some, ask twice, so that each has what all had."""
        for _ in range(2):
            for number in range(len(self.quotas)) if processes is None else processes:
                quota = self.quotas[number]
                if asks := quota.asks(now_s, PERIOD_S):
                    quota.answered(self.hub.answer(now_s, str(number), asks).answers, now_s)

    def left(self, now_s: float) -> list[float]:
        """What each mirror has left."""
        return [ledger.state(now_s)[0].left for ledger in self.ledgers]
