"""Chooses the learned state of a gateway from those of its workers. Pure.

Nothing is added: workers exchange their samples (gateway/pool/shared_learning.py) and begin with the same state. So
each has the samples of all, and a sum would count them once for each worker. What is not exchanged, the times of each
replica, comes from the worker with the most of it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from msgspec.structs import replace

from gateway.estimation.window import WindowState
from gateway.pool.learned import LearnedModel, LearnedPool, LearnedReplica
from gateway.pool.learning import ReplicaWindows

_T = TypeVar("_T")


def merged_learned(workers: Sequence[Mapping[str, LearnedModel]]) -> dict[str, LearnedModel]:
    """Return the state of all models."""
    return {name: _model(states) for name, states in _grouped(workers).items()}


def _grouped(workers: Iterable[Mapping[str, _T]]) -> dict[str, list[_T]]:
    groups: dict[str, list[_T]] = {}
    for worker in workers:
        for name, state in worker.items():
            groups.setdefault(name, []).append(state)
    return groups


def _model(states: Sequence[LearnedModel]) -> LearnedModel:
    tokens = max((state.tokens for state in states), key=lambda tokens: tokens.reports)
    pools = _grouped(state.pools for state in states)
    return LearnedModel(tokens, {name: _pool(each) for name, each in pools.items()})


def _pool(states: Sequence[LearnedPool]) -> LearnedPool:
    base = max(states, key=lambda state: state.learning.contents)
    replicas = _grouped(state.replicas for state in states)
    return replace(
        base,
        replicas={name: _replica(each, base.replicas.get(name, each[0]).source) for name, each in replicas.items()},
    )


def _replica(states: Sequence[LearnedReplica], source: str) -> LearnedReplica:
    same = [state.windows for state in states if state.source == source]
    most_ttft = max((each.ttft for each in same), key=_samples)
    return LearnedReplica(source, ReplicaWindows(most_ttft, max((each.ttfb for each in same), key=_samples)))


def _samples(state: WindowState | None) -> int:
    return 0 if state is None else sum(state.events) + sum(state.censored)
