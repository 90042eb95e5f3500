"""The state of the gateway for scrapes and the admin address: frozen snapshots, taken on demand.

Owns the data classes and the pace of reading; the owner of the pools takes the snapshots. Independent of their readers.
The classes have values and no way back to their owner, so the garbage collector passes them by (`gc=False`).

Units: seconds; budget levels in credits (one credit is one hedge).
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

SLOW_LEVEL: Final = 2.0  # slowness of a replica, above which it is slow
_SLICE_FREED = 200  # small objects that are freed in one iteration of the event loop, less than 1 ms
_PART_POOLS = 32  # of a message, about 0.5 ms
_SLICE_PARTS = 8  # parts read in one iteration of the event loop, about 1 ms: each computes the quantiles of a replica


class ReplicaState(msgspec.Struct, frozen=True, gc=False):
    """Snapshot of one replica.

    Attributes:
        replica: unique name in its model.
        breaker: "closed", "half_open" or "open".
        samples: number of first contents in the recent window, from which the quantiles come.
        out: True while it is taken out.
        locked: reason for which it cannot be used; None if it can.
        backup_only: True if it is configured for hedges and failovers only.
        suspect: True if it stopped answering, or is much slower than the other replicas; it gets few primaries.
        never_hedged: reason (`Denial`) for which requests sent to it cannot be hedged; None if they can.
        takes_hedges: True if hedges may go to it.
        draining: True if it was removed and completes its requests.
        cancel_stops_billing: True if cancelling a request stops its bill; None if that is unknown.
        level: current slowness, cancelled attempts included, as a factor of the predicted TTFT; 1 is usual.
        token_gap_s: usual time between two tokens of an answer; None before a measured answer.
        answer_slowness: slowness of its answers that is beyond chance and load, as a factor of the pool's; 1 without.
        predicted_s: predicted TTFT of the usual prompt at its present slowness; None before the first sample.
        hedge_delay_s: time without a first content after which an attempt is considered for a hedge; None without
            hedging. Under a policy that predicts, the delay for the usual prompt.
        ttfb_p50_s, ttfb_p99_s: time to response headers in the recent window; None without samples.
        ttft_p50_s, ttft_p99_s: time to first content in the recent window; None without samples.
    """

    replica: str
    in_flight: int
    breaker: str
    samples: int = 0
    out: bool = False
    locked: str | None = None
    backup_only: bool = False
    suspect: bool = False
    never_hedged: str | None = None
    takes_hedges: bool = True
    draining: bool = False
    cancel_stops_billing: bool | None = True
    level: float = 1.0
    token_gap_s: float | None = None
    answer_slowness: float = 1.0
    predicted_s: float | None = None
    hedge_delay_s: float | None = None
    ttfb_p50_s: float | None = None
    ttfb_p99_s: float | None = None
    ttft_p50_s: float | None = None
    ttft_p99_s: float | None = None


class LimitState(msgspec.Struct, frozen=True, gc=False):
    """Snapshot of one limit of a quota.

    Attributes:
        resource: limited resource: "requests", "tokens", "prompt_tokens" or "answer_tokens".
        window_s: length of the limit's window.
        limit: amount per window.
        left: estimated remaining amount; negative after more was sent than the limit allows.
        observed: True if the limit comes from responses, False if from the configuration.
        enforced: True if primaries are rejected once the limit is used up.
        age_s: time since a response stated the limit; None for a configured limit.
        others_s: usage that responses showed and the gateway did not cause, in seconds of the limit's refill.
    """

    resource: str
    window_s: float
    limit: float
    left: float
    observed: bool
    enforced: bool
    age_s: float | None
    others_s: float = 0.0


class QuotaState(msgspec.Struct, frozen=True, gc=False):
    """Snapshot of one quota's ledger.

    Attributes:
        cooling_s: remaining cool-down; 0.0 without a cool-down.
        limits: known limits.
        reserved, settled, released: tokens since the start; tokens under way are in `reserved` only.
    """

    quota: str
    cooling_s: float
    limits: tuple[LimitState, ...]
    reserved: int
    settled: int
    released: int


class PoolState(msgspec.Struct, frozen=True, gc=False):
    """Snapshot of one pool of a model.

    Attributes:
        model: public model name.
        pool: unique name in its model.
        policy: active hedging policy.
        hedging_on: True if the switches allow hedging.
        budget_level: remaining credits; negative until an overdraft is repaid.
        budget_cap: maximum credits.
        quotas: quotas of its replicas; other pools may share them.
    """

    model: str
    pool: str
    policy: str
    hedging_on: bool
    budget_level: float
    budget_cap: float
    replicas: tuple[ReplicaState, ...]
    quotas: tuple[QuotaState, ...] = ()


class DiscoveryState(msgspec.Struct, frozen=True, gc=False):
    """Snapshot of a source of replicas (`discover`).

    Attributes:
        model: public model name.
        pool: unique name of its pool in its model.
        source: name of the source.
        replicas: number of its replicas in use.
        answer_age_s: time since the last answer that was used; None before the first.
        fault: state of the last answer if it is not used; None if it is.
    """

    model: str
    pool: str
    source: str
    replicas: int
    answer_age_s: float | None
    fault: str | None


class LeaseState(msgspec.Struct, frozen=True, gc=False):
    """The leases of one limit.

    Attributes:
        limit: name of the limit in the fleet, such as `key:team:requests`.
        left: amount that is leased and not in use; negative for a debt.
        owed: debt of this process, and of the fleet at the last answer: nothing more is leased until it is repaid.
    """

    limit: str
    left: float
    owed: float = 0.0


class MismatchState(msgspec.Struct, frozen=True, gc=False):
    """A limit that another process has lower.

    Attributes:
        limit: name of the limit in the fleet.
        own: amount in the settings of this process.
        counts: amount that counts.
    """

    limit: str
    own: float
    counts: float


class ShareState(msgspec.Struct, frozen=True, gc=False):
    """The exchange of a process with others.

    Attributes:
        engine: "hub" for the supervisor of the host, "redis" for a server.
        up: True while the engine answers in time.
        since_s: time since the last change of `up`, or since the start.
        fault: cause of the last absence that has not ended; None while the engine answers.
        reply_age_s: age of the last reply in time; None before the first.
        exchange_age_s: age of the last exchange of loads and learned values; None before the first.
        processes: number of processes that share, at the last reply.
        expected: number of processes as it is known without the engine; None if it is not.
        when_away: part of each limit to use while the engine is away: "share", "alone" or "refuse".
        away_part: that part as a number, with the larger number of processes.
        leases: leases in use.
        mismatches: limits that other processes have lower.
    """

    engine: str
    up: bool
    since_s: float
    fault: str | None
    reply_age_s: float | None
    exchange_age_s: float | None
    processes: int
    expected: int | None
    when_away: str
    away_part: float
    leases: tuple[LeaseState, ...] = ()
    mismatches: tuple[MismatchState, ...] = ()


class ModelAdmission(msgspec.Struct, frozen=True, gc=False):
    """Snapshot of a model with a concurrency limit.

    Attributes:
        model: public model name.
        concurrency: maximum concurrent requests.
        in_flight: concurrent requests.
        waiting: queued requests.
        waiting_max: maximum queued requests.
        waiting_by_key: queued requests by the name of their key.
    """

    model: str
    concurrency: int
    in_flight: int
    waiting: int
    waiting_max: int
    waiting_by_key: Mapping[str, int]


class KeyAdmission(msgspec.Struct, frozen=True, gc=False):
    """Snapshot of a key with limits.

    Attributes:
        in_flight: requests under way or queued.
        concurrency: maximum of in_flight; None for no limit.
        requests_left: remaining requests per minute; None for no limit.
        tokens_left: remaining tokens per minute; None for no limit.
    """

    key: str
    in_flight: int
    concurrency: int | None
    requests_left: int | None
    tokens_left: int | None


class AdmissionState(msgspec.Struct, frozen=True, gc=False):
    """Snapshot of the models and keys that have limits, and of the memory for request bodies."""

    models: tuple[ModelAdmission, ...] = ()
    keys: tuple[KeyAdmission, ...] = ()
    body_bytes: int = 0
    body_bytes_max: int = 0
    bodies_arriving: int = 0


AdmissionSource = Callable[[], AdmissionState]

DiscoverySource = Callable[[], Iterable[DiscoveryState]]

StateSource = Callable[[], Iterable[PoolState | None]]
"""Gives every pool, the pools of a model in a row, and None while it works on one: taken over several iterations of the
loop."""


async def pool_parts(source: StateSource) -> AsyncGenerator[list[PoolState], None]:
    """Yield the state of every pool in lists, read in slices that do not block the event loop for long."""
    pools: list[PoolState] = []
    for number, pool in enumerate(source()):
        if pool is not None:
            pools.append(pool)
        if len(pools) >= _PART_POOLS:
            yield pools
            pools = []
        if number % _SLICE_PARTS == _SLICE_PARTS - 1:
            await asyncio.sleep(0)
    yield pools


async def free(held: list[Any]) -> None:
    """Free what nothing else holds, in slices: all at once would hold the event loop for some milliseconds."""
    while held:
        del held[-_SLICE_FREED:]
        await asyncio.sleep(0)


async def read_pools(source: StateSource) -> list[PoolState]:
    """Read the state of every pool."""
    return [pool async for part in pool_parts(source) for pool in part]


def distinct_quotas(pools: Iterable[PoolState]) -> list[QuotaState]:
    """Return each quota once: several pools may share one."""
    return list({quota.quota: quota for pool in pools for quota in pool.quotas}.values())


def shares_left(pools: Iterable[PoolState]) -> Iterator[tuple[str, str, float]]:
    """Yield quota, resource and its remaining share: the smallest, if several limits apply."""
    for quota in distinct_quotas(pools):
        shares: dict[str, float] = {}
        for limit in quota.limits:
            shares[limit.resource] = min(shares.get(limit.resource, 1.0), max(0.0, limit.left / limit.limit))
        for resource, share in shares.items():
            yield quota.quota, resource, share


def usage_by_others(pools: Iterable[PoolState]) -> Iterator[tuple[str, str, float]]:
    """Yield quota, resource and its usage by others, in seconds: of the shortest limit in responses."""
    for quota in distinct_quotas(pools):
        observed = sorted((limit for limit in quota.limits if limit.observed), key=lambda limit: -limit.window_s)
        for limit in {limit.resource: limit for limit in observed}.values():
            yield quota.quota, limit.resource, limit.others_s
