"""Quotas for scrapes and the admin address: a snapshot of each ledger, as state, as gauges and as JSON.

Reads ledgers, changes nothing. Units: seconds, requests, tokens.
"""

from collections.abc import Iterable, Iterator

from gateway.observe.instruments import Line
from gateway.observe.state import LimitState, PoolState, QuotaState
from gateway.pool.pool import Pool

LEFT = "ttft_gateway_quota_left_share"
COOLING = "ttft_gateway_quota_cooling_seconds"
OTHERS = "ttft_gateway_quota_others_seconds"


def quota_states(pool: Pool, now_s: float) -> tuple[QuotaState, ...]:
    """Return each quota of a pool's replicas once."""
    ledgers = {replica.quota or "": ledger for replica, ledger in pool.quotas.of.items()}
    return tuple(
        QuotaState(
            quota=name,
            cooling_s=ledger.cooling_s(now_s),
            limits=tuple(
                LimitState(
                    resource=bucket.resource.value,
                    window_s=bucket.window_s,
                    limit=bucket.limit,
                    left=bucket.left,
                    observed=bucket.observed,
                    enforced=bucket.enforce,
                    age_s=bucket.age_s,
                    others_s=bucket.others_s,
                )
                for bucket in ledger.state(now_s)
            ),
            reserved=ledger.totals.reserved,
            settled=ledger.totals.settled,
            released=ledger.totals.released,
        )
        for name, ledger in ledgers.items()
    )


def describe_quota(quota: QuotaState) -> dict[str, object]:
    """Return a readable description for the admin address."""
    return {
        "quota": quota.quota,
        "cooling_s": round(quota.cooling_s, 3),
        "limits": [
            {
                "resource": limit.resource,
                "window_s": limit.window_s,
                "limit": limit.limit,
                "left": round(limit.left, 1),
                "from": "responses" if limit.observed else "configuration",
                "enforced": limit.enforced,
                "age_s": None if limit.age_s is None else round(limit.age_s, 3),
                "others_s": None if limit.age_s is None else round(limit.others_s, 1),
            }
            for limit in quota.limits
        ],
        "tokens": {"reserved": quota.reserved, "settled": quota.settled, "released": quota.released},
    }


def left_lines(pools: Iterable[PoolState]) -> Iterator[Line]:
    """Yield the remaining share of each quota's resource: the smallest, if several limits apply."""
    for quota in _distinct(pools):
        shares: dict[str, float] = {}
        for limit in quota.limits:
            shares[limit.resource] = min(shares.get(limit.resource, 1.0), max(0.0, limit.left / limit.limit))
        for resource, share in shares.items():
            yield LEFT, {"quota": quota.quota, "resource": resource}, share


def others_lines(pools: Iterable[PoolState]) -> Iterator[Line]:
    """Yield the usage by others of each quota's resource: of the shortest limit in responses."""
    for quota in _distinct(pools):
        observed = sorted((limit for limit in quota.limits if limit.observed), key=lambda limit: -limit.window_s)
        for limit in {limit.resource: limit for limit in observed}.values():
            yield OTHERS, {"quota": quota.quota, "resource": limit.resource}, limit.others_s


def cooling_lines(pools: Iterable[PoolState]) -> Iterator[Line]:
    """Yield the remaining cool-down of each quota."""
    for quota in _distinct(pools):
        yield COOLING, {"quota": quota.quota}, quota.cooling_s


def _distinct(pools: Iterable[PoolState]) -> list[QuotaState]:
    return list({quota.quota: quota for pool in pools for quota in pool.quotas}.values())
