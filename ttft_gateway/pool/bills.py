"""The lowest bill of a pool that keeps its TTFT target: which way a request goes, when it is backed up, and by which.

Serves pools with `prefer: cost`: each replica is a way with prices, also each tier of one provider. Learns the waits of
each way, and asks `hedging/bill.py` for the cheapest course. A way that is not in use, and would be cheaper,
gets a small share of the requests, so that the pool notices when it pays again. A course is left only for one that is
clearly cheaper, and a way that becomes better is judged by its last waits. The account is in money: the bill may exceed
the bill of the same traffic on the usual way by the budget. Pure.

Units: seconds of the loop's clock, tokens, money in the configuration's currency.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from ttft_gateway.estimation.waits import IN_USE, RECENT, WaitCurve, Waits, WaitsState
from ttft_gateway.hedging.bill import Course, Way, cheapest, courses, is_hopeless, rescue
from ttft_gateway.hedging.budget import BudgetUnit, HedgeBudget
from ttft_gateway.hedging.charges import Disposition, charge
from ttft_gateway.hedging.contract import AttemptView, Denied, Forecast, Hedge, HedgeTickets, RequestFacts
from ttft_gateway.hedging.outcomes import Denial, Outcome, why_hedged
from ttft_gateway.hedging.parameters import HedgeParameters
from ttft_gateway.limits.budget import CreditBudget, Ticket
from ttft_gateway.limits.prices import Prices
from ttft_gateway.pool.learning import Learning
from ttft_gateway.routing.replicas import Replica
from ttft_gateway.routing.strategies import least_in_flight

_ACCOUNT_S: Final = 600.0  # of which earnings can be saved: a brown-out is shorter, and the calm before it pays
_WARM: Final = 20  # waits before a way is used
_LEARN_EVERY: Final = 10  # requests, one of which goes to a cheaper way that is not known
_PROBE_EVERY: Final = 50  # the same for a known one: 2 % of the requests find a better time in a minute or two
_RETURN_EVERY: Final = 8  # the same for the usual way while a dear one is in use, which costs more than these probes
_STAY: Final = 0.95  # of the bill in use, below which another way is taken: less is noise of 160 waits
_MISSED_SHARE: Final = 0.7  # of the misses that the target permits; the rest is for changes that are not learned yet
_LEAVE_MISSED: Final = 1.5  # times the permitted share, above which a way in use is left
_IN_USE: Final = 0.1  # share of the primaries from which on a way is in use; probes are fewer
_MOST: Final = 0.6  # share of the primaries from which on a way is the leader
_SHARE_WEIGHT: Final = 0.02  # of one primary in these shares
_RENEW_SHARE: Final = 0.04  # new waits after which courses are computed again, as a share of the remembered ones
_NO_TICKETS: Final = HedgeTickets(
    Ticket(0.0), Ticket(0.0)
)  # the account has no tickets: forecasts have what was booked
_FREE: Final = Prices(0.0, 0.0, 0.0)
_SHARES: Final = 10  # steps of a prompt's share in a bill
_STEPS: Final = 16  # steps of the time that a long prompt leaves
_TABLES_MAX: Final = 64
_ANSWER_TOKENS: Final = 200.0  # mean of the first answers, until there are answers
_ANSWER_WEIGHT: Final = 0.02
_RECHECK: Final = 0.12  # of the time waited: six decisions while the wait doubles

_Key = tuple[int, float, tuple[str, ...]]
"""Share of the prompt in the bill, target, and names of the ways that can be used."""


class Bills:
    """The courses and the account of one pool.

    Args:
        is_hedged: returns True if a request may be backed up; else it goes the usual way.

    Attributes:
        budget: budget of the pool: the bill limits hedges, not their number, and its cost is the account.
        course: course of the last request that was no probe; None before it.
        leader: way of most primaries; empty before the first ones.
        changes: number of its changes.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        settings: HedgeParameters,
        learning: Learning,
        is_hedged: Callable[[RequestFacts], bool],
    ) -> None:
        self._replicas = tuple(replicas)
        self._settings = settings
        self._learning = learning
        self._is_hedged = is_hedged
        account = CreditBudget(1.0, settings.saved_hedges, _ACCOUNT_S)
        self.budget = HedgeBudget(1.0, BudgetUnit.COST, settings.saved_hedges, account)
        self._missed_max = _MISSED_SHARE * (1.0 - settings.ttft_target_share)
        self._prices = {each.name: each.prices or _FREE for each in replicas}
        self._usual = min(replicas, key=_distance).name if replicas else ""
        self._waits = {each.name: Waits() for each in replicas}
        self._shares = dict.fromkeys(self._waits, 0.0)  # of the primaries
        self._since = dict.fromkeys(self._waits, 0)  # requests since the last primary
        self._answer_tokens = _ANSWER_TOKENS
        self._samples = 0  # new ones since the courses were computed
        self._tables: dict[_Key, dict[str, Course]] = {}
        self._curves: dict[str, tuple[WaitCurve, WaitCurve]] = {}  # of each way, for the same time as the tables
        self._taken: dict[_Key, str] = {}
        self.course: Course | None = None
        self.leader = ""
        self.changes = 0

    def adopt_state(self, old: "Bills", stay: Collection[str]) -> None:
        """Take over what was learned about ways that stay, by name."""
        self._waits |= {name: old._waits[name] for name in stay}
        self._shares |= {name: old._shares[name] for name in stay}
        self._answer_tokens = old._answer_tokens

    @property
    def waits(self) -> Mapping[str, Waits]:
        """The waits of each way, by name."""
        return self._waits

    def state(self, name: str) -> WaitsState:
        """Return what was learned about a way as plain values."""
        return self._waits[name].state(self._shares[name])

    def restore(self, name: str, state: WaitsState) -> None:
        """Take over what was recorded about a way."""
        self._waits[name], self._shares[name] = Waits.restored(state), state.share

    # before an attempt

    def pick(self, facts: RequestFacts, candidates: Sequence[Replica], now_s: float, rand: float) -> Replica:
        """Pick the way of a primary or failover, among at least one."""
        by_name = {each.name: each for each in candidates}
        usual = by_name.get(self._usual) or min(candidates, key=_distance)
        if len(candidates) == 1 or not self._is_hedged(facts) or not facts.timed or not self._is_known(usual.name):
            return self._going(usual)
        table = self._table(facts, now_s)
        open_ = [table[1][name] for name in by_name if name in table[1] and self._is_known(name)]
        if not open_ or is_hopeless(open_):
            return self._going(usual)
        taken = self._chosen(table[0], open_)
        probe = self._probe(table[1], by_name, taken)
        if probe is not None and self._affords(facts, usual.name, now_s):
            return self._going(probe)
        if taken.first != usual.name and not self._affords(facts, taken.first, now_s):
            return self._going(usual)
        self.course = taken
        if self._shares[taken.first] <= _IN_USE:
            self._waits[taken.first].forget_old()
        price = self._prices[taken.first]
        alike = [
            each for each in candidates if self._prices[each.name] == price and self._is_as_good(table[1], each, taken)
        ]
        return self._going(least_in_flight(alike, rand) if len(alike) > 1 else by_name[taken.first])

    def delay_s(self, replica: Replica, facts: RequestFacts, now_s: float, *, is_backup: bool) -> float:
        """Return the time after which an attempt is backed up; infinite for never."""
        if not facts.timed or not self._is_known(replica.name):
            return max(self._settings.cold_start_delay_s, self._settings.hedge_delay_min_s)
        if is_backup:  # the target counts from the primary, so that a backup that is late in its own terms is too late
            return max(self._settings.hedge_delay_min_s, self._waits[replica.name].curve().quantile_s(0.9))
        course = self._table(facts, now_s)[1].get(replica.name)
        return math.inf if course is None else course.delay_s

    # a late attempt

    def backup(self, candidates: Sequence[Replica], facts: RequestFacts, waited_s: float) -> Replica:
        """Return the way of a backup, among at least one."""
        prompt, answer = self._weights(facts)
        ways = {self._way(each, prompt, answer): each for each in candidates}
        return ways[rescue(list(ways), self._target_s(facts) - waited_s)]

    def decide(
        self, late: Replica, backup: Replica, facts: RequestFacts, waited_s: float, now_s: float, *, has_room: bool
    ) -> Hedge | Denied:
        """Decide on a backup for a late attempt; a hedge is charged to the account when it is sent."""
        again_s = max(self._settings.hedge_delay_min_s, _RECHECK * waited_s)
        if not has_room:
            return Denied(Denial.QUOTA, again_s, f"the quota of {backup.name} has no room for a backup")
        excess = self.excess(backup.name, facts, is_backup=True)
        is_paid = self._whole(late.name) < self._whole(self._usual)  # it went there because a backup could save it
        if not is_paid and not self.budget.cost.affords(now_s, excess):
            credit = self.budget.cost.credit
            why = (
                f"the bill is at its budget: {credit:.3g} is left, and a backup at {backup.name} may cost {excess:.3g}"
            )
            return Denied(Denial.BUDGET, max(again_s, waited_s), why)
        return Hedge(backup, _NO_TICKETS, why_hedged(late.name, waited_s, None, None))

    # events of an attempt

    def excess(self, name: str, facts: RequestFacts, *, is_backup: bool) -> float:
        """Return what an attempt may cost more than the request on the usual way; a backup pays its prompt, too."""
        prices, usual = self._prices[name], self._prices[self._usual]
        prompt, answer = self._tokens(facts)
        more = max(0.0, prices.cost(prompt, 0.0, answer) - usual.cost(prompt, 0.0, answer))
        return more + prices.cost(prompt, 0.0, 0.0) if is_backup else more

    def book(self, forecast: Forecast, name: str, facts: RequestFacts) -> None:
        """Charge the extra cost of an attempt that is sent; at a cheap way, the cost of a backup in advance."""
        forecast.booked = self.excess(name, facts, is_backup=forecast.tickets is not None)
        if forecast.tickets is None and self._whole(name) < self._whole(self._usual):
            forecast.booked = self.excess(self._usual, facts, is_backup=True)
        if forecast.booked:
            self.budget.cost.spend(forecast.booked)

    def settle(self, attempt: AttemptView, forecast: Forecast, outcome: Outcome, now_s: float) -> None:
        """Replace what was charged by the bill of an attempt that ended; a winner earns what it costs the usual way."""
        is_winner = attempt.content_s is not None and outcome is not Outcome.LOST
        charged = charge(attempt, outcome, Disposition.WINNER, forecast.prompt_tokens, self._learning.answer_tokens)
        amount = forecast.booked - (charged.cost or 0.0)
        if is_winner:
            usual = usual_prices(attempt.replica).cost(
                charged.prompt_tokens, charged.cached_tokens, charged.completion_tokens
            )
            amount += (1.0 + self._settings.budget) * usual
            self._answer_tokens += _ANSWER_WEIGHT * (charged.completion_tokens - self._answer_tokens)
        if amount > 0.0:
            self.budget.cost.earn(now_s, amount)
        elif amount < 0.0:
            self.budget.cost.spend(-amount)

    def add_content(self, name: str, ttft_s: float, uncached: float, now_s: float) -> None:
        """Add a first token that arrived after `ttft_s`."""
        self._add(name, ttft_s - self._longer_s(uncached, now_s), is_end=True)

    def add_given_up(self, name: str, waited_s: float, uncached: float, now_s: float) -> None:
        """Add an attempt that was cancelled before its first token."""
        self._add(name, waited_s - self._longer_s(uncached, now_s), is_end=False)

    def add_refused(self, name: str) -> None:
        """Add an attempt that ended without a token and was not given up."""
        self._waits[name].add_refusal()
        self._samples += 1

    # inside

    def _add(self, name: str, wait_s: float, *, is_end: bool) -> None:
        self._waits[name].add(max(0.0, wait_s), is_end=is_end)
        self._samples += 1

    def _is_known(self, name: str) -> bool:
        return self._waits[name].seen >= _WARM

    def _target_s(self, facts: RequestFacts) -> float:
        return facts.ttft_target_s or self._settings.ttft_target_s or math.inf

    def _longer_s(self, uncached: float, now_s: float) -> float:
        """Return the time by which a prompt is expected to take longer than the usual one; 0 for a shorter one."""
        predictor = self._learning.predictor
        law = predictor.law(now_s) if uncached > predictor.usual_tokens else None
        return 0.0 if law is None else law[0][1] * (uncached - predictor.usual_tokens)

    def _tokens(self, facts: RequestFacts) -> tuple[float, float]:
        """Return the expected tokens of a request's prompt and answer."""
        limit = facts.answer_tokens
        return facts.prompt_tokens, self._answer_tokens if limit is None else min(limit, self._answer_tokens)

    def _weights(self, facts: RequestFacts) -> tuple[float, float]:
        """Return the weights of a prompt and an answer in the bill of a request on the usual way, together 1."""
        prompt_tokens, answer_tokens = self._tokens(facts)
        usual = self._prices[self._usual]
        prompt, answer = usual.prompt * prompt_tokens, usual.completion * answer_tokens
        share = round(_SHARES * prompt / (prompt + answer)) / _SHARES if prompt + answer else 0.5
        return share, 1.0 - share

    def _table(self, facts: RequestFacts, now_s: float) -> tuple[_Key, Mapping[str, Course]]:
        """Return the best course from each way, and its key."""
        seen = sum(waits.seen for waits in self._waits.values())
        if self._samples > _RENEW_SHARE * min(seen, 100 * len(self._waits)) or len(self._tables) >= _TABLES_MAX:
            self._samples = 0
            self._tables.clear()
            self._curves.clear()
        target_s = self._target_s(facts)
        left = max(0.25, 1.0 - self._longer_s(facts.prompt_tokens, now_s) / target_s)
        target_s *= math.ceil(_STEPS * left) / _STEPS
        prompt, answer = self._weights(facts)
        usable = [each for each in self._replicas if not each.out and each.breaker.is_closed(now_s)]
        key = (round(_SHARES * prompt), target_s, tuple(each.name for each in usable))
        if key not in self._tables:
            ways = [self._way(each, prompt, answer) for each in usable]
            self._tables[key] = courses(ways, target_s, self._missed_max, self._settings.hedge_delay_min_s)
        return key, self._tables[key]

    def _way(self, replica: Replica, prompt: float, answer: float) -> Way:
        """Return a way with its bills; a way that is not known is taken to be like the usual one."""
        name, prices, usual = replica.name, self._prices[replica.name], self._prices[self._usual]
        waits = self._waits[name if self._is_known(name) else self._usual]
        if name not in self._curves:
            recent = waits.curve(RECENT if self._shares[name] <= _IN_USE else IN_USE)
            self._curves[name] = waits.curve(), recent
        return Way(
            name,
            prompt * prices.prompt / usual.prompt if usual.prompt else prompt,
            answer * prices.completion / usual.completion if usual.completion else answer,
            *self._curves[name],
            waits.refused,
            replica.hedgeable,
            replica.bills_cancelled,
        )

    def _chosen(self, key: _Key, open_: Sequence[Course]) -> Course:
        """Return the cheapest course, or the one in use if that is nearly as cheap."""
        best = cheapest(open_, self._missed_max)
        in_use = next((course for course in open_ if course.first == self._taken.get(key)), None)
        if in_use is not None and in_use.first != best.first and best.bill > _STAY * in_use.bill:
            missed_max = _LEAVE_MISSED * max(self._missed_max, best.missed)
            if in_use.missed <= missed_max:
                return in_use
        if len(self._taken) >= _TABLES_MAX:
            self._taken.clear()
        self._taken[key] = best.first
        return best

    def _probe(self, table: Mapping[str, Course], by_name: Mapping[str, Replica], taken: Course) -> Replica | None:
        """Return a cheaper way that is due for a request; None if there is none."""
        price, usual = self._whole(taken.first), self._whole(self._usual)
        for name, replica in by_name.items():
            every = _PROBE_EVERY if self._is_known(name) else _LEARN_EVERY
            if self._whole(name) == usual:
                every = _RETURN_EVERY
            course = table.get(name)
            if course is not None and course.backup and self._whole(name) < price and self._since[name] >= every:
                return replica
        return None

    def _whole(self, name: str) -> float:
        prices = self._prices[name]
        return prices.prompt + prices.completion

    def _affords(self, facts: RequestFacts, name: str, now_s: float) -> bool:
        """Return True if the account can pay for a way, and for a backup on the usual one."""
        backup = self.excess(self._usual, facts, is_backup=True)
        return self.budget.cost.affords(now_s, self.excess(name, facts, is_backup=False) + backup)

    def _is_as_good(self, table: Mapping[str, Course], replica: Replica, taken: Course) -> bool:
        course = table.get(replica.name)
        return (
            course is not None
            and course.bill <= taken.bill / _STAY
            and course.missed <= max(self._missed_max, taken.missed)
        )

    def _going(self, replica: Replica) -> Replica:
        """Count a primary of a way."""
        for name in self._shares:
            self._since[name] += 1
            self._shares[name] *= 1.0 - _SHARE_WEIGHT
        self._since[replica.name] = 0
        self._shares[replica.name] += _SHARE_WEIGHT
        if replica.name != self.leader and self._shares[replica.name] > _MOST:
            self.leader = replica.name
            self.changes += 1
        return replica


def usual_prices(replica: Replica) -> Prices:
    """Return the prices of the usual tier at a replica's provider: its own where it has no tiers."""
    return (replica.prices or _FREE) if replica.tiers is None else replica.tiers.usual


def _distance(replica: Replica) -> float:
    """Return how far the price of a way is from the usual one at its provider, as a logarithm."""
    own, usual = replica.prices or _FREE, usual_prices(replica)
    sums = own.prompt + own.completion, usual.prompt + usual.completion
    return abs(math.log(sums[0] / sums[1])) if min(sums) > 0.0 else 0.0
