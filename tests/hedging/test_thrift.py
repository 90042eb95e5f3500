"""Large budgets are used: how much of the required gain is required at a budget, and while its credits are scarce."""

import pytest
from msgspec.structs import replace

from defaults import default_hedging
from pooled import Seen
from scripted import Scripted
from ttft_gateway.hedging.budget import BudgetUnit, HedgeBudget
from ttft_gateway.hedging.contract import Hedge, RequestFacts
from ttft_gateway.hedging.outcomes import Outcome
from ttft_gateway.hedging.parameters import DEFAULTS, thrift_of
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import Replica

FACTS = RequestFacts(prompt_tokens=100.0, coin=0.5)


def learned(budget: float) -> Pool:
    """A pool with full budgets that has seen TTFTs of 0.1 to 0.3 s."""
    pool = Pool("m", [Replica("a", Scripted()), Replica("b", Scripted())], default_hedging(budget=budget))
    for number in range(400):
        start_s = 0.5 * number
        attempt = Seen(pool.replicas[number % 2], start_s)
        pool.on_sent(attempt, FACTS, None, is_first=True)
        pool.on_content(attempt, start_s + 0.1 + 0.05 * (number % 5))
        pool.on_end(attempt, Outcome.FINISHED, start_s + 0.4, None)
    return pool


@pytest.mark.parametrize(("budget", "thrift"), [(0.0, 1.0), (0.2, 1.0), (0.25, 0.5), (0.3, 0.0), (1.0, 0.0)])
def test_thrift_ends_between_a_budget_of_20_and_of_30_percent(budget: float, thrift: float) -> None:
    """A fifth of the requests is saved, a third of them is granted to be used."""
    assert thrift_of(replace(DEFAULTS, budget=budget), has_engines=False) == pytest.approx(thrift)


def test_engines_and_a_configured_gain_require_all_of_it() -> None:
    """A hedge delays other requests of an engine at any budget, and a configured gain holds."""
    large = replace(DEFAULTS, budget=0.5)
    assert thrift_of(large, has_engines=True) == 1.0
    assert thrift_of(replace(large, gain_min=0.5), has_engines=False) == 1.0


def test_scarcity_is_the_missing_part_of_the_credits() -> None:
    """The scarcer budget counts: an empty one requires the whole gain, so late requests find credit."""
    budget = HedgeBudget(0.5, BudgetUnit.TOKENS)
    assert budget.scarcity() == 1.0
    for _ in range(100):
        budget.earn_sent(Replica("a", Scripted()), 100.0, 100.0, 0.0, 1.0)
    assert budget.scarcity() == pytest.approx(0.0, abs=0.03)
    budget.requests.spend(budget.requests.credit - 0.75 * budget.requests.cap)
    assert budget.scarcity() == pytest.approx(0.25)
    budget.cost.spend(2 * budget.cost.cap)
    assert budget.scarcity() == 1.0


@pytest.mark.parametrize(("budget", "is_sent"), [(0.1, False), (0.8, True)])
def test_only_a_large_budget_hedges_within_the_prediction(budget: float, *, is_sent: bool) -> None:
    """Four in five take longer than 0.1 s: a budget of 80% hedges them soon after, one of 10% not even after 0.2 s."""
    pool = learned(budget)
    attempt = Seen(pool.replicas[0], 200.0)
    pool.on_sent(attempt, FACTS, None, is_first=True)
    assert attempt.forecast is not None
    predicted_s = attempt.forecast.ttft_s
    assert predicted_s is not None
    assert (pool.delay_s(attempt, FACTS) < 0.9 * predicted_s) is is_sent
    decision = pool.decide(FACTS, attempt, [attempt], [pool.replicas[0]], 200.0 + 0.8 * predicted_s, 0.5)
    assert isinstance(decision, Hedge) is is_sent
