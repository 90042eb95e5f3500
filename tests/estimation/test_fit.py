"""Relative least squares: the exact solution, the bounds it is given, and weights that never run away."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttft_gateway.estimation.fit import RelativeFit

Row = tuple[float, float, float, float]
positive = st.floats(0.1, 10.0)
rows = st.lists(st.tuples(positive, positive, st.floats(0.0, 1e4), st.floats(0.0, 1e4)), min_size=1, max_size=40)


def filled(samples: list[Row]) -> RelativeFit:
    """A fit of rows (y, x0, x1, x2)."""
    fit = RelativeFit()
    for row in samples:
        fit.add(*row)
    return fit


def error(samples: list[Row], coefficients: tuple[float, float, float]) -> float:
    """The minimised error, with weights by age."""
    return sum(
        0.998**age * (sum(x * c for x, c in zip(xs, coefficients, strict=True)) / y - 1.0) ** 2
        for age, (y, *xs) in enumerate(reversed(samples))
    )


@given(rows, st.tuples(*[st.floats(0.0, 0.5)] * 3))
def test_no_other_nonnegative_coefficients_are_better(samples: list[Row], step: tuple[float, float, float]) -> None:
    """The solution has no negative coefficient, and moving it anywhere without making one negative is no better."""
    best = filled(samples).solve_nonnegative()
    assert min(best) >= 0.0
    least = error(samples, best)
    for sign in (-1.0, 1.0):
        for part in range(3):
            moved = list(best)
            moved[part] = max(0.0, moved[part] + sign * step[part] * (moved[part] or 1e-3))
            assert error(samples, (moved[0], moved[1], moved[2])) >= least * (1 - 1e-6) - 1e-9


@given(st.lists(st.tuples(positive, positive, st.floats(0.0, 1e4), st.sampled_from([0.0, 0.0, 7.0])), max_size=40))
def test_a_batch_counts_like_its_samples(samples: list[Row]) -> None:
    """Sums of a batch equal sums of its samples one by one to the last bit, also where weights are scaled back."""
    single, batch = filled([]), filled([])
    for fit in (single, batch):
        fit.take_new()
        fit._weight = 0.97e9
    for row in samples:
        single.add(*row)
    batch.add_all(samples)
    assert (batch.state, batch._weight, batch.take_new()) == (single.state, single._weight, single.take_new())


def test_exact_data_are_found_exactly() -> None:
    """Samples of a law without noise give the law."""
    rng = np.random.default_rng(2)
    samples = [(0.2 + 1e-4 * u + 3e-5 * p, 1.0, u, p) for u, p in rng.uniform(0, 5_000, (50, 2)).tolist()]
    assert filled(samples).solve_nonnegative() == pytest.approx((0.2, 1e-4, 3e-5), rel=1e-6)


def test_a_column_that_never_moves_is_left_to_the_first() -> None:
    """If a column is a multiple of the first, or always 0, the first one takes the whole coefficient."""
    assert filled([(0.5, 1.0, 700.0, 0.0)] * 30).solve_nonnegative() == pytest.approx((0.5, 0.0, 0.0))


def test_an_expected_reach_gives_way_to_the_samples() -> None:
    """Noise in a column that hardly varies adds next to nothing; a law that samples show is found as before."""
    rng = np.random.default_rng(4)
    flat = [(0.2 * float(np.exp(0.25 * rng.normal())), 1.0, u, 0.0) for u in rng.uniform(12, 20, 150).tolist()]
    b, s, _ = filled(flat).solve_nonnegative(4_000.0)
    assert b == pytest.approx(0.18, rel=0.1)
    assert 2_300.0 * s < 0.1 * b
    clear = [(0.2 + 1e-4 * u, 1.0, u, p) for u, p in rng.uniform(0, 5_000, (150, 2)).tolist()]
    assert filled(clear).solve_nonnegative(4_000.0) == pytest.approx((0.2, 1e-4, 0.0), rel=0.02, abs=1e-6)
    assert filled([(0.5, 1.0, 13.0, 0.0)] * 30).solve_nonnegative(4_000.0) == pytest.approx((0.5, 0.0, 0.0))


def test_a_negative_influence_is_zero() -> None:
    """If more of a column makes y smaller, its coefficient is 0."""
    samples = [(1.0 - 1e-4 * u, 1.0, u, 0.0) for u in (0.0, 1_000.0, 2_000.0, 3_000.0)]
    b, s, c = filled(samples).solve_nonnegative()
    assert 0.7 < b < 1.0
    assert (s, c) == (0.0, 0.0)


def test_old_samples_fade() -> None:
    """After a change, 1,500 samples later the old ones weigh 5 %; the sums stay finite for ever."""
    fit = filled([(1.0, 1.0, 0.0, 0.0)] * 20_000)
    for _ in range(1_500):
        fit.add(2.0, 1.0, 0.0, 0.0)
    assert fit.solve_nonnegative()[0] == pytest.approx(2.0, rel=0.1)
    assert fit._weight <= 1e9


@given(rows)
def test_the_prior_keeps_what_was_not_seen_at_one(samples: list[Row]) -> None:
    """A column that no sample has stays at 1; a strong prior keeps all of them near it."""
    unseen = [(y, x0, x1 / 1e4, 0.0) for y, x0, x1, _ in samples]
    assert filled(unseen).solve_near_one(1.0)[2] == pytest.approx(1.0)
    assert filled(unseen).solve_near_one(1e9) == pytest.approx((1.0, 1.0, 1.0), abs=1e-3)


def test_one_report_against_one_prior() -> None:
    """With a prior of one sample, c minimises (x c / y - 1)^2 + (c - 1)^2."""
    fit = filled([(2.0, 1.0, 0.0, 0.0)])
    assert fit.solve_near_one(1.0)[0] == pytest.approx((0.5 + 1.0) / (0.25 + 1.0))


def test_without_new_samples_no_sums_are_made() -> None:
    """The exchange of many idle pools makes no objects that a search for garbage would visit."""
    fit = RelativeFit()
    assert fit.take_new() is fit.take_new()
    fit.add(1.0, 1.0, 0.0, 0.0)
    assert fit.take_new()[0] == 1.0
    assert fit.take_new() is fit.take_new()
    assert not any(fit.take_new())
