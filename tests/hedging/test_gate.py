"""The gate: each denial with its reason and its next decision, and a hedge only if all conditions hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttft_gateway.estimation.window import Window
from ttft_gateway.hedging.calibration import NO_CORRECTION, NOT_NOW, Correction
from ttft_gateway.hedging.gate import Allow, Candidate, Deny, WaitingAttempt, decide
from ttft_gateway.hedging.outcomes import Denial
from ttft_gateway.hedging.plan import Plan, Policy, Survival, plan_fixed


def slow_tail() -> Survival:
    """Nine in ten take 1, one in ten takes 10."""
    window = Window()
    for n in range(100):
        window.add_event(10.0 if n % 10 == 0 else 1.0, 0.0)
    return Survival(window.bins(0.0))


PLAN = Plan(Policy.ADAPTIVE, 1.1, 1.0, 4.0, slow_tail())
FIXED = plan_fixed(Policy.STATIC, 0.5)


def ask(
    waited_s: float = 1.2,
    *,
    predicted_s: float = 1.0,
    backup_s: float = 1.0,
    gain_min: float = 0.25,
    has_room: bool = True,
    has_credit: bool = True,
    plan: Plan | None = PLAN,
    others: tuple[WaitingAttempt, ...] = (),
    correction: Correction = NO_CORRECTION,
    thrift: float = 1.0,
) -> Allow | Deny:
    """Ask the gate for one decision; the defaults favour a hedge."""
    return decide(
        Candidate(backup_s, gain_min, has_room),
        asking=WaitingAttempt(predicted_s, waited_s),
        others=others,
        plan=plan,
        has_credit=has_credit,
        delay_s_min=0.02,
        correction=correction,
        thrift=thrift,
    )


def test_a_hedge_that_pays_is_sent() -> None:
    """Past the body only the slow ones are left: the gain is 10 - waited - E[y], where y < 10 - waited."""
    decision = ask()
    assert isinstance(decision, Allow)
    assert decision.gain_s == pytest.approx(0.9 * (10.0 - 1.2 - 1.0), rel=0.02)


def test_a_hedge_that_saves_too_little_is_denied_and_asked_again_soon() -> None:
    """Close to the end of the tail nothing is gained; the next look is after 12 % of the time waited."""
    decision = ask(9.0)
    assert isinstance(decision, Deny)
    assert decision.reason is Denial.LOW_GAIN
    assert decision.again_after_s == pytest.approx(0.12 * 9.0)
    assert decision.gain_s == pytest.approx(0.0, abs=0.15)
    assert decision.asked_s == pytest.approx(0.05 + 0.25)


@pytest.mark.parametrize(("gain_min", "is_sent"), [(0.25, True), (6.8, True), (7.2, False)])
def test_the_gain_asked_for_is_the_overhead_and_a_part_of_the_backup(gain_min: float, *, is_sent: bool) -> None:
    """A gain must reach min(50 ms, 0.25 alt) + gmin * alt: here 7.02 s against 0.05 s + gmin * 1 s."""
    assert isinstance(ask(gain_min=gain_min), Allow) is is_sent


@pytest.mark.parametrize(("gain_min", "is_sent"), [(6.6, True), (7.0, False)])
def test_on_millisecond_servers_the_overhead_is_a_quarter_of_the_backup(gain_min: float, *, is_sent: bool) -> None:
    """The same in milliseconds: 7.02 ms against 0.25 ms + gmin * 1 ms."""
    decision = ask(0.0012, predicted_s=0.001, backup_s=0.001, gain_min=gain_min)
    assert isinstance(decision, Allow) is is_sent


def test_beyond_all_observations_a_wait_is_expected_to_go_on_as_long() -> None:
    """Past twice the longest wait seen, the gain is waited - E[y] * alt."""
    decision = ask(30.0, backup_s=2.0)
    assert isinstance(decision, Allow)
    assert decision.gain_s == pytest.approx(30.0 - 1.9 * 2.0, rel=0.01)


def test_the_least_gain_over_all_live_attempts_counts() -> None:
    """A second hedge is weighed against the first one too, which may be about to answer."""
    fresh = WaitingAttempt(predicted_s=1.0, waited_s=0.1)
    decision = ask(gain_min=1.0, others=(fresh,))
    assert isinstance(decision, Deny)
    assert decision.gain_s == pytest.approx(0.1 * 0.9 * 8.9, rel=0.05)


def test_no_room_in_the_quota() -> None:
    """Without room the next look comes soon: a bucket refills by itself."""
    decision = ask(2.0, has_room=False)
    assert isinstance(decision, Deny)
    assert decision.reason is Denial.QUOTA
    assert decision.again_after_s == pytest.approx(0.24)


@pytest.mark.parametrize(("waited_s", "again_s"), [(1.2, 2.8), (4.0, 4.0), (5.0, 5.0)])
def test_no_credit(waited_s: float, again_s: float) -> None:
    """Without credit the next look is at the late point, afterwards at twice the time waited."""
    decision = ask(waited_s, has_credit=False)
    assert isinstance(decision, Deny)
    assert decision.reason is Denial.BUDGET
    assert decision.again_after_s == pytest.approx(again_s)


def test_reasons_come_in_order() -> None:
    """A low gain is the first reason for a denial, then the quota, then the budget."""
    assert [
        decision.reason
        for decision in (
            ask(9.0, has_room=False, has_credit=False),
            ask(has_room=False, has_credit=False),
            ask(has_credit=False),
        )
        if isinstance(decision, Deny)
    ] == [Denial.LOW_GAIN, Denial.QUOTA, Denial.BUDGET]


@pytest.mark.parametrize("plan", [None, FIXED])
def test_without_a_curve_nothing_is_weighed(plan: Plan | None) -> None:
    """A cold pool and the simple policies hedge when room and credit allow it."""
    assert ask(9.0, plan=plan) == Allow(None)
    assert ask(9.0, plan=plan, has_room=False) == Deny(Denial.QUOTA, 0.12 * 9.0)
    assert ask(9.0, plan=plan, has_credit=False) == Deny(Denial.BUDGET, 9.0)


plans = st.sampled_from([None, PLAN, FIXED])


@given(st.floats(0.0, 100.0), st.floats(0.001, 10.0), st.tuples(st.booleans(), st.booleans()), plans)
def test_decisions_are_pure_and_never_spin(
    waited_s: float, predicted_s: float, has: tuple[bool, bool], plan: Plan | None
) -> None:
    """The same question gets the same answer, and a denial never asks for another look immediately."""
    first, second = (
        ask(waited_s, predicted_s=predicted_s, has_room=has[0], has_credit=has[1], plan=plan) for _ in range(2)
    )
    assert first == second
    if isinstance(first, Deny):
        assert first.again_after_s >= 0.02


@pytest.mark.parametrize(
    ("correction", "required_s"), [(Correction(gain=0.04), 0.3), (Correction(cost=30.0), 7.55), (NOT_NOW, 0.3)]
)
def test_what_recent_hedges_saved_and_cost_corrects_the_decision(correction: Correction, required_s: float) -> None:
    """A gain of 7 s is denied if hedges save a 25th of it, or if backups take thirty times their prediction."""
    decision = ask(correction=correction)
    assert isinstance(decision, Deny)
    assert decision.reason is Denial.LOW_GAIN
    assert decision.asked_s == pytest.approx(required_s)
    assert decision.gain_s == pytest.approx(correction.gain * 7.02, rel=0.02)
    assert isinstance(ask(correction=Correction(gain=0.5, cost=2.0)), Allow)


@pytest.mark.parametrize(("thrift", "gain", "asked_s"), [(0.5, 1.0, 3.525), (0.0, 0.25, 3.525), (0.5, 0.1, 5.64)])
def test_a_budget_that_need_not_be_saved_requires_less_while_hedges_save_what_is_expected(
    thrift: float, gain: float, asked_s: float
) -> None:
    """Of 7.05 s the share `thrift` is required, or more if hedges save less than half of the expected time."""
    decision = ask(9.0, gain_min=7.0, thrift=thrift, correction=Correction(gain=gain))
    assert isinstance(decision, Deny)
    assert decision.asked_s == pytest.approx(asked_s)


def test_a_large_budget_pays_for_any_saving() -> None:
    """A hedge that saves less than the overhead is sent if nothing is to be saved, but not for a guarded request."""
    assert isinstance(ask(9.0, thrift=0.0), Allow)
    assert isinstance(ask(9.0, thrift=0.0, correction=NOT_NOW), Deny)
