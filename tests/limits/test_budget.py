"""The credit budget: bounded in every window of requests, bounded when idle, tickets that cannot leak."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttft_gateway.limits.budget import CreditBudget, RetryBudget

gaps_s = st.one_of(st.just(0.0), st.floats(0.0, 1.0), st.floats(0.0, 1000.0))
shares = st.sampled_from([0.02, 0.1, 0.3, 1.0])


def spend_greedily(
    budget: CreditBudget, requests: list[tuple[float, float, float]]
) -> tuple[list[float], list[float], list[float]]:
    """Buy whenever allowed; return, per request, what it weighed, what was spent, and the cap before it."""
    now_s = 0.0
    weighed, spent, caps = [], [], []
    for gap_s, weight, cost in requests:
        now_s += gap_s
        before = budget.cap
        budget.earn(now_s, weight)
        caps.append(before)
        weighed.append(weight)
        spent.append(0.0)
        while budget.reserve(now_s, cost) is not None:
            spent[-1] += cost
    return weighed, spent, caps


@given(shares, st.sampled_from([1.5, 10.0]), st.lists(gaps_s, min_size=1, max_size=60))
def test_hedges_never_exceed_share_and_cap_in_any_run_of_requests(
    share: float, saved: float, gaps: list[float]
) -> None:
    """In any n requests in a row hedges <= B*n + cap, whatever the arrivals; the start counts what is saved."""
    weighed, spent, caps = spend_greedily(CreditBudget(share, saved), [(gap_s, 1.0, 1.0) for gap_s in gaps])
    hedges = [0.0, *accumulate(spent)]
    for start in range(len(weighed)):
        kept = caps[start] if start else saved
        for end in range(start + 1, len(weighed) + 1):
            assert hedges[end] - hedges[start] <= share * (end - start) + kept + 1e-9


tokens = st.floats(1.0, 30_000.0)


@given(shares, st.lists(st.tuples(gaps_s, tokens, tokens), min_size=1, max_size=40))
def test_tokens_never_exceed_share_and_cap_and_one_overdraft(
    share: float, requests: list[tuple[float, float, float]]
) -> None:
    """In any n requests in a row tokens <= B*(their tokens) + cap + the last hedge + three caps of cheap ones."""
    budget = CreditBudget(share)
    weighed, spent, caps = spend_greedily(budget, requests)
    caps.append(budget.cap)
    for start in range(len(weighed)):
        kept = caps[start] if start else 1.5 * weighed[0]
        overdrawn = 0.0
        for end in range(start + 1, len(weighed) + 1):
            if spent[end - 1]:
                overdrawn = requests[end - 1][2] + 3.0 * caps[end]
            earned = share * sum(weighed[start:end])
            assert sum(spent[start:end]) <= (earned + kept + overdrawn) * (1 + 1e-9)


def test_the_cap_is_three_requests_and_six_seconds_of_accrual() -> None:
    """In steady traffic of 100 requests/s at 10 % the cap is 3 + 6 s * 10/s, and idleness takes it back to 3."""
    budget = CreditBudget(0.1)
    for n in range(6_000):
        budget.earn(n / 100)
    assert budget.cap == pytest.approx(63.0, rel=0.01)
    assert budget.credit == pytest.approx(63.0, rel=0.01)
    budget.earn(360.0)
    assert budget.cap == pytest.approx(3.1)


@pytest.mark.parametrize(("after_s", "hedges"), [(0.0, 10), (1.0, 10), (6.0, 6), (60.0, 3)])
def test_what_is_saved_at_the_start_fades_without_traffic(after_s: float, hedges: int) -> None:
    """Ten saved hedges can be sent together; after a minute without requests three are left."""
    budget = CreditBudget(0.1, saved=10.0)
    budget.earn(0.0)
    budget.earn(after_s)
    assert sum(budget.reserve(after_s) is not None for _ in range(20)) == hedges


def test_a_burst_after_idleness_finds_at_most_three_credits() -> None:
    """Idle for 5 minutes, then 20 requests at the same time: at most 10 % + 3 are hedged."""
    budget = CreditBudget(0.1)
    for n in range(6_000):
        budget.earn(n / 100)
    bought = 0
    for _ in range(20):
        budget.earn(360.0)
        bought += budget.reserve(360.0) is not None
    assert bought == 5


def test_what_was_kept_while_idle_is_lost_without_a_new_request_too() -> None:
    """Idleness lowers the credit with the cap even when nothing is earned before the next hedge."""
    budget = CreditBudget(0.1)
    for n in range(6_000):
        budget.earn(n / 100)
    bought = 0
    while budget.reserve(1e6):
        bought += 1
    assert bought == 3


@pytest.mark.parametrize("share", [0.0, 0.1])
def test_nothing_is_bought_before_something_is_earned(share: float) -> None:
    """A new budget, and one with a share of 0 for ever, grants nothing."""
    budget = CreditBudget(share)
    assert budget.reserve(0.0) is None
    budget.earn(0.0, cost=1.0 if not share else 0.0)
    assert budget.reserve(0.0) is None
    assert budget.credit == 0.0


def test_it_starts_half_full() -> None:
    """At the first request it holds half of 3 costs and what this request earned."""
    budget = CreditBudget(0.1)
    budget.earn(0.0, cost=1_000.0)
    assert budget.credit == pytest.approx(1_600.0)


def test_it_may_open_before_its_first_earnings() -> None:
    """The saved credits come with the first request, once; its answer, which earns, may come later."""
    budget = CreditBudget(0.1)
    budget.open(2.0)
    budget.open(2.0)
    assert budget.credit == pytest.approx(3.0)
    assert budget.reserve(1.0, cost=2.0) is not None
    budget.earn(2.0, cost=2.0)
    assert budget.credit == pytest.approx(1.2)
    none = CreditBudget(0.0)
    none.open(2.0)
    assert none.reserve(1.0, cost=2.0) is None


def test_a_long_prompt_may_overdraw_and_the_debt_is_paid_first() -> None:
    """A cost above the cap is granted at 0.9 of the cap; then no usual cost until the debt is paid."""
    budget = CreditBudget(0.5)
    for n in range(20):
        budget.earn(n * 100.0, cost=1_000.0)
    assert budget.credit == pytest.approx(3_500.0)
    assert budget.reserve(1_900.0, cost=9_000.0) is not None
    assert budget.credit == pytest.approx(-5_500.0)
    for n in range(11):
        assert budget.reserve(2_000.0 + n, cost=100.0) is None
        budget.earn(2_000.0 + n, cost=1_000.0)
    assert budget.credit == pytest.approx(0.0, abs=0.01)
    budget.earn(2_011.0, cost=1_000.0)
    assert budget.reserve(2_011.0, cost=500.0) is not None


def test_a_debt_bars_no_cheap_hedge() -> None:
    """Costs below a tenth of the mean are granted in debt, and charged, until the debt is three caps."""
    budget = CreditBudget(0.5)
    for n in range(20):
        budget.earn(n * 100.0, cost=1_000.0)
    assert budget.reserve(1_900.0, cost=9_000.0) is not None
    cheap = 0
    while budget.reserve(1_900.0, cost=99.0) is not None:
        cheap += 1
    assert cheap == 51
    assert budget.credit == pytest.approx(-5_500.0 - 51 * 99.0)
    assert budget.credit < -3.0 * budget.cap


def test_a_hedge_above_three_caps_is_refused() -> None:
    """Its debt would keep hundreds of cheap hedges from being sent."""
    budget = CreditBudget(0.5)
    for n in range(20):
        budget.earn(n * 100.0, cost=1_000.0)
    assert budget.cap == pytest.approx(3_500.0)
    assert budget.reserve(1_900.0, cost=10_501.0) is None
    assert budget.reserve(1_900.0, cost=10_499.0) is not None


def test_a_long_prompt_below_nine_tenths_of_the_cap_is_refused() -> None:
    """Half full is not enough for a cost above the cap."""
    budget = CreditBudget(0.1)
    budget.earn(0.0, cost=1_000.0)
    assert budget.reserve(0.0, cost=20_000.0) is None
    assert budget.credit == pytest.approx(1_600.0)


def test_a_slow_fleet_earns_slower() -> None:
    """The scale multiplies what is earned, not the cap's 3 costs."""
    budget = CreditBudget(0.1)
    budget.earn(0.0, scale=0.5)
    assert budget.credit == pytest.approx(1.55)


@given(st.lists(st.sampled_from(["settle", "release", "more"]), min_size=1, max_size=5))
def test_a_ticket_is_settled_once(ends: list[str]) -> None:
    """Any call after the first settle or release of a ticket changes nothing: credits never leak."""
    budget = CreditBudget(0.1)
    budget.earn(0.0, cost=1_000.0)
    before = budget.credit
    ticket = budget.reserve(0.0, cost=1_000.0)
    assert ticket is not None
    costs = {"settle": 1_000.0, "release": 0.0, "more": 1_200.0}
    for end in ends:
        if end == "release":
            budget.release(ticket)
        else:
            budget.settle(ticket, costs[end])
    assert budget.credit == pytest.approx(before - costs[ends[0]])


def test_a_released_ticket_cannot_lift_the_credit_above_the_cap() -> None:
    """Credits that come back late are cut at the cap like all others."""
    budget = CreditBudget(0.1)
    budget.earn(0.0)
    ticket = budget.reserve(0.0)
    assert ticket is not None
    for n in range(1_000):
        budget.earn(n * 100.0)
    budget.release(ticket)
    assert budget.reserve(1e5) is not None
    assert budget.credit == pytest.approx(2.0)


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 3)), max_size=200))
def test_retries_are_a_share_of_the_requests(arrivals: list[tuple[float, int]]) -> None:
    """For any failures, retries are at most 0.2 a request, one a second, and ten."""
    budget, now_s, taken = RetryBudget(), 0.0, 0
    for number, (gap_s, failures) in enumerate(arrivals):
        now_s += gap_s
        budget.earn(now_s)
        for _ in range(failures):
            taken += budget.take(now_s)
        assert taken <= 0.2 * (number + 1) + 1.0 * now_s + 10 + 1e-6


def test_retries_come_back_with_time_and_with_traffic() -> None:
    """Ten are there at first; then one a second, or one for every five requests."""
    budget = RetryBudget()
    assert [budget.take(0.0) for _ in range(11)] == [True] * 10 + [False]
    assert [budget.take(1.0), budget.take(1.0)] == [True, False]
    for _ in range(5):
        budget.earn(1.0)
    assert [budget.take(1.0), budget.take(1.0)] == [True, False]


STEPS = st.lists(
    st.tuples(st.floats(0, 20), st.sampled_from([1.0, 1.0, 1.0, 5.0]), st.sampled_from(["", "", "", "hedge", "sync"])),
    max_size=100,
)


@given(STEPS)
def test_a_full_budget_of_hedges_earns_like_any_other(steps: list[tuple[float, float, str]]) -> None:
    """Credits and cap equal the credits and cap of a budget that records its state after each request."""
    budget, plain, now_s = CreditBudget(0.1), CreditBudget(0.1), 0.0
    for gap_s, cost, then in steps:
        now_s += gap_s
        budget.earn(now_s, cost)
        plain.earn(now_s, cost)
        plain.spend(0.0)
        if then == "hedge":
            assert (budget.reserve(now_s, cost) is None) == (plain.reserve(now_s, cost) is None)
        elif then == "sync":
            assert budget.own(now_s) == pytest.approx(plain.own(now_s))
        assert (budget.credit, budget.cap) == pytest.approx((plain.credit, plain.cap))


@given(STEPS)
def test_a_full_budget_of_retries_earns_like_any_other(steps: list[tuple[float, float, str]]) -> None:
    """Credits equal the credits of a budget that records its state after each request."""
    budget, plain, now_s = RetryBudget(), RetryBudget(), 0.0
    for gap_s, failures, then in steps:
        now_s += gap_s
        budget.earn(now_s)
        plain.earn(now_s)
        if plain.own(now_s).credit > 6:
            for each in (budget, plain) if then else ():
                assert all(each.take(now_s) for _ in range(int(failures)))
    assert budget.own(now_s) == pytest.approx(plain.own(now_s))


@pytest.mark.parametrize("unclear", [False, True])
def test_a_full_budget_of_retries_is_full_for_either_kind_of_failure(unclear: bool) -> None:
    """Ten retries are saved; and steady traffic of ten requests a second has earned twenty in ten seconds."""
    budget = RetryBudget()
    for number in range(1_000):
        budget.earn(number / 10)
    assert [budget.take(99.9, unclear=unclear) for _ in range(40)].count(True) == 30
