"""Adds the learned states of several workers to one. Pure.

Samples of windows are added bin by bin, the sums of fits are averaged, so that a state which all workers began with
does not grow; what cannot be added comes from the worker with the most samples. Units: those of the states.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

from msgspec.structs import replace

from gateway.estimation.fit import FitState
from gateway.estimation.window import WindowState
from gateway.pool.learned import LearnedModel, LearnedPool, LearnedReplica
from gateway.pool.learning import ReplicaWindows

_SAMPLES_MAX: Final = 100_000  # of a window: states that are added after each restart must not outweigh new samples

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
    reports = [state.tokens for state in states if state.tokens.reports]
    tokens = states[0].tokens
    if reports:
        tokens = replace(max(reports, key=lambda each: each.reports), fit=_fit([each.fit for each in reports]))
    return LearnedModel(
        tokens, {name: _pool(pools) for name, pools in _grouped(state.pools for state in states).items()}
    )


def _pool(states: Sequence[LearnedPool]) -> LearnedPool:
    base = max(states, key=lambda state: state.learning.contents)
    fits = [state.learning.predictor.fit for state in states if state.learning.predictor.samples]
    levels = {name: level for state in states for name, level in state.learning.predictor.levels.items()}
    predictor = base.learning.predictor
    if fits:
        predictor = replace(predictor, fit=_fit(fits), levels={**levels, **predictor.levels})
    learning = replace(
        base.learning,
        predictor=predictor,
        ratios=_window([state.learning.ratios for state in states]),
        answers=_window([state.learning.answers for state in states]),
    )
    replicas = {
        name: _replica(recorded, base.replicas.get(name, recorded[0]))
        for name, recorded in _grouped(state.replicas for state in states).items()
    }
    return replace(base, learning=learning, replicas=replicas)


def _replica(states: Sequence[LearnedReplica], base: LearnedReplica) -> LearnedReplica:
    same = [state.windows for state in states if state.source == base.source]
    ttft, ttfb = _window([each.ttft for each in same]), _window([each.ttfb for each in same])
    return LearnedReplica(base.source, ReplicaWindows(ttft, ttfb))


def _fit(states: Sequence[FitState]) -> FitState:
    """Return the mean of the sums."""
    m00, m01, m02, m11, m12, m22 = (
        sum(column) / len(states) for column in zip(*(s.matrix for s in states), strict=True)
    )
    r0, r1, r2 = (sum(column) / len(states) for column in zip(*(s.right for s in states), strict=True))
    return FitState((m00, m01, m02, m11, m12, m22), (r0, r1, r2))


def _window(states: Sequence[WindowState | None]) -> WindowState | None:
    """Return the samples of all windows; None without any."""
    filled = [state for state in states if state is not None]
    if len(filled) < 2:
        return next(iter(filled), None)
    counts = dict[int, tuple[int, int]]()
    for state in filled:
        for index, ended, given_up in zip(state.bins, state.events, state.censored, strict=True):
            before = counts.get(index, (0, 0))
            counts[index] = (before[0] + ended, before[1] + given_up)
    total = sum(map(sum, counts.values()))
    if total > _SAMPLES_MAX:
        counts = {index: (e * _SAMPLES_MAX // total, c * _SAMPLES_MAX // total) for index, (e, c) in counts.items()}
    bins = sorted(index for index, each in counts.items() if any(each))
    events, censored = [counts[index][0] for index in bins], [counts[index][1] for index in bins]
    return WindowState(min(state.age_s for state in filled), bins, events, censored)
