"""The state of the gateway as scrapes and the admin address read it: frozen pictures taken on demand.

Owns the shapes and the pace of reading; whoever owns the pools takes the pictures. It must not know who looks at them.

Units: seconds; budget levels in credits (one credit is one hedge).
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

_SLICE_PARTS = 8  # read between two turns of the loop, about 1 ms: each works out the quantiles of a replica


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
class LimitState:
    """One limit of a quota.

    Attributes:
        resource: what it counts: "requests", "tokens", "prompt_tokens" or "answer_tokens".
        window_s: per how much time.
        limit: how many per window.
        left: of it, as far as we know; negative when more was sent than it allows.
        observed: responses state it; else it is configured.
        enforced: primaries are refused when it is used up.
        age_s: since a response stated it, None for a configured one.
    """

    resource: str
    window_s: float
    limit: float
    left: float
    observed: bool
    enforced: bool
    age_s: float | None


@dataclass(frozen=True, slots=True)
class QuotaState:
    """One quota as the ledger has it.

    Attributes:
        quota: its name.
        cooling_s: nothing is sent for so long, 0.0 without a cool-down.
        limits: those known.
        reserved, settled, released: tokens since the start; what is under way is reserved and neither of the others.
    """

    quota: str
    cooling_s: float
    limits: tuple[LimitState, ...]
    reserved: int
    settled: int
    released: int


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
        quotas: of its replicas; other pools may share them.
    """

    model: str
    pool: str
    policy: str
    hedging_on: bool
    budget_level: float
    budget_cap: float
    replicas: tuple[ReplicaState, ...]
    quotas: tuple[QuotaState, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelAdmission:
    """A model with a bound on requests at a time.

    Attributes:
        model: public model name.
        concurrency: requests it takes at a time.
        in_flight: how many it has.
        waiting: how many wait for their turn.
        waiting_max: how many may.
        waiting_by_key: those that wait, by the names of their keys.
    """

    model: str
    concurrency: int
    in_flight: int
    waiting: int
    waiting_max: int
    waiting_by_key: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class KeyAdmission:
    """A key with limits; what is left is None where nothing is limited.

    Attributes:
        key: its name.
        in_flight: requests under way or waiting.
        concurrency: how many there may be, None for any number.
        requests_left: of its requests a minute.
        tokens_left: of its tokens a minute.
    """

    key: str
    in_flight: int
    concurrency: int | None
    requests_left: int | None
    tokens_left: int | None


@dataclass(frozen=True, slots=True)
class AdmissionState:
    """Who is let in: models and keys that have limits, and the memory for request bodies."""

    models: tuple[ModelAdmission, ...] = ()
    keys: tuple[KeyAdmission, ...] = ()
    body_bytes: int = 0
    body_bytes_max: int = 0
    bodies_arriving: int = 0


AdmissionSource = Callable[[], AdmissionState]

StateSource = Callable[[], Iterable[PoolState | None]]
"""Gives every pool, those of a model in a row, and None while it works on one: taken over several turns of the loop."""


async def read_pools(source: StateSource) -> list[PoolState]:
    """Read every pool without holding up the loop for long."""
    pools: list[PoolState] = []
    for number, part in enumerate(source()):
        if part is not None:
            pools.append(part)
        if number % _SLICE_PARTS == _SLICE_PARTS - 1:
            await asyncio.sleep(0)
    return pools
