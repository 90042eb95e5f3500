"""Pools that prefer a low bill: the way of primaries and backups, refusals, the account, and changes over time."""

import random
from collections import Counter

import msgspec
import pytest
from msgspec.structs import replace

from defaults import default_hedging
from pooled import Seen
from scripted import Scripted
from ttft_gateway.apis.base import Usage
from ttft_gateway.hedging.contract import Denied, Hedge, RequestFacts
from ttft_gateway.hedging.outcomes import Denial, Outcome
from ttft_gateway.hedging.parameters import HedgeParameters, Prefer
from ttft_gateway.limits.prices import Prices, TierPrices
from ttft_gateway.pool.bills import Bills
from ttft_gateway.pool.learned import LearnedPool, learned_pool, restore_pool
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import Replica

FACTS = RequestFacts(prompt_tokens=600.0, answer_tokens=100)
USUAL = Prices(1.0, 1.0, 4.0)
OF = {"flex": USUAL.times(0.5), "default": USUAL, "priority": USUAL.times(2.0)}
MEDIANS_S = {"flex": 0.8, "default": 0.3, "priority": 0.15}


def hedging(**changes: object) -> HedgeParameters:
    """The parameters of a pool with a target of 3 s that prefers a low bill."""
    return replace(default_hedging(), **{"prefer": Prefer.COST, "ttft_target_s": 3.0, **changes})


def tiers(*names: str, **changes: object) -> Pool:
    """A pool with these tiers of one provider."""
    ways = [
        Replica(name, Scripted(), prices=OF[name], tiers=TierPrices(name, USUAL, OF)) for name in names or tuple(OF)
    ]
    return Pool("m", ways, hedging(**changes))


class Traffic:
    """Requests to a pool without a race, ten a second; a late one is backed up as a race would do it.

    Attributes:
        first: number of primaries by way.
        bill, usual: money for all attempts, and for the answers on the usual tier.
        missed: number of requests above the target.
        denied: reasons for which no backup was sent.
    """

    def __init__(self, pool: Pool, seed: int = 1) -> None:
        self.pool = pool
        self.now_s = 0.0
        self.rng = random.Random(seed)
        self.slow = dict.fromkeys(OF, 0.0)  # share of requests that take 60 s, by way
        self.refused = dict.fromkeys(OF, 0.0)
        self.first: Counter[str] = Counter()
        self.denied: Counter[Denial] = Counter()
        self.bill = self.usual = 0.0
        self.missed = 0

    def send(self, count: int, facts: RequestFacts = FACTS) -> None:
        """Send requests, each of which ends before the next one begins."""
        for _ in range(count):
            self.now_s += 0.1
            self._request(facts)

    def _wait_s(self, name: str) -> float:
        slow = self.rng.random() < self.slow[name]
        return 60.0 if slow else MEDIANS_S[name] * self.rng.lognormvariate(0.0, 0.3)

    def _request(self, facts: RequestFacts) -> None:
        pool, tried = self.pool, list[Replica]()
        while True:
            replica = pool.picker.pick(facts, tried, self.now_s, self.rng.random())
            assert replica is not None
            tried.append(replica)
            attempt = Seen(replica, self.now_s)
            pool.on_sent(attempt, facts, None, is_first=len(tried) == 1)
            self.first[replica.name] += len(tried) == 1
            if self.rng.random() >= self.refused[replica.name]:
                break
            pool.on_end(attempt, Outcome.RATE_LIMITED, self.now_s + 0.01, None)
        wait_s, delay_s, ends_s = self._wait_s(replica.name), pool.delay_s(attempt, facts), list[float]()
        backup = None
        if delay_s < wait_s:
            decided = pool.decide(facts, attempt, [attempt], tried, self.now_s + delay_s, 0.0)
            if isinstance(decided, Hedge):
                backup = Seen(decided.replica, self.now_s + delay_s)
                pool.on_sent(backup, facts, decided.tickets, is_first=False)
                ends_s.append(delay_s + self._wait_s(decided.replica.name))
            else:
                self.denied[decided.reason] += 1
        ttft_s = min([wait_s, *ends_s])
        winner, loser = (backup, attempt) if ttft_s < wait_s else (attempt, backup)
        assert winner is not None
        self._end(winner, loser, self.now_s + ttft_s)
        self.missed += ttft_s > 3.0

    def _end(self, winner: Seen, loser: Seen | None, at_s: float) -> None:
        if loser is not None:
            self.pool.on_end(loser, Outcome.LOST, at_s, None)
            self.bill += OF[loser.replica.name].cost(600, 0, 0)
        winner.content_s = winner.last_s = at_s
        self.pool.on_content(winner, at_s)
        winner.usage = Usage(600, 100, tier=winner.replica.name)
        self.pool.on_end(winner, Outcome.FINISHED, at_s, None)
        self.bill += OF[winner.replica.name].cost(600, 0, 100)
        self.usual += USUAL.cost(600, 0, 100)


def bills(pool: Pool) -> Bills:
    """The bills of a pool."""
    assert pool.bills is not None
    return pool.bills


def test_a_cheap_way_that_is_quick_enough_is_used() -> None:
    """After it is known, nearly all primaries go there, late ones are saved, and the bill falls to over a half."""
    traffic = Traffic(tiers())
    traffic.slow["flex"] = 0.04
    traffic.send(500)
    traffic.bill = traffic.usual = 0.0
    traffic.first.clear()
    traffic.send(1_500)
    assert traffic.first["flex"] > 1_450
    assert traffic.bill / traffic.usual < 0.6
    assert traffic.missed <= 0.01 * 2_000


def test_a_busy_cheap_way_is_left_and_found_again() -> None:
    """Each change of the cheap way moves the primaries once: no swinging, and probes at a low rate in between."""
    traffic = Traffic(tiers())
    traffic.slow["flex"] = 0.04
    traffic.send(800)
    leaders = [bills(traffic.pool).leader]
    for slow in (0.95, 0.04):
        traffic.slow["flex"] = slow
        traffic.send(400)  # until it is noticed
        traffic.first.clear()
        traffic.send(1_200)
        leaders.append(bills(traffic.pool).leader)
        if slow > 0.5:
            assert 0.01 < traffic.first["flex"] / 1_200 < 0.05
    assert leaders == ["flex", "default", "flex"]
    assert bills(traffic.pool).changes <= 4  # the usual way at the start, and the three


def test_a_slow_usual_way_is_spilled_within_the_budget() -> None:
    """In a brown-out of the usual way primaries go to the dear one, as many as the budget of money pays for."""
    traffic = Traffic(tiers("default", "priority", budget=0.1))
    traffic.send(1_000)
    traffic.slow["default"] = 0.8
    traffic.first.clear()
    traffic.send(1_000)
    assert 20 < traffic.first["priority"] < 250
    assert traffic.bill <= 1.1 * traffic.usual + 0.02 * traffic.usual
    assert traffic.denied[Denial.BUDGET] > 0


def test_the_bill_stays_within_the_budget_whatever_happens() -> None:
    """Where every way is slow for most requests, the bill exceeds the usual one by the budget and little more."""
    traffic = Traffic(tiers(budget=0.05), seed=3)
    for slow in (0.0, 0.9, 0.3):
        traffic.slow = dict.fromkeys(OF, slow)
        traffic.send(1_000)
    assert traffic.bill <= 1.07 * traffic.usual


def test_a_refused_request_goes_on_at_once() -> None:
    """A cheap way that refuses every second request still pays, and no request is lost or waits."""
    traffic = Traffic(tiers())
    traffic.refused["flex"] = 0.5
    traffic.send(2_000)
    assert traffic.missed <= 20
    assert traffic.bill < 0.95 * traffic.usual


@pytest.mark.parametrize(
    ("facts", "is_on"),
    [(replace(FACTS, hedge_off=Denial.OFF), True), (replace(FACTS, timed=False), True), (FACTS, False)],
)
def test_what_cannot_be_backed_up_goes_the_usual_way(facts: RequestFacts, *, is_on: bool) -> None:
    """A request without a backup, or without a first token, is not sent to the cheap way."""
    traffic = Traffic(tiers())
    traffic.send(500)
    traffic.pool.hedging_on = is_on
    traffic.first.clear()
    traffic.send(50, facts)
    assert set(traffic.first) == {"default"}


def test_nothing_is_hedged_without_money() -> None:
    """A backup is denied with the missing sum while the account has no credit, but not of a cheap way."""
    pool = tiers()
    decided = []
    for replica in pool.replicas[:2]:
        attempt = Seen(replica, 0.0)
        pool.on_sent(attempt, FACTS, None, is_first=True)
        decided.append(pool.decide(FACTS, attempt, [attempt], [replica], 2.0, 0.0))
    assert isinstance(decided[0], Hedge)  # its backup was charged when it was sent
    assert isinstance(decided[1], Denied)
    assert decided[1].reason is Denial.BUDGET
    assert "the bill is at its budget" in decided[1].why


def test_a_reload_keeps_what_was_learned() -> None:
    """After a reload with the same ways, the cheap way is used from the first request on."""
    traffic = Traffic(tiers())
    traffic.send(800)
    traffic.pool = Pool("m", traffic.pool.replicas, hedging(budget=0.2), previous=traffic.pool)
    assert traffic.pool.budget.cost.credit == 0.0  # another budget begins anew
    traffic.pool = Pool("m", traffic.pool.replicas, hedging(budget=0.2), previous=traffic.pool)
    traffic.send(30)
    traffic.first.clear()
    traffic.send(100)
    assert traffic.first["flex"] > 90


@pytest.mark.parametrize(("slow", "leader"), [(0.04, "flex"), (0.95, "default")])
def test_a_restart_keeps_what_was_learned(slow: float, leader: str) -> None:
    """A new process takes the way that pays, and probes one that does not at the low rate, from the file on."""
    traffic = Traffic(tiers())
    traffic.slow["flex"] = slow
    traffic.send(1_000)
    *_, state = learned_pool(traffic.pool, traffic.now_s)
    assert state is not None
    document = msgspec.json.encode(state)
    traffic.pool = tiers()
    assert restore_pool(traffic.pool, msgspec.json.decode(document, type=LearnedPool), 5.0, traffic.now_s)
    traffic.send(30)  # the account begins anew, and a cheap way needs credit for its backup
    traffic.first.clear()
    traffic.send(150)
    assert traffic.first[leader] >= 140


def test_a_long_prompt_has_its_own_course() -> None:
    """A prompt that takes longer has an earlier backup; the learned waits belong to usual prompts."""
    pool = tiers()
    traffic = Traffic(pool)
    traffic.send(600)
    predictor = pool.learning.predictor
    law = predictor.law(traffic.now_s)
    assert law is not None
    short, long = Seen(pool.replicas[0], traffic.now_s), Seen(pool.replicas[0], traffic.now_s)
    pool.on_sent(short, FACTS, None, is_first=True)
    pool.on_sent(long, replace(FACTS, prompt_tokens=50_000.0), None, is_first=True)
    delays_s = [
        pool.delay_s(each, facts) for each, facts in ((short, FACTS), (long, replace(FACTS, prompt_tokens=5e4)))
    ]
    assert delays_s[1] <= delays_s[0]
