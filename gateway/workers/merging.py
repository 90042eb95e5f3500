"""Merges the states of several workers into one state of the gateway. Pure.

Amounts are added. Where adding is wrong, the worst state counts (breakers, cool-downs), or the state of the worker with
the most samples (quantiles, learned parameters).

Learned states are chosen, not added: workers exchange their samples (gateway/share/pools.py) and begin with the same
state. So each worker has the samples of all, and a sum would count a sample once for each worker. The times of each
replica are not exchanged, and come from the worker with the most of them. Each state documents its units.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from gateway.observe.process import ProcessValue
from gateway.observe.state import (
    AdmissionState,
    KeyAdmission,
    LeaseState,
    LimitState,
    ModelAdmission,
    PoolState,
    QuotaState,
    ReplicaState,
    ShareState,
)
from ttft_gateway.estimation.stall_detector import LATE_MAX
from ttft_gateway.estimation.window import WindowState
from ttft_gateway.pool.learned import LearnedModel, LearnedPool, LearnedReplica
from ttft_gateway.pool.learning import ReplicaWindows

_BREAKERS: Final = ("closed", "half_open", "open")  # from the best to the worst
_T = TypeVar("_T")

_NOT_ADDED: Final[Mapping[str, Callable[[Iterable[float]], float]]] = {
    "ttft_gateway_build_info": max,
    "process_start_time_seconds": min,
    "process_max_fds": min,
    "ttft_gateway_config_last_reload_successful": min,
    "ttft_gateway_share_up": min,
    "ttft_gateway_share_owed": max,
    "ttft_gateway_share_processes": max,
}


def merged_pools(workers: Sequence[Sequence[PoolState]]) -> Iterator[PoolState]:
    """Yield the state of every pool, the pools of a model in a row."""
    return map(_pool, _grouped(workers, lambda pool: (pool.model, pool.pool)))


def merged_admission(workers: Sequence[AdmissionState]) -> AdmissionState:
    """Return the state of admission."""
    models = _grouped([worker.models for worker in workers], lambda model: model.model)
    keys = _grouped([worker.keys for worker in workers], lambda key: key.key)
    return AdmissionState(
        tuple(map(_model, models)),
        tuple(map(_key, keys)),
        sum(worker.body_bytes for worker in workers),
        sum(worker.body_bytes_max for worker in workers),
        sum(worker.bodies_arriving for worker in workers),
    )


def merged_share(workers: Sequence[ShareState]) -> ShareState | None:
    """Return the state of the exchange; None if there is no exchange.

    It comes from the worker that misses the engine, or with the oldest exchange; leases are added, and of debts, which
    contain the debt of the fleet, the largest counts. The part comes from the worker that counts the fewest processes.
    """
    if not workers:
        return None
    leases: dict[str, LeaseState] = {}
    for lease in (lease for worker in workers for lease in worker.leases):
        found = leases.get(lease.limit, LeaseState(lease.limit, 0.0))
        leases[lease.limit] = LeaseState(lease.limit, round(found.left + lease.left, 3), max(found.owed, lease.owed))
    return replace(
        max(workers, key=lambda worker: (not worker.up, _age_s(worker.exchange_age_s), _age_s(worker.reply_age_s))),
        processes=max(worker.processes for worker in workers),
        away_part=max(worker.away_part for worker in workers),
        leases=tuple(leases.values()),
        mismatches=tuple({each.limit: each for worker in workers for each in worker.mismatches}.values()),
    )


def _age_s(age_s: float | None) -> float:
    return math.inf if age_s is None else age_s


def merged_process(workers: Sequence[Sequence[ProcessValue]]) -> list[ProcessValue]:
    """Return the values of all processes; memory is added, so each must count shared pages in part."""
    groups = _grouped(workers, lambda value: (value.name, tuple(value.labels.items())))
    return [
        values[0]._replace(value=_NOT_ADDED.get(values[0].name, sum)(value.value for value in values))
        for values in groups
    ]


def merged_description(workers: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the description of a model; None if no worker has one.

    Args:
        workers: descriptions of `gateway.observe.describe`.
    """
    if not workers:
        return None
    pools = _grouped([worker["pools"] for worker in workers], lambda pool: pool["pool"])
    return {**workers[0], "pools": [_described_pool(pool) for pool in pools]}


def _grouped(workers: Sequence[Sequence[_T]], key: Callable[[_T], object]) -> list[list[_T]]:
    """Return the parts of all workers with the same key, in the order of the first one."""
    groups: dict[object, list[_T]] = {}
    for parts in workers:
        for part in parts:
            groups.setdefault(key(part), []).append(part)
    return list(groups.values())


def _pool(states: Sequence[PoolState]) -> PoolState:
    replicas = _grouped([state.replicas for state in states], lambda replica: replica.replica)
    quotas = _grouped([state.quotas for state in states], lambda quota: quota.quota)
    return replace(
        states[0],
        hedging_on=all(state.hedging_on for state in states),
        budget_level=sum(state.budget_level for state in states),
        budget_cap=sum(state.budget_cap for state in states),
        replicas=tuple(map(_replica, replicas)),
        quotas=tuple(map(_quota, quotas)),
    )


def _replica(states: Sequence[ReplicaState]) -> ReplicaState:
    return replace(
        max(states, key=lambda state: state.samples),
        in_flight=sum(state.in_flight for state in states),
        breaker=max((state.breaker for state in states), key=_BREAKERS.index),
        out=any(state.out for state in states),
        suspect=any(state.suspect for state in states),
        draining=all(state.draining for state in states),
    )


def _quota(states: Sequence[QuotaState]) -> QuotaState:
    limits = _grouped([state.limits for state in states], lambda limit: (limit.resource, limit.window_s))
    return QuotaState(
        states[0].quota,
        max(state.cooling_s for state in states),
        tuple(map(_limit, limits)),
        sum(state.reserved for state in states),
        sum(state.settled for state in states),
        sum(state.released for state in states),
    )


def _limit(states: Sequence[LimitState]) -> LimitState:
    """Return the limit of all workers, of which each counts the requests of the others as well.

    Of a limit in responses, the newest response counts; of any other one, the least that a worker has left.
    """
    observed = [state for state in states if state.age_s is not None]
    if observed and not states[0].enforced:
        newest = min(observed, key=lambda state: state.age_s or 0.0)
        return replace(newest, others_s=max(state.others_s for state in observed))
    return min(states, key=lambda state: state.left)


def _model(states: Sequence[ModelAdmission]) -> ModelAdmission:
    waiting: dict[str, int] = {}
    for state in states:
        for key, count in state.waiting_by_key.items():
            waiting[key] = waiting.get(key, 0) + count
    return replace(
        states[0],
        in_flight=sum(state.in_flight for state in states),
        waiting=sum(state.waiting for state in states),
        waiting_max=sum(state.waiting_max for state in states),
        waiting_by_key=waiting,
    )


def _key(states: Sequence[KeyAdmission]) -> KeyAdmission:
    return replace(
        states[0],
        in_flight=sum(state.in_flight for state in states),
        requests_left=_least(state.requests_left for state in states),
        tokens_left=_least(state.tokens_left for state in states),
    )


def _least(values: Iterable[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)


def _described_pool(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    replicas = _grouped([state["replicas"] for state in states], lambda replica: replica["replica"])
    budget = states[0]["budget"]
    return {
        **max(states, key=lambda state: int(state["ttft_x"]["samples"])),
        "hedging": "on" if all(state["hedging"] == "on" for state in states) else "off",
        "budget": {
            unit: _budget([state["budget"][unit] for state in states]) if isinstance(amount, Mapping) else amount
            for unit, amount in budget.items()
        },
        "quotas": [_described_quota(quota) for quota in _grouped([s["quotas"] for s in states], lambda q: q["quota"])],
        "replicas": [_described_replica(replica) for replica in replicas],
    }


def _budget(states: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: round(sum(state[name] for state in states), 9) for name in states[0]}


def _described_quota(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    tokens = {name: sum(state["tokens"][name] for state in states) for name in states[0]["tokens"]}
    return {**states[0], "cooling_s": max(state["cooling_s"] for state in states), "tokens": tokens}


def _described_replica(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        **max(states, key=lambda state: int(state["ttft_ms"]["samples"])),
        "out": any(state["out"] for state in states),
        "breaker": max((state["breaker"] for state in states), key=_BREAKERS.index),
        "suspect": any(state["suspect"] for state in states),
        "in_flight": sum(state["in_flight"] for state in states),
        "pending_prompt_tokens": sum(state["pending_prompt_tokens"] for state in states),
    }


def merged_learned(workers: Sequence[Mapping[str, LearnedModel]]) -> dict[str, LearnedModel]:
    """Return the learned state of all models."""
    return {name: _learned_model(states) for name, states in _by_name(workers).items()}


def _by_name(workers: Iterable[Mapping[str, _T]]) -> dict[str, list[_T]]:
    groups: dict[str, list[_T]] = {}
    for worker in workers:
        for name, state in worker.items():
            groups.setdefault(name, []).append(state)
    return groups


def _learned_model(states: Sequence[LearnedModel]) -> LearnedModel:
    tokens = max((state.tokens for state in states), key=lambda tokens: tokens.reports)
    pools = _by_name(state.pools for state in states)
    return LearnedModel(tokens, {name: _learned_pool(each) for name, each in pools.items()})


def _learned_pool(states: Sequence[LearnedPool]) -> LearnedPool:
    base = max(states, key=lambda state: state.learning.contents)
    replicas = _by_name(state.replicas for state in states)
    tests = _by_name(state.learning.predictor.slowness for state in states)
    slowness = {name: max(each, key=lambda test: test.evidence) for name, each in tests.items()}
    predictor = replace(base.learning.predictor, slowness=slowness)
    streams = [state.streams for state in states if state.streams is not None]
    return replace(
        base,
        streams=max(streams, key=lambda each: each.speeds.compared, default=None),
        learning=replace(base.learning, predictor=predictor),
        replicas={
            name: _learned_replica(each, base.replicas.get(name, each[0]).source) for name, each in replicas.items()
        },
    )


def _learned_replica(states: Sequence[LearnedReplica], source: str) -> LearnedReplica:
    ways = [state.way for state in states if state.source == source and state.way is not None]
    way = max(ways, key=lambda each: len(each.waits), default=None)
    same = [state.windows for state in states if state.source == source]
    most_ttft = max((each.ttft for each in same), key=_samples)
    waits = [state.wait for state in states if state.source == source and state.wait is not None]
    wait = max(waits, key=lambda each: (each.cooling_s, each.quota is not None and each.quota.cooling_s), default=None)
    most_ttfb = max((each.ttfb for each in same), key=_samples)
    late = min(LATE_MAX, sum(state.late for state in states if state.source == source))
    return LearnedReplica(source, ReplicaWindows(most_ttft, most_ttfb), way, wait, late)


def _samples(state: WindowState | None) -> int:
    return 0 if state is None else sum(state.events) + sum(state.censored)
