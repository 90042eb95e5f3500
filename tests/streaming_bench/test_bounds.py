"""Bounds: no threshold beats the best single hedge, and no policy beats the clairvoyant."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_bench.research.bounds import Values, best_single_hedge, clairvoyant


def draws(seed: int, count: int = 800) -> tuple[Values, Values]:
    """Pairs with a tail: one in ten is ten times as slow."""
    rng = np.random.default_rng(seed)
    values = rng.lognormal(0.0, 0.3, (2, count)) * np.where(rng.random((2, count)) < 0.1, 10.0, 1.0)
    return values[0], values[1]


@settings(max_examples=15)
@given(st.integers(0, 50), st.integers(0, 8), st.floats(0.0, 12.0))
def test_no_threshold_is_better(seed: int, eighths: int, delay_s: float) -> None:
    """A policy that hedges a share of the late requests has no better p99 or mean than the bound at its load."""
    first, second = draws(seed)
    hedged = np.where(first > delay_s, np.minimum(first, delay_s + second), first)
    took = np.concatenate([hedged] * eighths + [first] * (8 - eighths))  # each request in all its ways, without chance
    load = eighths / 8 * float((first > delay_s).mean())
    best, knowing = best_single_hedge(first, second, load + 0.02), clairvoyant(first, second, load + 0.02)
    assert best.mean_s <= float(took.mean()) * 1.01
    assert best.p99_s <= float(np.quantile(took, 0.99, method="higher")) * 1.05
    assert knowing.p99_s <= best.p99_s * 1.001
    assert knowing.mean_s <= best.mean_s * 1.001


def test_without_a_budget_nothing_is_gained() -> None:
    """A budget of 0 changes neither p99 nor mean; with a budget of 1 the lower of both draws counts."""
    first, second = draws(1)
    for bound in (best_single_hedge(first, second, 0.0), clairvoyant(first, second, 0.0)):
        assert bound.p99_s == pytest.approx(np.quantile(first, 0.99), rel=0.02)
        assert bound.mean_s == pytest.approx(first.mean())
    for bound in (best_single_hedge(first, second, 1.0), clairvoyant(first, second, 1.0)):
        assert bound.mean_s == pytest.approx(np.minimum(first, second).mean())
        assert bound.p99_s == pytest.approx(np.quantile(np.minimum(first, second), 0.99), rel=0.02)


def test_a_budget_never_hurts() -> None:
    """More budget is never worse."""
    first, second = draws(2)
    bounds = [best_single_hedge(first, second, budget) for budget in (0.0, 0.02, 0.05, 0.1, 0.3, 1.0)]
    assert [b.p99_s for b in bounds] == sorted((b.p99_s for b in bounds), reverse=True)
    assert [b.mean_s for b in bounds] == sorted((b.mean_s for b in bounds), reverse=True)
