"""Budgets of several gateways: one cap, one starting credit, and whole hedges for gateways with few requests."""

import math
import random
from collections.abc import Sequence

import pytest

from gateway.share.credit_rows import CREDITS, CreditRow
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
    """A gateway without earnings of its own may spend what the others have earned."""
    together = Together(2)
    for number in range(50):
        together.pools[0].budget.requests.earn(number / 10)
    together.settle(5.0)
    mine = together.pools[1].budget.requests
    mine.open(1.0)
    assert mine.own_credit == pytest.approx(0.75)
    assert mine.reserve(5.2) is not None
    assert together.retries[0].own(5.2).credit == pytest.approx(5.5, abs=0.6)


def test_spent_credits_are_reported_at_once_and_fading_ones_rarely() -> None:
    """No credit can be spent twice for longer than an exchange; credits that only fade are reported in halves."""
    together = Together(2)
    mine, other = together.pools
    together.settle(0.0)
    for number in range(60):
        for pool in together.pools:
            pool.budget.requests.earn(1.0 + number / 12)
        together.exchange(1.0 + number / 12)
    together.settle(6.0)
    loads = together.parts(0)[0]
    assert isinstance(loads, LoadExchange)
    before = loads.own(6.2)[CREDITS]
    assert loads.own(6.4)[CREDITS] == before
    ticket = mine.budget.requests.reserve(6.5)
    assert ticket is not None
    send(mine, 0, 6.5)
    together.settle(6.5)
    assert loads.own(6.7)[CREDITS][0] <= before[0] - 0.8 * CREDIT_UNIT  # and two tenths were earned
    assert other.budget.requests.credit <= other.budget.requests.cap - 0.8
    reported = {tuple(loads.own(7.0 + second)[CREDITS]) for second in range(60)}
    assert 2 <= len(reported) < 8
    assert loads.own(68.0)[CREDITS] == loads.own(120.0)[CREDITS]


def test_earnings_of_the_others_fade_without_a_message() -> None:
    """Each gateway has the same cap while no gateway sends credits, after a gap, and after another one has gone."""
    budgets = [CreditBudget(0.1) for _ in range(3)]
    shared = [CreditRow([budget]) for budget in budgets]

    def exchange_rows(now_s: float, known: int = 3) -> None:
        for each in shared:
            each.report(now_s)
        for place in range(known):
            others = [each.row for each in shared[:known] if each is not shared[place]]
            assert shared[place].put([sum(values) for values in zip(*others, strict=True)], known, now_s) == ""

    def caps(now_s: float) -> list[float]:
        for budget in budgets:
            budget.affords(now_s)
        return [budget.cap for budget in budgets]

    exchange_rows(0.0)
    for number in range(120):
        budgets[number % 3].earn(number / 10)
        if number % 20 == 0:
            exchange_rows(number / 10)
    exchange_rows(14.0)
    steady = 3.0 + 0.1 * 10 * 6.0 * math.exp(-2.0 / 6.0)
    assert caps(14.0) == pytest.approx([steady] * 3, rel=0.2)
    rows = [each.row for each in shared]
    assert caps(50.0) == pytest.approx([3.0] * 3, rel=0.01)
    assert not any(each.report(15.0) for each in shared)
    assert rows == [each.row for each in shared]
    for each in shared:
        each.drop(50.0)
    for number in range(100):  # while they know nothing of each other, and long before they do again
        budgets[0].earn(50.0 + number / 10)
    exchange_rows(160.0)
    assert caps(160.0) == pytest.approx([3.0] * 3, abs=0.7)
    exchange_rows(162.0, known=2)
    assert caps(170.0)[:2] == pytest.approx([3.0] * 2, abs=0.2)


def test_a_budget_is_read_after_a_change_and_when_a_row_is_due() -> None:
    """Many pools without requests cost little; spent credits are in the next row."""

    class Read(CreditBudget):
        reads = 0

        def own(self, now_s: float) -> Credit:
            self.reads += 1
            return super().own(now_s)

    budget = Read(0.1)
    budget.earn(0.0, 10.0)
    row = CreditRow([budget])
    reported = [row.report(now_s / 10) for now_s in range(20)]
    assert (reported, budget.reads) == ([True] + [False] * 19, 1)
    row.report(2.0)
    assert budget.reads == 2
    budget.spend(10.0)
    assert (row.report(2.1), budget.reads) == (True, 3)
