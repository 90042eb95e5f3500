"""The state of the gateway as scrapes and the admin address read it: frozen pictures taken on demand.

Owns the shapes and the pace of reading; whoever owns the pools takes the pictures. It must not know who looks at them.

Units: seconds; budget levels in credits (one credit is one hedge).
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

_SLICE_POOLS = 16  # read between two turns of the loop, about 1 ms: each works out the quantiles of its replicas


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """One replica.

    Attributes:
        replica: its name, unique in its model.
        in_flight: attempts under way.
        breaker: "closed", "half_open" or "open".
        samples: first contents in its recent window, which the quantiles come from.
        suspect: it stopped answering and gets no primaries but probes.
        hedge_delay_s: an attempt there that has no first content after this is considered for a hedge, None where
            there is no hedging. Under a policy that predicts, the delay for an empty prompt.
        ttfb_p50_s, ttfb_p99_s: response headers in the recent window, None without samples.
        ttft_p50_s, ttft_p99_s: first content in the recent window, None without samples.
    """

    replica: str
    in_flight: int
    breaker: str
    samples: int = 0
    suspect: bool = False
    hedge_delay_s: float | None = None
    ttfb_p50_s: float | None = None
    ttfb_p99_s: float | None = None
    ttft_p50_s: float | None = None
    ttft_p99_s: float | None = None


@dataclass(frozen=True, slots=True)
class PoolState:
    """One pool of a model.

    Attributes:
        model: public model name.
        pool: its name, unique in its model.
        policy: the hedging policy in force.
        hedging_on: what the switches say for it.
        budget_level: credits left, negative while an overdraft is being paid.
        budget_cap: the most credits it may keep.
        replicas: its replicas.
    """

    model: str
    pool: str
    policy: str
    hedging_on: bool
    budget_level: float
    budget_cap: float
    replicas: tuple[ReplicaState, ...]


StateSource = Callable[[], Iterable[PoolState]]
"""Gives every pool, those of a model in a row. Its items are taken over several turns of the loop."""


async def read_pools(source: StateSource) -> list[PoolState]:
    """Read every pool without holding up the loop for long."""
    pools: list[PoolState] = []
    items = iter(source())
    while batch := list(islice(items, _SLICE_POOLS)):
        pools += batch
        await asyncio.sleep(0)
    return pools
