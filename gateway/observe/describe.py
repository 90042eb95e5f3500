"""Snapshots of the pools for scrapes and the admin address: state, learned parameters and budgets.

Reads pools, changes nothing. Units: seconds in `PoolState`, milliseconds in the admin address's JSON.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from gateway.admission.body_memory import BodyMemory
from gateway.admission.caller_limits import KeyLimiter, Quantity
from gateway.admission.fair_queue import FairQueue
from gateway.observe.state import (
    AdmissionState,
    KeyAdmission,
    LimitState,
    ModelAdmission,
    PoolState,
    QuotaState,
    ReplicaState,
)
from gateway.race.context import Model
from ttft_gateway.estimation.stall_detector import LATE_PREDICTIONS
from ttft_gateway.estimation.window import Window
from ttft_gateway.hedging.budget import BudgetUnit
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.hedging.plan import Plan, Survival
from ttft_gateway.limits.budget import CreditBudget
from ttft_gateway.pool.bills import Bills
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import Replica

LeaveOut = Callable[[str], AbstractContextManager[None]]

_QUANTILES = (0.5, 0.9, 0.95, 0.99)
_INTERVAL = (0.1, 0.9)
_CURVE_POINTS = 32
_FIT_ERROR = math.exp(0.3)  # the fit follows the mean level up to this factor only: noise may account for it


def pool_state(model: str, pool: Pool, now_s: float, draining: Collection[Replica] = ()) -> Iterator[PoolState | None]:
    """Yield None after each replica, so that the reader can return to the event loop; then yield the snapshot.

    Args:
        draining: replicas that were removed from the pool and complete their requests.
    """
    replicas = [_draining_state(replica) for replica in draining]
    for replica in pool.replicas:
        replicas.append(_replica_state(pool, replica, now_s))
        yield None
    yield PoolState(
        model=model,
        pool=pool.name,
        policy=pool.settings.policy.value,
        hedging_on=pool.hedging_on,
        budget_level=pool.budget.requests.own_credit,
        budget_cap=pool.budget.requests.own_cap,
        replicas=tuple(replicas),
        quotas=_quota_states(pool, now_s),
    )


def describe(
    model: Model, now_s: float, quantiles: Sequence[float] = (), leave_out: LeaveOut = lambda _name: nullcontext()
) -> dict[str, object]:
    """Return a readable snapshot of one model.

    Args:
        quantiles: quantiles of the estimates; none for the default ones.
        leave_out: leaves out the pool of a name if its description raises in the context.
    """
    quantiles = quantiles or _QUANTILES
    possible = any(pool.never_hedged(replica) is None for pool in model.pools for replica in pool.replicas)
    pools = []
    for pool in model.pools:
        with leave_out(pool.name):
            pools.append(_describe_pool(pool, now_s, quantiles))
    return {"model": model.name, "hedging_possible": possible, "pools": pools}


def queues_state(fair_queues: Mapping[str, FairQueue[Any]], memory: BodyMemory) -> AdmissionState:
    """Return a snapshot of admission without keys, for metrics, by names of models."""
    models = tuple(
        ModelAdmission(
            name,
            fair_queue.slots,
            fair_queue.in_flight,
            fair_queue.waiting,
            fair_queue.waiting_max,
            fair_queue.waiting_by_key(),
        )
        for name, fair_queue in fair_queues.items()
    )
    return AdmissionState(models, (), memory.held, memory.bytes_max, memory.arriving)


def key_admission(name: str, limiter: KeyLimiter, now_s: float) -> KeyAdmission:
    """Return a snapshot of the limits of a key."""
    left = {status.quantity: status.remaining for status in limiter.status(now_s)}
    return KeyAdmission(
        name,
        limiter.in_flight,
        limiter.limits.concurrency,
        left.get(Quantity.REQUESTS),
        left.get(Quantity.TOKENS),
    )


def _replica_state(pool: Pool, replica: Replica, now_s: float) -> ReplicaState:
    ttft, ttfb = pool.learning.ttft[replica.name], pool.learning.ttfb[replica.name]
    return ReplicaState(
        replica=replica.name,
        in_flight=replica.own_in_flight,
        breaker=replica.breaker.state.value,
        samples=ttft.event_count(now_s),
        out=replica.taken_out,
        locked=replica.locked,
        backup_only=replica.backup_only,
        suspect=_is_suspect(pool, replica, now_s),
        never_hedged=_never_hedged(pool, replica),
        takes_hedges=replica.hedgeable,
        cancel_stops_billing=replica.cancel_stops_billing,
        level=_level(pool, replica, now_s),
        token_gap_s=pool.streams.speeds.gaps_s.get(replica.name),
        answer_slowness=pool.streams.slowness(replica.name),
        predicted_s=_usual_ttft_s(pool, replica, now_s),
        hedge_delay_s=usual_delay_s(pool, replica, now_s),
        ttfb_p50_s=ttfb.quantile(0.5, now_s),
        ttfb_p99_s=ttfb.quantile(0.99, now_s),
        ttft_p50_s=ttft.quantile(0.5, now_s),
        ttft_p99_s=ttft.quantile(0.99, now_s),
    )


def _draining_state(replica: Replica) -> ReplicaState:
    state = replica.breaker.state.value
    return ReplicaState(replica.name, replica.in_flight, state, takes_hedges=False, draining=True)


def usual_delay_s(pool: Pool, replica: Replica, now_s: float) -> float | None:
    """Return the hedge delay of a request with the usual prompt; None if there is no plan or it never hedges."""
    plan = pool.learning.last_plan(replica.name)
    if plan is None or pool.never_hedged(replica) is not None or not math.isfinite(plan.delay):
        return None
    predicted_s = _usual_ttft_s(pool, replica, now_s)
    if predicted_s is None:
        if plan.curve is not None:
            return None
        predicted_s = 0.0  # a fixed delay does not depend on it
    settings = pool.settings
    if settings.ttft_target_s is not None:
        return plan.target_delay_s(
            settings.ttft_target_s, predicted_s, coin=0.0, delay_s_min=settings.hedge_delay_min_s
        )
    return plan.delay_s(predicted_s=predicted_s, coin=0.0, delay_s_min=settings.hedge_delay_min_s)


def _is_suspect(pool: Pool, replica: Replica, now_s: float) -> bool:
    """Return True if a replica has stopped answering, or is much slower than the other replicas."""
    return pool.loads.is_suspect(replica, now_s) or pool.learning.predictor.is_slow(replica.name)


def _level(pool: Pool, replica: Replica, now_s: float) -> float:
    """Return the slowness of a replica; of one that has stopped answering only a lower bound is known.

    A lone replica is compared with its own past only: what its fit does not explain counts as usual, and quicker is 1.
    """
    level = pool.learning.predictor.levels.get(replica.name, 1.0)
    if pool.is_single:
        level = max(1.0, level / _FIT_ERROR)
    return max(level, LATE_PREDICTIONS) if pool.loads.is_suspect(replica, now_s) else level


def _usual_ttft_s(pool: Pool, replica: Replica, now_s: float) -> float | None:
    """Return the predicted TTFT of a request with the usual prompt, None before the first sample."""
    return pool.picker.predict(RequestFacts(prompt_tokens=pool.learning.predictor.usual_tokens), replica, now_s)


def _never_hedged(pool: Pool, replica: Replica) -> str | None:
    reason = pool.never_hedged(replica)
    return None if reason is None else reason.value


def _describe_bills(bills: Bills) -> dict[str, object]:
    """Describe the course of the last request, and the ways of the primaries."""
    course = bills.course
    known = None
    if course is not None:
        known = {
            "first": course.first,
            "backup": course.backup,
            "after_ms": None if course.delay_s == math.inf else round(1000 * course.delay_s),
            "bill": round(course.bill, 4),
            "missed": round(course.missed, 4),
        }
    return {"leader": bills.leader, "changes": bills.changes, "course": known}


def _describe_pool(pool: Pool, now_s: float, quantiles: Sequence[float]) -> dict[str, object]:
    settings, learning = pool.settings, pool.learning
    b, s, c = learning.predictor.coefficients
    return {
        "pool": pool.name,
        "policy": settings.policy.value,
        "hedging": "on" if pool.hedging_on else "off",
        "max_hedges": settings.max_hedges,
        "budget": {
            "share": settings.budget,
            "requests": _budget(pool.budget.requests, 3),
            **(
                {"cost": _budget(pool.budget.cost, 9)}
                if pool.budget.unit is BudgetUnit.COST
                else {"prompt_tokens": _budget(pool.budget.cost, 1)}
            ),
        },
        **({} if pool.bills is None else {"bill": _describe_bills(pool.bills)}),
        "predictor": {
            "usual_prompt_tokens": round(learning.predictor.usual_tokens),
            "base_ms": round(1000 * b, 3),
            "ms_per_1000_uncached_tokens": round(1e6 * s, 3),
            "ms_per_1000_pending_tokens": round(1e6 * c, 3),
        },
        "restored_age_s": None if learning.restored_age_s is None else round(learning.restored_age_s, 3),
        "plan": _describe_plan(learning.last_plan(pool.replicas[0].name)) if pool.replicas else None,
        "ttft_x": _estimates(learning.ratios, now_s, quantiles, 1.0),
        "quotas": [_describe_quota(quota) for quota in _quota_states(pool, now_s)],
        "replicas": [_describe_replica(pool, replica, now_s, quantiles) for replica in pool.replicas],
    }


def _budget(budget: CreditBudget, digits: int) -> dict[str, float]:
    return {"level": round(budget.own_credit, digits), "cap": round(budget.own_cap, digits)}


def _describe_plan(plan: Plan | None) -> dict[str, object] | None:
    """Describe a plan in readable units: `x` is a multiple of the predicted TTFT."""
    if plan is None or not math.isfinite(plan.delay):
        return None
    if plan.curve is None:
        return {"hedge_after_ms": round(1000 * plan.delay, 3)}
    last = plan.curve.first_at_most(0.0)
    indices = sorted({round(i * last / (_CURVE_POINTS - 1)) for i in range(_CURVE_POINTS)})
    return {
        "hedge_after_x": round(plan.delay, 3),
        "share_hedged_then": round(plan.share, 4),
        "late_after_x": round(plan.late, 3),
        "survival": [[round(plan.curve.points[i], 3), round(plan.curve.survival[i], 5)] for i in indices],
    }


def _describe_replica(pool: Pool, replica: Replica, now_s: float, quantiles: Sequence[float]) -> dict[str, object]:
    delay_s, learning = usual_delay_s(pool, replica, now_s), pool.learning
    gap_s = pool.streams.speeds.gaps_s.get(replica.name)
    ttft = learning.ttft[replica.name]
    return {
        "replica": replica.name,
        "quota": replica.quota,
        "boundary": replica.boundary,
        "weight": replica.weight,
        "backup_only": replica.backup_only,
        "out": replica.taken_out,
        "locked": replica.locked,
        "breaker": replica.breaker.state.value,
        "suspect": _is_suspect(pool, replica, now_s),
        "never_hedged": _never_hedged(pool, replica),
        "first_token": "work" if pool.first_token.is_sometimes_by_work(replica.name) else "content",
        "signs_of_work": {
            "any" if api is None else api.value: {
                "seen": signs.seen,
                "after_headers_share": round(signs.apart_share, 3),
                "informative": signs.informative,
            }
            for api, signs in pool.first_token.signs_of(replica.name)
        },
        "takes_hedges": replica.hedgeable,
        "cancel_stops_billing": replica.cancel_stops_billing,
        "in_flight": replica.own_in_flight,
        "pending_prompt_tokens": round(pool.pending_tokens(replica)),
        "level": round(_level(pool, replica, now_s), 3),
        "predicted_ms": _predicted_ms(pool, replica, now_s),
        "token_gap_ms": None if gap_s is None else round(1000 * gap_s, 3),
        "answer_slowness": round(pool.streams.slowness(replica.name), 3),
        "hedge_delay_ms": None if delay_s is None else round(1000 * delay_s, 3),
        "ttft_ms": _quantiles_ms(ttft, now_s, quantiles),
        "ttft_estimate_ms": _estimates(ttft, now_s, quantiles, 1000.0),
        "headers_ms": _quantiles_ms(learning.ttfb[replica.name], now_s, quantiles),
    }


def _predicted_ms(pool: Pool, replica: Replica, now_s: float) -> dict[str, float | None] | None:
    """Return the predicted TTFT of the usual prompt, and the interval in which 80 % of such first tokens arrive.

    The interval has None where the waits that were given up hide its end; the result is None before the first sample.
    """
    predicted_s, ratios = _usual_ttft_s(pool, replica, now_s), pool.learning.ratios
    if predicted_s is None:
        return None
    curve = Survival(ratios.bins(now_s)) if ratios.count(now_s) else None
    low, high = (None if curve is None else curve.quantile(q) for q in _INTERVAL)
    return {
        "ttft": round(1000 * predicted_s, 3),
        "p10": None if low is None else round(1000 * low * predicted_s, 3),
        "p90": None if high is None else round(1000 * high * predicted_s, 3),
    }


def _quantiles_ms(window: Window, now_s: float, quantiles: Sequence[float]) -> dict[str, object]:
    """Return quantiles of the waits that ended, in milliseconds, with their number of samples."""
    row: dict[str, object] = {"samples": window.event_count(now_s)}
    for q in quantiles:
        value = window.quantile(q, now_s)
        row[_quantile_name(q)] = None if value is None else round(1000 * value, 3)
    return row


def _estimates(window: Window, now_s: float, quantiles: Sequence[float], factor: float) -> dict[str, object]:
    """Return Kaplan-Meier estimates, which account for the waits given up, and their numbers of samples."""
    events, count = window.event_count(now_s), window.count(now_s)
    curve = Survival(window.bins(now_s)) if count else None
    row: dict[str, object] = {"samples": events, "given_up": count - events}
    for q in quantiles:
        value = None if curve is None else curve.quantile(q)
        row[_quantile_name(q)] = None if value is None else round(factor * value, 3)
    return row


def _quantile_name(q: float) -> str:
    """Name a quantile: p97 for 0.97, p99.9 for 0.999."""
    return f"p{100 * q:.12g}"


def _quota_states(pool: Pool, now_s: float) -> tuple[QuotaState, ...]:
    """Return each quota of a pool's replicas once."""
    ledgers = {replica.quota: ledger for replica, ledger in pool.quotas.of.items() if replica.quota is not None}
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


def _describe_quota(quota: QuotaState) -> dict[str, object]:
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
