"""The one-step way of primaries against the general way: after any history both choose, predict and count alike."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from defaults import default_hedging
from gateway.hedging.budget import BudgetUnit
from gateway.hedging.contract import Hedge, RequestFacts
from gateway.hedging.outcomes import Denial, Outcome
from gateway.hedging.plan import Policy
from gateway.limits.bucket import Limit
from gateway.limits.ledger import Ledger
from gateway.limits.prices import Prices
from gateway.pool.pool import Pool
from gateway.routing.replicas import Replica
from gateway.routing.strategies import Routing
from pooled import Seen
from providers.base import Api, RateLimit, Resource, Usage
from scripted import Scripted

Step = tuple[str, Any]
_MANY = tuple(f"r{number}" for number in range(20))


@dataclass(frozen=True)
class Fleet:
    """A pool as it is configured; each replica is `usual` unless `odd` names its difference."""

    names: Sequence[str] = ("a", "b", "c")
    odd: str | None = None
    batches: bool = True
    limits: tuple[Limit, ...] | None = None
    routing: Routing = Routing.PREDICTED
    policy: Policy = Policy.ADAPTIVE
    unit: BudgetUnit = BudgetUnit.TOKENS
    spread_s: float = 0.005

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
            delay_s = self.pool.delay_s(attempt, facts) if begun.delay_s is None else begun.delay_s
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
            self.pool.rejections(attempt.replica).on_unclear(f"key {index}", self.now_s)
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
            [(each._credit, each._accrual, each._cost_mean) for each in (pool.budget.requests, pool.budget.cost)],
            [[bucket.left(now_s) for bucket in ledger._buckets] for ledger in pool.quotas.of.values()],
            [ledger.totals for ledger in pool.quotas.of.values()],
            pool.learning.predictor.state(now_s),
            pool.learning.predictor._raw,
            pool.learning.state(now_s),
            [(pool.learning._samples, pool.learning._due_s), pool.loads.unseen_s, pool.loads.probe_every_s],
            pool.loads.ramping_until_s,
            pool.loads.breaking_until_s,
        )


_rand = st.one_of(st.sampled_from([0.0, 0.5]), st.floats(0.0, 1.0, exclude_max=True))
_index = st.integers(0, 7)
_facts = st.builds(
    RequestFacts,
    prompt_tokens=st.sampled_from([0.0, 3.0, 1_000.0, 50_000.0]),
    prompt_bytes=st.just(4_000),
    prefixes=st.sampled_from([(), (), (1,), (1, 2), (3,)]),
    answer_tokens=st.sampled_from([None, 10]),
    hedge_off=st.sampled_from([None, None, None, Denial.KEY, Denial.OFF]),
    timed=st.sampled_from([True, True, True, False]),
    api=st.sampled_from([None, Api.CHAT, Api.MESSAGES]),
    coin=_rand,
    ttft_target_s=st.sampled_from([None, None, None, 0.1, 3.0]),
)
_requests = st.tuples(st.just("request"), st.tuples(st.sampled_from([0.0, 0.01, 0.3, 6.0]), _facts, _rand))
_contents = st.tuples(st.just("content"), st.tuples(_index, st.sampled_from([0.0, 0.05, 0.2, 1.5])))
_ends = st.tuples(
    st.just("end"),
    st.tuples(
        _index,
        st.one_of(st.just(Outcome.FINISHED), st.just(Outcome.LOST), st.sampled_from(Outcome)),
        st.sampled_from([None, None, 2.0, 30.0]),
        st.sampled_from([False, False, True]),
    ),
)
_steps = st.lists(
    st.one_of(
        _requests,
        _requests,
        st.tuples(st.just("pinned"), st.tuples(st.just(0.1), _facts, _rand)),
        _contents,
        _contents,
        _ends,
        st.tuples(st.just("hedge"), st.tuples(_index, _rand)),
        st.tuples(st.just("work"), _index),
        st.tuples(st.just("stated"), st.tuples(_index, st.sampled_from([0.0, 5.0, 90.0]))),
        st.tuples(st.just("wait"), st.sampled_from([0.4, 1.0, 4.0, 11.0, 40.0, 700.0])),
        st.tuples(st.just("switch"), st.tuples(_index, st.sampled_from([False, True]))),
        st.tuples(st.just("reload"), st.none()),
    ),
    min_size=1,
    max_size=60,
)
_fleets = st.builds(
    Fleet,
    names=st.sampled_from(["a", "ab", "abc", "abc", "abcde", _MANY]),
    odd=st.sampled_from([None] * 5 + ["weight", "backup_only", "api", "billed", "boundary"]),
    batches=st.booleans(),
    limits=st.sampled_from(
        [None, None, (), (Limit(Resource.REQUESTS, 9.0, 60.0),), (Limit(Resource.TOKENS, 1e5, 60.0, enforce=True),)]
    ),
    routing=st.sampled_from([Routing.PREDICTED] * 5 + list(Routing)),
    policy=st.sampled_from([Policy.ADAPTIVE] * 5 + list(Policy)),
    unit=st.sampled_from(BudgetUnit),
)


def both(fleet: Fleet, steps: Sequence[Step], warm: int) -> World:
    """Drive both ways through the same history, compare them after each step, and return the one-step way."""
    one_step, general = World(fleet, one_step=True), World(fleet, one_step=False)
    for kind, value in [*answered(warm), *steps]:
        assert one_step.do(kind, value) == general.do(kind, value), (kind, value)
        predictors = [world.pool.learning.predictor for world in (one_step, general)]
        if len({bool(predictor._raw) for predictor in predictors}) > 1:  # without a usable replica nothing is predicted
            for predictor in predictors:
                predictor.fold_new(one_step.now_s)
        assert one_step.books() == general.books(), (kind, value)
    return one_step


def answered(count: int) -> list[Step]:
    """Return the steps of requests that are answered one after the other."""
    return [("answered", (RequestFacts(prompt_tokens=100.0 + n, coin=0.3), n * 0.37 % 1.0)) for n in range(count)]


@given(fleet=_fleets, steps=_steps, warm=st.sampled_from([0, 1, 30, 30]))
def test_both_ways_agree_after_any_history(fleet: Fleet, steps: list[Step], warm: int) -> None:
    """Replica, forecast, delay, decisions and every counter are the same, whatever happened before."""
    both(fleet, steps, warm)


@pytest.mark.parametrize(
    "fleet",
    [
        Fleet(),
        Fleet(names="a"),
        Fleet(batches=False),
        Fleet(limits=()),
        Fleet(unit=BudgetUnit.COST),
        Fleet(odd="billed"),
        Fleet(names=_MANY),
    ],
    ids=str,
)
def test_usual_requests_take_one_step(fleet: Fleet) -> None:
    """After the first sample, all primaries of a healthy pool are sent in one step, also with many at once."""
    burst: list[Step] = [("request", (0.001, RequestFacts(prompt_tokens=50.0 * n), n / 64)) for n in range(64)]
    world = both(fleet, [*burst, *[("content", (n, 0.001)) for n in range(64)], *burst], 40)
    assert world.begun == 40 + 2 * 64 - 1
    is_shared = len(fleet.names) > 1 and fleet.batches  # of a provider, streams are not counted
    assert not is_shared or max(each.in_flight for each in world.pool.replicas) < 70


_USUAL = RequestFacts(prompt_tokens=100.0)
_SENT: Step = ("request", (0.0, _USUAL, 0.0))  # to the quickest one


def _end(outcome: Outcome) -> Step:
    return ("end", (0, outcome, None, False))


@pytest.mark.parametrize(
    ("fleet", "steps"),
    [
        (Fleet(odd="api"), [("request", (0.01, msgspec.structs.replace(_USUAL, api=Api.MESSAGES), 0.0))]),
        (Fleet(odd="weight"), [_SENT] * 20),
        (Fleet(limits=(Limit(Resource.REQUESTS, 40.0, 60.0),)), [_SENT] * 40),
        (Fleet(limits=(Limit(Resource.REQUESTS, 40.0, 60.0, enforce=True),)), [_SENT] * 40),
        (Fleet(), [_SENT, ("content", (0, 0.1)), _end(Outcome.CUT)] * 2 + [("wait", 0.1), *answered(4)] * 5),
        (Fleet(), [_SENT, ("wait", 0.15), _SENT, ("wait", 0.05), _SENT]),
        (Fleet(), [*[_SENT] * 3, ("wait", 5.0), *[_end(Outcome.LOST)] * 9, _SENT]),
        (Fleet(names="ab", spread_s=0.1), [*answered(60), _SENT, ("wait", 0.1), *[("wait", 0.01), _SENT] * 9]),
        (Fleet(), [_SENT, ("wait", 3.0)] * 9),
        (Fleet(), [("request", (0.01, msgspec.structs.replace(_USUAL, prefixes=(1,), prompt_bytes=512), 0.0))] * 9),
    ],
    ids=[
        *("api", "weight", "headroom", "enforced limit", "breaking", "overdue", "given up late", "unseen"),
        *("low traffic", "prefixes"),
    ],
)
def test_both_ways_agree_in_each_state(fleet: Fleet, steps: list[Step]) -> None:
    """States that random histories seldom reach; requests before, within and after each."""
    both(fleet, [*steps, *answered(10)], 40)


@pytest.mark.parametrize(
    ("steps", "ends_after_s"),
    [
        ([("switch", (0, True))], math.inf),
        ([("switch", (0, True)), ("switch", (0, False))], 10.0),
        ([_SENT, ("end", (0, Outcome.RATE_LIMITED, 30.0, False))], 30.0),
        ([_SENT, ("end", (0, Outcome.MISCONFIGURED, 1.0, False))], math.inf),
        ([*[_SENT] * 12, ("wait", 2.0)], math.inf),
    ],
    ids=["taken out", "slow start", "cooling", "open breaker", "suspect"],
)
def test_unusual_states_take_the_general_way(steps: list[Step], ends_after_s: float) -> None:
    """A state ends the one-step way at once, and its end by elapsed time begins it again."""
    world = both(Fleet(), steps, 40)
    start_s = world.now_s
    for after_s in (0.0, 9.9, 10.0, 29.9, 30.0):
        world.now_s, before = start_s + after_s, world.begun
        world.do("request", (0.0, _USUAL, 0.5))
        assert (world.begun > before) == (after_s >= ends_after_s)


def test_a_reload_counts_on() -> None:
    """An attempt that is sent after a reload does not replace one in the books that was sent before."""
    make = Fleet().build()
    old = make(None)
    old.on_sent(Seen(old.replicas[0], 1.0), _USUAL, None, is_first=True)
    new = make(old)
    new.on_sent(Seen(new.replicas[0], 2.0), _USUAL, None, is_first=True)
    assert len(new.loads.of[new.replicas[0]].stalls._waiting) == 2


@pytest.mark.parametrize(
    ("owner", "name"),
    [("loads", "on_request"), ("budget", "earn_sent"), ("quotas", "reserve"), ("learning", "ready_plan")],
)
def test_a_bug_counts_no_attempt(owner: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If `begin` raises, no replica has an attempt that would never end; the general way then counts it once."""
    world = both(Fleet(limits=()), [], 40)

    def broken(*_args: object, **_named: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(type(getattr(world.pool, owner)), name, broken)
    with pytest.raises(ZeroDivisionError):
        world.do("request", (0.0, _USUAL, 0.0))
    for replica, load in world.pool.loads.of.items():
        assert (replica.in_flight, load.pending, load.stalls._waiting) == (0, 0.0, {})
