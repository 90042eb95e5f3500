"""Pictures of the pools for scrapes and for people: what is known, what was learned, what may be spent.

Reads pools, changes nothing. Units: seconds in `PoolState`, milliseconds in what people read.
"""

import math

from gateway.estimation.window import Window
from gateway.hedging.plan import Plan
from gateway.hedging.pool import Pool
from gateway.observe.state import PoolState, ReplicaState
from gateway.request import Model
from gateway.routing.replicas import Replica

_QUANTILES = (0.5, 0.9, 0.95, 0.99)
_CURVE_POINTS = 32


def pool_state(model: str, pool: Pool, now_s: float) -> PoolState:
    """A picture for metrics."""
    return PoolState(
        model=model,
        pool=pool.name,
        policy=pool.settings.policy.value,
        hedging_on=pool.hedging_on,
        budget_level=pool.requests.credit,
        budget_cap=pool.requests.cap,
        replicas=tuple(_replica_state(pool, replica, now_s) for replica in pool.replicas),
    )


def describe(model: Model, now_s: float) -> dict[str, object]:
    """A picture for people, of one model."""
    return {"model": model.name, "pools": [_describe_pool(pool, now_s) for pool in model.pools]}


def _replica_state(pool: Pool, replica: Replica, now_s: float) -> ReplicaState:
    ttft, ttfb = pool.learning.ttft[replica.name], pool.learning.ttfb[replica.name]
    return ReplicaState(
        replica=replica.name,
        in_flight=replica.in_flight,
        breaker=replica.breaker.state.value,
        samples=ttft.event_count(now_s),
        suspect=pool.is_suspect(replica, now_s),
        hedge_delay_s=pool.usual_delay_s(replica, now_s),
        ttfb_p50_s=ttfb.quantile(0.5, now_s),
        ttfb_p99_s=ttfb.quantile(0.99, now_s),
        ttft_p50_s=ttft.quantile(0.5, now_s),
        ttft_p99_s=ttft.quantile(0.99, now_s),
    )


def _describe_pool(pool: Pool, now_s: float) -> dict[str, object]:
    settings, learning = pool.settings, pool.learning
    b, s, c = learning.predictor.coefficients
    return {
        "pool": pool.name,
        "policy": settings.policy.value,
        "hedging": "on" if pool.hedging_on else "off",
        "max_hedges": settings.max_hedges,
        "budget": {
            "share": settings.budget,
            "requests": {"level": round(pool.requests.credit, 3), "cap": round(pool.requests.cap, 3)},
            "prompt_tokens": {"level": round(pool.tokens.credit, 1), "cap": round(pool.tokens.cap, 1)},
        },
        "predictor": {
            "base_ms": round(1000 * b, 3),
            "ms_per_1000_uncached_tokens": round(1e6 * s, 3),
            "ms_per_1000_pending_tokens": round(1e6 * c, 3),
        },
        "plan": _describe_plan(learning.last_plan(pool.replicas[0].name)),
        "replicas": [_describe_replica(pool, replica, now_s) for replica in pool.replicas],
    }


def _describe_plan(plan: Plan | None) -> dict[str, object] | None:
    """The plan in the units people think in: `x` is a multiple of the predicted TTFT."""
    if plan is None or not math.isfinite(plan.delay):
        return None
    if plan.curve is None:
        return {"hedge_after_ms": round(1000 * plan.delay, 3)}
    last = plan.curve.first_at_most(0.0)
    picked = sorted({round(i * last / (_CURVE_POINTS - 1)) for i in range(_CURVE_POINTS)})
    return {
        "hedge_after_x": round(plan.delay, 3),
        "share_hedged_then": round(plan.share, 4),
        "late_after_x": round(plan.late, 3),
        "survival": [[round(float(plan.curve.points[i]), 3), round(float(plan.curve.survival[i]), 5)] for i in picked],
    }


def _describe_replica(pool: Pool, replica: Replica, now_s: float) -> dict[str, object]:
    delay_s, learning = pool.usual_delay_s(replica, now_s), pool.learning
    return {
        "replica": replica.name,
        "quota": replica.quota,
        "boundary": replica.boundary,
        "breaker": replica.breaker.state.value,
        "suspect": pool.is_suspect(replica, now_s),
        "in_flight": replica.in_flight,
        "pending_prompt_tokens": round(pool.pending_tokens(replica)),
        "level": round(learning.predictor.levels.get(replica.name, 1.0), 3),
        "hedge_delay_ms": None if delay_s is None else round(1000 * delay_s, 3),
        "ttft_ms": _quantiles(learning.ttft[replica.name], now_s),
        "headers_ms": _quantiles(learning.ttfb[replica.name], now_s),
    }


def _quantiles(window: Window, now_s: float) -> dict[str, object]:
    """Quantiles of a window with the number of samples they rest on."""
    found: dict[str, object] = {"samples": window.event_count(now_s)}
    for q in _QUANTILES:
        value = window.quantile(q, now_s)
        found[f"p{100 * q:g}"] = None if value is None else round(1000 * value, 3)
    return found
