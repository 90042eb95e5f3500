"""Histories of a pool, driven both ways: primaries in one step where that is possible, and the general way."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from defaults import default_hedging
from pooled import Seen
from scripted import Scripted
from ttft_gateway.apis.base import Api, RateLimit, Resource, Usage
from ttft_gateway.hedging.budget import BudgetUnit
from ttft_gateway.hedging.contract import Hedge, RequestFacts
from ttft_gateway.hedging.outcomes import Outcome
from ttft_gateway.hedging.plan import Policy
from ttft_gateway.limits.bucket import Limit
from ttft_gateway.limits.ledger import Ledger
from ttft_gateway.limits.prices import Prices
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import Replica
from ttft_gateway.routing.strategies import Routing

Step = tuple[str, Any]


@dataclass(frozen=True)
class Fleet:
    """A pool as it is configured; each replica is `usual` unless `odd` names its difference.

    `is_crowded`: it is known from the start that the attempts in flight matter.
    """

    names: Sequence[str] = ("a", "b", "c")
    odd: str | None = None
    batches: bool = True
    limits: tuple[Limit, ...] | None = None
    routing: Routing = Routing.PREDICTED
    policy: Policy = Policy.ADAPTIVE
    unit: BudgetUnit = BudgetUnit.TOKENS
    spread_s: float = 0.005
    is_crowded: bool = False

    def build(self) -> Callable[[Pool | None], Pool]:
        """Return a function that makes its pool, at first or after a reload."""
        ledgers = {"q": Ledger(self.limits or ())}
        changes: dict[str | None, dict[str, Any]] = {
            "weight": {"weight": 3},
            "backup_only": {"backup_only": True},
            "api": {"apis": frozenset({Api.CHAT})},
            "billed": {"bills_cancelled": True, "hedgeable": False},
            "boundary": {"boundary": "eu"},
        }
        replicas = [
            Replica(
                name,
                Scripted(),
                None if self.limits is None or name == "c" else "q",
                batches=self.batches,
                prices=Prices(2.0, 1.0, 10.0),
                **(changes.get(self.odd, {}) if number == 0 else {}),
            )
            for number, name in enumerate(self.names)
        ]
        settings = default_hedging(routing=self.routing, policy=self.policy, budget_unit=self.unit, static_delay_s=0.3)
        return lambda previous: Pool("m", replicas, settings, ledgers, previous)


@dataclass
class World:
    """A pool with its attempts; `one_step`: primaries are sent by `Pool.begin` where it can."""

    fleet: Fleet
    one_step: bool
    now_s: float = 100.0
    live: list[tuple[Seen, RequestFacts]] = field(default_factory=list)
    begun: int = 0

    def __post_init__(self) -> None:
        self.make = self.fleet.build()
        self.pool = self.make(None)
        self.pool.learning.crowding.matters = self.fleet.is_crowded

    def do(self, kind: str, value: Any) -> object:
        """Do one step and return what it showed."""
        result: object = getattr(self, kind)(value)
        return result

    def request(self, value: tuple[float, RequestFacts, float]) -> object:
        """Send a primary; return its replica, forecast and delay."""
        gap_s, facts, rand = value
        self.now_s += gap_s

        begun = self.pool.begin(facts, self.now_s, rand) if self.one_step else None
        if begun is not None:
            self.begun += 1
            attempt = Seen(begun.replica, self.now_s, last_s=self.now_s, forecast=begun.forecast)
            delay_s = begun.delay_s
        else:
            replica = self.pool.picker.pick(facts, (), self.now_s, rand)
            replica = replica or self.pool.picker.pick_ignoring_breakers(facts, (), self.now_s, rand)
            if replica is None:
                return None
            attempt = Seen(replica, self.now_s, last_s=self.now_s)
            self.pool.on_sent(attempt, facts, None, is_first=True)
            delay_s = self.pool.delay_s(attempt, facts)
        self.live.append((attempt, facts))
        return attempt.replica.name, msgspec.to_builtins(attempt.forecast, enc_hook=str), delay_s

    def answered(self, value: tuple[RequestFacts, float]) -> object:
        """Send a primary that is answered; each replica is slower than the one before it by the spread."""
        shown = self.request((0.05, *value))
        attempt, _ = self.live[-1]
        index = self.pool.replicas.index(attempt.replica)
        return (
            shown,
            self.content((-1, 0.1 + self.fleet.spread_s * index)),
            self.end((-1, Outcome.FINISHED, None, False)),
        )

    def pinned(self, value: tuple[float, RequestFacts, float]) -> object:
        """Send a primary that must begin at the last replica."""
        gap_s, facts, rand = value
        return self.request((gap_s, msgspec.structs.replace(facts, pinned=self.pool.replicas[-1]), rand))

    def hedge(self, value: tuple[int, float]) -> object:
        """A late attempt asks for a backup."""
        if not self.live:
            return None
        attempt, facts = self.live[value[0] % len(self.live)]
        decision = self.pool.decide(facts, attempt, [attempt], [attempt.replica], self.now_s, value[1])
        if not isinstance(decision, Hedge):
            return decision
        backup = Seen(decision.replica, self.now_s, last_s=self.now_s)
        self.pool.on_sent(backup, facts, decision.tickets, is_first=False)
        self.live.append((backup, facts))
        return decision.replica.name, decision.why

    def content(self, value: tuple[int, float]) -> object:
        """First content of an attempt."""
        if not self.live:
            return None
        self.now_s += value[1]
        attempt, _ = self.live[value[0] % len(self.live)]
        if attempt.content_s is not None:
            return None
        attempt.headers_s = attempt.headers_s or self.now_s
        attempt.content_s = attempt.last_s = self.now_s
        state = self.pool.on_content(attempt, self.now_s)
        attempt.first_token_s = self.now_s
        return state

    def work(self, index: int) -> object:
        """An attempt shows that it works, 50 ms after its headers."""
        if not self.live:
            return None
        attempt, facts = self.live[index % len(self.live)]
        if attempt.content_s is not None or attempt.headers_s is not None:
            return None
        attempt.headers_s, self.now_s = self.now_s, self.now_s + 0.05
        if is_first_token := self.pool.on_work(attempt, facts.api, self.now_s):
            attempt.first_token_s = self.now_s
        return is_first_token

    def end(self, value: tuple[int, Outcome, float | None, bool]) -> object:
        """An attempt ends; a limited one may state a Retry-After."""
        if not self.live:
            return None
        index, outcome, retry_after_s, hidden = value
        attempt, _ = self.live.pop(index % len(self.live))
        self.now_s += 0.01
        attempt.usage = Usage(100, 50, hidden_reasoning=hidden) if retry_after_s is None else None
        state = self.pool.on_end(attempt, outcome, self.now_s, retry_after_s)
        if outcome is Outcome.UNCLEAR_4XX:
            judge = self.pool.rejections(attempt.replica)
            judge.on_rejected(index, f"key {index}", (judge,), self.now_s, disproved=hidden)
        return state

    def stated(self, value: tuple[int, float]) -> object:
        """A response states what is left of a limit."""
        if self.live:
            attempt, _ = self.live[value[0] % len(self.live)]
            self.pool.on_limits(attempt, [RateLimit(Resource.REQUESTS, 60.0, 100.0, value[1], None)], self.now_s)
        return None

    def switch(self, value: tuple[int, bool]) -> object:
        """An operator takes a replica out or in."""
        self.pool.switch(self.pool.replicas[value[0] % len(self.pool.replicas)], self.now_s, out=value[1])
        return None

    def wait(self, for_s: float) -> object:
        """Time passes."""
        self.now_s += for_s
        return None

    def reload(self, _: object) -> object:
        """A reload without changes: what was learned stays, and attempts under way still count."""
        self.pool = self.make(self.pool)
        return None

    def books(self) -> object:
        """Return everything that the policy counts."""
        pool, now_s = self.pool, self.now_s
        return (
            [
                (
                    *(each.in_flight, each.breaker, load.pending, load.used_s, load.stalls.due_s, load.stalls.late),
                    *(dict(load.stalls._waiting), load.stalls._probe_s, dict(load.memory._used_s), load.breaks._share),
                )
                for each, load in pool.loads.of.items()
            ],
            [(each.credit, each._accrual, each._cost_mean) for each in (pool.budget.requests, pool.budget.cost)],
            [[bucket.left(now_s) for bucket in ledger._buckets] for ledger in pool.quotas.of.values()],
            [ledger.totals for ledger in pool.quotas.of.values()],
            pool.learning.predictor.state(now_s),
            pool.learning.predictor._raw,
            pool.learning.state(now_s),
            [(pool.learning._samples, pool.learning._due_s), pool.loads.unseen_s, pool.loads.probe_every_s],
            pool.loads.ramping_until_s,
            pool.loads.breaking_until_s,
            vars(pool.learning.crowding),
        )


def both(fleet: Fleet, steps: Sequence[Step], warm: int) -> World:
    """Drive both ways through the same history, compare them after each step, and return the one-step way."""
    one_step, general = World(fleet, one_step=True), World(fleet, one_step=False)
    for kind, value in [*answered(warm), *steps]:
        assert one_step.do(kind, value) == general.do(kind, value), (kind, value)
        predictors = [world.pool.learning.predictor for world in (one_step, general)]
        if len({predictor._folded_s for predictor in predictors}) > 1:  # without a usable replica nothing is predicted
            for predictor in predictors:
                predictor.law(one_step.now_s)
        assert one_step.books() == general.books(), (kind, value)
    return one_step


def answered(count: int) -> list[Step]:
    """Return the steps of requests that are answered one after the other."""
    return [("answered", (RequestFacts(prompt_tokens=100.0 + n, coin=0.3), n * 0.37 % 1.0)) for n in range(count)]
