"""The whole brain of a pool under any traffic: its budgets hold, and what is reserved comes back or is paid."""

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defaults import default_hedging
from pooled import Seen
from scripted import Scripted, answer
from ttft_gateway.apis.base import Resource, Usage
from ttft_gateway.hedging.budget import BudgetUnit
from ttft_gateway.hedging.contract import Hedge, HedgeTickets, RequestFacts
from ttft_gateway.hedging.outcomes import OUTCOME_EFFECTS, Bill, Outcome
from ttft_gateway.hedging.plan import Policy
from ttft_gateway.limits.bucket import Limit
from ttft_gateway.limits.ledger import Ledger
from ttft_gateway.limits.prices import Prices
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import Replica

Request = tuple[float, float, Outcome]  # seconds after the one before, prompt tokens, what becomes of its attempts

SHARE = 0.1
PRICES = {"a": Prices(2.0, 1.0, 10.0), "b": Prices(3.0, 0.3, 6.0), "c": Prices(0.5, 0.5, 40.0)}
DAY_S = 86_400.0  # a window so long that nothing refills while a test runs


@dataclass
class House:
    """A pool of three that hedges whatever asks, one quota for all, and what was reserved and paid there."""

    of: BudgetUnit = BudgetUnit.TOKENS
    ledger: Ledger = field(default_factory=lambda: Ledger([Limit(Resource.TOKENS, 1e9, DAY_S)]))

    def __post_init__(self) -> None:
        settings = default_hedging(policy=Policy.STATIC, static_delay_s=0.01, budget=SHARE, budget_unit=self.of)
        replicas = [Replica(name, Scripted(answer(1.0)), "quota", prices=PRICES[name]) for name in "abc"]
        self.pool = Pool("m", replicas, settings, {"quota": self.ledger})

    def send(self, facts: RequestFacts, now_s: float, replica: Replica, tickets: HedgeTickets | None = None) -> Seen:
        """One attempt."""
        attempt = Seen(replica, now_s)
        self.pool.on_sent(attempt, facts, tickets, is_first=tickets is None)
        return attempt

    def hedge(self, facts: RequestFacts, primary: Seen, now_s: float) -> Seen | None:
        """A late primary asks."""
        decision = self.pool.decide(facts, primary, [primary], [primary.replica], now_s, 0.0)
        return self.send(facts, now_s, decision.replica, decision.tickets) if isinstance(decision, Hedge) else None


arrivals = st.lists(
    st.tuples(
        st.one_of(st.just(0.0), st.floats(0.0, 0.2), st.floats(0.0, 300.0)),
        st.floats(1.0, 20_000.0),
        st.sampled_from(Outcome),
    ),
    min_size=1,
    max_size=60,
)


@given(arrivals)
def test_hedges_and_their_tokens_stay_below_the_budget(requests: list[Request]) -> None:
    """However requests come and are late, hedges <= B*n + cap; in tokens the same, plus one overdraft."""
    house, now_s = House(), 0.0
    hedges = hedged_tokens = earned_tokens = longest = 0.0
    for n, (gap_s, tokens, outcome) in enumerate(requests, start=1):
        now_s += gap_s
        facts = RequestFacts(prompt_tokens=tokens)
        primary = house.send(facts, now_s, house.pool.replicas[0])
        earned_tokens += tokens
        backup = house.hedge(facts, primary, now_s)
        if backup is not None and OUTCOME_EFFECTS[outcome].bill is not Bill.RELEASE:
            hedges, hedged_tokens, longest = hedges + 1, hedged_tokens + tokens, max(longest, tokens)
        for attempt in filter(None, (primary, backup)):
            house.pool.on_end(attempt, outcome, now_s, None)
        assert hedges <= SHARE * n + 1.5 + 1e-9
        assert hedged_tokens <= (1.5 * requests[0][1] + SHARE * earned_tokens + longest) * (1 + 1e-9)


@pytest.mark.parametrize("unit", BudgetUnit)
def test_the_first_late_request_of_a_new_pool_is_hedged(unit: BudgetUnit) -> None:
    """The saved credits pay for one hedge before any answer has ended, in either unit."""
    house, facts = House(unit), RequestFacts(prompt_tokens=1_000.0)
    late = [house.send(facts, 0.1 * number, house.pool.replicas[0]) for number in range(2)]
    assert [house.hedge(facts, each, 0.5) is not None for each in late] == [True, False]


answers = st.lists(
    st.tuples(
        st.one_of(st.just(0.0), st.floats(0.0, 0.2), st.floats(0.0, 300.0)),
        st.integers(1, 20_000),
        st.integers(1, 2_000),
        st.sampled_from("abc"),
        st.sets(st.sampled_from("abc")),
    ),
    min_size=1,
    max_size=60,
)


@given(answers)
def test_hedges_stay_below_their_share_of_the_spend(
    requests: list[tuple[float, int, int, str, set[str]]],
) -> None:
    """For any prompts, answers and billing of cancelled attempts: hedges cost <= B * spend + cap + an overdraft."""
    house, now_s = House(BudgetUnit.COST), 0.0
    hedged = spent = first = dearest = 0.0
    for gap_s, prompt_tokens, answer_tokens, name, billing in requests:
        now_s += gap_s
        for replica in house.pool.replicas:
            replica.bills_cancelled = replica.name in billing
        facts = RequestFacts(prompt_tokens=prompt_tokens, answer_tokens=answer_tokens)
        primary = house.send(facts, now_s, next(each for each in house.pool.replicas if each.name == name))
        backup = house.hedge(facts, primary, now_s)
        if backup is not None and backup.forecast is not None and backup.forecast.tickets is not None:
            cost = backup.forecast.tickets.cost.cost
            prompt = PRICES[backup.replica.name].cost(prompt_tokens, 0, 0)
            assert cost >= prompt * (1 - 1e-9)
            assert (cost > prompt) == bool(billing & {name, backup.replica.name})
            hedged, dearest = hedged + cost, max(dearest, cost)
        winner = backup or primary
        winner.content_s, winner.usage = now_s, Usage(prompt_tokens, answer_tokens)
        for attempt in filter(None, (primary, backup)):
            house.pool.on_end(attempt, Outcome.FINISHED if attempt is winner else Outcome.LOST, now_s, None)
        paid = PRICES[winner.replica.name].cost(prompt_tokens, 0, answer_tokens)
        first = first or paid
        assert hedged <= (1.5 * first + SHARE * spent + dearest) * (1 + 1e-9)
        spent += paid


@given(arrivals)
def test_no_ticket_leaks(requests: list[Request]) -> None:
    """For any outcomes nothing stays reserved: credits and quotas miss exactly what was billed."""
    house, now_s, billed = House(), 0.0, 0
    for gap_s, tokens, outcome in requests:
        now_s += gap_s / 1000
        facts = RequestFacts(prompt_tokens=tokens, answer_tokens=10)
        primary = house.send(facts, now_s, house.pool.replicas[0])
        before = house.pool.budget.requests.credit
        backup = house.hedge(facts, primary, now_s)
        for attempt in filter(None, (primary, backup)):
            house.pool.on_end(attempt, outcome, now_s, None)
            bill = OUTCOME_EFFECTS[outcome].bill
            billed += 0 if bill is Bill.RELEASE else math.ceil(tokens) + (10 if bill is Bill.SETTLE else 0)
        spent = 1.0 if backup is not None and OUTCOME_EFFECTS[outcome].bill is not Bill.RELEASE else 0.0
        assert math.isclose(house.pool.budget.requests.credit, before - spent, abs_tol=1e-9)
        assert [replica.in_flight for replica in house.pool.replicas] == [0, 0, 0]
        assert all(house.pool.pending_tokens(replica) == 0.0 for replica in house.pool.replicas)
    refilled = now_s * 1e9 / DAY_S
    totals = house.ledger.totals
    assert (totals.under_way, totals.settled) == (0, billed)
    (bucket,) = house.ledger.state(now_s)
    assert billed - refilled - 1e-3 <= bucket.limit - bucket.left <= billed + 1e-3
