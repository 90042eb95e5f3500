"""Delays under a TTFT target: as late as a backup still keeps it, and never earlier than without a target."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttft_gateway.estimation.window import Window
from ttft_gateway.hedging.plan import Plan, Policy, Survival, plan_adaptive, plan_fixed

few = st.lists(st.tuples(st.floats(0.1, 30.0), st.booleans()), min_size=1, max_size=40)


def curve_of(values: list[tuple[float, bool]]) -> Survival:
    """A curve as the gateway builds it."""
    window = Window()
    for x, is_event in values:
        (window.add_event if is_event else window.add_censored)(x, 0.0)
    return Survival(window.bins(0.0))


def plan_of(curve: Survival, budget: float) -> Plan:
    """The plan of a curve, without second hedges."""
    return plan_adaptive(curve, budget=budget, first_share=budget)


def delay_s(plan: Plan, target_s: float, predicted_s: float = 1.0, coin: float = 0.0) -> float:
    """The delay under a target."""
    return plan.target_delay_s(target_s, predicted_s, coin=coin, delay_s_min=0.001)


@given(few, st.floats(0.01, 1.0), st.floats(0.01, 60.0), st.floats(0.1, 3.0), st.floats(0.0, 0.999))
def test_a_target_never_hedges_earlier(
    values: list[tuple[float, bool]], budget: float, target_s: float, predicted_s: float, coin: float
) -> None:
    """With a target the delay is the usual one or longer."""
    plan = plan_of(curve_of(values), budget)
    early_s = plan.delay_s(predicted_s=predicted_s, coin=0.0, delay_s_min=0.001) * (1 - 1e-9)
    assert delay_s(plan, target_s, predicted_s, coin) >= min(early_s, plan.late_s(predicted_s))


@given(few, st.floats(0.01, 1.0), st.floats(0.01, 60.0))
def test_a_backup_still_keeps_the_target(values: list[tuple[float, bool]], budget: float, target_s: float) -> None:
    """At a later delay, 98 % of the backups that would keep the target at the usual delay still keep it."""
    plan = plan_of(curve_of(values), budget)
    assert plan.curve is not None
    usual_s, later_s = plan.delay, delay_s(plan, target_s)
    if later_s > usual_s * 1.001 and later_s < plan.late:
        kept = 1.0 - plan.curve.at(target_s - later_s + 1e-9)
        assert kept >= 0.98 * (1.0 - plan.curve.at(target_s - usual_s)) - 1e-9


def test_a_far_target_hedges_few() -> None:
    """With one slow answer in fifty and a far target, the delay lies between the body and the target."""
    rng = np.random.default_rng(1)
    values = [(float(x), True) for x in rng.lognormal(0.0, 0.3, 980)] + [(50.0, True)] * 20
    plan = plan_of(curve_of(values), 0.1)
    assert 1.0 <= plan.delay < 3.0
    assert 17.0 < delay_s(plan, 20.0) < 19.5
    assert 19.5 < delay_s(plan, 20.0, predicted_s=0.1) < 19.9


@pytest.mark.parametrize("target_s", [0.001, 0.5, 1.0])
def test_a_near_target_changes_nothing(target_s: float) -> None:
    """A target within the body of the distribution leaves the usual delay, for every coin."""
    plan = plan_of(curve_of([(0.5, True), (1.0, True), (1.2, True), (9.0, True)] * 20), 0.1)
    for coin in (0.0, 0.5, 0.99):
        usual_s = plan.delay_s(predicted_s=1.0, coin=coin, delay_s_min=0.001)
        assert delay_s(plan, target_s, coin=coin) == usual_s


def test_the_budget_holds() -> None:
    """If more requests are late at the later delay than the budget covers, a share of them waits longer."""
    values = [(1.0, True)] * 60 + [(20.0, True)] * 40
    plan = plan_of(curve_of(values), 0.1)
    assert plan.share == pytest.approx(0.25)
    early = [delay_s(plan, 10.0, coin=coin) for coin in (0.0, 0.2)]
    late = [delay_s(plan, 10.0, coin=coin) for coin in (0.3, 0.9)]
    assert early[0] == early[1] == pytest.approx(9.0, rel=0.03)
    assert min(late) >= early[0]


def test_other_policies_have_no_target() -> None:
    """A plan of a policy without a curve keeps its delay."""
    plan = plan_fixed(Policy.STATIC, 0.25)
    assert delay_s(plan, 3.0) == 0.25
    assert delay_s(plan_fixed(Policy.OFF, math.inf), 3.0) == math.inf
