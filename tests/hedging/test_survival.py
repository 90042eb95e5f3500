"""Kaplan-Meier on bins: the exact product limit, nothing read from what was given up, gains as sums over the curve."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ttft_gateway.estimation.window import Window
from ttft_gateway.hedging.plan import Survival

Sample = tuple[float, bool]

# Whole steps of 5 %, so that two samples are either equal or in different bins.
samples = st.lists(st.tuples(st.integers(-40, 80).map(lambda k: 1.05**k), st.booleans()), min_size=1, max_size=60)


def curve_of(values: list[Sample]) -> Survival:
    """The curve through a window, as the gateway builds it."""
    window = Window()
    for x, is_event in values:
        (window.add_event if is_event else window.add_censored)(x, 0.0)
    return Survival(window.bins(0.0))


def exact_survival(values: list[Sample], t: float) -> float:
    """The product-limit estimator, written down from its definition, with exact times."""
    product = 1.0
    for time in sorted({x for x, is_event in values if is_event and x <= t}):
        at_risk = sum(x >= time for x, _ in values)
        events = sum(x == time and is_event for x, is_event in values)
        product *= 1.0 - events / at_risk
    return product


@given(samples)
def test_it_equals_the_exact_product_limit(values: list[Sample]) -> None:
    """S equals the exact estimator's before and after every observation; only the positions are off by 1 %."""
    curve = curve_of(values)
    largest = max(x for x, _ in values)
    for x, _ in values:
        assert curve.at(x * 0.98) == pytest.approx(exact_survival(values, x * 0.98), abs=1e-9)
        if x * 1.02 < 2 * largest:
            assert curve.at(x * 1.02) == pytest.approx(exact_survival(values, x * 1.02), abs=1e-9)


@given(samples)
def test_it_is_a_distribution(values: list[Sample]) -> None:
    """Mass is nowhere negative and sums to 1, S falls from 1 to 0, and the mean is the mean of the mass."""
    curve = curve_of(values)
    assert min(curve.mass) >= 0.0
    assert sum(curve.mass) == pytest.approx(1.0)
    assert curve.survival == sorted(curve.survival, reverse=True)
    assert curve.survival[-1] == 0.0
    assert curve.at(0.0) == 1.0
    assert curve.mean == pytest.approx(float(np.dot(curve.mass, curve.points)))


@given(samples)
def test_mass_that_cannot_be_estimated_sits_at_twice_the_largest_observation(values: list[Sample]) -> None:
    """Mass beyond the events is at twice the largest observation, an event or a wait given up."""
    curve = curve_of(values)
    largest = max(x for x, _ in values)
    left = exact_survival(values, largest)
    assert curve.observed_max == pytest.approx(largest, rel=0.01)
    if left > 0:
        assert curve.points[-1] == pytest.approx(2.0 * largest, rel=0.01)
        assert curve.mass[-1] == pytest.approx(left)
    else:
        assert curve.points[-1] == pytest.approx(largest, rel=0.01)


@given(st.lists(st.integers(-40, 80).map(lambda k: 1.05**k), min_size=1, max_size=60), st.floats(0.0, 1.0))
def test_what_comes_after_giving_up_is_not_used(times: list[float], cut: float) -> None:
    """If all waits are given up at one time, S is exact up to it, and its mass after it is unchanged."""
    limit = sorted(times)[int(cut * (len(times) - 1))] * 1.025  # between the steps
    curve = curve_of([(min(x, limit), x <= limit) for x in times])
    left = sum(x > limit for x in times) / len(times)
    for x in times:
        if x < limit:
            assert curve.at(x * 1.01) == pytest.approx(sum(y > x for y in times) / len(times))
    assert curve.at(limit * 1.02) == pytest.approx(left)
    assert curve.at(limit * 1.97) == pytest.approx(left)


@given(samples, st.lists(st.floats(0.001, 0.1), max_size=20))
def test_a_wait_given_up_before_the_first_event_changes_nothing(values: list[Sample], early: list[float]) -> None:
    """Adding waits that were given up before the first event does not change the curve."""
    curve = curve_of(values)
    more = curve_of([*values, *((x, False) for x in early)])
    for x, _ in values:
        assert more.at(x * 1.02) == pytest.approx(curve.at(x * 1.02))


def test_a_fully_hedged_tail_does_not_erase_itself() -> None:
    """With every slow wait given up at 2, their share stays in the curve, after the observations."""
    curve = curve_of([(1.0, True)] * 80 + [(2.0, False)] * 20)
    assert curve.at(3.9) == pytest.approx(0.2)
    assert curve.points[-1] == pytest.approx(4.0, rel=0.01)


def test_only_censored_samples_leave_everything_open() -> None:
    """Without an event all mass is unknown."""
    curve = curve_of([(1.0, False), (3.0, False)])
    assert curve.at(3.0) == 1.0
    assert curve.points[-1] == pytest.approx(6.0, rel=0.01)


few = st.lists(st.tuples(st.floats(0.01, 50.0), st.booleans()), min_size=1, max_size=12)


def saved(curve: Survival, late: NDArray[np.float64], predicted_s: float, waited_s: float, backup_s: float) -> float:
    """E[(x * predicted - waited - y * backup)+; x late], as a sum over all pairs of points."""
    points = np.array(curve.points)
    pairs = np.outer(curve.mass * late, curve.mass)
    times = predicted_s * points[:, np.newaxis] - waited_s - backup_s * points
    return float((pairs * np.maximum(0.0, times)).sum())


@given(few, st.lists(st.floats(0.0, 100.0), min_size=1, max_size=3))
def test_gains_are_sums_over_all_pairs(values: list[Sample], delays: list[float]) -> None:
    """The gain of a delay is the expectation over two independent draws from the curve."""
    curve = curve_of(values)
    expected = [saved(curve, np.ones_like(curve.mass), 1.0, delay, 1.0) for delay in delays]
    assert [curve.gain(delay) for delay in delays] == pytest.approx(expected, rel=1e-6, abs=1e-9)


@given(few, st.floats(0.01, 10.0), st.floats(0.0, 50.0), st.floats(0.01, 10.0))
def test_the_gain_now_is_conditional_on_the_wait(
    values: list[Sample], predicted_s: float, waited_s: float, backup_s: float
) -> None:
    """A backup now saves E[(x*pred - waited - y*alt)+ | x > waited/pred]; beyond all observations waited - E[y]*alt."""
    curve = curve_of(values)
    waited = waited_s / predicted_s
    if waited >= curve.observed_max:
        expected = waited_s - curve.mean * backup_s
    else:
        late = (np.array(curve.points) > waited).astype(float)
        expected = saved(curve, late, predicted_s, waited_s, backup_s) / float(curve.mass @ late)
    actual = curve.gain_s(predicted_s=predicted_s, waited_s=waited_s, backup_s=backup_s)
    assert actual == pytest.approx(expected, rel=1e-6, abs=1e-6)


@given(few, st.floats(0.01, 10.0), st.floats(0.0, 50.0))
def test_the_remaining_wait_is_conditional_too(values: list[Sample], predicted_s: float, waited_s: float) -> None:
    """An attempt still has to wait E[x*pred - waited | x > waited/pred]; beyond all observations as long again."""
    curve = curve_of(values)
    points = np.array(curve.points)
    late = (points > waited_s / predicted_s).astype(float)
    if waited_s / predicted_s >= curve.observed_max:
        expected = waited_s
    else:
        expected = float((curve.mass * late) @ (points * predicted_s - waited_s) / (curve.mass @ late))
    actual = curve.remaining_s(predicted_s=predicted_s, waited_s=waited_s)
    assert actual == pytest.approx(expected, rel=1e-6, abs=1e-6)


@given(samples, st.floats(0.001, 0.999))
def test_a_quantile_is_the_first_time_that_few_enough_outlast(values: list[Sample], q: float) -> None:
    """At most 1-q wait longer than the quantile, more outlast anything shorter; unknown where S ends above 1-q."""
    curve = curve_of(values)
    found = curve.quantile(q)
    largest = max(x for x, _ in values)
    if found is None:
        assert exact_survival(values, largest) > 1 - q
    else:
        assert exact_survival(values, found * 1.011) <= 1 - q + 1e-8
        assert exact_survival(values, found * 0.989) > 1 - q


def test_the_first_point_at_most_a_share() -> None:
    """first_at_most returns the first point after which at most that share is left."""
    curve = curve_of([(float(n), True) for n in range(1, 11)])
    assert curve.points[curve.first_at_most(0.25)] == pytest.approx(8.0, rel=0.01)
    assert curve.points[curve.first_at_most(1.0)] == pytest.approx(1.0, rel=0.01)
    assert curve.points[curve.first_at_most(0.0)] == pytest.approx(10.0, rel=0.01)
