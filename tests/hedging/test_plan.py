"""Plans: the delay that saves most under the budget, and one interface for every policy."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttft_gateway.estimation.window import RELATIVE_ACCURACY, Window
from ttft_gateway.hedging.plan import Plan, Policy, Survival, plan_adaptive, plan_fixed

Sample = tuple[float, bool]
few = st.lists(st.tuples(st.floats(0.1, 30.0), st.booleans()), min_size=1, max_size=40)
shares = st.floats(0.01, 1.0)


def curve_of(values: list[Sample]) -> Survival:
    """A curve as the gateway builds it."""
    window = Window()
    for x, is_event in values:
        (window.add_event if is_event else window.add_censored)(x, 0.0)
    return Survival(window.bins(0.0))


def objective(curve: Survival, delay: float, share: float) -> float:
    """Saving per request of hedging at a delay, by docs/design/0004."""
    return min(1.0, share / max(curve.at(delay), 1e-12)) * curve.gain(delay)


@given(few, shares)
def test_no_delay_saves_more_under_the_budget(values: list[Sample], share: float) -> None:
    """d* maximises min(1, B'/S(d)) * E[(x-d-y)+] over d >= 1: no upper edge of a bin, nor 1 itself, does better."""
    curve = curve_of(values)
    plan = plan_adaptive(curve, budget=share, first_share=share)
    edges = [1.0, *(point * (1 + RELATIVE_ACCURACY) for point in curve.points)]
    best = max(objective(curve, edge, share) for edge in edges if edge >= 1.0)
    assert objective(curve, plan.delay, share) == pytest.approx(best, rel=1e-6, abs=1e-9)


def test_many_bins_are_thinned_without_loss() -> None:
    """On a smooth curve with more bins than are tried, the gain is within 2 % of the best."""
    rng = np.random.default_rng(3)
    curve = curve_of([(float(x), True) for x in rng.lognormal(0.5, 1.5, 20_000)])
    plan = plan_adaptive(curve, budget=0.02, first_share=0.02)
    edges = [point * (1 + RELATIVE_ACCURACY) for point in curve.points if point >= 1.0]
    assert objective(curve, plan.delay, 0.02) >= 0.98 * max(objective(curve, edge, 0.02) for edge in edges)


@given(few, shares, st.floats(0.5, 1.0))
def test_delay_share_and_late_are_in_bounds(values: list[Sample], budget: float, part: float) -> None:
    """The delay is at least 1, q = min(1, B'/S(d)); late is in 1.5 d .. 8 d, and where S <= B/4 if that is between."""
    curve = curve_of(values)
    plan = plan_adaptive(curve, budget=budget, first_share=part * budget)
    assert plan.delay >= 1.0
    assert plan.share == pytest.approx(min(1.0, part * budget / max(curve.at(plan.delay), 1e-12)))
    assert 1.5 * plan.delay <= plan.late <= 8.0 * plan.delay
    if plan.late > 1.5 * plan.delay * 1.001:
        assert curve.at(plan.late / 1.03) > budget / 4
    if plan.late < 8.0 * plan.delay * 0.999:
        assert curve.at(plan.late) <= budget / 4


def test_a_clean_tail_is_hedged_just_behind_the_body() -> None:
    """With 5 % of stragglers at 10 and a budget of 10 %, every request that is past the body is hedged."""
    rng = np.random.default_rng(1)
    body = [(float(x), True) for x in rng.normal(1.0, 0.1, 950)]
    plan = plan_adaptive(curve_of(body + [(10.0, True)] * 50), budget=0.1, first_share=0.1)
    assert 1.05 <= plan.delay <= 1.3
    assert plan.share == 1.0
    assert plan.late == pytest.approx(8.0 * plan.delay)  # S never falls to B/4 before 10


def test_a_tail_above_the_budget_is_shared_by_a_coin() -> None:
    """With 20 % slow and a budget of 10 %, half of the slow ones ask early, the others late."""
    plan = plan_adaptive(curve_of([(1.0, True)] * 80 + [(14.0, True)] * 20), budget=0.1, first_share=0.1)
    assert plan.delay == pytest.approx(1.01, rel=0.02)
    assert plan.share == pytest.approx(0.5)


def test_the_adaptive_delay_scales_with_the_prediction() -> None:
    """An adaptive delay is a multiple of the prediction, early or late by the coin, never below the minimum."""
    plan = Plan(Policy.ADAPTIVE, 1.5, 0.6, 4.0, curve_of([(1.0, True)]))
    assert plan.delay_s(predicted_s=2.0, coin=0.59, delay_s_min=0.02) == pytest.approx(3.0)
    assert plan.delay_s(predicted_s=2.0, coin=0.60, delay_s_min=0.02) == pytest.approx(8.0)
    assert plan.delay_s(predicted_s=0.001, coin=0.0, delay_s_min=0.02) == 0.02
    assert plan.late_s(2.0) == pytest.approx(8.0)


@pytest.mark.parametrize("policy", [Policy.QUANTILE, Policy.STATIC])
def test_a_fixed_delay_does_not_scale(policy: Policy) -> None:
    """Other policies have one delay in seconds for all, whatever the prediction and the coin."""
    plan = plan_fixed(policy, 0.3)
    assert plan.curve is None
    for coin in (0.0, 0.5, 0.999):
        assert plan.delay_s(predicted_s=7.0, coin=coin, delay_s_min=0.02) == 0.3
    assert plan.delay_s(predicted_s=7.0, coin=0.5, delay_s_min=0.5) == 0.5
    assert plan.late_s(7.0) == 0.3


def test_off_never_asks() -> None:
    """An infinite delay stays infinite."""
    plan = plan_fixed(Policy.OFF, math.inf)
    assert plan.delay_s(predicted_s=1.0, coin=0.0, delay_s_min=0.02) == math.inf
    assert plan.late_s(1.0) == math.inf


def test_policy_names() -> None:
    """The names equal the names of the settings."""
    assert [policy.value for policy in Policy] == ["adaptive", "quantile", "static", "shadow", "off"]


def test_a_large_budget_begins_within_the_prediction_where_it_pays_for_all() -> None:
    """Half of the waits are 0.8: a budget of 60% hedges all later ones from 0.8 on, one of 30% those after 1."""
    curve = curve_of([(0.8, True)] * 50 + [(1.2, True)] * 30 + [(6.0, True)] * 20)

    def delay(budget: float, thrift: float) -> float:
        return plan_adaptive(curve, budget=budget, first_share=budget, thrift=thrift).delay

    assert delay(0.6, 0.0) == pytest.approx(0.8, rel=0.03)
    assert plan_adaptive(curve, budget=0.6, first_share=0.6, thrift=0.0).share == 1.0
    assert delay(0.6, 0.9) == pytest.approx(0.9)
    assert delay(0.6, 1.0) == 1.0
    assert delay(0.3, 0.0) >= 1.0


@given(few, shares)
def test_thrift_matters_only_within_the_prediction(values: list[Sample], share: float) -> None:
    """Where more requests take longer than their prediction than the budget pays for, all plans are equal."""
    curve = curve_of(values)
    thrifty, other = (plan_adaptive(curve, budget=share, first_share=share, thrift=thrift) for thrift in (1.0, 0.0))
    if curve.at(1.0) > share:
        assert (other.delay, other.share) == (thrifty.delay, thrifty.share)
    assert other.share * curve.at(other.delay) <= share + 1e-9
