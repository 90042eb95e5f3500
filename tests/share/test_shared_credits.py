"""Budgets of several gateways: one cap, one starting credit, and whole hedges for gateways with few requests."""

import random
from collections.abc import Sequence

import pytest

from gateway.share.loads import LoadExchange
from gateway.share.rows import CREDIT_UNIT
from pooled import send
from together import Together
from ttft_gateway.limits.budget import Credit, CreditBudget, RetryBudget


def exchange(budgets: Sequence[CreditBudget | RetryBudget], now_s: float) -> None:
    """Give each budget the credits of the others."""
    own = [budget.own(now_s) for budget in budgets]
    credit, accrual = sum(each.credit for each in own), sum(each.accrual for each in own)
    for budget, each in zip(budgets, own, strict=True):
        budget.put_others(Credit(credit - each.credit, accrual - each.accrual), len(budgets), now_s)


@pytest.mark.parametrize("gateways", [1, 8, 100])
@pytest.mark.parametrize("wanted", [0.05, 1.0], ids=["few want a hedge", "all want one"])
def test_the_share_of_hedges_holds(gateways: int, wanted: float) -> None:
    """However many gateways there are, a tenth of the requests may be hedged, and nearly that if all want to."""
    rng = random.Random(gateways)
    budgets = [CreditBudget(0.1) for _ in range(gateways)]
    hedges, requests = 0, 8_000
    for number in range(requests):
        now_s = number / 200
        if number % 20 == 0:
            exchange(budgets, now_s)
        budget = rng.choice(budgets)
        budget.earn(now_s)
        if rng.random() < wanted and (ticket := budget.reserve(now_s)) is not None:
            budget.settle(ticket, 1.0)
            hedges += 1
    assert hedges <= 0.103 * requests
    assert hedges >= (0.08 if wanted == 1.0 else 0.045) * requests


@pytest.mark.parametrize("are_known", [False, True])
@pytest.mark.parametrize("gateways", [2, 4, 16])
def test_the_credits_of_the_start_exist_once(gateways: int, are_known: bool) -> None:
    """If the first requests come before or after gateways know of each other, together they have one cap at most."""
    together, cap = Together(gateways), 3.0 + 0.1 * gateways
    if are_known:
        together.settle(1.0)
    for each in together.pools:
        each.budget.requests.earn(1.25)
    for step in range(3):
        together.exchange(1.3 + step / 10)
        known = [each.budget.requests for each in together.pools if each.loads.processes == gateways]
        assert all(budget.credit <= cap for budget in known)
        if not are_known and step == 1:
            assert sum(budget.own_credit for budget in known) <= 1.5 + 0.1 * gateways
    hedges = 0
    for number, each in enumerate(together.pools):
        now_s = 1.7 + number / 2
        while each.budget.requests.reserve(now_s) is not None:
            send(each, 0, now_s)
            hedges += 1
        for step in range(5):
            together.exchange(now_s + step / 10)
    assert 1 <= hedges <= cap


@pytest.mark.parametrize("gateways", [1, 8, 100])
def test_a_quiet_time_saves_one_cap(gateways: int) -> None:
    """Together they can spend at one time as much as one gateway."""
    rng = random.Random(1)
    budgets = [CreditBudget(0.1) for _ in range(gateways)]
    for number in range(2_400):
        if number % 20 == 0:
            exchange(budgets, number / 20)
        rng.choice(budgets).earn(number / 20)
    exchange(budgets, 120.0)
    assert sum(budget.own(120.0).credit for budget in budgets) == pytest.approx(15.0, abs=3.0)
    assert all(budget.affords(120.0) for budget in budgets)


def test_the_credits_of_gone_gateways_go() -> None:
    """A gateway without answers about the others has its own credits."""
    budgets = [CreditBudget(0.5), CreditBudget(0.5)]
    for budget in budgets:
        for number in range(10):
            budget.earn(number / 10)
    own = budgets[0].own(1.0)
    exchange(budgets, 1.0)
    assert budgets[0].credit > own.credit
    budgets[0].put_others(Credit(), 1, 1.0)
    assert 3.0 < budgets[0].credit <= own.credit


@pytest.mark.parametrize("gateways", [1, 8, 100])
def test_retries_are_those_of_one_gateway(gateways: int) -> None:
    """The saved retries and those that every second brings are there once."""
    budgets = [RetryBudget() for _ in range(gateways)]
    rng, retries = random.Random(2), 0
    for tick in range(100):
        exchange(budgets, tick / 10)
        retries += sum(rng.choice(budgets).take(tick / 10) for _ in range(20))
    assert 10 <= retries <= 10 + 10 + 3 * 20


def test_pools_exchange_their_budgets() -> None:
    """A gateway without requests may spend what the others have earned."""
    together = Together(2)
    for number in range(50):
        together.pools[0].budget.requests.earn(number / 10)
    assert not together.pools[1].budget.requests.affords(5.0)
    together.settle(5.0)
    assert together.pools[1].budget.requests.affords(5.2)
    assert together.retries[0].own(5.2).credit == pytest.approx(5.5, abs=0.6)


def test_spent_credits_are_reported_at_once_and_fading_ones_rarely() -> None:
    """No credit can be spent twice for longer than an exchange; credits that only fade are reported in eighths."""
    together = Together(2)
    mine, other = together.pools
    for pool in together.pools:
        for number in range(60):
            pool.budget.requests.earn(number / 10)
    together.settle(6.0)
    loads = together.parts(0)[0]
    assert isinstance(loads, LoadExchange)
    before = loads.own(6.2)[""]
    assert loads.own(6.4)[""] == before
    ticket = mine.budget.requests.reserve(6.5)
    assert ticket is not None
    send(mine, 0, 6.5)
    together.settle(6.5)
    assert loads.own(6.7)[""][0] <= before[0] - 0.9 * CREDIT_UNIT  # and a tenth was earned
    assert other.budget.requests.credit <= other.budget.requests.cap - 1.0
    reported = {tuple(loads.own(7.0 + second)[""]) for second in range(60)}
    assert 5 < len(reported) < 40
    assert loads.own(68.0)[""] == loads.own(120.0)[""]
