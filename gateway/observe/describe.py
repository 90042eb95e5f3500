"""Pictures of the pools for scrapes and for people: what is known, what was learned, what may be spent.

Reads pools, changes nothing. Units: seconds in `PoolState`, milliseconds in what people read.
"""

from gateway.estimation.window import Window
from gateway.hedging.pool import Pool
from gateway.observe.state import PoolState, ReplicaState
from gateway.request import Model
from gateway.routing.replicas import Replica

_QUANTILES = (0.5, 0.9, 0.95, 0.99)


def pool_state(model: str, pool: Pool, now_s: float) -> PoolState:
    """A picture for metrics."""
    return PoolState(
        model=model,
        pool=pool.name,
        policy=pool.settings.policy.value,
        hedging_on=pool.hedging_on,
        budget_level=pool.budget.credit,
        budget_cap=pool.budget.cap,
        replicas=tuple(_replica_state(pool, replica, now_s) for replica in pool.replicas),
    )


def describe(model: Model, now_s: float) -> dict[str, object]:
    """A picture for people, of one model."""
    return {"model": model.name, "pools": [_describe_pool(pool, now_s) for pool in model.pools]}


def _replica_state(pool: Pool, replica: Replica, now_s: float) -> ReplicaState:
    ttft, ttfb = pool.ttft[replica], pool.ttfb[replica]
    return ReplicaState(
        replica=replica.name,
        in_flight=replica.in_flight,
        breaker=replica.breaker.state.value,
        samples=ttft.event_count(now_s),
        hedge_delay_s=pool.learned_s(replica),
        ttfb_p50_s=ttfb.quantile(0.5, now_s),
        ttfb_p99_s=ttfb.quantile(0.99, now_s),
        ttft_p50_s=ttft.quantile(0.5, now_s),
        ttft_p99_s=ttft.quantile(0.99, now_s),
    )


def _describe_pool(pool: Pool, now_s: float) -> dict[str, object]:
    settings = pool.settings
    return {
        "pool": pool.name,
        "policy": settings.policy.value,
        "hedging": "on" if pool.hedging_on else "off",
        "budget": {"share": settings.budget, "level": pool.budget.credit, "cap": pool.budget.cap},
        "max_hedges": settings.max_hedges,
        "replicas": [_describe_replica(pool, replica, now_s) for replica in pool.replicas],
    }


def _describe_replica(pool: Pool, replica: Replica, now_s: float) -> dict[str, object]:
    delay_s = pool.learned_s(replica)
    return {
        "replica": replica.name,
        "breaker": replica.breaker.state.value,
        "in_flight": replica.in_flight,
        "hedge_delay_ms": None if delay_s is None else round(1000 * delay_s, 3),
        "ttft_ms": _quantiles(pool.ttft[replica], now_s),
        "headers_ms": _quantiles(pool.ttfb[replica], now_s),
    }


def _quantiles(window: Window, now_s: float) -> dict[str, object]:
    """Quantiles of a window with the number of samples they rest on."""
    found: dict[str, object] = {"samples": window.event_count(now_s)}
    for q in _QUANTILES:
        value = window.quantile(q, now_s)
        found[f"p{100 * q:g}"] = None if value is None else round(1000 * value, 3)
    return found
